"""What to do with a step that fails to compute: find the requests it fails for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput
from ridgeline.engine.engine import Engine, ExecutedStep


def execute_survivors(
    engine: Engine, scheduler_output: SchedulerOutput
) -> tuple[ExecutedStep, Mapping[str, Exception]]:
    """Compute each request of a failed step alone: a step of those that succeed, and why the others don't.

    A request's tokens don't depend on its neighbours, so the survivors get what the whole step would
    have given. Block copies are done with the first that succeeds: a copy done again would overwrite
    what was computed after it.
    """
    started_at_s = engine.clock.now()
    survivors, outputs, faults = [], [], dict[str, Exception]()
    copies = scheduler_output.block_copies
    for item in scheduler_output.scheduled:
        alone = replace(scheduler_output, scheduled=(item,), block_copies=copies)
        try:
            outputs.append(engine.execute(alone).runner_output)
        except Exception as error:  # noqa: BLE001 - whatever it is, this request can't be computed
            faults[item.request.request_id] = error
        else:
            survivors.append(item)
            copies = ()
    merged = ModelRunnerOutput(
        [token_id for output in outputs for token_id in output.sampled_token_ids],
        [logprobs for output in outputs for logprobs in output.logprobs],
        [logprobs for output in outputs for logprobs in output.prompt_logprobs],
        forced_token_ids={i: ids for i, o in enumerate(outputs) for ids in o.forced_token_ids.values()},
        failures={i: reason for i, o in enumerate(outputs) for reason in o.failures.values()},
    )
    step = replace(scheduler_output, scheduled=tuple(survivors))
    return ExecutedStep(step, merged, started_at_s, engine.clock.now()), faults

"""What-if questions about the run that was explained, and real runs that check the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Any

from ridgeline.bench.synthetic_model import BLOCK_SIZE, SyntheticModel
from ridgeline.config.machine import available_memory_bytes
from ridgeline.core.kv_cache_manager import num_blocks_for
from ridgeline.explain.phases import num_prefill_tokens
from ridgeline.explain.recorder import Recorder, RunRecord
from ridgeline.llm import LLM
from ridgeline.perf.crossover import prefill_step
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.predict import Predictor
from ridgeline.perf.quantities import bytes_text
from ridgeline.perf.step_shape import StepShape
from ridgeline.perf.what_if import WhatIf, what_if
from ridgeline.perf.what_if_changes import Change, Scenario
from ridgeline.sampling_params import SamplingParams

MAX_CHECK_S = 60.0
_MEMORY_SHARE = 0.5
_NUM_STEPS = 8
NOT_RUNNABLE: Mapping[str, str] = MappingProxyType(
    {
        "kv_dtype": "the engine keeps K and V in float16 only",
        "hardware": "that is another machine",
        "bandwidth": "this machine's memory is as fast as it is",
        "compute": "this machine computes as fast as it does",
    }
)
"""What-ifs that no run on this machine can check, and why."""

OpenLLM = Callable[[int, int], LLM]
"""The same model with so many threads, for so many requests at once."""


def what_ifs(
    model: ModelShape, profile: HardwareProfile, run: RunRecord, changes: Sequence[Change]
) -> list[tuple[str, WhatIf]]:
    """(phase, answer): each change alone, and all together where there are several.

    Raises:
        ConfigError: a change doesn't fit the model or the machine.
    """
    questions: list[Sequence[Change]] = [[change] for change in changes]
    if len(changes) > 1:
        questions.append(changes)
    return [
        (phase, what_if(Scenario(model, profile, step), question))
        for phase, step in scenario_steps(run).items()
        for question in questions
    ]


def scenario_steps(run: RunRecord) -> dict[str, StepShape]:
    """A step of each phase to ask about: the largest prefill, and the middle one of the full decodes."""
    prefills: list[StepShape] = []
    decodes: list[StepShape] = []
    for step in run.steps:
        (prefills if num_prefill_tokens(step, run.num_prompt_tokens) else decodes).append(step.shape)
    steps = {}
    if prefills:
        steps["prefill"] = max(prefills, key=lambda shape: shape.num_tokens)
    if decodes:
        most = max(len(shape.rows) for shape in decodes)
        full = [shape for shape in decodes if len(shape.rows) == most]
        steps["decode"] = full[len(full) // 2]
    return steps


def what_if_document(phase: str, answer: WhatIf, text: str, open_llm: OpenLLM) -> dict[str, Any]:
    """The answer, and a decode step of a real run beside it where this machine can make one.

    Other weights are made up: how long products with them take depends on their type and shape alone.
    """
    checked = None
    reason = _obstacle(answer) if phase == "decode" else "only decode steps are run"
    if reason is None:
        is_made_up = any(change.name == "weights" for change in answer.changes)
        measured = _made_up_step_s(answer) if is_made_up else _own_step_s(answer, text, open_llm)
        if isinstance(measured, float):
            checked = {
                "measured_s": measured,
                "error": answer.after_s / measured - 1,
                "weights": "made up" if is_made_up else "own",
            }
        else:
            reason = measured
    return {"phase": phase, **answer.document(), "checked": checked, "not_checked": reason}


def _obstacle(answer: WhatIf) -> str | None:
    """Why no run on this machine can show it."""
    for change in answer.changes:
        if change.name in NOT_RUNNABLE:
            return NOT_RUNNABLE[change.name]
    rows = answer.after.step.rows
    predictor = Predictor(answer.before.model, answer.before.profile)
    prefill_s = predictor.predict(prefill_step(0, max(rows[0].num_computed_tokens, 1))).total_s
    run_s = len(rows) * prefill_s + _NUM_STEPS * answer.after_s
    return f"the run would take some {run_s:,.0f} s" if run_s > MAX_CHECK_S else None


def _own_step_s(answer: WhatIf, text: str, open_llm: OpenLLM) -> float | str:
    with open_llm(answer.after.profile.num_threads, len(answer.after.step.rows)) as llm:
        return _decode_step_s(llm, text, answer.after.step)


def _made_up_step_s(answer: WhatIf) -> float | str:
    """Median seconds of such decode steps of a real engine on made-up weights; in words, why it can't run."""
    model, rows = answer.after.model, answer.after.step.rows
    num_prompt = _num_prompt(answer.after.step)
    num_blocks = len(rows) * num_blocks_for(num_prompt + _NUM_STEPS, BLOCK_SIZE)
    num_bytes = model.weights_bytes + num_blocks * BLOCK_SIZE * model.kv_shape.bytes_per_token
    if num_bytes > _MEMORY_SHARE * available_memory_bytes():
        return f"made-up weights, K and V would take {bytes_text(num_bytes)}"
    num_threads = answer.after.profile.num_threads
    with SyntheticModel(model, num_threads=num_threads, num_blocks=num_blocks) as engine:
        engine.engine_steps(1, num_prompt_tokens=1, num_steps=2)
        steps = engine.engine_steps(len(rows), num_prompt_tokens=num_prompt, num_steps=_NUM_STEPS)
    return median(step.wall_s for step in steps[1:])


def _num_prompt(step: StepShape) -> int:
    """Tokens of a prompt whose `_NUM_STEPS` decode steps lie around those of `step`."""
    return max(step.rows[0].num_computed_tokens - _NUM_STEPS // 2, 1)


def _decode_step_s(llm: LLM, text: str, step: StepShape) -> float | str:
    """Median seconds of decode steps like `step`; in words, why the engine can't run them."""
    parts, batch = llm.parts, len(step.rows)
    num_prompt = _num_prompt(step)
    last = num_prompt + _NUM_STEPS
    if last > parts.limits.max_model_len:
        return f"the engine takes at most {parts.limits.max_model_len:,} tokens a request"
    if batch * num_blocks_for(last, parts.limits.block_size) > parts.limits.num_blocks:
        return f"the KV cache holds only {parts.limits.num_blocks:,} blocks"
    ids = list(parts.tokenizer.encode_prompt(text))
    prompt = (ids * -(-num_prompt // len(ids)))[:num_prompt]
    recorder = Recorder(parts.engine, parts.input_processor, parts.tokenizer)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=2)
    recorder.run(lambda: prompt[:1], params)
    # Requests join one by one, as their prompts are computed: the first must last until all are there.
    joining = -(-batch * num_prompt // parts.config.scheduler.max_num_batched_tokens)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=_NUM_STEPS + joining)
    run = recorder.run(lambda: prompt, params, num_requests=batch)
    full = [each for each in run.steps if len(each.shape.rows) == each.shape.num_tokens == batch]
    return median(each.seconds for each in full) if full else "the requests never decoded together"

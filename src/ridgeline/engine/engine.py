"""Engine: schedule, execute, update, once per step. It knows tokens, not text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ridgeline.core.events import Event, EventRecorder, StepFinished, TokensEmitted
from ridgeline.core.request import Request
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from ridgeline.engine.clock import Clock
from ridgeline.engine.executor import Executor
from ridgeline.outputs import FinishReason
from ridgeline.perf.predict import StepPrediction


class EventListener(Protocol):
    """Whoever folds events."""

    def record(self, events: Iterable[Event]) -> None:
        """Take the events of one step."""
        ...


class EngineOutput(NamedTuple):
    """What one step made known of one request.

    `token_id` is None when the step computed a piece of the prompt only, or the request failed.
    `forced_token_ids` came with it, without a choice.
    """

    request: Request
    token_id: int | None
    logprobs: TokenLogprobs | None
    prompt_logprobs: Sequence[TokenLogprobs]
    emitted_at_s: float
    forced_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges of this moment, and counts since the start. `Occupancy` says what the blocks' states mean."""

    num_requests_running: int
    num_requests_waiting: int
    num_preemptions: int
    num_blocks: int
    num_used_blocks: int
    num_idle_blocks: int
    num_free_blocks: int
    num_slack_slots: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evicted_blocks: int
    prefix_hit_rate: float | None


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step that was computed and not yet taken into account; `forecast_s` of its time predicted it."""

    scheduler_output: SchedulerOutput
    runner_output: ModelRunnerOutput
    started_at_s: float
    finished_at_s: float
    prediction: StepPrediction | None = None
    forecast_s: float = 0.0


class Engine:
    """Runs the step loop over finished parts: a scheduler, an executor, a clock and listeners.

    `forecast` says what a step will take before it runs; None where the machine is not calibrated.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        recorder: EventRecorder,
        listeners: Sequence[EventListener] = (),
        forecast: Callable[[SchedulerOutput], StepPrediction] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._recorder = recorder
        self.clock = clock
        self._executor = executor
        self._listeners = tuple(listeners)
        self._forecast = forecast

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return self.scheduler.has_unfinished_requests

    @property
    def stats(self) -> EngineStats:
        """Requests and blocks right now."""
        scheduler, occupancy = self.scheduler, self.scheduler.occupancy
        return EngineStats(
            num_requests_running=scheduler.num_running,
            num_requests_waiting=scheduler.num_waiting,
            num_preemptions=scheduler.num_preemptions,
            num_blocks=occupancy.num_blocks,
            num_used_blocks=occupancy.num_used_blocks,
            num_idle_blocks=occupancy.num_idle_blocks,
            num_free_blocks=occupancy.num_free_blocks,
            num_slack_slots=occupancy.num_slack_slots,
            num_queried_tokens=occupancy.num_queried_tokens,
            num_hit_tokens=occupancy.num_hit_tokens,
            num_evicted_blocks=occupancy.num_evicted_blocks,
            prefix_hit_rate=occupancy.hit_rate,
        )

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: its id is taken or it can never fit.
        """
        self.scheduler.add_request(request, self.clock.now())

    def finish_request(
        self, request_id: str, finish_reason: FinishReason, *, stop_reason: int | str | None = None
    ) -> None:
        """End a request now and free its blocks; nothing happens when it is already over."""
        self.scheduler.finish_request(request_id, finish_reason, self.clock.now(), stop_reason=stop_reason)

    def reset_prefix_cache(self) -> None:
        """Nothing computed so far is found from now on."""
        self.scheduler.reset_prefix_cache(self.clock.now())

    def step(self) -> list[EngineOutput]:
        """Run one step; returns what it made known, in the order of the batch."""
        return self.commit(self.execute(self.schedule()))

    def schedule(self) -> SchedulerOutput:
        """Decide the next step's work; possibly none."""
        return self.scheduler.schedule(self.clock.now())

    def execute(self, scheduler_output: SchedulerOutput) -> ExecutedStep:
        """Compute a step. When this fails nothing has happened, and the next step does the work again."""
        started_at_s = self.clock.now()
        if not scheduler_output.scheduled:
            return ExecutedStep(scheduler_output, ModelRunnerOutput([], [], []), started_at_s, started_at_s)
        prediction, forecast_s = None, 0.0
        if self._forecast is not None:
            prediction = self._forecast(scheduler_output)
            forecast_s = self.clock.now() - started_at_s
        runner_output = self._executor.execute(scheduler_output)
        finished_at_s = self.clock.now()
        return ExecutedStep(
            scheduler_output, runner_output, started_at_s, finished_at_s, prediction, forecast_s
        )

    def commit(self, step: ExecutedStep) -> list[EngineOutput]:
        """Take a computed step's tokens; returns what it made known, in the order of the batch."""
        if not step.scheduler_output.scheduled:
            self.publish_events()
            return []
        now = step.finished_at_s
        advanced = self.scheduler.update_from_output(step.scheduler_output, step.runner_output, now)
        self.publish_events(
            TokensEmitted(now, tuple([(request.request_id, count) for request, count in advanced])),
            _step_finished(step),
        )
        return _engine_outputs(step, dict(advanced) if step.runner_output.forced_token_ids else {})

    def publish_events(self, *events: Event) -> None:
        """Hand the core's events, then these, to the listeners."""
        published = [*self._recorder.take(), *events]
        for listener in self._listeners:
            listener.record(published)

    def close(self) -> None:
        """Abort what is unfinished and close the executor."""
        for request_id in self.scheduler.request_ids():
            self.finish_request(request_id, FinishReason.ABORT)
        self.publish_events()
        self._executor.close()


def _engine_outputs(step: ExecutedStep, num_taken: Mapping[Request, int]) -> list[EngineOutput]:
    """`num_taken` says how many tokens a request took, for those that may have taken several."""
    runner_output = step.runner_output
    outputs = [
        EngineOutput(item.request, token_id, logprobs, prompt_logprobs, step.finished_at_s)
        for item, token_id, logprobs, prompt_logprobs in zip(
            step.scheduler_output.scheduled,
            runner_output.sampled_token_ids,
            runner_output.logprobs,
            runner_output.prompt_logprobs,
            strict=True,
        )
    ]
    for index, token_ids in runner_output.forced_token_ids.items():
        num_forced = max(num_taken.get(outputs[index].request, 0) - 1, 0)
        outputs[index] = outputs[index]._replace(forced_token_ids=token_ids[:num_forced])
    return outputs


def _step_finished(step: ExecutedStep) -> StepFinished:
    scheduler_output, finished_at_s, prediction = step.scheduler_output, step.finished_at_s, step.prediction
    composition = [
        (item.request.request_id, item.num_computed_tokens, item.num_scheduled_tokens)
        for item in scheduler_output.scheduled
    ]
    return StepFinished(
        finished_at_s,
        scheduler_output.step_id,
        tuple(composition),
        finished_at_s - step.started_at_s,
        step.runner_output.op_seconds,
        prediction.op_s if prediction is not None else None,
        prediction.bound_op_s if prediction is not None else None,
    )

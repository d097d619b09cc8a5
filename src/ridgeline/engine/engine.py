"""Engine: schedule, execute, update, once per step. It knows tokens, not text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ridgeline.core.events import Event, EventRecorder, StepFinished, TokensEmitted
from ridgeline.core.request import Request
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from ridgeline.engine.clock import Clock
from ridgeline.engine.executor import Executor
from ridgeline.outputs import FinishReason


class EventListener(Protocol):
    """Whoever folds events."""

    def record(self, events: Iterable[Event]) -> None:
        """Take the events of one step."""
        ...


class EngineOutput(NamedTuple):
    """What one step made known of one request.

    `token_id` is None when the step computed a piece of the prompt only.
    """

    request: Request
    token_id: int | None
    logprobs: TokenLogprobs | None
    prompt_logprobs: Sequence[TokenLogprobs]
    emitted_at_s: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges of this moment."""

    num_requests_running: int
    num_requests_waiting: int
    num_blocks: int
    num_used_blocks: int


class Engine:
    """Runs the step loop over finished parts: a scheduler, an executor, a clock and listeners."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        *,
        recorder: EventRecorder,
        listeners: Sequence[EventListener] = (),
    ) -> None:
        self.scheduler = scheduler
        self._recorder = recorder
        self.clock = clock
        self._executor = executor
        self._listeners = tuple(listeners)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return self.scheduler.has_unfinished_requests

    @property
    def stats(self) -> EngineStats:
        """Requests and blocks right now."""
        scheduler = self.scheduler
        return EngineStats(
            num_requests_running=scheduler.num_running,
            num_requests_waiting=scheduler.num_waiting,
            num_blocks=scheduler.num_blocks,
            num_used_blocks=scheduler.num_used_blocks,
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

    def step(self) -> list[EngineOutput]:
        """Run one step; returns what it made known, in the order of the batch."""
        scheduler_output = self.scheduler.schedule(self.clock.now())
        if not scheduler_output.scheduled:
            self.publish_events()
            return []
        started_at_s = self.clock.now()
        runner_output = self._executor.execute(scheduler_output)
        now = self.clock.now()
        advanced = self.scheduler.update_from_output(scheduler_output, runner_output, now)
        self.publish_events(
            TokensEmitted(now, tuple([(request.request_id, 1) for request in advanced])),
            _step_finished(scheduler_output, runner_output, now, now - started_at_s),
        )
        return _engine_outputs(scheduler_output, runner_output, now)

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


def _engine_outputs(
    scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float
) -> list[EngineOutput]:
    return [
        EngineOutput(item.request, token_id, logprobs, prompt_logprobs, now)
        for item, token_id, logprobs, prompt_logprobs in zip(
            scheduler_output.scheduled,
            runner_output.sampled_token_ids,
            runner_output.logprobs,
            runner_output.prompt_logprobs,
            strict=True,
        )
    ]


def _step_finished(
    scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float, execute_s: float
) -> StepFinished:
    composition = [
        (item.request.request_id, item.num_computed_tokens, item.num_scheduled_tokens)
        for item in scheduler_output.scheduled
    ]
    return StepFinished(
        now, scheduler_output.step_id, tuple(composition), execute_s, runner_output.op_seconds
    )

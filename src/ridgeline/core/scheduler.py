"""Scheduler: which requests get how many tokens in the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.events import EventRecorder, RequestArrived, RequestFinished, RequestScheduled
from ridgeline.core.kv_cache_manager import KVCacheManager
from ridgeline.core.request import Request, RequestStatus
from ridgeline.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from ridgeline.errors import RequestError
from ridgeline.outputs import FinishReason


class Scheduler:
    """Continuous batching, first come first served. The only writer of a request's state.

    A step closes the gap between a request's `num_computed_tokens` and `num_tokens`: running
    requests first, then waiting ones, until `max_num_batched_tokens` or `max_num_seqs` is used up.
    A long prompt is computed in pieces of what the budget leaves, so running requests get their
    token in every step.
    """

    def __init__(
        self, config: SchedulerConfig, kv_cache_manager: KVCacheManager, recorder: EventRecorder
    ) -> None:
        self.config = config
        self._kv_cache_manager = kv_cache_manager
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._next_step_id = 0
        self._recorder = recorder

    @property
    def num_waiting(self) -> int:
        """Requests that have not been admitted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold, or may take, blocks."""
        return len(self._running)

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._kv_cache_manager.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that requests hold."""
        return self._kv_cache_manager.num_used_blocks

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether another step would do anything."""
        return bool(self._requests)

    def request_ids(self) -> list[str]:
        """Ids of all unfinished requests, oldest first."""
        return list(self._requests)

    def add_request(self, request: Request, now: float) -> None:
        """Put a request into the waiting queue.

        Raises:
            RequestError: the id is taken, or an empty cache could not hold the request.
        """
        if request.request_id in self._requests:
            raise RequestError("request_id", request.request_id, "is already in use; choose another")
        if not self._kv_cache_manager.fits_at_all(request):
            manager = self._kv_cache_manager
            raise RequestError(
                "prompt",
                f"{request.num_prompt_tokens} tokens",
                f"needs {manager.max_blocks_of(request)} blocks of {manager.block_size} tokens with its "
                f"output, the KV cache has {manager.num_blocks}; shorten it or raise kv_cache_bytes",
            )
        self._requests[request.request_id] = request
        self._waiting.append(request)
        request.queued_at_s = now
        self._recorder.record(
            RequestArrived(now, request.request_id, request.arrived_at_s, request.num_prompt_tokens)
        )

    def schedule(self, now: float) -> SchedulerOutput:
        """Decide the next step's work and take the blocks it needs."""
        token_budget = self.config.max_num_batched_tokens
        scheduled: list[ScheduledRequest] = []
        for request in self._running:
            if token_budget == 0:
                break
            token_budget -= self._schedule_request(request, token_budget, scheduled, now)
        while self._waiting and token_budget > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._waiting[0]
            if not self._kv_cache_manager.try_admit(request):
                break
            self._waiting.popleft()
            self._running.append(request)
            request.status = RequestStatus.RUNNING
            request.scheduled_at_s = now
            self._recorder.record(RequestScheduled(now, request.request_id))
            token_budget -= self._schedule_request(request, token_budget, scheduled, now)
        step_id = self._next_step_id
        self._next_step_id += 1
        return SchedulerOutput(step_id, tuple(scheduled))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float
    ) -> list[Request]:
        """Advance the scheduled requests by what was computed; returns those that got a token.

        A request that was finished while the step ran is left alone: its tokens are dropped.
        """
        advanced: list[Request] = []
        sampled = zip(scheduler_output.scheduled, runner_output.sampled_token_ids, strict=True)
        for item, token_id in sampled:
            request = item.request
            if request.is_finished:
                continue
            self._kv_cache_manager.note_computed(request, item.num_scheduled_tokens, now)
            request.num_computed_tokens += item.num_scheduled_tokens
            if token_id is None:
                continue
            request.output_token_ids.append(token_id)
            advanced.append(request)
            self._check_stop(request, token_id, now)
        return advanced

    def finish_request(
        self,
        request_id: str,
        finish_reason: FinishReason,
        now: float,
        *,
        stop_reason: int | str | None = None,
    ) -> Request | None:
        """End a request from outside (abort, stop string); None when it is already over."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, finish_reason, stop_reason, now)
        return request

    def check_integrity(self) -> None:
        """Assert the queues' and the cache's invariants."""
        self._kv_cache_manager.check_integrity()
        ids = [r.request_id for r in (*self._waiting, *self._running)]
        assert len(ids) == len(set(ids))
        assert set(ids) == set(self._requests)
        assert len(self._running) <= self.config.max_num_seqs
        assert all(r.status is RequestStatus.WAITING for r in self._waiting)
        assert all(r.status is RequestStatus.RUNNING for r in self._running)

    def _schedule_request(
        self, request: Request, token_budget: int, scheduled: list[ScheduledRequest], now: float
    ) -> int:
        num_new_tokens = min(request.num_tokens - request.num_computed_tokens, token_budget)
        assert num_new_tokens > 0
        self._kv_cache_manager.allocate_slots(request, num_new_tokens, now)
        block_ids: Sequence[int] = self._kv_cache_manager.block_ids(request.request_id)
        scheduled.append(ScheduledRequest(request, request.num_computed_tokens, num_new_tokens, block_ids))
        return num_new_tokens

    def _check_stop(self, request: Request, token_id: int, now: float) -> None:
        params = request.sampling_params
        if request.num_output_tokens >= params.min_tokens:
            if token_id in request.eos_token_ids and not params.ignore_eos:
                self._finish(request, FinishReason.STOP, None, now)
                return
            if token_id in params.stop_token_ids:
                self._finish(request, FinishReason.STOP, token_id, now)
                return
        if request.num_tokens >= request.max_num_tokens:
            self._finish(request, FinishReason.LENGTH, None, now)

    def _finish(
        self, request: Request, finish_reason: FinishReason, stop_reason: int | str | None, now: float
    ) -> None:
        queue = self._running if request.status is RequestStatus.RUNNING else self._waiting
        queue.remove(request)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = finish_reason
        request.stop_reason = stop_reason
        self._kv_cache_manager.free(request, now)
        self._recorder.record(
            RequestFinished(now, request.request_id, finish_reason, request.num_output_tokens)
        )

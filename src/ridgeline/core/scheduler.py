"""Scheduler: which requests get how many tokens in the next step."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core import events
from ridgeline.core.events import Lack
from ridgeline.core.kv_cache_manager import KVCacheManager, Occupancy
from ridgeline.core.request import Request, RequestStatus
from ridgeline.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from ridgeline.core.step_plan import StepPlan
from ridgeline.core.waiting_queue import WaitingQueue
from ridgeline.errors import RequestError
from ridgeline.outputs import FinishReason, StopReason

_MAX_PASSED = 64


class Scheduler:
    """Continuous batching. The only writer of a request's state.

    A step closes the gap between a request's `num_computed_tokens` and `num_tokens`. First every running
    request with one token to compute, then longer gaps and waiting requests share what is left. When blocks
    run out, the newest of the least urgent is preempted: it gives its own back, keeps its tokens and waits.
    """

    def __init__(
        self, config: SchedulerConfig, kv_cache_manager: KVCacheManager, recorder: events.EventRecorder
    ) -> None:
        self.config = config
        self._kv_cache_manager = kv_cache_manager
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue()
        self._running: dict[str, Request] = {}
        self._forks: dict[str, Request] = {}
        self._samples: dict[str, list[Request]] = {}
        self._held: tuple[str, Lack] | None = None
        self._next_step_id = self._num_arrived = self.num_preemptions = 0
        self._recorder = recorder

    @property
    def num_waiting(self) -> int:
        """Requests that have not been admitted, or were preempted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold, or may take, blocks."""
        return len(self._running)

    @property
    def occupancy(self) -> Occupancy:
        """The KV cache's blocks by state, right now."""
        return self._kv_cache_manager.occupancy

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
        self._kv_cache_manager.check_fits(request)
        if request.fork_of in self._requests:
            self._samples.setdefault(request.fork_of, []).append(request)
        self._requests[request.request_id] = request
        request.queued_at_s = now
        # Both age alike while they wait, so who goes first is settled when they arrive.
        aged = request.priority + now / self.config.priority_aging_s
        urgency = aged if self.config.scheduling_policy == "priority" else 0.0
        request.queue_key = (urgency, self._num_arrived)
        self._num_arrived += 1
        self._waiting.push(request)
        self._recorder.record(_arrived(request, now))

    def schedule(self, now: float) -> SchedulerOutput:
        """Decide the next step's work and take the blocks it needs."""
        plan = StepPlan(self.config.max_num_batched_tokens)
        self._plan_single_tokens(plan, now)
        self._plan_long_gaps(plan, now, self._even_share(plan))
        self._admit(plan, now)
        self._plan_long_gaps(plan, now, plan.num_left)
        block_ids = self._kv_cache_manager.block_ids
        scheduled = [
            ScheduledRequest(request, request.num_computed_tokens, num_tokens, block_ids(request.request_id))
            for request, num_tokens in plan.shares.items()
        ]
        self._next_step_id += 1
        return SchedulerOutput(self._next_step_id - 1, tuple(scheduled), self._kv_cache_manager.block_copies)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float
    ) -> list[tuple[Request, int]]:
        """Advance the scheduled requests by what was computed; returns who got tokens, and how many.

        A request that was finished while the step ran is left alone: its tokens are dropped.
        """
        manager, advanced = self._kv_cache_manager, list[tuple[Request, int]]()
        block_size = manager.block_size
        manager.confirm_copies(now)
        sampled = zip(scheduler_output.scheduled, runner_output.sampled_token_ids, strict=True)
        for index, (item, token_id) in enumerate(sampled):
            request, num_new_tokens = item.request, item.num_scheduled_tokens
            if request.status is not RequestStatus.RUNNING:
                continue
            if request.num_computed_tokens % block_size + num_new_tokens >= block_size:
                manager.note_filled(request, num_new_tokens, now)
            request.num_computed_tokens += num_new_tokens
            if request.sampling_params.prompt_logprobs is not None:
                num_known = min(request.num_computed_tokens, request.num_prompt_tokens - 1)
                request.num_prompt_logprobs = max(request.num_prompt_logprobs, num_known)
            if token_id is None:
                if index in runner_output.failures:
                    self._finish(request, FinishReason.ERROR, runner_output.failures[index], now)
                continue
            if not request.output_token_ids and request.request_id in self._samples:
                self._fork(request, now)
            forced_token_ids = runner_output.forced_token_ids.get(index, ())
            advanced.append((request, self._append(request, (token_id, *forced_token_ids), now)))
        return advanced

    def finish_request(
        self, request_id: str, finish_reason: FinishReason, now: float, *, stop_reason: StopReason = None
    ) -> Request | None:
        """End a request from outside (abort, stop string); None when it is already over."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, finish_reason, stop_reason, now)
        return request

    def reset_prefix_cache(self, now: float) -> None:
        """Nothing computed so far is found from now on."""
        self._kv_cache_manager.reset_prefix_cache(now)

    def check_integrity(self) -> None:
        """Assert the queues' and the cache's invariants."""
        self._kv_cache_manager.check_integrity()
        waiting = self._waiting.requests()
        ids = [r.request_id for r in (*waiting, *self._running.values())]
        assert len(ids) == len(set(ids))
        assert set(ids) == set(self._requests)
        assert len(self._running) <= self.config.max_num_seqs
        assert {r.status for r in waiting} <= {RequestStatus.WAITING}
        assert {r.status for r in self._running.values()} <= {RequestStatus.RUNNING}
        assert all(r.num_computed_tokens == 0 for r in waiting if r.request_id not in self._forks)

    def _plan_single_tokens(self, plan: StepPlan, now: float) -> None:
        """One token for each running request that has one to compute: nothing long goes before them.

        If there are more running requests than tokens, each gets one, and those served go to the back.
        """
        running, block_size = list(self._running.values()), self._kv_cache_manager.block_size
        is_crowded = len(running) > plan.num_left
        for request in running:
            if plan.num_left == 0:
                break
            if request.status is not RequestStatus.RUNNING:
                continue
            num_computed_tokens = request.num_computed_tokens
            num_missing = request.num_tokens - num_computed_tokens
            if num_missing > 1 and not is_crowded:
                has_promised = self._kv_cache_manager.has_promised(request)
                if has_promised or self._find_slots(request, num_missing, plan, now):
                    plan.prefilling.append(request)
            # A block that was begun has a slot; most steps of most requests need no more than this look.
            elif num_computed_tokens % block_size or self._find_slots(request, 1, plan, now):
                plan.shares[request] = 1
                plan.num_left -= 1
        if is_crowded:
            for request in plan.shares:
                self._running[request.request_id] = self._running.pop(request.request_id)

    def _even_share(self, plan: StepPlan) -> int:
        """Tokens for each prompt that may be partly computed, newcomers counted in."""
        num_sharers = min(len(plan.prefilling) + len(self._waiting), self.config.max_num_partial_prefills)
        return -(-plan.num_left // max(num_sharers, 1))

    def _plan_long_gaps(self, plan: StepPlan, now: float, share: int) -> None:
        for request in plan.prefilling:
            num_tokens = min(self._chunk_of(request, plan), share)
            if num_tokens > 0:
                self._give(request, num_tokens, plan, now)

    def _give(self, request: Request, num_tokens: int, plan: StepPlan, now: float) -> None:
        num_in_step = plan.shares.get(request, 0) + num_tokens
        has_slots = self._kv_cache_manager.allocate_slots(request, num_in_step, now)
        assert has_slots, "known tokens were promised their blocks"
        plan.give(request, num_tokens)

    def _chunk_of(self, request: Request, plan: StepPlan) -> int:
        """Most tokens the step may still give to a request, which may be none."""
        num_tokens = min(plan.num_missing(request), plan.num_left)
        threshold = self.config.long_prefill_token_threshold
        return min(num_tokens, threshold - plan.shares.get(request, 0)) if threshold else num_tokens

    def _find_slots(self, request: Request, num_tokens: int, plan: StepPlan, now: float) -> bool:
        """Slots for some tokens, taken from others if need be; False when the request itself gave way."""
        while not self._kv_cache_manager.allocate_slots(request, num_tokens, now):
            victim = max((*self._running.values(), *self._forks.values()), key=self._rank)
            self._preempt(victim, request, plan, now)
            if victim is request:
                return False
        return True

    def _rank(self, request: Request) -> tuple[int, int]:
        """Who gives way: the highest, that is the newest of the least urgent. It never changes."""
        is_by_priority = self.config.scheduling_policy == "priority"
        return (request.priority if is_by_priority else 0, request.queue_key[1])

    def _preempt(self, victim: Request, displacing: Request, plan: StepPlan, now: float) -> None:
        """Take all blocks from a running request, or from a fork that waits; its tokens are kept."""
        self._recorder.record(
            events.RequestPreempted(now, victim.request_id, displacing.request_id, victim.num_computed_tokens)
        )
        plan.drop(victim)
        self._kv_cache_manager.free(victim, now)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        if self._forks.pop(victim.request_id, None) is None:
            del self._running[victim.request_id]
            victim.status = RequestStatus.WAITING
            self._waiting.push(victim)

    def _admit(self, plan: StepPlan, now: float) -> None:
        """Let waiting requests in, in order; who only waits for something computed now may be passed."""
        manager, passed = self._kv_cache_manager, list[Request]()
        lack: Lack | None = None
        while (
            self._waiting
            and plan.num_left > 0
            and len(self._running) < self.config.max_num_seqs
            and len(passed) < _MAX_PASSED
        ):
            request = self._waiting.pop()
            prefix = None if self._gains_by_waiting(request, plan) else manager.find_prefix(request)
            if prefix is None or self._is_one_partial_too_many(request, len(prefix), plan):
                passed.append(request)
            elif manager.try_admit(request, prefix, now):
                self._start(request, len(prefix) * manager.block_size, plan, now)
            else:
                self._waiting.push(request)
                if self._running or not self._forks:
                    lack = Lack.BLOCKS
                    break
                self._admit_first(min((request, *self._forks.values()), key=self._rank), plan, now)
        for request in passed:
            self._waiting.push(request)
        self._tell_who_waits(lack, plan, now)

    def _tell_who_waits(self, lack: Lack | None, plan: StepPlan, now: float) -> None:
        """Record what the first in the queue lacks, once; `lack` ended the admissions, if that did."""
        first = self._waiting.first()
        if first is None:
            self._held = None
            return
        if lack is None:
            is_full = len(self._running) >= self.config.max_num_seqs
            lack = Lack.SEQS if is_full else Lack.PREFILLS if plan.num_left else Lack.TOKENS
        if self._held != (first.request_id, lack):
            self._held = (first.request_id, lack)
            self._recorder.record(events.AdmissionHeld(now, *self._held))

    def _admit_first(self, request: Request, plan: StepPlan, now: float) -> None:
        """Nothing runs, for forks that wait hold the blocks: all give them to the first in rank."""
        for fork in list(self._forks.values()):
            self._preempt(fork, request, plan, now)
        self._waiting.discard(request)
        prefix = self._kv_cache_manager.find_prefix(request)
        is_admitted = self._kv_cache_manager.try_admit(request, prefix, now)
        assert is_admitted, "whatever was accepted fits an empty cache"
        self._start(request, len(prefix) * self._kv_cache_manager.block_size, plan, now)

    def _gains_by_waiting(self, request: Request, plan: StepPlan) -> bool:
        """Whether another request computes, in this step, what this one would have to compute too."""
        if request.fork_of is not None and request.num_computed_tokens == 0:
            first = self._requests.get(request.fork_of)
            if first is not None and first.num_computed_tokens < request.num_prompt_tokens:
                return True
        return any(
            other in plan.shares and self._kv_cache_manager.shares_next_block(request, other)
            for other in plan.prefilling
        )

    def _is_one_partial_too_many(self, request: Request, num_hit_blocks: int, plan: StepPlan) -> bool:
        num_missing = plan.num_missing(request) - num_hit_blocks * self._kv_cache_manager.block_size
        if num_missing <= self._chunk_of(request, plan):
            return False
        config = self.config
        partial = [other for other in plan.prefilling if plan.num_missing(other) > 0]
        num_long = sum(map(self._is_long, partial))
        return len(partial) >= config.max_num_partial_prefills or (
            self._is_long(request) and num_long >= config.max_long_partial_prefills
        )

    def _is_long(self, request: Request) -> bool:
        threshold = self.config.long_prefill_token_threshold or self.config.max_num_batched_tokens
        return request.num_tokens > threshold

    def _start(self, request: Request, num_hit_tokens: int, plan: StepPlan, now: float) -> None:
        """Run an admitted request, give it what is left of the step."""
        self._forks.pop(request.request_id, None)
        self._running[request.request_id] = request
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += num_hit_tokens
        if request.scheduled_at_s is None:
            request.scheduled_at_s = now
            request.num_cached_tokens = num_hit_tokens
        resumed, num_computed_tokens = request.num_preemptions > 0, request.num_computed_tokens
        self._recorder.record(events.RequestScheduled(now, request.request_id, num_computed_tokens, resumed))
        self._give(request, self._chunk_of(request, plan), plan, now)
        plan.prefilling.append(request)

    def _fork(self, first: Request, now: float) -> None:
        """The prompt of several samples is computed: those that wait hold its blocks from now on."""
        for request in self._samples[first.request_id]:
            if request.status is RequestStatus.WAITING and request.request_id not in self._forks:
                request.num_computed_tokens = self._kv_cache_manager.fork(first, request, now)
                self._forks[request.request_id] = request

    def _append(self, request: Request, token_ids: Sequence[int], now: float) -> int:
        """Add tokens to a request's output up to the one that ends it; returns how many."""
        for num_taken, token_id in enumerate(token_ids, 1):
            request.output_token_ids.append(token_id)
            self._check_stop(request, token_id, now)
            if request.status is RequestStatus.FINISHED:
                return num_taken
        return len(token_ids)

    def _check_stop(self, request: Request, token_id: int, now: float) -> None:
        params = request.sampling_params
        if len(request.output_token_ids) >= params.min_tokens:
            if token_id in request.eos_token_ids and not params.ignore_eos:
                self._finish(request, FinishReason.STOP, None, now)
                return
            if token_id in params.stop_token_ids:
                self._finish(request, FinishReason.STOP, token_id, now)
                return
        if request.num_tokens >= request.max_num_tokens:
            self._finish(request, FinishReason.LENGTH, None, now)

    def _finish(
        self, request: Request, finish_reason: FinishReason, stop_reason: StopReason, now: float
    ) -> None:
        if request.status is RequestStatus.RUNNING:
            del self._running[request.request_id]
        else:
            self._waiting.discard(request)
            self._forks.pop(request.request_id, None)
        self._samples.pop(request.request_id, None)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = finish_reason
        request.stop_reason = stop_reason
        self._kv_cache_manager.free(request, now)
        self._recorder.record(
            events.RequestFinished(now, request.request_id, finish_reason, request.num_output_tokens)
        )


def _arrived(request: Request, now: float) -> events.RequestArrived:
    params = request.sampling_params
    return events.RequestArrived(
        *(now, request.request_id, request.arrived_at_s, request.num_prompt_tokens),
        max_tokens=params.max_tokens,
        num_choices=params.n,
        fork_of=request.fork_of,
    )

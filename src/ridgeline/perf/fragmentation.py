"""Replays one trace against several allocators and says where the memory went, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ridgeline.errors import ConfigError
from ridgeline.perf.allocators import (
    PAGED_BLOCK_SIZES,
    Allocator,
    PagedAllocator,
    allocators_to_compare,
)
from ridgeline.perf.heaps import next_power_of_two
from ridgeline.workload.request_trace import TraceRequest

STEP_S = 0.03
"""Length of a step in the trace's time: one token for every running request."""
SHARES = ("used", "reserved", "internal", "external", "unallocated")


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Slots of the memory after one step's admissions; the five amounts add up to the capacity.

    used: hold a token. reserved: empty, and their request will fill them. internal: empty, and it never will.
    external: free, enough for the next waiting request, but not in one piece. unallocated: the other free
    ones. `num_slack_slots` = reserved + internal: held and empty, which for paged memory lie in last blocks.
    """

    at_s: float
    used: int
    reserved: int
    internal: int
    external: int
    unallocated: int
    num_running: int
    num_waiting: int

    @property
    def num_slack_slots(self) -> int:
        """Slots that are held and empty."""
        return self.reserved + self.internal


@dataclass(slots=True)
class _Running:
    request_id: int
    num_tokens: int
    num_final_tokens: int


@dataclass(frozen=True, slots=True)
class Replay:
    """How one allocator fared."""

    allocator_name: str
    block_size: int | None
    capacity: int
    steps: Sequence[StepMemory]
    num_preemptions: int
    num_copied_tokens: int

    @property
    def loaded_steps(self) -> Sequence[StepMemory]:
        """The steps with a request waiting, so that memory was what ran out; all steps where none waited."""
        return [step for step in self.steps if step.num_waiting] or self.steps

    def shares(self) -> Mapping[str, float]:
        """Mean share of the memory under load, by kind; they add up to 1."""
        loaded = self.loaded_steps
        return {name: fmean(getattr(step, name) for step in loaded) / self.capacity for name in SHARES}

    @property
    def useful_of_held(self) -> float:
        """Tokens per held slot under load."""
        loaded = self.loaded_steps
        held = sum(step.used + step.num_slack_slots for step in loaded)
        return sum(step.used for step in loaded) / held

    @property
    def mean_running(self) -> float:
        """Requests that fit at once, on average under load."""
        return fmean(step.num_running for step in self.loaded_steps)

    @property
    def slack_per_sequence(self) -> float:
        """Held and empty slots of a running request, on average under load."""
        running = sum(step.num_running for step in self.loaded_steps)
        return sum(step.num_slack_slots for step in self.loaded_steps) / running

    @property
    def tokens_per_sequence(self) -> float:
        """Tokens in memory of a running request, on average under load."""
        running = sum(step.num_running for step in self.loaded_steps)
        return sum(step.used for step in self.loaded_steps) / running

    def document(self, max_points: int = 300) -> Mapping[str, object]:
        """The replay as JSON has it, with at most `max_points` steps of its course."""
        stride = -(-len(self.steps) // max_points)
        paged = self.block_size is not None
        expected = expected_slack(self.block_size) if self.block_size is not None else None
        return {
            "allocator": self.allocator_name,
            "block_size": self.block_size,
            "shares": dict(self.shares()),
            "useful": self.shares()["used"],
            "useful_of_held": self.useful_of_held,
            "expected_useful_of_held": (
                self.tokens_per_sequence / (self.tokens_per_sequence + expected)
                if paged and expected is not None
                else None
            ),
            "slack_tokens_per_sequence": self.slack_per_sequence,
            "expected_slack_tokens_per_sequence": expected,
            "tokens_per_sequence": self.tokens_per_sequence,
            "requests_that_fit": {
                "mean": self.mean_running,
                "max": max(step.num_running for step in self.steps),
            },
            "steps": len(self.steps),
            "preemptions": self.num_preemptions,
            "copied_tokens": self.num_copied_tokens,
            "course": [
                {"at_s": step.at_s, "running": step.num_running}
                | {name: getattr(step, name) / self.capacity for name in SHARES}
                for step in self.steps[::stride]
            ],
        }


def expected_slack(block_size: int) -> float:
    """Mean empty slots of a last block whose fill is any of 1…block_size with equal chance: (b − 1) / 2."""
    return (block_size - 1) / 2


def compare_allocators(trace: Sequence[TraceRequest], *, capacity: int, max_model_len: int) -> list[Replay]:
    """Replay `trace` against every allocator, each with `capacity` slots.

    Raises:
        ConfigError: a request is longer than `max_model_len`, or the memory is too small to replay it.
    """
    longest = max(request.num_resident_tokens + 1 for request in trace)
    if longest > max_model_len:
        raise ConfigError("max_model_len", max_model_len, f"the trace holds a request of {longest} tokens")
    least = max(2 * next_power_of_two(max_model_len), *PAGED_BLOCK_SIZES)
    if capacity < least:
        remedy = f"must be ≥ {least}, so that one request of max_model_len {max_model_len} fits everywhere"
        raise ConfigError("capacity_tokens", capacity, remedy)
    return [replay(trace, allocator) for allocator in allocators_to_compare(capacity, max_model_len)]


def replay(trace: Sequence[TraceRequest], allocator: Allocator) -> Replay:
    """Serve the trace first come first served, a token for every running request in each step.

    A prompt is there at once when it is admitted. A request that can't grow preempts the newest one, which
    waits in front and comes back with the tokens it had.
    """
    course = _Course(allocator, trace)
    while course.is_unfinished:
        course.step()
    return Replay(
        allocator_name=allocator.name,
        block_size=allocator.block_size if isinstance(allocator, PagedAllocator) else None,
        capacity=allocator.capacity,
        steps=course.steps,
        num_preemptions=course.num_preemptions,
        num_copied_tokens=allocator.num_copied_tokens,
    )


@dataclass(slots=True)
class _Course:
    """The state of one replay."""

    allocator: Allocator
    trace: Sequence[TraceRequest]
    now_s: float = 0.0
    num_arrived: int = 0
    num_preemptions: int = 0
    waiting: deque[_Running] = field(default_factory=deque)
    running: list[_Running] = field(default_factory=list)
    steps: list[StepMemory] = field(default_factory=list)

    @property
    def is_unfinished(self) -> bool:
        return bool(self.running or self.waiting or self.num_arrived < len(self.trace))

    def step(self) -> None:
        self._arrive()
        self._grow()
        while self.waiting and self._admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        assert self.running or not self.waiting, "one request alone does not fit"
        self.steps.append(self._measure())
        for request in [r for r in self.running if r.num_tokens >= r.num_final_tokens]:
            self.allocator.release(request.request_id)
            self.running.remove(request)
        self.now_s += STEP_S

    def _arrive(self) -> None:
        if not self.running and not self.waiting:
            self.now_s = max(self.now_s, self.trace[self.num_arrived].arrived_at_s)
        while self.num_arrived < len(self.trace):
            request = self.trace[self.num_arrived]
            if request.arrived_at_s > self.now_s:
                break
            self.waiting.append(
                _Running(self.num_arrived, request.num_prompt_tokens, request.num_resident_tokens)
            )
            self.num_arrived += 1

    def _admit(self, request: _Running) -> bool:
        return self.allocator.admit(request.request_id, request.num_tokens, request.num_final_tokens)

    def _grow(self) -> None:
        """One more token each, oldest first; whoever finds no room sends the newest away."""
        index = 0
        while index < len(self.running):
            request = self.running[index]
            request.num_tokens += 1
            while not self.allocator.grow(request.request_id, request.num_tokens):
                newest = self.running.pop()
                self.allocator.release(newest.request_id)
                self.waiting.appendleft(newest)
                self.num_preemptions += 1
                if newest is request:
                    break
            index += 1

    def _measure(self) -> StepMemory:
        allocator = self.allocator
        used = sum(request.num_tokens for request in self.running)
        to_be_used = sum(
            min(allocator.held_slots(request.request_id), request.num_final_tokens)
            for request in self.running
        )
        free = allocator.capacity - allocator.num_held_slots
        external = 0
        if self.waiting:
            head = self.waiting[0]
            wanted = allocator.slots_for(head.num_tokens, head.num_final_tokens)
            external = free if free >= wanted else 0
        return StepMemory(
            at_s=self.now_s,
            used=used,
            reserved=to_be_used - used,
            internal=allocator.num_held_slots - to_be_used,
            external=external,
            unallocated=free - external,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
        )

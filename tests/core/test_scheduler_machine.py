"""The core under random use, on a memory that knows what stands in every slot.

The model below computes nothing but keeps, for every slot of every block, which prefix its K and V would
depend on. A request that would read another's tokens, a slot with two writers, a write to a cached block
or a copy out of order shows at once, and every request's tokens are compared with those it must get.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core import events as ev
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.kv_cache_manager import KVCacheManager
from ridgeline.core.prefix_cache import PrefixCache, block_hash
from ridgeline.core.request import Request, RequestStatus
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput
from ridgeline.errors import RequestError
from ridgeline.outputs import FinishReason
from ridgeline.sampling_params import SamplingParams

EOS = 0
Content = tuple[str | None, int]


def next_token(prefix: int, seed: int, choice_index: int) -> int:
    """What the model says after a prefix: EOS now and then, else one of 1…3."""
    draw = hash((prefix, seed, choice_index)) % 97
    return EOS if draw < 4 else 1 + draw % 3


def expected_tokens(request: Request) -> list[int]:
    """The request's output when it runs alone on an endless cache."""
    prefix = 1
    for token_id in request.prompt_token_ids:
        prefix = hash((prefix, token_id))
    tokens: list[int] = []
    while len(tokens) < request.sampling_params.max_tokens:
        tokens.append(next_token(prefix, request.seed, request.choice_index))
        prefix = hash((prefix, tokens[-1]))
        if tokens[-1] == EOS and not request.sampling_params.ignore_eos:
            break
    return tokens


@dataclass
class Model:
    """The executor's side: slots and what stands in them."""

    block_size: int
    pool: BlockPool
    forces: bool = False
    slots: dict[tuple[int, int], Content] = field(default_factory=dict)
    prefixes: dict[Request, list[int]] = field(default_factory=dict)

    def prefix(self, request: Request, num_tokens: int) -> int:
        known = self.prefixes.setdefault(request, [1])
        for token_id in request.token_ids(len(known) - 1, num_tokens):
            known.append(hash((known[-1], token_id)))
        return known[num_tokens]

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for source, target in output.block_copies:
            for offset in range(self.block_size):
                if (source, offset) in self.slots:
                    self.slots[target, offset] = self.slots[source, offset]
        written: set[tuple[int, int]] = set()
        for item in output.scheduled:
            for position in range(item.num_computed_tokens, item.end):
                block_id, offset = item.block_ids[position // self.block_size], position % self.block_size
                assert (block_id, offset) not in written, "two writers to a slot"
                assert not self.pool.is_cached(block_id), "a write to a cached block"
                written.add((block_id, offset))
                content = (item.request.cache_salt, self.prefix(item.request, position + 1))
                self.slots[block_id, offset] = content
        for item in output.scheduled:
            for position in range(item.end):
                slot = (item.block_ids[position // self.block_size], position % self.block_size)
                expected = (item.request.cache_salt, self.prefix(item.request, position + 1))
                assert self.slots[slot] == expected, f"{item.request.request_id} reads what is not its own"
        tokens = [
            next_token(self.prefix(i.request, i.end), i.request.seed, i.request.choice_index)
            if i.samples
            else None
            for i in output.scheduled
        ]
        forced = {
            index: self.forced(item.request, item.end, token_id)
            for index, (item, token_id) in enumerate(zip(output.scheduled, tokens, strict=True))
            if token_id is not None
        }
        return ModelRunnerOutput(tokens, [None] * len(tokens), [()] * len(tokens), forced_token_ids=forced)

    def forced(self, request: Request, end: int, token_id: int) -> list[int]:
        """Now and then a few tokens at once, the same that would come one by one."""
        prefix = hash((self.prefix(request, end), token_id))
        tokens: list[int] = []
        # A hash of numbers alone: that of text is another in every run.
        for _ in range(max(hash((prefix, 0)) % 40 - 30, 0) if self.forces else 0):
            tokens.append(next_token(prefix, request.seed, request.choice_index))
            prefix = hash((prefix, tokens[-1]))
        return tokens


class Tables:
    """Block tables as the events tell them."""

    def __init__(self) -> None:
        self.tables: dict[str, list[int]] = {}
        self.full: set[int] = set()

    def follow(self, event: ev.Event) -> None:
        match event:
            case ev.BlocksHit() | ev.BlocksShared():
                assert not self.tables.get(event.request_id)
                self.tables[event.request_id] = list(event.block_ids)
            case ev.BlocksAllocated():
                self.tables.setdefault(event.request_id, []).extend(event.block_ids)
            case ev.BlocksCopied(_, request_id, pairs) | ev.BlocksMerged(_, request_id, pairs):
                table = self.tables[request_id]
                for source, target in pairs:
                    table[table.index(source)] = target
            case ev.RequestPreempted() | ev.RequestFinished():
                self.tables.pop(event.request_id, None)


class Simulation:
    """Scheduler, manager, pool and model, with every step checked."""

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        caching: bool = True,
        hash_bits: int = 128,
        forces: bool = False,
        **config: Any,
    ) -> None:
        def weak_hash(parent: bytes, token_ids: Any) -> bytes:
            return bytes([block_hash(parent, token_ids)[0] % 2**hash_bits])

        self.config = SchedulerConfig(**{"max_num_batched_tokens": 16, "max_num_seqs": 4, **config})
        self.recorder = ev.EventRecorder()
        self.pool = BlockPool(num_blocks)
        cache = PrefixCache(block_size, hash_block=block_hash if hash_bits == 128 else weak_hash)
        self.manager = KVCacheManager(
            self.pool,
            block_size,
            self.recorder,
            prefix_cache=cache if caching else None,
            watermark=self.config.watermark,
        )
        self.scheduler = Scheduler(self.config, self.manager, self.recorder)
        self.model = Model(block_size, self.pool, forces)
        self.tables = Tables()
        self.requests: dict[str, Request] = {}
        self.running: set[str] = set()
        self.log: list[ev.Event] = []
        self.now = 0.0
        self.num_computed = 0
        self.num_steps = 0

    def add(self, prompt: list[int], max_tokens: int, *, n: int = 1, **fields: Any) -> list[Request]:
        """Queue the samples of one prompt; RequestError when they can never fit."""
        name = str(len(self.requests))
        params = {"max_tokens": max_tokens, "ignore_eos": fields.pop("ignore_eos", False)}
        first = SamplingParams(prompt_logprobs=fields.pop("prompt_logprobs", None), **params)
        requests = [
            Request(
                request_id=f"{name}-{index}",
                prompt_token_ids=prompt,
                sampling_params=first if index == 0 else SamplingParams(**params),
                arrived_at_s=self.now,
                max_num_tokens=len(prompt) + max_tokens,
                choice_index=index,
                eos_token_ids=frozenset({EOS}),
                fork_of=f"{name}-0" if index else None,
                **{"seed": len(self.requests), **fields},
            )
            for index in range(n)
        ]
        for request in requests:
            self.scheduler.add_request(request, self.now)
            self.requests[request.request_id] = request
        return requests

    def schedule(self) -> SchedulerOutput:
        """The next step's work, checked against the budgets and against what ran before."""
        self.now += 1.0
        self.running = {r.request_id for r in self.requests.values() if r.status is RequestStatus.RUNNING}
        before = {r: (r.num_computed_tokens, r.num_preemptions) for r in self.requests.values()}
        single = [
            r
            for r in self.requests.values()
            if r.status is RequestStatus.RUNNING and r.num_tokens - r.num_computed_tokens == 1
        ]
        had_work, num_running = self.scheduler.has_unfinished_requests, self.scheduler.num_running
        output = self.scheduler.schedule(self.now)
        self.check()
        rows = {item.request: item for item in output.scheduled}
        assert len(rows) == len(output.scheduled) <= self.config.max_num_seqs
        assert output.num_scheduled_tokens <= self.config.max_num_batched_tokens
        assert bool(rows) == had_work, "a step without progress"
        threshold = self.config.long_prefill_token_threshold
        for request, item in rows.items():
            assert request.status is RequestStatus.RUNNING
            assert item.num_computed_tokens == request.num_computed_tokens
            assert 1 <= item.num_scheduled_tokens <= (threshold or item.num_scheduled_tokens)
            assert item.end <= request.num_tokens
            if (
                before[request] != (0, request.num_preemptions)
                and before[request][1] == request.num_preemptions
            ):
                assert item.num_computed_tokens == before[request][0]
        if num_running <= self.config.max_num_batched_tokens:
            assert all(r in rows or r.status is RequestStatus.WAITING for r in single), "a decode had to wait"
        return output

    def step(self) -> SchedulerOutput:
        """One whole step."""
        output = self.schedule()
        if output.scheduled:
            self.update(output)
        return output

    def update(self, output: SchedulerOutput) -> None:
        """Compute and take in a scheduled step."""
        self.num_computed += output.num_scheduled_tokens
        self.num_steps += 1
        self.scheduler.update_from_output(output, self.model.execute(output), self.now)
        self.check()

    def run(self, max_steps: int = 100_000) -> None:
        """Step until all requests are over."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished_requests:
                return
            self.step()
        raise AssertionError("requests go on for ever")

    def abort(self, request: Request) -> None:
        """End a request from outside."""
        self.scheduler.finish_request(request.request_id, FinishReason.ABORT, self.now)
        self.check()

    def check(self) -> None:
        """Integrity; the events tell the same story as the tables; everybody's tokens are right."""
        self.scheduler.check_integrity()
        for event in self.recorder.take():
            self.log.append(event)
            self.tables.follow(event)
            if isinstance(event, ev.RequestPreempted):
                assert self.rank(event.request_id) >= self.rank(event.displaced_by), (
                    "displaced by a newer one"
                )
            if isinstance(event, ev.RequestFinished):
                self.check_finished(self.requests[event.request_id])
        told = {name: table for name, table in self.tables.tables.items() if table}
        for name, table in told.items():
            assert list(self.manager.block_ids(name)) == table
        assert len({b for table in told.values() for b in table}) <= self.pool.num_used_blocks
        occupancy = self.scheduler.occupancy
        assert occupancy.num_used_blocks + occupancy.num_idle_blocks + occupancy.num_free_blocks == (
            self.pool.num_blocks
        )
        assert 0 <= occupancy.num_slack_slots <= occupancy.num_used_blocks * self.manager.block_size
        if not self.scheduler.has_unfinished_requests:
            assert occupancy.num_used_blocks == occupancy.num_slack_slots == 0

    def rank(self, request_id: str) -> tuple[int, int]:
        request = self.requests[request_id]
        arrival = list(self.requests).index(request_id)
        return (request.priority if self.config.scheduling_policy == "priority" else 0, arrival)

    def check_finished(self, request: Request) -> None:
        expected = expected_tokens(request)
        if request.finish_reason is FinishReason.ABORT:
            expected = expected[: request.num_output_tokens]
        assert request.output_token_ids == expected

    def events_of(self, *kinds: type) -> list[Any]:
        return [event for event in self.log if isinstance(event, kinds)]


PREFIXES = [[1 + (i * i + k) % 3 for i in range(40)] for k in range(3)]
settings_of_a_simulation = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 24),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "caching": st.sampled_from([True, True, True, False]),
        "hash_bits": st.sampled_from([128, 128, 2, 0]),
        "max_num_seqs": st.integers(1, 7),
        "max_num_batched_tokens": st.integers(1, 24),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 1, 5]),
        "max_num_partial_prefills": st.integers(1, 3),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "priority_aging_s": st.sampled_from([0.5, 10.0, 1e9]),
        "watermark": st.sampled_from([0.0, 0.01, 0.2]),
    }
)


SEEN_OFTEN = (
    ev.BlocksHit,
    ev.BlocksShared,
    ev.BlocksCopied,
    ev.BlocksMerged,
    ev.BlocksEvicted,
    ev.PrefixMissed,
    ev.RequestPreempted,
)


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, steps, failures and aborts at every point, on caches of a few blocks."""

    num_steps = 0
    num_events: ClassVar[Counter[type]] = Counter()
    simulation: Simulation

    @initialize(config=settings_of_a_simulation)
    def start(self, config: dict[str, Any]) -> None:
        self.simulation = Simulation(**config, forces=True)

    @rule(
        kind=st.integers(0, 2),
        shared=st.integers(0, 40),
        own=st.lists(st.integers(1, 3), min_size=1, max_size=8),
        max_tokens=st.integers(1, 24),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        fields=st.fixed_dictionaries(
            {
                "priority": st.integers(-1, 2),
                "cache_salt": st.sampled_from([None, None, "a", "b"]),
                "prompt_logprobs": st.sampled_from([None, None, None, 0]),
            }
        ),
    )
    def add(
        self, kind: int, shared: int, own: list[int], max_tokens: int, n: int, fields: dict[str, Any]
    ) -> None:
        prompt = PREFIXES[kind][:shared] + own
        num_slots = len(prompt) + max_tokens - 1
        simulation = self.simulation
        if num_slots > simulation.pool.num_blocks * simulation.manager.block_size:
            with pytest.raises(RequestError):
                simulation.add(prompt, max_tokens, n=n, **fields)
        else:
            simulation.add(prompt, max_tokens, n=n, **fields)

    @rule(count=st.integers(1, 40))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @precondition(lambda self: self.simulation.scheduler.has_unfinished_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        names = self.simulation.scheduler.request_ids()
        self.simulation.abort(self.simulation.requests[data.draw(st.sampled_from(names))])

    @precondition(lambda self: self.simulation.scheduler.has_unfinished_requests)
    @rule(data=st.data())
    def abort_while_a_step_runs(self, data: st.DataObject) -> None:
        output = self.simulation.schedule()
        names = self.simulation.scheduler.request_ids()
        for name in data.draw(st.sets(st.sampled_from(names), min_size=1)):
            self.simulation.abort(self.simulation.requests[name])
        live = [item for item in output.scheduled if not item.request.is_finished]
        if len(live) == len(output.scheduled):
            self.simulation.update(output)
        else:
            answers = self.simulation.model.execute(output)
            self.simulation.scheduler.update_from_output(output, answers, self.simulation.now)
            self.simulation.check()

    @rule(abort=st.booleans())
    def a_step_fails(self, abort: bool) -> None:
        """The executor raised: nothing of the step counts, the next one does it again."""
        output = self.simulation.schedule()
        if abort and output.scheduled:
            self.simulation.abort(output.scheduled[-1].request)

    @rule()
    def reset(self) -> None:
        self.simulation.scheduler.reset_prefix_cache(self.simulation.now)

    def teardown(self) -> None:
        """Whatever is left runs to its end within the work that it is; then nothing is held."""
        if not hasattr(self, "simulation"):
            return
        unfinished = [r for r in self.simulation.requests.values() if not r.is_finished]
        work = sum(r.max_num_tokens for r in unfinished)
        self.simulation.run(
            max_steps=2 * (1 + max((r.num_preemptions for r in unfinished), default=0) + 1) * work + 1
        )
        assert all(r.is_finished for r in self.simulation.requests.values())
        assert self.simulation.scheduler.occupancy.num_used_blocks == 0
        SchedulerMachine.num_steps += self.simulation.num_steps
        SchedulerMachine.num_events.update(type(event) for event in self.simulation.log)


def test_random_use_keeps_every_invariant_for_twenty_thousand_steps() -> None:
    SchedulerMachine.num_steps = 0
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=850, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert all(SchedulerMachine.num_events[kind] >= 50 for kind in SEEN_OFTEN), SchedulerMachine.num_events
    assert SchedulerMachine.num_steps >= 20_000


# Single stories, on the same memory.


def shares(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(i.request.request_id, i.num_computed_tokens, i.num_scheduled_tokens) for i in output.scheduled]


def long_prompt(num_tokens: int, start: int = 10) -> list[int]:
    return list(range(start, start + num_tokens))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("budget", [512, 2048, 8192])
def test_a_shared_prefix_is_computed_once_for_64_requests(together: bool, budget: int) -> None:
    simulation = Simulation(
        num_blocks=256, block_size=32, max_num_batched_tokens=budget, max_num_seqs=64, watermark=0.0
    )
    for index in range(64):
        simulation.add(long_prompt(1000) + long_prompt(10, 5000 + 100 * index), 1)
        if not together:
            simulation.run()
    simulation.run()
    # 1,000 shared tokens are 31 full blocks of 32; everybody computes the rest for itself.
    assert simulation.num_computed == 64 * 1010 - 63 * 31 * 32
    occupancy = simulation.scheduler.occupancy
    assert (occupancy.num_queried_tokens, occupancy.num_hit_tokens) == (64 * 1010, 63 * 31 * 32)
    assert occupancy.hit_rate == 63 * 31 * 32 / (64 * 1010)


def test_without_prefix_caching_everybody_computes_everything() -> None:
    simulation = Simulation(num_blocks=256, block_size=32, caching=False)
    for _ in range(3):
        simulation.add(long_prompt(100), 1)
    simulation.run()
    assert simulation.num_computed == 300
    assert simulation.scheduler.occupancy.hit_rate is None
    assert not simulation.events_of(ev.BlocksHit, ev.BlocksCached, ev.PrefixMissed)


@pytest.mark.parametrize(
    ("num_tokens", "hits"),
    [(64, [0, 32, 32]), (65, [0, 64, 64]), (63, [0, 32, 32]), (32, [0, 0, 0]), (33, [0, 32, 32])],
)
def test_a_prompt_that_is_wholly_cached_computes_a_token_at_least(num_tokens: int, hits: list[int]) -> None:
    simulation = Simulation(num_blocks=64, block_size=32, max_num_batched_tokens=512)
    seen = []
    for _ in range(3):
        (request,) = simulation.add(long_prompt(num_tokens), 8, ignore_eos=True)
        simulation.run()
        seen.append(request.num_cached_tokens)
    assert seen == hits


def test_a_conversation_finds_the_answer_it_was_given() -> None:
    simulation = Simulation(num_blocks=64, block_size=4, max_num_batched_tokens=512)
    (first,) = simulation.add(long_prompt(10), 30, ignore_eos=True)
    simulation.run()
    history = [*first.prompt_token_ids, *first.output_token_ids]
    (second,) = simulation.add([*history, 1, 2, 3], 4)
    simulation.run()
    # The last token of an answer is never computed by it.
    assert second.num_cached_tokens == (len(history) - 1) // 4 * 4 > len(first.prompt_token_ids)


def test_miss_reasons_are_told_in_events() -> None:
    simulation = Simulation(num_blocks=10, block_size=4, max_num_batched_tokens=64, watermark=0.0)
    simulation.add(long_prompt(17), 1)
    simulation.run()
    simulation.add([*long_prompt(13), 7, 7, 7, 7], 1)
    simulation.run()
    simulation.add(long_prompt(17), 1, cache_salt="x")
    simulation.run()
    simulation.add(long_prompt(30, 100), 1)
    simulation.run()
    evicted_at_s = simulation.now
    simulation.now += 5.0
    simulation.add(long_prompt(17), 1)
    simulation.run()
    misses = [
        (m.num_hit_tokens, m.reason, m.differs_at, m.evicted_at_s)
        for m in simulation.events_of(ev.PrefixMissed)
    ]
    assert misses[:3] == [
        (0, ev.MissReason.COLD, None, None),
        (12, ev.MissReason.DIFFERS, 13, None),
        (0, ev.MissReason.SALT, None, None),
    ]
    hit_tokens, reason, _, instant = misses[-1]
    assert (reason, instant) == (ev.MissReason.EVICTED, evicted_at_s)
    assert hit_tokens < 16


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    simulation = Simulation(num_blocks=8, block_size=4, max_num_batched_tokens=64, watermark=0.0)
    simulation.add(long_prompt(25), 1)  # 7 blocks, the last one partial
    simulation.run()
    simulation.add(long_prompt(10, 100), 1)  # takes 2 free blocks and one idle one
    simulation.run()
    (again,) = simulation.add(long_prompt(25), 1)
    simulation.run()
    assert again.num_cached_tokens == 20


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 2, 4, 9, 12, 13, 30])
def test_samples_of_one_prompt_compute_it_once_and_copy_its_partial_block(
    num_tokens: int, caching: bool
) -> None:
    simulation = Simulation(caching=caching, num_blocks=64, max_num_batched_tokens=8, max_num_seqs=8)
    requests = simulation.add(long_prompt(num_tokens), 12, n=4, ignore_eos=True)
    prefill = 0
    while any(r.num_output_tokens == 0 for r in requests):
        prefill += sum(i.num_scheduled_tokens for i in simulation.step().scheduled if i.end <= num_tokens)
    simulation.run()
    assert prefill == num_tokens + 3
    copied = simulation.events_of(ev.BlocksCopied)
    assert len(copied) == (3 if (num_tokens - 1) % 4 else 0)
    assert len({tuple(request.output_token_ids) for request in requests}) > 1


def test_a_sample_outlives_the_first_and_takes_its_block_over() -> None:
    simulation = Simulation(num_blocks=64, caching=False, max_num_seqs=1)
    requests = simulation.add(long_prompt(10), 1, n=3)
    simulation.run()
    assert simulation.num_computed == 12
    assert len(simulation.events_of(ev.BlocksCopied)) == 1  # the last of them is alone with the block
    assert all(request.is_finished for request in requests)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_with_too_few_blocks_everybody_finishes_and_preemptions_stay_below_their_bound(policy: str) -> None:
    simulation = Simulation(
        num_blocks=60, block_size=16, max_num_seqs=32, max_num_batched_tokens=512, scheduling_policy=policy
    )
    for index in range(20):
        simulation.add(long_prompt(128, 1000 * index + 10), 256, priority=index % 3, ignore_eos=True)
    simulation.run()
    # Each block that an output grows into displaces at most one request.
    growth = sum(-(-(128 + r.num_output_tokens - 1) // 16) - 8 for r in simulation.requests.values())
    preempted = simulation.events_of(ev.RequestPreempted)
    assert 0 < len(preempted) <= growth
    assert len(preempted) == simulation.scheduler.num_preemptions
    assert len(preempted) == sum(r.num_preemptions for r in simulation.requests.values())


def test_a_preempted_request_computes_again_and_draws_nothing_twice() -> None:
    simulation = Simulation(
        num_blocks=6, block_size=4, caching=False, max_num_batched_tokens=64, watermark=0.0
    )
    first, second = (simulation.add(long_prompt(8, 100 * i), 12, ignore_eos=True)[0] for i in range(2))
    simulation.run()
    assert second.num_preemptions > first.num_preemptions == 0
    assert second.output_token_ids == expected_tokens(second)
    assert simulation.num_computed > sum(r.num_tokens - 1 for r in (first, second))
    displaced_by = [event.displaced_by for event in simulation.events_of(ev.RequestPreempted)]
    assert first.request_id in displaced_by


def test_the_least_urgent_gives_way_even_if_it_came_first() -> None:
    simulation = Simulation(
        num_blocks=7,
        block_size=4,
        caching=False,
        max_num_batched_tokens=64,
        watermark=0.0,
        scheduling_policy="priority",
    )
    first = simulation.add(long_prompt(8, 100), 12, ignore_eos=True, priority=5)[0]
    simulation.step()
    second = simulation.add(long_prompt(8, 200), 12, ignore_eos=True, priority=1)[0]
    simulation.run()
    assert (first.num_preemptions > 0, second.num_preemptions) == (True, 0)


def test_urgent_requests_are_admitted_first_and_waiting_makes_urgent() -> None:
    simulation = Simulation(
        max_num_seqs=1, scheduling_policy="priority", priority_aging_s=10.0, num_blocks=64
    )
    simulation.add(long_prompt(4), 1, priority=0)
    late = simulation.add(long_prompt(4), 1, priority=2)[0]
    simulation.now += 15.0
    urgent = simulation.add(long_prompt(4), 1, priority=0)[0]
    simulation.now += 10.0
    newest = simulation.add(long_prompt(4), 1, priority=0)[0]
    order = [i.request for _ in range(4) for i in simulation.step().scheduled]
    # Priority 2 stands back for 2 × 10 s of arrivals with priority 0, and for no more.
    assert order[1:] == [urgent, late, newest]


def test_equal_priorities_come_first_come_first_served_and_fcfs_ignores_priority() -> None:
    for policy, expected in (("fcfs", [0, 1, 2]), ("priority", [1, 2, 0])):
        simulation = Simulation(max_num_seqs=1, scheduling_policy=policy, num_blocks=64)
        requests = [simulation.add(long_prompt(4), 1, priority=p)[0] for p in (3, 1, 1)]
        order = [i.request for _ in range(3) for i in simulation.step().scheduled]
        assert order == [requests[index] for index in expected]


def test_streams_and_a_short_prompt_do_not_wait_for_a_long_one() -> None:
    def steps_to_first_token(num_tokens: int) -> tuple[int, int]:
        simulation = Simulation(
            num_blocks=512, block_size=32, max_num_batched_tokens=512, max_num_seqs=32, caching=False
        )
        streams = [simulation.add(long_prompt(20, 100 * i), 200, ignore_eos=True)[0] for i in range(4)]
        simulation.step()
        (long,) = simulation.add(long_prompt(num_tokens, 1000), 1)
        simulation.step()
        (short,) = simulation.add(long_prompt(20, 9000), 1)
        arrived = simulation.num_steps
        while not short.is_finished:
            output = simulation.step()
            assert set(streams) <= {i.request for i in output.scheduled}
        short_steps = simulation.num_steps - arrived
        while not long.is_finished:
            simulation.step()
        return short_steps, simulation.num_steps - arrived + 1

    assert [steps_to_first_token(n)[0] for n in (2000, 6000, 12000)] == [1, 1, 1]
    # Alone, 6,000 tokens take 12 steps of 512; beside four streams and the short one one step more at most.
    assert steps_to_first_token(6000)[1] <= 13


def test_two_long_prompts_go_one_after_the_other_and_short_ones_pass() -> None:
    simulation = Simulation(num_blocks=400, block_size=32, max_num_batched_tokens=512, max_num_seqs=32)
    first, second = (simulation.add(long_prompt(3000, 10_000 * i), 1)[0] for i in (1, 2))
    (short,) = simulation.add(long_prompt(100, 5), 1)
    assert shares(simulation.step()) == [(first.request_id, 0, 512)]
    assert shares(simulation.step()) == [(first.request_id, 512, 412), (short.request_id, 0, 100)]
    while not first.is_finished:
        assert second.num_computed_tokens == 0
        simulation.step()
    simulation.run()


def test_the_long_prefill_threshold_caps_every_chunk() -> None:
    simulation = Simulation(
        num_blocks=400, block_size=32, max_num_batched_tokens=512, long_prefill_token_threshold=64
    )
    (request,) = simulation.add(long_prompt(200), 1)
    chunks = []
    while not request.is_finished:
        chunks += [n for _, _, n in shares(simulation.step())]
    assert chunks == [64, 64, 64, 8]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_at_most_so_many_prompts_are_partly_computed(limit: int) -> None:
    simulation = Simulation(
        num_blocks=400,
        max_num_batched_tokens=24,
        max_num_seqs=8,
        max_num_partial_prefills=limit,
        max_long_partial_prefills=limit,
        block_size=32,
    )
    for index in range(6):
        simulation.add(long_prompt(100, 1000 * index), 2)
    most = 0
    while simulation.scheduler.has_unfinished_requests:
        output = simulation.step()
        most = max(most, sum(i.end < 100 for i in output.scheduled))
    assert most == limit


def test_more_running_requests_than_tokens_take_turns() -> None:
    simulation = Simulation(num_blocks=64, max_num_batched_tokens=3, max_num_seqs=8, caching=False)
    requests = [simulation.add([10 * i + 1], 6, ignore_eos=True)[0] for i in range(7)]
    last_served = dict.fromkeys(requests, 0)
    while simulation.scheduler.has_unfinished_requests:
        for item in simulation.step().scheduled:
            last_served[item.request] = simulation.num_steps
        unfinished = [r for r in requests if r.status is RequestStatus.RUNNING]
        assert all(simulation.num_steps - last_served[r] <= 3 for r in unfinished)


def test_a_reset_while_requests_run_changes_no_token_and_frees_what_is_idle() -> None:
    simulation = Simulation(num_blocks=32, max_num_batched_tokens=64)
    simulation.add(long_prompt(20), 1)
    simulation.run()
    assert simulation.scheduler.occupancy.num_idle_blocks == 5
    (running,) = simulation.add(long_prompt(21), 20, ignore_eos=True)
    simulation.step()
    simulation.scheduler.reset_prefix_cache(simulation.now)
    assert simulation.scheduler.occupancy.num_idle_blocks == 0
    simulation.run()
    (again,) = simulation.add(long_prompt(21), 1)
    simulation.run()
    assert (running.num_cached_tokens, again.num_cached_tokens) == (20, 0)


def test_occupancy_tells_slots_from_blocks() -> None:
    simulation = Simulation(num_blocks=32, block_size=8, max_num_batched_tokens=64)
    (request,) = simulation.add(long_prompt(19), 9, ignore_eos=True)
    simulation.step()
    occupancy = simulation.scheduler.occupancy
    assert (occupancy.num_used_blocks, occupancy.num_slack_slots) == (3, 5)
    assert (occupancy.num_idle_blocks, occupancy.num_free_blocks) == (0, 29)
    simulation.abort(request)
    occupancy = simulation.scheduler.occupancy
    assert (occupancy.num_used_blocks, occupancy.num_slack_slots) == (0, 0)
    assert (occupancy.num_idle_blocks, occupancy.num_free_blocks) == (2, 30)

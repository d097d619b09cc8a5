"""Scheduler: budgets, order, stop conditions, refusals, and the invariants under random use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import (
    AdmissionHeld,
    BlocksAllocated,
    BlocksFilled,
    BlocksFreed,
    EventRecorder,
    Lack,
    RequestArrived,
    RequestFinished,
    RequestScheduled,
)
from ridgeline.core.kv_cache_manager import KVCacheManager
from ridgeline.core.request import Request
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput
from ridgeline.errors import RequestError
from ridgeline.outputs import FinishReason
from ridgeline.sampling_params import SamplingParams

EOS = 2


def make_scheduler(
    *, num_blocks: int = 64, block_size: int = 16, max_num_seqs: int = 8, budget: int = 64, long_from: int = 0
) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, long_prefill_token_threshold=long_from
    )
    recorder = EventRecorder()
    return Scheduler(config, KVCacheManager(BlockPool(num_blocks), block_size, recorder), recorder)


def make_request(
    request_id: str, num_prompt_tokens: int = 10, max_tokens: int = 4, **params: object
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=list(range(100, 100 + num_prompt_tokens)),
        sampling_params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        arrived_at_s=0.0,
        seed=0,
        max_num_tokens=num_prompt_tokens + max_tokens,
        eos_token_ids=frozenset({EOS}),
    )


def answer(output: SchedulerOutput, token_of: Callable[[Request], int] = lambda _: 7) -> ModelRunnerOutput:
    tokens = [token_of(item.request) if item.samples else None for item in output.scheduled]
    return ModelRunnerOutput(tokens, [None] * len(tokens), [()] * len(tokens))


def run_step(
    scheduler: Scheduler, now: float, token_of: Callable[[Request], int] = lambda _: 7
) -> SchedulerOutput:
    output = scheduler.schedule(now)
    scheduler.update_from_output(output, answer(output, token_of), now)
    scheduler.check_integrity()
    return output


def test_a_prompt_is_computed_whole_then_one_token_a_step() -> None:
    scheduler, request = make_scheduler(), make_request("a", 10, max_tokens=3)
    scheduler.add_request(request, 0.0)
    shares = []
    while scheduler.has_unfinished_requests:
        output = run_step(scheduler, 1.0)
        shares.append([(i.num_computed_tokens, i.num_scheduled_tokens) for i in output.scheduled])
    assert shares == [[(0, 10)], [(10, 1)], [(11, 1)]]
    assert request.output_token_ids == [7, 7, 7]
    assert request.finish_reason is FinishReason.LENGTH
    assert scheduler.occupancy.num_used_blocks == 0


def test_a_long_prompt_is_chunked_and_running_requests_go_first() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.add_request(make_request("short", 4, max_tokens=9), 0.0)
    run_step(scheduler, 1.0)
    scheduler.add_request(make_request("long", 40, max_tokens=1), 1.0)
    shares = []
    for step in range(3):
        output = run_step(scheduler, 2.0 + step)
        shares.append([(i.request.request_id, i.num_scheduled_tokens) for i in output.scheduled])
    assert shares == [
        [("short", 1), ("long", 15)],
        [("short", 1), ("long", 15)],
        [("short", 1), ("long", 10)],
    ]


def test_only_the_last_chunk_samples() -> None:
    scheduler, request = make_scheduler(budget=16), make_request("a", 40)
    scheduler.add_request(request, 0.0)
    num_output_tokens = []
    for step in range(3):
        run_step(scheduler, float(step))
        num_output_tokens.append(request.num_output_tokens)
    assert num_output_tokens == [0, 0, 1]


def test_max_num_seqs_keeps_the_rest_waiting_in_order() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add_request(make_request(name, 4, max_tokens=2), 0.0)
    output = run_step(scheduler, 1.0)
    assert [i.request.request_id for i in output.scheduled] == ["a", "b"]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    run_step(scheduler, 2.0)
    assert [i.request.request_id for i in run_step(scheduler, 3.0).scheduled] == ["c"]


def test_admission_leaves_every_running_request_a_block_to_grow_into() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=16)
    scheduler.add_request(make_request("a", 16, max_tokens=33), 0.0)  # holds 1 block, grows to 3
    scheduler.add_request(make_request("b", 16, max_tokens=33), 0.0)
    scheduler.add_request(make_request("c", 16, max_tokens=1), 0.0)  # holds 1 block, never grows
    output = run_step(scheduler, 1.0)
    assert [i.request.request_id for i in output.scheduled] == ["a", "b"]


def test_the_last_token_needs_no_slot() -> None:
    scheduler = make_scheduler(num_blocks=2, block_size=16)
    scheduler.add_request(make_request("exact", 31, max_tokens=2), 0.0)
    run_step(scheduler, 1.0)
    run_step(scheduler, 2.0)
    assert not scheduler.has_unfinished_requests


def test_what_can_never_fit_is_refused_with_the_arithmetic_and_blocks_nobody() -> None:
    scheduler = make_scheduler(num_blocks=50, block_size=16, budget=512)
    with pytest.raises(RequestError, match=r"63 blocks of 16 .* has 50") as caught:
        scheduler.add_request(make_request("huge", 1002, max_tokens=1), 0.0)
    assert caught.value.field == "prompt"
    for name in "abcde":
        scheduler.add_request(make_request(name), 0.0)
    assert len(run_step(scheduler, 1.0).scheduled) == 5


def test_a_taken_request_id_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a"), 0.0)
    with pytest.raises(RequestError, match="already in use"):
        scheduler.add_request(make_request("a"), 0.0)


@pytest.mark.parametrize(
    ("params", "token", "num_tokens", "reason", "stop_reason"),
    [
        ({}, EOS, 1, FinishReason.STOP, None),
        ({"ignore_eos": True}, EOS, 6, FinishReason.LENGTH, None),
        ({"stop_token_ids": [9]}, 9, 1, FinishReason.STOP, 9),
        ({"stop_token_ids": [9], "min_tokens": 3}, 9, 3, FinishReason.STOP, 9),
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, EOS, 1, FinishReason.STOP, EOS),
        ({}, 7, 6, FinishReason.LENGTH, None),
    ],
)
def test_stop_conditions(
    params: dict[str, object], token: int, num_tokens: int, reason: FinishReason, stop_reason: int | None
) -> None:
    scheduler, request = make_scheduler(), make_request("a", max_tokens=6, **params)
    scheduler.add_request(request, 0.0)
    while scheduler.has_unfinished_requests:
        run_step(scheduler, 1.0, lambda _: token)
    assert request.output_token_ids == [token] * num_tokens
    assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)


def test_finishing_from_outside_frees_at_once_wherever_the_request_is() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = make_request("running", 40), make_request("waiting")
    scheduler.add_request(running, 0.0)
    scheduler.add_request(waiting, 0.0)
    run_step(scheduler, 1.0)
    for request in (waiting, running):
        assert scheduler.finish_request(request.request_id, FinishReason.ABORT, 2.0) is request
        assert request.finish_reason is FinishReason.ABORT
        scheduler.check_integrity()
    assert scheduler.finish_request("running", FinishReason.ABORT, 3.0) is None
    assert scheduler.occupancy.num_used_blocks == 0
    assert not scheduler.schedule(3.0).scheduled


def test_a_request_finished_while_its_step_ran_gets_no_token() -> None:
    scheduler, request = make_scheduler(), make_request("a")
    scheduler.add_request(request, 0.0)
    output = scheduler.schedule(1.0)
    scheduler.finish_request("a", FinishReason.ABORT, 1.5)
    assert scheduler.update_from_output(output, answer(output), 2.0) == []
    assert request.output_token_ids == []
    scheduler.check_integrity()


@pytest.mark.parametrize(
    ("settings", "prompts", "lack"),
    [
        ({"max_num_seqs": 1}, (10, 12), Lack.SEQS),
        ({"num_blocks": 2}, (20, 12), Lack.BLOCKS),
        ({"budget": 8}, (20, 12), Lack.TOKENS),
        ({"long_from": 16}, (40, 40), Lack.PREFILLS),
    ],
    ids=lambda value: value.name if isinstance(value, Lack) else "",
)
def test_who_can_not_be_admitted_is_told_with_what_is_lacking(
    settings: dict[str, int], prompts: tuple[int, int], lack: Lack
) -> None:
    scheduler = make_scheduler(**settings)
    for name, num_tokens in zip(("a", "b"), prompts, strict=True):
        scheduler.add_request(make_request(name, num_tokens), 0.0)
    scheduler.schedule(1.0)
    assert held(scheduler) == [AdmissionHeld(1.0, "b", lack)]


def test_a_lack_is_told_once_until_another_is_first_or_lacks_another_thing() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    for name in ("a", "b", "c"):
        scheduler.add_request(make_request(name, max_tokens=2), 0.0)
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        run_step(scheduler, now)
    assert held(scheduler) == [AdmissionHeld(1.0, "b", Lack.SEQS), AdmissionHeld(3.0, "c", Lack.SEQS)]
    scheduler.add_request(make_request("d"), 6.0)
    scheduler.add_request(make_request("e"), 6.0)
    run_step(scheduler, 7.0)
    assert held(scheduler) == [AdmissionHeld(7.0, "d", Lack.SEQS)]


def held(scheduler: Scheduler) -> list[AdmissionHeld]:
    return [event for event in scheduler._recorder.take() if isinstance(event, AdmissionHeld)]


def test_events_tell_the_life_of_a_request_and_its_blocks() -> None:
    recorder = EventRecorder()
    manager = KVCacheManager(BlockPool(64), 16, recorder)
    scheduler = Scheduler(SchedulerConfig(), manager, recorder)
    scheduler.add_request(make_request("a", 30, max_tokens=3), 1.0)
    for now in (2.0, 3.0, 4.0):
        run_step(scheduler, now)
    assert recorder.take() == [
        RequestArrived(1.0, "a", 0.0, 30, max_tokens=3),
        RequestScheduled(2.0, "a"),
        BlocksAllocated(2.0, "a", (0, 1)),
        BlocksFilled(2.0, "a", (0,)),
        BlocksFilled(4.0, "a", (1,)),
        BlocksFreed(4.0, "a", (1, 0)),
        RequestFinished(4.0, "a", FinishReason.LENGTH, 3),
    ]
    assert recorder.take() == []

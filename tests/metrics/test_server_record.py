"""Records folded from events, and every metric of them worked out by hand, degenerate ones included."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core import events as ev
from ridgeline.metrics import durations
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import Chunk
from ridgeline.metrics.run_metrics import run_metrics, throughput
from ridgeline.metrics.server_record import ServerRecord, ServerRecords, outcome_of, server_records
from ridgeline.outputs import FinishReason

# Arrives at 10.0, is tokenised until 10.1, waits until 10.4, first token 10.9, loses its blocks at 11.0 and
# gets them back at 11.6, tokens at 11.9 and 12.0: the last one is the end.
EVENTS: list[ev.Event] = [
    ev.RequestArrived(10.1, "a", 10.0, 20, max_tokens=3),
    ev.RequestScheduled(10.4, "a", 16),
    ev.TokensEmitted(10.9, (("a", 1),)),
    ev.RequestPreempted(11.0, "a", "b", 20),
    ev.RequestScheduled(11.6, "a", 0, resumed=True),
    ev.TokensEmitted(11.9, (("a", 1), ("b", 1))),
    ev.RequestFinished(12.0, "a", FinishReason.LENGTH, 3),
    ev.TokensEmitted(12.0, (("a", 1), ("b", 1))),
]


def test_a_request_by_hand() -> None:
    (record,) = server_records(EVENTS)
    assert record.chunks == [Chunk(10.9, 1), Chunk(11.9, 1), Chunk(12.0, 1)]
    assert (record.num_prompt_tokens, record.num_cached_tokens, record.num_output_tokens) == (20, 16, 3)
    assert (record.num_preemptions, record.outcome, record.max_tokens) == (1, Outcome.OK, 3)
    by_hand = {
        "ttft_s": 0.9,
        "tpot_s": 0.55,
        "itl_s": [1.0, 0.1],
        "icl_s": [1.0, 0.1],
        "e2e_s": 2.0,
        "tokenize_s": 0.1,
        "queue_s": 0.3,
        "prefill_s": 0.5,
        "decode_s": 1.1,
        "inference_s": 1.6,
        "preempted_s": 0.6,
    }
    assert {name: getattr(durations, name)(record) for name in by_hand} == {
        name: pytest.approx(value) for name, value in by_hand.items()
    }


def test_the_parts_of_a_request_add_up() -> None:
    (record,) = server_records(EVENTS)
    parts = (durations.tokenize_s, durations.queue_s, durations.prefill_s, durations.decode_s)
    assert sum(part(record) or 0 for part in parts) == pytest.approx(durations.e2e_s(record))
    assert sum(durations.itl_s(record)) == pytest.approx(durations.decode_s(record))


@pytest.mark.parametrize("cuts", [(), (3,), (1, 2, 5), (6,)])
def test_steps_give_the_record_whole_with_the_last_one(cuts: tuple[int, ...]) -> None:
    edges = [0, *cuts, len(EVENTS)]
    pieces = [EVENTS[start:end] for start, end in pairwise(edges)]
    fold = ServerRecords()
    ended = [record for piece in pieces for record in fold.record(piece)]
    assert ended == server_records(EVENTS)
    assert fold.open_records == {}


def test_a_request_that_gave_no_token() -> None:
    aborted = [*EVENTS[:1], ev.RequestFinished(10.2, "a", FinishReason.ABORT, 0)]
    (record,) = server_records(aborted)
    assert record.outcome is Outcome.ABORTED
    names = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "decode_s", "inference_s")
    assert {getattr(durations, name)(record) for name in names} == {None}
    assert (durations.itl_s(record), durations.preempted_s(record)) == ([], 0)


def test_one_token_has_no_time_per_token() -> None:
    (record,) = server_records(EVENTS[:3])
    assert (durations.ttft_s(record), durations.tpot_s(record)) == (pytest.approx(0.9), None)
    assert (durations.decode_s(record), durations.itl_s(record), record.outcome) == (0.0, [], None)


def test_a_preemption_that_is_not_over_counts() -> None:
    (record,) = server_records(EVENTS[:4])
    assert (record.num_preemptions, durations.preempted_s(record)) == (1, 0)


def test_tokens_of_one_instant_are_gaps_of_zero() -> None:
    record = ServerRecord(
        request_id="a",
        arrived_at_s=0.0,
        queued_at_s=0.0,
        num_prompt_tokens=1,
        scheduled_at_s=0.0,
        chunks=[Chunk(1.0, 1), Chunk(1.0, 1)],
    )
    assert (durations.itl_s(record), durations.tpot_s(record), durations.decode_s(record)) == (
        [0.0],
        0.0,
        0.0,
    )


def test_several_tokens_of_one_step_share_its_gap() -> None:
    record = ServerRecord(
        request_id="a",
        arrived_at_s=0.0,
        queued_at_s=0.0,
        num_prompt_tokens=1,
        chunks=[Chunk(1.0, 1), Chunk(1.6, 3)],
    )
    assert durations.itl_s(record) == pytest.approx([0.2] * 3)
    assert durations.icl_s(record) == pytest.approx([0.6])
    assert durations.tpot_s(record) == pytest.approx(0.2)


def test_the_log_may_begin_in_the_middle_of_a_request() -> None:
    assert server_records(EVENTS[1:]) == []
    assert ServerRecords().record(EVENTS[1:]) == []


def test_an_id_used_again_is_another_request() -> None:
    later = [ev.RequestArrived(20.0, "a", 20.0, 5), ev.RequestFinished(21.0, "a", FinishReason.ABORT, 0)]
    assert [r.num_output_tokens for r in server_records([*EVENTS, *later])] == [3, 0]


def test_every_finish_reason_has_an_outcome() -> None:
    outcomes = {reason: outcome_of(reason) for reason in FinishReason}
    assert {r for r, outcome in outcomes.items() if outcome is Outcome.OK} == {"stop", "length"}
    assert outcomes[FinishReason.ABORT] is Outcome.ABORTED


def client(*chunks: tuple[float, int], outcome: Outcome = Outcome.OK, **counts: int) -> ClientRecord:
    return ClientRecord(
        request_id="r",
        scheduled_at_s=0.0,
        sent_at_s=0.0,
        chunks=[Chunk(*each) for each in chunks],
        outcome=outcome,
        **counts,  # type: ignore[arg-type]
    )


RUN = [
    client((0.2, 1), (0.3, 1), (0.4, 1), num_output_tokens=3, num_prompt_tokens=10, num_cached_tokens=4),
    client((0.4, 1), num_output_tokens=1, num_prompt_tokens=5),
    client((0.1, 1), (0.2, 1), outcome=Outcome.TRUNCATED, num_prompt_tokens=7),
    client(outcome=Outcome.REJECTED),
]


def test_a_run_by_hand() -> None:
    found = run_metrics(RUN, 0.0, finished_at_s=2.0, slos={"ttft": 0.3, "tpot": 0.2})
    assert asdict(found.throughput) == {
        "requests_per_s": 1.0,
        "output_tokens_per_s": 2.0,
        "total_tokens_per_s": 9.5,
        "computed_tokens_per_s": 7.5,
        "received_tokens_per_s": 3.0,
    }
    assert (found.num_requests, found.num_ok, found.num_unfinished) == (4, 2, 0)
    assert found.failures == {Outcome.TRUNCATED: 1, Outcome.REJECTED: 1}
    assert (found.ttft.n, found.ttft.mean, found.ttft.p50) == (2, pytest.approx(0.3), pytest.approx(0.3))
    assert (found.tpot.n, found.tpot.mean) == (1, pytest.approx(0.1))
    assert (found.itl.n, found.itl.max, found.e2e.max) == (2, pytest.approx(0.1), 0.4)
    assert (found.goodput.num_good, found.goodput.rate, found.goodput.attainment) == (1, 0.5, 0.25)
    assert found.goodput.undefined == {"ttft": 0, "tpot": 1}


def test_a_run_of_the_servers_records() -> None:
    found = run_metrics(server_records(EVENTS), 10.0, finished_at_s=12.0)
    assert found.throughput.computed_tokens_per_s == (20 - 16 + 3) / 2
    assert (found.ttft.p50, found.itl.n, found.goodput.attainment) == (pytest.approx(0.9), 2, 1.0)
    cut = run_metrics(server_records(EVENTS[:4]), 10.0, finished_at_s=12.0)
    assert (cut.num_ok, cut.num_unfinished, cut.ttft.n, cut.failures) == (0, 1, 0, {})
    assert cut.throughput.received_tokens_per_s == 0.5


def test_nothing_in_no_time() -> None:
    found = run_metrics([], 1.0, finished_at_s=1.0)
    assert set(asdict(found.throughput).values()) == {None}
    assert (found.ttft.n, found.ttft.p99, found.goodput.rate, found.goodput.attainment) == (
        0,
        None,
        None,
        None,
    )


counts = st.integers(0, 1000)
records = st.builds(
    lambda prompt, output, cached, outcome: client(
        *([(1.0, output)] if output else []),
        outcome=outcome,
        num_prompt_tokens=prompt + cached,
        num_output_tokens=output,
        num_cached_tokens=cached,
    ),
    counts,
    counts,
    counts,
    st.sampled_from(Outcome),
)


@given(st.lists(st.tuples(records, st.integers(0, 2)), max_size=20), st.floats(0.1, 100))
def test_the_rates_of_a_partition_sum_to_the_whole(
    parted: list[tuple[ClientRecord, int]], window_s: float
) -> None:
    whole = asdict(throughput([record for record, _ in parted], window_s))
    parts = [asdict(throughput([r for r, of in parted if of == part], window_s)) for part in range(3)]
    for name, rate in whole.items():
        assert sum(part[name] for part in parts) == pytest.approx(rate)


@given(st.floats(-1e6, 1e6))
def test_only_differences_of_instants_count(shift_s: float) -> None:
    """A monotonic clock may start anywhere: no figure depends on where, nor on any time zone."""
    moved = [
        ClientRecord(
            request_id="r",
            scheduled_at_s=shift_s,
            sent_at_s=shift_s,
            chunks=[Chunk(shift_s + at_s, k) for at_s, k in record.chunks],
            outcome=record.outcome,
            num_output_tokens=record.num_output_tokens,
            num_prompt_tokens=record.num_prompt_tokens,
            num_cached_tokens=record.num_cached_tokens,
        )
        for record in RUN
    ]
    here, there = (
        run_metrics(each, start, finished_at_s=start + 2.0) for each, start in ((RUN, 0.0), (moved, shift_s))
    )
    assert there.throughput.output_tokens_per_s == pytest.approx(here.throughput.output_tokens_per_s)
    assert there.ttft.mean == pytest.approx(here.ttft.mean, abs=1e-6)
    assert there.itl.p50 == pytest.approx(here.itl.p50, abs=1e-6)

"""Every dialect on one record, with the values worked out by hand from the tools' own formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.errors import ConfigError
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.dialects import DIALECTS, dialect_report, nearest_rank
from ridgeline.metrics.durations import Chunk

RECORD = ClientRecord(
    request_id="r",
    scheduled_at_s=0.0,
    sent_at_s=0.2,
    chunks=[Chunk(0.5, 2), Chunk(0.6, 1), Chunk(0.9, 3)],
    outcome=Outcome.OK,
    first_empty_at_s=0.3,
    last_event_at_s=0.95,
    closed_at_s=0.95,
    has_chunk_tokens=True,
    num_output_tokens=6,
)
BY_HAND = {
    "ridgeline": {"ttft": [0.5], "tpot": [0.1], "itl": [0.1] * 4, "e2e": [0.9]},
    "vllm": {"ttft": [0.3], "tpot": [0.08], "itl": [0.1, 0.3], "e2e": [0.7]},
    "sglang": {"ttft": [0.3], "tpot": [0.09], "itl": [0.1, 0.3], "e2e": [0.75]},
    "genai-perf": {"ttft": [0.3], "itl": [0.08], "e2e": [0.7]},
    "aiperf": {"ttft": [0.3], "itl": [0.1], "e2e": [0.7]},
    "guidellm": {"ttft": [0.3], "tpot": [0.7 / 6], "itl": [0.08], "e2e": [0.75]},
    "llama.cpp": {"tpot": [0.08]},
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_record_by_hand(name: str) -> None:
    found = {quantity: list(values(RECORD)) for quantity, values in DIALECTS[name].values.items()}
    assert found == {quantity: pytest.approx(values) for quantity, values in BY_HAND[name].items()}
    assert set(DIALECTS[name].formulas) == set(found)


def test_all_dialects_are_tabulated() -> None:
    assert set(BY_HAND) == set(DIALECTS)
    rows = dialect_report([RECORD, replace(RECORD, outcome=Outcome.TIMEOUT)], "all")
    assert [(row.dialect, row.quantity) for row in rows[:2]] == [("ridgeline", "ttft"), ("vllm", "ttft")]
    assert len(rows) == sum(map(len, BY_HAND.values()))
    assert all(row.p50_s is not None for row in rows)


def test_without_per_chunk_usage_aiperf_divides_by_all_but_one() -> None:
    plain = replace(RECORD, has_chunk_tokens=False, chunks=[Chunk(c.at_s, 1) for c in RECORD.chunks])
    assert DIALECTS["aiperf"].values["itl"](plain) == pytest.approx([0.08])


@pytest.mark.parametrize("chunks", [[], [Chunk(0.5, 1)]])
def test_none_and_one_token(chunks: list[Chunk]) -> None:
    short = replace(RECORD, chunks=chunks, num_output_tokens=len(chunks))
    for dialect in DIALECTS.values():
        for quantity in ("itl", "tpot"):
            if quantity in dialect.values and (dialect.name, quantity) != ("guidellm", "tpot"):
                assert list(dialect.values[quantity](short)) == []


def test_a_report_of_nothing_has_no_figures() -> None:
    assert {(row.n, row.mean_s, row.p99_s) for row in dialect_report([], "all")} == {(0, None, None)}


def test_nearest_rank_does_not_interpolate() -> None:
    assert [nearest_rank([1, 2, 3, 4], p) for p in (0, 25, 50, 51, 99, 100)] == [1, 1, 2, 3, 4, 4]
    assert nearest_rank([], 50) is None


def test_an_unknown_dialect() -> None:
    with pytest.raises(ConfigError, match="dialect"):
        dialect_report([RECORD], "klingon")

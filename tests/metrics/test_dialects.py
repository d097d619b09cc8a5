"""Every dialect on hand-made records, with the values worked out by hand from the tools' own formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ridgeline.errors import ConfigError
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.dialect_report import DialectRow, dialect_counts, dialect_report
from ridgeline.metrics.dialect_values import first_to_reach, nearest_rank_with_failures
from ridgeline.metrics.dialects import DIALECTS
from ridgeline.metrics.durations import Chunk

RECORD = ClientRecord(
    request_id="r",
    scheduled_at_s=0.0,
    sent_at_s=0.2,
    chunks=[Chunk(0.5, 2), Chunk(0.6, 1), Chunk(0.9, 3)],
    outcome=Outcome.OK,
    empty_at_s=[0.3],
    last_event_at_s=0.95,
    closed_at_s=0.95,
    has_chunk_tokens=True,
    has_whole_stream=True,
    num_output_tokens=6,
)
BY_HAND = {
    "ridgeline": {"ttft": [0.5], "tpot": [0.1], "itl": [0.1] * 4, "e2e": [0.9]},
    "vllm": {"ttft": [0.1], "tpot": [0.12], "itl": [0.2, 0.1, 0.3], "e2e": [0.7]},
    "sglang": {"ttft": [0.3], "tpot": [0.09], "itl": [0.1, 0.3], "e2e": [0.75]},
    "genai-perf": {"ttft": [0.3], "itl": [0.08], "e2e": [0.7]},
    "aiperf": {"ttft": [0.3], "itl": [0.1], "e2e": [0.7]},
    "guidellm": {"ttft": [0.3], "tpot": [0.7 / 6], "itl": [0.08], "e2e": [0.75]},
    "llama.cpp": {"tpot": [0.08]},
}


def record(
    sent_at_s: float, *chunks: tuple[float, int], closed_at_s: float, **others: object
) -> ClientRecord:
    values = {"outcome": Outcome.OK, "has_whole_stream": True, "last_event_at_s": closed_at_s} | others
    return ClientRecord(
        request_id=f"at {sent_at_s}",
        scheduled_at_s=sent_at_s,
        sent_at_s=sent_at_s,
        chunks=[Chunk(*chunk) for chunk in chunks],
        closed_at_s=closed_at_s,
        num_output_tokens=sum(count for _, count in chunks),
        **values,  # type: ignore[arg-type]
    )


ONE_TOKEN = record(1.0, (1.2, 1), closed_at_s=1.3, last_event_at_s=1.25)
NO_TOKEN = record(2.0, closed_at_s=2.1)
NO_FINISH = record(3.0, (3.4, 1), (3.6, 1), closed_at_s=3.7, last_event_at_s=3.6, outcome=Outcome.TRUNCATED)
REFUSED = record(
    4.0, closed_at_s=4.01, outcome=Outcome.REJECTED, has_whole_stream=False, last_event_at_s=None
)
RUN = [RECORD, ONE_TOKEN, NO_TOKEN, NO_FINISH, REFUSED]
RUN_BY_HAND: dict[tuple[str, str], tuple[int, float | None, float | None, float | None]] = {
    # (n, mean, P50, P99)
    ("ridgeline", "ttft"): (2, 0.35, 0.35, 0.497),
    ("ridgeline", "tpot"): (1, 0.1, 0.1, 0.1),
    ("ridgeline", "itl"): (4, 0.1, 0.1, 0.1),
    ("ridgeline", "e2e"): (2, 0.55, 0.55, 0.893),
    ("vllm", "ttft"): (3, 0.7 / 3, 0.2, 0.396),
    ("vllm", "tpot"): (2, 0.16, 0.16, 0.1992),
    ("vllm", "itl"): (4, 0.2, 0.2, 0.297),
    ("vllm", "e2e"): (3, 0.5, 0.6, 0.698),
    ("sglang", "ttft"): (4, 0.225, 0.25, 0.397),
    ("sglang", "tpot"): (2, 0.145, 0.145, 0.1989),
    ("sglang", "itl"): (3, 0.2, 0.2, 0.298),
    ("sglang", "e2e"): (4, 0.425, 0.425, 0.7455),
    ("genai-perf", "ttft"): (2, 0.25, 0.25, 0.299),
    ("genai-perf", "itl"): (1, 0.08, 0.08, 0.08),
    ("genai-perf", "e2e"): (2, 0.45, 0.45, 0.695),
    ("aiperf", "ttft"): (2, 0.25, 0.25, 0.299),
    ("aiperf adj", "ttft"): (4, None, 0.3, math.inf),
    ("aiperf", "itl"): (1, 0.1, 0.1, 0.1),
    ("aiperf adj", "itl"): (3, None, math.inf, math.inf),
    ("aiperf", "e2e"): (2, 0.45, 0.45, 0.695),
    ("aiperf adj", "e2e"): (4, None, 0.7, math.inf),
    ("guidellm", "ttft"): (3, 0.5 / 3, 0.2, 0.3),
    ("guidellm", "tpot"): (7, 0.9 / 7, 0.7 / 6, 0.2),
    ("guidellm", "itl"): (5, 0.08, 0.08, 0.08),
    ("guidellm", "e2e"): (3, 1.15 / 3, 0.3, 0.75),
    ("llama.cpp", "tpot"): (1, 0.08, 0.08, 0.08),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_record_by_hand(name: str) -> None:
    found = {quantity: list(values(RECORD)) for quantity, values in DIALECTS[name].values.items()}
    assert found == {quantity: pytest.approx(values) for quantity, values in BY_HAND[name].items()}
    assert set(DIALECTS[name].formulas) == set(found)


def test_a_run_with_failures_one_token_and_none_by_hand() -> None:
    """Good, one token, none, a stream without finish reason, HTTP 429."""
    found = {(row.dialect, row.quantity): figures(row) for row in dialect_report(RUN, "all")}
    assert found == {key: pytest.approx(values) for key, values in RUN_BY_HAND.items()}


def figures(row: DialectRow) -> tuple[int, float | None, float | None, float | None]:
    return row.n, row.mean_s, row.p50_s, row.p99_s


def test_whom_each_tool_counts_by_hand() -> None:
    """In 4 s, with TTFT ≤ 350 ms and TPOT ≤ 150 ms; GenAI-Perf and AIPerf count from 0.2 s to 1.2 s."""
    counts = dialect_counts(RUN, "all", window_s=4.0, slos={"ttft": 0.35, "tpot": 0.15})
    found = {
        each.dialect: (each.num_taken, each.requests_per_s, each.goodput, each.attainment) for each in counts
    }
    assert found == {
        "ridgeline": (3, 0.75, 0.5, 0.4),
        "vllm": (3, 0.75, 0.5, None),
        "sglang": (4, 1.0, 0.75, 0.6),
        "genai-perf": (2, pytest.approx(5.0), None, None),
        "aiperf": (2, pytest.approx(2.0), pytest.approx(1.0), 0.2),
        "guidellm": (3, 0.75, None, None),
        "llama.cpp": (2, None, None, None),
    }
    assert all(each.words for each in counts)


def test_a_requests_own_limit_goes_before_the_runs_and_ours_bind_only_us() -> None:
    strict = replace(RECORD, slos_s={"ttft": 0.05})
    slos = {"ttft": 1.0, "icl_max": 0.2}
    good = {each.dialect: each.goodput for each in dialect_counts([RECORD], "all", window_s=1.0, slos=slos)}
    assert (good["ridgeline"], good["vllm"]) == (0.0, 1.0)
    [vllm] = dialect_counts([strict], "vllm", window_s=1.0, slos=slos)
    assert vllm.goodput == 0.0


@pytest.mark.parametrize("records", [[], [REFUSED]])
def test_a_set_without_a_value_is_what_each_tool_writes(records: list[ClientRecord]) -> None:
    found = {(row.dialect, row.quantity): figures(row)[1:] for row in dialect_report(records, "all")}
    zeros, nothing, no_number = (0.0,) * 3, (None,) * 3, (pytest.approx(math.nan, nan_ok=True),) * 3
    assert {found["vllm", quantity] for quantity in ("ttft", "tpot", "itl", "e2e")} == {zeros}
    assert {found["guidellm", quantity] for quantity in ("ttft", "tpot", "itl", "e2e")} == {zeros}
    assert {found["sglang", quantity] for quantity in ("ttft", "tpot", "itl")} == {zeros}
    assert found["sglang", "e2e"] == no_number
    for name in ("ridgeline", "genai-perf", "aiperf", "llama.cpp"):
        assert {values for (dialect, _), values in found.items() if dialect == name} == {nothing}
    assert found["aiperf adj", "ttft"] == ((None, math.inf, math.inf) if records else nothing)
    counts = dialect_counts(records, "all", window_s=0.0, slos={"ttft": 1.0})
    assert {(each.num_taken, each.requests_per_s, each.goodput) for each in counts} == {(0, None, None)}


def test_a_stream_of_usage_without_text_has_a_tpot_in_sglang() -> None:
    """(last event − s) / (N − 1): its TTFT is 0."""
    silent = replace(NO_TOKEN, num_output_tokens=3)
    assert DIALECTS["sglang"].values["tpot"](silent) == [pytest.approx(0.05)]
    assert DIALECTS["vllm"].values["tpot"](silent) == []
    assert DIALECTS["guidellm"].values["tpot"](silent) == [pytest.approx(0.1 / 3)]


@pytest.mark.parametrize(("first", "expected"), [(2, 0.1), (6, 0.08), (7, 0.08)])
def test_aiperf_falls_back_on_one_token_where_its_first_chunk_holds_all(first: int, expected: float) -> None:
    whole = replace(RECORD, chunks=[Chunk(0.5, first), Chunk(0.9, 0)])
    assert DIALECTS["aiperf"].values["itl"](whole) == pytest.approx([expected])


def test_without_per_chunk_usage_aiperf_divides_by_all_but_one() -> None:
    plain = replace(RECORD, has_chunk_tokens=False, chunks=[Chunk(c.at_s, 1) for c in RECORD.chunks])
    assert DIALECTS["aiperf"].values["itl"](plain) == pytest.approx([0.08])


def test_weighted_percentiles_do_not_interpolate() -> None:
    ones = [1.0] * 4
    assert [first_to_reach([1, 2, 3, 4], p, ones) for p in (0, 25, 50, 51, 99, 100)] == [1, 1, 2, 3, 4, 4]
    assert [first_to_reach([5, 1], p, [1.0, 3.0]) for p in (50, 75, 76)] == [1, 1, 5]
    assert first_to_reach([], 50, []) is None
    assert first_to_reach([3.0], 50, [0.0]) is None


def test_failures_are_infinite_by_nearest_rank() -> None:
    assert [nearest_rank_with_failures([2, 1], p, 1) for p in (0, 33, 34, 67, 100)] == [
        1,
        1,
        2,
        math.inf,
        math.inf,
    ]
    assert nearest_rank_with_failures([], 50, 0) is None


def test_an_unknown_dialect() -> None:
    with pytest.raises(ConfigError, match="dialect"):
        dialect_report([RECORD], "klingon")

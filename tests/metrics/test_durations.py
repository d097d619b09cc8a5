"""Metrics of hand-made client records, each value worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import Chunk, e2e_s, icl_s, itl_s, lateness_s, tpot_s, ttft_s
from ridgeline.metrics.percentiles import percentile, summarize
from ridgeline.metrics.slo import goodput, parse_slos


def record(*chunks: tuple[float, int], outcome: Outcome = Outcome.OK, n: int | None = None) -> ClientRecord:
    return ClientRecord(
        request_id="r",
        scheduled_at_s=0.0,
        sent_at_s=0.2,
        chunks=[Chunk(*each) for each in chunks],
        outcome=outcome,
        num_output_tokens=n,
    )


def test_the_record_of_all_dialects() -> None:
    one = record((0.5, 2), (0.6, 1), (0.9, 3), n=6)
    assert lateness_s(one) == 0.2
    assert ttft_s(one) == 0.5
    assert tpot_s(one) == pytest.approx(0.1)
    assert itl_s(one) == pytest.approx([0.1] * 4)
    assert icl_s(one) == pytest.approx([0.1, 0.3])
    assert e2e_s(one) == 0.9


def test_coalesced_chunks() -> None:
    one = record((0.1, 1), (0.16, 3), (0.22, 3), (0.32, 5), n=12)
    assert tpot_s(one) == pytest.approx(0.02)
    assert itl_s(one) == pytest.approx([0.02] * 11)
    assert tpot_s(record((0.1, 1), (0.16, 1), (0.22, 1), (0.32, 1), n=12)) == pytest.approx(0.02)


def test_what_is_undefined_is_none() -> None:
    nothing, one, whole = record(), record((0.5, 1), n=1), record((0.5, 4), n=4)
    assert (ttft_s(nothing), tpot_s(nothing), e2e_s(nothing), itl_s(nothing)) == (None, None, None, [])
    assert (ttft_s(one), tpot_s(one), itl_s(one)) == (0.5, None, [])
    assert tpot_s(whole) is None
    assert summarize([]) == summarize(())
    assert summarize([]).p99 is None


def test_one_chunk_tells_nothing_of_the_time_between_tokens() -> None:
    all_at_once = record((0.5, 1), n=12)
    assert (tpot_s(all_at_once), itl_s(all_at_once)) == (None, [])
    assert goodput([all_at_once], {"tpot": 0.001}, 1.0).undefined == {"tpot": 1}


def test_p999_needs_a_thousand_values() -> None:
    few, many = summarize(range(999)), summarize(range(1001))
    assert (few.p999, few.low_n, few.low_n_p999) == (pytest.approx(997.002), False, True)
    assert (many.p999, many.low_n_p999) == (999.0, False)
    assert summarize([]).p999 is None


def test_equal_instants_are_gaps_of_zero() -> None:
    assert itl_s(record((0.5, 1), (0.5, 1))) == [0.0]


def test_percentiles_by_hand() -> None:
    values = [900, 100, 130, 110]
    assert percentile(values, 50) == 120
    assert percentile(values, 95) == pytest.approx(784.5)
    assert percentile(values, 99) == pytest.approx(876.9)
    assert percentile([], 50) is None
    assert summarize(values).low_n
    assert not summarize(range(100)).low_n


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], p: float) -> None:
    assert percentile(values, p) == pytest.approx(np.percentile(values, p), rel=1e-9, abs=1e-6)
    assert summarize(values).std == pytest.approx(np.std(values), rel=1e-6, abs=1e-6)


def test_goodput_counts_all_that_were_sent() -> None:
    records = [
        *[record((0.4, 1), (0.5, 1), n=2)] * 4,
        *[record((0.6, 1), (0.7, 1), n=2)] * 2,
        record((0.4, 1), n=1),
        *[record(outcome=Outcome.REJECTED)] * 3,
    ]
    found = goodput(records, parse_slos(["ttft:500", "tpot:100"]), 2.0)
    assert (found.num_good, found.rate, found.attainment) == (5, 2.5, 0.5)
    assert found.attainment_by_slo == {"ttft": 0.5, "tpot": 0.7}
    assert found.undefined == {"ttft": 0, "tpot": 1}
    assert goodput([], {"ttft": 1.0}, 0.0).attainment is None


def test_a_requests_own_limit_goes_before_the_runs() -> None:
    strict = replace(record((0.4, 1)), slos_s={"ttft": 0.3})
    assert goodput([record((0.4, 1)), strict], {"ttft": 0.5}, 1.0).num_good == 1
    alone = goodput([record((0.4, 1)), strict], {}, 1.0)
    assert (alone.num_good, alone.attainment_by_slo) == (1, {"ttft": 0.5})


@given(st.lists(st.floats(0.2, 5), max_size=20), st.floats(0, 5000), st.floats(0, 5000))
def test_goodput_never_falls_with_a_looser_slo(firsts: list[float], one: float, other: float) -> None:
    records = [record((at, 1)) for at in firsts]
    tight, loose = (goodput(records, {"ttft": limit / 1000}, 1).num_good for limit in sorted((one, other)))
    assert tight <= loose


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:nan", "speed:3", "ttft:inf"])
def test_slos_that_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="goodput"):
        parse_slos([word])


def test_slos_in_seconds() -> None:
    assert parse_slos(["ttft:500", "e2el:3000"]) == {"ttft": 0.5, "e2el": 3.0}
    with pytest.raises(ConfigError, match="twice"):
        parse_slos(["ttft:500", "ttft:1"])

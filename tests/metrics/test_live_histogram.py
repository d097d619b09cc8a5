"""The live histogram against exact percentiles, and its bounds."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.metrics.live_histogram import LEAST, MOST, RELATIVE_ERROR, LiveHistogram
from ridgeline.metrics.percentiles import percentile


def histogram(values: list[float]) -> LiveHistogram:
    found = LiveHistogram()
    for value in values:
        found.add(value)
    return found


@given(st.lists(st.floats(LEAST, MOST, exclude_max=True), min_size=1, max_size=60), st.floats(0, 100))
def test_a_percentile_is_within_the_stated_error(values: list[float], p: float) -> None:
    assert histogram(values).percentile(p) == pytest.approx(
        percentile(values, p), rel=RELATIVE_ERROR * 1.0001
    )


@given(st.lists(st.floats(0, 1e12), max_size=60), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_with_p_whatever_came(values: list[float], one: float, other: float) -> None:
    low, high = (histogram(values).percentile(p) for p in sorted((one, other)))
    if values:
        assert low is not None
        assert high is not None
        assert low <= high * (1 + 1e-12)
    else:
        assert (low, high) == (None, None)


def test_by_hand() -> None:
    found = histogram([100.0, 110.0, 130.0, 900.0])
    assert found.n == 4
    assert found.percentile(50) == pytest.approx(120, rel=RELATIVE_ERROR)
    assert found.percentile(99) == pytest.approx(876.9, rel=RELATIVE_ERROR)
    assert LiveHistogram().percentile(50) is None


def test_what_is_out_of_range_counts_at_its_end() -> None:
    assert histogram([0.0, LEAST / 2]).percentile(100) == 0
    assert histogram([MOST, 1e300, float("inf")]).percentile(0) == MOST
    ends = histogram([0.0, 5.0, 1e300])
    assert [ends.percentile(p) for p in (0, 100)] == [0, MOST]
    assert ends.percentile(50) == pytest.approx(5, rel=RELATIVE_ERROR)


def test_memory_does_not_grow_with_the_values() -> None:
    found = histogram([0.5])
    before = sys.getsizeof(found._counts), len(found._counts)
    for index in range(20_000):
        found.add(index / 7)
    assert (sys.getsizeof(found._counts), len(found._counts)) == before


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_what_is_no_duration_is_a_mistake(value: float) -> None:
    with pytest.raises(AssertionError):
        LiveHistogram().add(value)

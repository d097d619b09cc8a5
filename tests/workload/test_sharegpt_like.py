"""The built-in workload: repeatable, within its bounds, with the means it states."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from ridgeline.errors import ConfigError
from ridgeline.workload.arrivals import poisson_arrivals
from ridgeline.workload.lengths import LogNormalLengths
from ridgeline.workload.sharegpt_like import sharegpt_like_trace


def test_equal_seeds_give_equal_traces() -> None:
    first, again, other = (sharegpt_like_trace(50, request_rate=2, seed=seed) for seed in (7, 7, 8))
    assert first == again != other


def test_the_means_are_the_stated_ones_and_no_request_is_too_long() -> None:
    trace = sharegpt_like_trace(40_000, request_rate=2, seed=0)
    # Standard errors: 161 · ~0.8 / 200 and 338 · ~0.85 / 200, so these are ± 4 of them.
    assert fmean(r.num_prompt_tokens for r in trace) == pytest.approx(161.31, rel=0.02)
    assert fmean(r.num_output_tokens for r in trace) == pytest.approx(337.99, rel=0.02)
    assert max(r.num_prompt_tokens + r.num_output_tokens for r in trace) <= 2048
    assert trace[-1].arrived_at_s == pytest.approx(20_000, rel=0.02)


@pytest.mark.parametrize(("mean", "sigma", "maximum"), [(161, 1.1, 512), (338, 1.0, 1536), (10, 0.2, 1000)])
def test_a_cut_log_normal_has_the_mean_that_was_asked_for(mean: float, sigma: float, maximum: int) -> None:
    mu = LogNormalLengths(mean, sigma, maximum).mu
    # Integral of the density below the cut, in steps of ln x.
    points = [math.log(maximum) - 12 + 12 * (i + 0.5) / 20_000 for i in range(20_000)]
    weights = [math.exp(-((y - mu) ** 2) / (2 * sigma**2)) for y in points]
    cut_mean = sum(math.exp(y) * w for y, w in zip(points, weights, strict=True)) / sum(weights)
    assert cut_mean == pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize("values", [(0.5, 1, 100), (60, 1, 100), (10, 0, 100), (10, 4, 100)])
def test_impossible_lengths_are_refused(values: tuple[float, float, int]) -> None:
    with pytest.raises(ConfigError):
        LogNormalLengths(*values)


def test_arrivals_come_at_the_rate_or_all_at_once() -> None:
    arrivals = poisson_arrivals(10_000, 4.0, Random(1))
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(2500, rel=0.05)
    assert poisson_arrivals(3, math.inf, Random(1)) == [0, 0, 0]
    for rate in (0, -1, math.nan):
        with pytest.raises(ConfigError, match="request_rate"):
            poisson_arrivals(1, rate, Random(1))
    with pytest.raises(ConfigError, match="num_prompts=0"):
        sharegpt_like_trace(0, request_rate=1, seed=0)

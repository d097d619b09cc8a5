"""The exponential that NumPy and the native sampler share, and its sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.sampling.exponential import exp_nonpositive, halving_sum


@given(st.lists(st.floats(-708, 0), min_size=1, max_size=50))
def test_it_is_the_exponential_to_a_few_roundings(exponents):
    values = exp_nonpositive(np.array(exponents))
    assert values.tolist() == pytest.approx([math.exp(x) for x in exponents], rel=1e-15)


def test_the_ends():
    ends = np.array([0.0, -0.0, -708.0, np.nextafter(-708, -709), -1e300, -np.inf])
    assert exp_nonpositive(ends).tolist() == [1, 1, pytest.approx(math.exp(-708), rel=1e-15), 0, 0, 0]


def test_it_grows_to_within_the_rounding_of_masses():
    exponents = -np.linspace(0, 40, 100_001)
    assert np.diff(exp_nonpositive(exponents)).max() <= 0


@given(st.lists(st.floats(0, 1), max_size=70))
def test_a_halving_sum_is_the_sum(values):
    assert halving_sum(np.array(values)) == pytest.approx(math.fsum(values), rel=1e-14, abs=1e-300)


def test_a_halving_sum_adds_the_upper_half_to_the_lower():
    big = 2.0**53
    assert halving_sum(np.array([big, 1.0, 1.0, -big, 1.0])) == ((big + 1.0) + 1.0) + (1.0 - big)

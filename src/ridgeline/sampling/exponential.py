"""e^x for x ≤ 0 in plain IEEE operations, so that NumPy and the native core give the same bits.

x = n·ln 2 + r with |r| ≤ 0.35, e^x = 2ⁿ · p(r), p the Taylor polynomial of degree 13 (its remainder is
4e-18); relative error below 4e-16. One rounding per multiplication and addition, never a fused one. What
lies below −708, where results would become subnormal, is 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_LEAST_EXPONENT = -708.0
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the high one has 32 zero bits at its end, so its product with n is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Added to and taken from a small number, it rounds to the nearest integer (ties to even).
_ROUNDER = 1.5 * 2**52
_C = tuple(1.0 / math.factorial(k) for k in range(14))


def exp_nonpositive(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^x of each element, all of them ≤ 0 or −∞; exactly 1 at 0."""
    clamped = np.maximum(x, _LEAST_EXPONENT)
    shifted = clamped * _LOG2_E + _ROUNDER
    n = shifted - _ROUNDER
    r = clamped - n * _LN2_HIGH - n * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    # Four terms each, p[k] from the power r^k on: short chains of dependent operations.
    p0, p4, p8 = ((_C[k] + _C[k + 1] * r) + (_C[k + 2] + _C[k + 3] * r) * r2 for k in (0, 4, 8))
    p12 = _C[12] + _C[13] * r
    p = (p0 + p4 * r4) + (p8 + p12 * r4) * (r4 * r4)
    # The low bits of `shifted` hold n; it belongs into the exponent.
    power = (p.view(np.int64) + (shifted.view(np.int64) << 52)).view(np.float64)
    power[x < _LEAST_EXPONENT] = 0
    return power


def halving_sum(values: NDArray[np.float64]) -> float:
    """Sum in one order: the upper half, filled up with zeros to a power of two, is added to the lower."""
    width = 1 << max(len(values) - 1, 0).bit_length()
    folded = np.zeros(width)
    folded[: len(values)] = values
    while width > 1:
        width //= 2
        folded = folded[:width] + folded[width:]
    return float(folded[0])

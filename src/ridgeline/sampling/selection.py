"""Choosing from one row: which tokens stay, and which of them a uniform number hits.

Ties are settled everywhere by position, the lower first, so that a result depends on the values only.
Positions come back in ascending order; nothing here sorts more of a row than it must.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32] | NDArray[np.float64]
IntArray = NDArray[np.intp]

_NUCLEUS_SIZES = (256, 4096)
"""How many of the heaviest tokens are looked at before the whole row is sorted."""


def largest(values: FloatArray, count: int) -> IntArray:
    """Ascending positions of the `count` largest values; of equal ones the first."""
    if count >= len(values):
        return np.arange(len(values))
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def relative_weights(values: FloatArray, temperature: float) -> NDArray[np.float64]:
    """exp((value − best) / temperature): probabilities up to a factor, the best one exactly 1.

    Never NaN or infinite: the exponent is ≤ 0, however small the temperature.
    """
    # The floor keeps 0 / T at 0 even where the processor flushes subnormal numbers to zero.
    temperature = max(float(temperature), sys.float_info.min)
    exponents: NDArray[np.float64] = np.subtract(values, values.max(), dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        exponents /= temperature
        np.exp(exponents, out=exponents)
    return exponents


def nucleus(values: FloatArray, weights: NDArray[np.float64], top_p: float) -> IntArray:
    """Ascending positions of the fewest largest values that hold `top_p` of all weight, at least one.

    `weights` must grow with `values`: then the sorted weights alone tell how many are kept.
    """
    needed = top_p * weights.sum()
    for size in (*_NUCLEUS_SIZES, len(weights)):
        mass = np.cumsum(_heaviest(weights, size))
        if mass[-1] >= needed:
            break
    return largest(values, int(np.searchsorted(mass, needed)) + 1)


def pick(weights: NDArray[np.float64], uniform: float) -> int:
    """Position that `uniform` in [0, 1) hits on the cumulative weights; never one of weight 0."""
    mass = np.cumsum(weights)
    position = np.searchsorted(mass, uniform * mass[-1], side="right")
    # Rounding may carry the product up to the total itself: the last token with any weight takes it.
    return int(min(position, np.searchsorted(mass, mass[-1])))


def kept_tokens(
    logits: FloatArray, *, temperature: float, min_p: float, top_k: int, top_p: float
) -> tuple[IntArray | None, NDArray[np.float64]]:
    """Ascending ids of the tokens that pass min_p, top_k and top_p, and their weights.

    Ids are None when nothing was left out. `top_p` counts the mass of what the other two left.
    """
    ids = largest(logits, top_k) if 0 < top_k < len(logits) else None
    values = logits if ids is None else logits[ids]
    weights = relative_weights(values, temperature)
    if min_p > 0:
        kept = np.flatnonzero(weights >= min_p)
        ids, values, weights = kept if ids is None else ids[kept], values[kept], weights[kept]
    if top_p < 1:
        kept = nucleus(values, weights, top_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _heaviest(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    if count < len(weights):
        weights = np.partition(weights, len(weights) - count)[len(weights) - count :]
    return np.sort(weights)[::-1]

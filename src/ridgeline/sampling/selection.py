"""Choosing from one row: which tokens stay, and which of them a uniform number hits.

Ties are settled everywhere by position, the lower first, so that a result depends on the values only.
Positions come back in ascending order; nothing here sorts more of a row than it must. Probabilities are
whole numbers (`MASS_OF_BEST`), so their sums are exact in any order: the native sampler, which sums in
another one, chooses the same tokens.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from ridgeline.sampling.exponential import exp_nonpositive

FloatArray = NDArray[np.float32] | NDArray[np.float64]
IntArray = NDArray[np.intp]

MASS_OF_BEST = 2**43
"""Mass of the most probable token. Fewer than 2²⁰ tokens sum to less than 2⁶³; what is less
probable by a factor of 2⁴⁴ has mass 0 and is never drawn."""
_NUCLEUS_SIZES = (256, 4096)
"""How many of the largest values are looked at before the whole row is sorted."""


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
    # The floor keeps 1 / T finite.
    scale = 1.0 / max(float(temperature), sys.float_info.min)
    exponents: NDArray[np.float64] = np.subtract(values, values.max(), dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        exponents *= scale
        return exp_nonpositive(exponents)


def whole_masses(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Relative weights in 0…1 as whole multiples of 1 / `MASS_OF_BEST`."""
    return np.rint(weights * MASS_OF_BEST).astype(np.int64)


def nucleus(values: FloatArray, masses: NDArray[np.int64], top_p: float) -> IntArray:
    """Ascending positions of the fewest largest values that hold `top_p` of all mass, at least one."""
    total = int(masses.sum())
    needed = min(max(math.ceil(top_p * float(total)), 1), total)
    for size in (*_NUCLEUS_SIZES, len(values)):
        candidates = largest(values, size)
        ranked = candidates[np.argsort(-values[candidates], kind="stable")]
        mass = np.cumsum(masses[ranked])
        if mass[-1] >= needed:
            break
    return np.sort(ranked[: int(np.searchsorted(mass, needed)) + 1])


def pick(masses: NDArray[np.int64], uniform: float) -> int:
    """Position that `uniform` in [0, 1), of 53 bits, hits on the cumulative masses; never one of mass 0."""
    mass = np.cumsum(masses)
    target = (int(uniform * 2**53) * int(mass[-1])) >> 53
    return int(np.searchsorted(mass, target, side="right"))


def kept_tokens(
    logits: FloatArray, *, temperature: float, min_p: float, top_k: int, top_p: float
) -> tuple[IntArray | None, NDArray[np.int64]]:
    """Ascending ids of the tokens that pass min_p, top_k and top_p, and their masses.

    Ids are None when nothing was left out. `top_p` counts the mass of what the other two left.
    """
    ids = largest(logits, top_k) if 0 < top_k < len(logits) else None
    values = logits if ids is None else logits[ids]
    weights = relative_weights(values, temperature)
    if min_p > 0:
        kept = np.flatnonzero(weights >= min_p)
        ids, values, weights = kept if ids is None else ids[kept], values[kept], weights[kept]
    masses = whole_masses(weights)
    if top_p < 1:
        kept = nucleus(values, masses, top_p)
        ids, masses = kept if ids is None else ids[kept], masses[kept]
    return ids, masses

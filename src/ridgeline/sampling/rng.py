"""Counter-based randomness: a draw is a pure function of (seed, choice index, output position).

Nothing is carried from one draw to the next, so a request's draws do not depend on its neighbours,
on the order of steps or on a preemption. Source: Salmon et al., "Parallel random numbers: as easy as
1, 2, 3" (SC 2011), Philox4x64-10.
"""

from __future__ import annotations

import secrets

_MASK_64 = 2**64 - 1
_ROUNDS = 10
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox4x64(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four 64-bit words for one key and one counter, all of them unsigned 64-bit integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIERS[0] * c0
        product_1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product_1 >> 64) ^ c1 ^ k0,
            product_1 & _MASK_64,
            (product_0 >> 64) ^ c3 ^ k1,
            product_0 & _MASK_64,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _MASK_64
        k1 = (k1 + _KEY_STEPS[1]) & _MASK_64
    return c0, c1, c2, c3


def uniform(seed: int, choice_index: int, output_position: int) -> float:
    """A number in [0, 1) with 53 random bits; the same arguments always give the same one."""
    word = philox4x64((seed, choice_index), (output_position, 0, 0, 0))[0]
    return float((word >> 11) * 2.0**-53)


def draw_seed() -> int:
    """A fresh seed in 0…2⁶³−1 from the operating system, for a request that brought none."""
    return secrets.randbits(63)

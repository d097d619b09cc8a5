"""How many positions attention sees and reads: sums over a row's tokens in closed form.

A row computes tokens at positions n … n + s − 1 (n = num_computed_tokens, s = num_scheduled_tokens); the
token at position p sees p + 1 positions, or the last `window` of them. Causal attention: Vaswani et al.
(2017) §3.2.3; sliding window: Beltagy et al. (2020) §3.1.
"""

from __future__ import annotations

TOKENS_PER_KV_READ = 8
"""Neighbouring tokens of a request that share one read of K and V (csrc/ops/attention.h)."""


def visible_positions(num_computed: int, num_scheduled: int, window: int | None = None) -> int:
    """(token, position seen) pairs of a row.

    Σ (n + i), i = 1 … s = s · n + s (s + 1) / 2. With a window W the first a = W − n tokens (within 0 … s)
    see all: a · n + a (a + 1) / 2 + (s − a) · W.
    """
    n, s = num_computed, num_scheduled
    if window is None:
        return s * n + s * (s + 1) // 2
    growing = min(max(window - n, 0), s)
    return growing * n + growing * (growing + 1) // 2 + (s - growing) * window


def read_positions(num_computed: int, num_scheduled: int, window: int | None = None) -> int:
    """Positions whose K and V one KV head reads for a row: once for each group of g = 8 tokens.

    A group of tokens [b, e) of the row reads what its last token sees: n + e positions. With s = q g + r:
    q · n + g q (q + 1) / 2, and n + s more if r > 0. With a window W a group reads what any of its
    tokens sees, min(n + e, W + e − b − 1).
    """
    n, s, size = num_computed, num_scheduled, TOKENS_PER_KV_READ
    num_whole, rest = divmod(s, size)
    if window is None:
        return num_whole * n + size * num_whole * (num_whole + 1) // 2 + (n + s if rest else 0)
    widest = window + size - 1
    growing = min(max((widest - n) // size, 0), num_whole)
    whole = growing * n + size * growing * (growing + 1) // 2 + (num_whole - growing) * widest
    return whole + (min(n + s, window + rest - 1) if rest else 0)


def distinct_positions(num_computed: int, num_scheduled: int, window: int | None = None) -> int:
    """The least a KV head can read for a row: every position that any of its tokens sees, once."""
    total = num_computed + num_scheduled
    return total if window is None else min(total, window + num_scheduled - 1)

"""Numbers as people read them: three digits and a unit; a dash where there is none."""

from __future__ import annotations

_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def milliseconds(seconds: float | None) -> str:
    """`7.12 ms`, `1.24 s`, `83 µs`."""
    if seconds is None:
        return "–"
    if abs(seconds) >= 1:
        return f"{_digits(seconds)} s"
    if abs(seconds) >= 1e-3:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{seconds * 1e6:.0f} µs"


def percent(share: float | None) -> str:
    """`12.3 %`."""
    return "–" if share is None else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    """Three digits."""
    return "–" if value is None else _digits(value)


def bytes_text(num_bytes: float | None) -> str:
    """`96.6 MB`, decimal."""
    return _scaled(num_bytes, "B")


def flops_text(flops: float | None) -> str:
    """`9.71 GFLOP`."""
    return _scaled(flops, "FLOP")


def amount(value: float | None) -> str:
    """`9.71 G`, for a column whose head has the unit."""
    return _scaled(value, "").rstrip()


def rate_text(per_s: float | None, unit: str) -> str:
    """`18.1 GB/s`."""
    return "–" if per_s is None else f"{_scaled(per_s, unit)}/s"


def _scaled(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    for scale, prefix in _SCALES:
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.005:
        return "<0.01"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"

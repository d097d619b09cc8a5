"""Numbers as people read them."""

from __future__ import annotations

import pytest

from ridgeline.perf.quantities import amount, bytes_text, flops_text, milliseconds, number, percent, rate_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (milliseconds(1.2345), "1.23 s"),
        (milliseconds(0.0071234), "7.12 ms"),
        (milliseconds(0.0123), "12.3 ms"),
        (milliseconds(8.3e-5), "83 µs"),
        (milliseconds(-0.0123), "-12.3 ms"),
        (milliseconds(0.0), "0 µs"),
        (percent(0.1234), "12.3 %"),
        (number(0.001), "<0.01"),
        (number(1234.5), "1,234"),
        (number(7), "7"),
        (bytes_text(96_600_000), "96.6 MB"),
        (flops_text(9.71e9), "9.71 GFLOP"),
        (rate_text(18.1e9, "B"), "18.1 GB/s"),
        (amount(96_600_000), "96.6 M"),
        (amount(512), "512"),
    ],
)
def test_three_digits_and_a_unit(text: str, expected: str) -> None:
    assert text == expected


def test_what_is_not_there_is_a_dash() -> None:
    assert {milliseconds(None), percent(None), number(None), bytes_text(None), amount(None)} == {"–"}
    assert rate_text(None, "B") == "–"

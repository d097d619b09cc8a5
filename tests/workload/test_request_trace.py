"""Traces as JSON lines: what is read, sorted, written, and refused with its line."""

from __future__ import annotations

import pytest

from ridgeline.errors import ConfigError
from ridgeline.workload.request_trace import TraceRequest, format_request_trace, parse_request_trace

GOOD = '{"arrived_at_s": 0, "prompt_tokens": 3, "output_tokens": 4}'


def test_a_trace_is_read_sorted_and_written_back() -> None:
    lines = ['{"arrived_at_s": 1.5, "prompt_tokens": 1, "output_tokens": 1, "note": "x"}', "", GOOD]
    trace = parse_request_trace(lines)
    assert trace == [TraceRequest(0.0, 3, 4), TraceRequest(1.5, 1, 1)]
    assert [request.num_resident_tokens for request in trace] == [6, 1]
    assert parse_request_trace(format_request_trace(trace).splitlines()) == trace


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "trace line 2=.*is not JSON"),
        ("3", "trace line 2=3"),
        (GOOD.replace("0", "-1"), "arrived_at_s=-1"),
        (GOOD.replace("0", "NaN"), "arrived_at_s=nan"),
        (GOOD.replace("0", '"0"'), "arrived_at_s='0'"),
        (GOOD.replace("3", "0"), "prompt_tokens=0"),
        (GOOD.replace("3", "2.5"), "prompt_tokens=2.5"),
        (GOOD.replace("4", "true"), "output_tokens=True"),
        (GOOD.replace("output_tokens", "outputs"), "output_tokens=None"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(line: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        parse_request_trace([GOOD, line])
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_an_empty_trace_is_refused(lines: list[str]) -> None:
    with pytest.raises(ConfigError, match="at least one request"):
        parse_request_trace(lines)

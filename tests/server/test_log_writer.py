"""Log lines: nothing a client sends can forge one, and a stuck reader stops nobody."""

from __future__ import annotations

import io
import json
import logging
import threading

import pytest

from ridgeline.server.log_writer import MAX_QUEUED_LINES, LineFormatter, LogWriter


def record(message: str = "request", **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("ridgeline.requests", logging.INFO, "", 0, message, (), None)
    made.fields = fields
    return made


def test_json_lines_hold_the_fields() -> None:
    line = json.loads(LineFormatter("json").format(record(status=200, ttft_ms=1.5, tpot_ms=None)))
    assert (line["message"], line["level"], line["status"], line["ttft_ms"]) == ("request", "info", 200, 1.5)
    assert line["tpot_ms"] is None
    assert line["time"].endswith("+00:00")


def test_text_lines_leave_out_what_is_undefined() -> None:
    line = LineFormatter("text").format(record(status=200, ttft_ms=1.5, tpot_ms=None, path="/v1/models"))
    assert line.endswith("info request status=200 ttft_ms=1.5 path=/v1/models")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_value_stays_in_its_line_and_field(log_format: str) -> None:
    line = LineFormatter(log_format).format(record(path='/x\n2026 info request status=200 "', id="a b\u2028"))
    assert len(line.splitlines()) == 1
    assert 'path="/x\\n' in line.replace('": "', '="').replace('"path', "path")
    assert "\u2028" not in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_one_line(log_format: str) -> None:
    made = record()
    try:
        raise ValueError("boom")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    line = LineFormatter(log_format).format(made)
    assert len(line.splitlines()) == 1
    assert "boom" in line


def test_all_lines_are_written_before_the_end() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream, LineFormatter("text"))
    for number in range(100):
        writer.emit(record(number=number))
    writer.close()
    assert [line.split("number=")[1] for line in stream.getvalue().splitlines()] == [
        str(n) for n in range(100)
    ]
    assert writer.num_dropped == 0


def test_a_stuck_reader_costs_lines_and_no_time() -> None:
    let_go = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            assert let_go.wait(60)
            return super().write(text)

    stream = Stuck()
    writer = LogWriter(stream, LineFormatter("text"))
    for _ in range(MAX_QUEUED_LINES + 50):
        writer.emit(record())
    assert writer.num_dropped >= 49
    let_go.set()
    while not writer._lines.empty():
        threading.Event().wait(0.01)
    writer.close()
    assert len(stream.getvalue().splitlines()) + writer.num_dropped == MAX_QUEUED_LINES + 50

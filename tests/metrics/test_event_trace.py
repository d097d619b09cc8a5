"""Records of events: read back as they were, or refused by line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.core import events as ev
from ridgeline.errors import ConfigError
from ridgeline.metrics.event_trace import TraceHeader, format_event_trace, parse_event_trace
from ridgeline.outputs import FinishReason

HEADER = TraceHeader(
    model="m", block_size=16, num_blocks=4, bytes_per_token=64, bytes_per_token_formula="2 × 32 B = 64 B"
)
EVENTS: list[ev.Event] = [
    ev.RequestArrived(0.5, "0", 0.25, 7),
    ev.RequestScheduled(0.5, "0", num_cached_tokens=16, resumed=True),
    ev.AdmissionHeld(0.5, "1", ev.Lack.BLOCKS),
    ev.RequestPreempted(0.5, "0", "1", 12),
    ev.BlocksAllocated(0.5, "0", (1, 2)),
    ev.BlocksHit(0.5, "0", (3,), 16, (3,)),
    ev.PrefixMissed(0.6, "0", 16, ev.MissReason.DIFFERS, differs_at=20),
    ev.PrefixMissed(0.6, "0", 16, ev.MissReason.EVICTED, evicted_at_s=0.1),
    ev.BlocksCopied(0.6, "0", ((1, 2), (3, 0))),
    ev.PrefixCacheReset(0.6, 3),
    ev.TokensEmitted(0.7, (("0", 1),)),
    ev.StepFinished(0.7, 3, (("0", 0, 7), ("1", 4, 1)), 0.01, {"attention": 0.002}),
    ev.RequestFinished(0.7, "0", FinishReason.STOP, 1),
]


def test_events_come_back_as_they_were() -> None:
    lines = list(format_event_trace(HEADER, EVENTS))
    assert all(json.loads(line)["type"] for line in lines)
    assert parse_event_trace([*lines, "\n"]) == (HEADER, EVENTS)


def test_a_real_run_comes_back_as_it_was(tiny_model: Path) -> None:
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        llm.generate([[5] * 40, [5] * 40], SamplingParams(max_tokens=4, ignore_eos=True), progress=False)
        events = list(llm.parts.event_log.events())
    assert parse_event_trace(format_event_trace(HEADER, events)) == (HEADER, events)


GOOD = {
    "type": "RequestFinished",
    "at_s": 1,
    "request_id": "0",
    "finish_reason": "stop",
    "num_output_tokens": 1,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"type": "Finished"}, "type='Finished'"),
        ({"type": None}, "type=None"),
        ({"at_s": "1"}, "at_s='1'"),
        ({"at_s": True}, "at_s=True"),
        ({"request_id": 3}, "request_id=3"),
        ({"finish_reason": "tired"}, "finish_reason='tired'"),
        ({"num_output_tokens": 1.5}, "num_output_tokens=1.5"),
        ({"num_output_tokens": [1]}, "num_output_tokens=\\[1\\]"),
        ({"extra": 1}, "extra=1"),
    ],
)
def test_wrong_fields_are_refused_by_line_and_name(change: dict[str, object], named: str) -> None:
    lines = [*format_event_trace(HEADER, []), json.dumps(GOOD | change)]
    with pytest.raises(ConfigError, match=f"trace line 2.*{named}"):
        parse_event_trace(lines)


def test_missing_fields_wrong_lines_and_wrong_files_are_refused() -> None:
    head = list(format_event_trace(HEADER, []))
    short = json.dumps({k: v for k, v in GOOD.items() if k != "request_id"})
    for lines, named in [
        ([*head, short], "request_id=None: is missing"),
        ([*head, "{"], "trace line 2=.*not JSON"),
        ([*head, "[]"], "trace line 2=.*must be a JSON object"),
        ([*head, '{"type": "BlocksCopied", "at_s": 1, "request_id": "0", "copies": [[1]]}'], "copies="),
        ([json.dumps(GOOD)], "must be the TraceHeader"),
        ([], "--save-trace"),
        ([head[0].replace("16", "0")], "sizes must be"),
    ]:
        with pytest.raises(ConfigError, match=named):
            parse_event_trace(lines)

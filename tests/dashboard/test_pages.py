"""Pages are whole and closed: no network, no text that breaks out, every step and allocator in them."""

from __future__ import annotations

import json
import re

from ridgeline.core import events as ev
from ridgeline.dashboard.block_map_page import block_map_page
from ridgeline.dashboard.block_map_text import block_map_lines
from ridgeline.dashboard.fragmentation_page import fragmentation_page
from ridgeline.metrics.block_record import BlockRecord, block_record
from ridgeline.metrics.event_trace import TraceHeader
from ridgeline.outputs import FinishReason
from ridgeline.perf.allocators import PagedAllocator
from ridgeline.perf.fragmentation import replay
from ridgeline.workload.request_trace import TraceRequest

NASTY = "</script><b>&\u2028"


def record(num_steps: int = 3) -> BlockRecord:
    header = TraceHeader(
        model=NASTY,
        block_size=4,
        num_blocks=9,
        bytes_per_token=2,
        bytes_per_token_formula="2 B",
        num_dropped_events=7,
    )
    events: list[ev.Event] = [
        ev.BlocksAllocated(0, NASTY, (0, 1)),
        ev.BlocksShared(0, "b", (0, 1), NASTY, 5),
        ev.BlocksCached(0, NASTY, (0,)),
        ev.PrefixMissed(0, "b", 4, ev.MissReason.DIFFERS, differs_at=6),
    ]
    events += [ev.StepFinished(i, i, ((NASTY, 5, 1),), 0.0, {}) for i in range(num_steps)]
    events += [ev.RequestFinished(99, name, FinishReason.STOP, 1) for name in (NASTY, "b")]
    return block_record(header, events)


def data_of(page: str) -> dict[str, object]:
    return json.loads(re.search(r"const DATA = (.*);\n", page).group(1))


def own_part(page: str) -> str:
    """The page without the plotting library."""
    start = page.index("<script>")
    return page[:start] + page[page.rindex("<script>") :]


def test_a_block_page_holds_every_step_and_lets_nothing_out() -> None:
    page = block_map_page(record())
    assert [frame["step_id"] for frame in data_of(page)["frames"]] == [0, 1, 2, None]
    own = own_part(page)
    assert own.count("</script>") == 1
    assert "<b>&\u2028" not in own
    assert "&lt;/script&gt;" in own
    assert "differs at token 6" in own
    assert "7 older events were lost" in own
    assert not re.search(r"(src|href)=|https?://", own)


def test_a_long_run_is_thinned_out() -> None:
    frames = data_of(block_map_page(record(1000)))["frames"]
    assert len(frames) == 400
    assert (frames[0]["step_id"], frames[-1]["step_id"]) == (0, None)


def test_an_empty_record_is_a_page_too() -> None:
    page = block_map_page(block_record(record().header, []))
    assert data_of(page)["frames"] == []


def test_the_terminal_map_reads_without_colour() -> None:
    lines = [line.plain for line in block_map_lines(record(), 6)]
    assert "A = request </script>" in lines[2]
    assert any(">2█" in line and ">2▄" in line for line in lines)
    assert any(" =█" in line and ". " in line for line in lines)
    assert any("then: differs at token 6" in line for line in lines)
    assert "older events were lost" in lines[-1]


def test_a_fragmentation_page_holds_every_allocator() -> None:
    made = replay([TraceRequest(0, 3, 9)] * 5, PagedAllocator("paged <4>", 16, 4)).document()
    trace = {"source": NASTY, "requests": 5, "mean_prompt_tokens": 3.0, "mean_output_tokens": 9.0}
    page = fragmentation_page(
        {"trace": trace, "capacity_tokens": 16, "max_model_len": 12, "allocators": [made]}
    )
    own = own_part(page)
    assert "<td>paged &lt;4&gt;</td>" in own
    assert own.count("</script>") == 1
    assert data_of(page)["allocators"][0]["allocator"] == "paged <4>"

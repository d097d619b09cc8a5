"""The block map in a terminal: letters and fill bars, so that it reads without colour as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from ridgeline.metrics.block_map import BlockState, BlockView, Frame
from ridgeline.metrics.block_record import BlockRecord

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BARS = " ▁▂▃▄▅▆▇█"
_STYLES = {
    BlockState.FREE: "dim",
    BlockState.FILLING: "cyan",
    BlockState.FULL: "bold blue",
    BlockState.SHARED: "bold magenta",
    BlockState.IDLE: "yellow",
}
_BLOCKS_A_ROW = 16
_MAX_HAPPENINGS = 12


def request_letters(record: BlockRecord) -> Mapping[str, str]:
    """Request id → the letter it goes by, in order of appearance; `?` beyond 52."""
    names: dict[str, str] = {}
    for frame in record.frames:
        for block in frame.blocks:
            for owner in block.owners:
                names.setdefault(owner, _LETTERS[len(names)] if len(names) < len(_LETTERS) else "?")
    return names


def block_map_lines(record: BlockRecord, num_frames: int) -> Iterator[Text]:
    """Header, `num_frames` key frames, prefix look-ups."""
    header = record.header
    letters = request_letters(record)
    yield Text(
        f"{header.model}: {header.num_blocks:,} blocks of {header.block_size} tokens; "
        f"K and V of a token: {header.bytes_per_token_formula}"
    )
    yield Text(
        "A▃ filling, held by request A   A█ full   2█ shared by 2   =█ idle: findable, held by nobody   "
        ".  free   > read in this step"
    )
    names = "  ".join(f"{letter} = request {request_id}" for request_id, letter in letters.items())
    yield Text(names or "no request held a block")
    for frame in record.key_frames(num_frames):
        yield from _frame_lines(record, frame, letters)
    yield Text()
    yield Text("Prefix cache look-ups")
    for miss in record.misses():
        found = f"{miss['hit_tokens']} tokens found"
        yield Text(f"  request {miss['request_id']}: {found}; then: {miss['text']}")
    if record.header.num_dropped_events:
        yield Text(f"{record.header.num_dropped_events:,} older events were lost: the map begins too late")


def _frame_lines(record: BlockRecord, frame: Frame, letters: Mapping[str, str]) -> Iterator[Text]:
    used, idle = frame.num_used_blocks, frame.num_idle_blocks
    step = "after the last step" if frame.step_id is None else f"step {frame.step_id}"
    yield Text()
    yield Text(
        f"{step} · {frame.at_s - record.started_at_s:.3f} s · {frame.num_scheduled_tokens} tokens computed · "
        f"{used} blocks used, {idle} idle, {record.header.num_blocks - used - idle:,} free · "
        f"slack {frame.num_slack_slots(record.header.block_size)} tokens · "
        f"{record.read_bytes(frame.reads):,} B of K and V read",
        style="bold",
    )
    read = {each.block_id for each in frame.reads}
    for start in range(0, len(frame.blocks), _BLOCKS_A_ROW):
        row = frame.blocks[start : start + _BLOCKS_A_ROW]
        line = Text(f"{row[0].block_id:6} ")
        for block in row:
            cell = _cell(block, letters, record.header.block_size)
            line.append(f" {'>' if block.block_id in read else ' '}{cell}", style=_STYLES[block.state])
        yield line
    for happening in frame.happenings[:_MAX_HAPPENINGS]:
        yield Text(f"         {happening.text}", style="dim")
    if len(frame.happenings) > _MAX_HAPPENINGS:
        yield Text(f"         … and {len(frame.happenings) - _MAX_HAPPENINGS} more", style="dim")


def _cell(block: BlockView, letters: Mapping[str, str], block_size: int) -> str:
    """Two characters: who holds it, and how full it is."""
    if block.state is BlockState.FREE:
        return ". "
    bar = _BARS[-(-block.num_tokens * (len(_BARS) - 1) // block_size)]
    if block.state is BlockState.IDLE:
        return f"={bar}"
    if block.state is BlockState.SHARED:
        return f"{min(len(block.owners), 9)}{bar}"
    return f"{letters[block.owners[0]]}{bar}"

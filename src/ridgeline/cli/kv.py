"""`ridgeline kv show`: the life of the blocks, of a run or of a record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.kv_fragmentation import fragmentation
from ridgeline.cli.options import EngineOptions, Flag, SamplingOptions
from ridgeline.cli.text_files import check_writable, read_lines, write_text
from ridgeline.dashboard.block_map_page import block_map_page
from ridgeline.dashboard.block_map_text import block_map_lines
from ridgeline.errors import RequestError
from ridgeline.llm import LLM
from ridgeline.metrics.block_record import BlockRecord, block_record
from ridgeline.metrics.event_trace import TraceHeader, format_event_trace, parse_event_trace
from ridgeline.sampling_params import SamplingParams


def new_app() -> App:
    """The `kv` group."""
    app = App(name="kv", help="See the KV cache at work.")
    app.command(show)
    app.command(fragmentation)
    return app


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What to run and where the record goes."""

    trace: Path | None = None
    """Replay the events that --save-trace wrote, instead of running prompts."""
    save_trace: Path | None = None
    """Write the events to this file, one JSON object a line."""
    html: Path | None = None
    """Write a page with a time slider to this file."""
    n: int = 1
    """Samples per prompt; they share its blocks."""
    frames: int = 6
    """Steps to show in the terminal: the ones that tell the most."""
    raw: Annotated[bool, Flag] = False
    """Continue the prompts as they are, without the model's chat template."""
    in_turn: Annotated[bool, Flag] = False
    """Start a prompt when the one before has ended, instead of all at once."""


def show(
    *prompts: Annotated[str, Parameter(allow_leading_hyphen=False)],
    options: ShowOptions = ShowOptions(),
    json: JsonTarget = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Run prompts and show which KV blocks were given, filled, read, shared, evicted and freed.

    Example: ridgeline kv show "Tell me a joke" "Tell me a story" --max-tokens 32 --html blocks.html

    Parameters
    ----------
    prompts: str
        One or more texts; they run together.
    json: str
        Write events, block states and reads of every step as JSON to this file; - prints it.
    """
    check_target(json)
    check_writable(html=options.html, save_trace=options.save_trace)
    if bool(prompts) == (options.trace is not None):
        raise RequestError("prompts", list(prompts), "give at least one prompt, or --trace FILE, not both")
    if options.trace is not None:
        record = block_record(*parse_event_trace(read_lines("trace", options.trace)))
    else:
        params = replace(sampling.params(), n=options.n)
        record = _run(list(prompts), params, options, engine)
    if options.save_trace is not None:
        text = "".join(format_event_trace(record.header, record.events))
        write_text("save_trace", options.save_trace, text)
    if options.html is not None:
        write_text("html", options.html, block_map_page(record))
    if json is not None:
        write_json(json, record.document())
    if json != "-":
        console = Console(highlight=False)
        for line in block_map_lines(record, options.frames):
            console.print(line, soft_wrap=True)


def _run(
    prompts: list[str], params: SamplingParams, options: ShowOptions, engine: EngineOptions
) -> BlockRecord:
    with engine.load() as llm:
        for group in [[prompt] for prompt in prompts] if options.in_turn else [prompts]:
            if options.raw:
                llm.generate(group, params, progress=False)
            else:
                conversations = [[{"role": "user", "content": prompt}] for prompt in group]
                llm.chat(conversations, params, progress=False)
        llm.parts.engine.publish_events()
        return block_record(_header(llm), llm.parts.event_log.events())


def _header(llm: LLM) -> TraceHeader:
    parts = llm.parts
    return TraceHeader(
        model=parts.model_name,
        block_size=parts.limits.block_size,
        num_blocks=parts.limits.num_blocks,
        bytes_per_token=parts.kv_shape.bytes_per_token,
        bytes_per_token_formula=parts.kv_shape.formula,
        num_dropped_events=parts.event_log.num_dropped_events,
    )

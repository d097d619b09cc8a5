"""`ridgeline kv fragmentation`: one request trace against several ways to give out memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cyclopts import Parameter

from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.text_files import check_writable, read_lines, write_text
from ridgeline.config.checks import check_at_least
from ridgeline.dashboard.fragmentation_page import fragmentation_page
from ridgeline.metrics.block_map import block_frames
from ridgeline.metrics.event_trace import parse_event_trace
from ridgeline.metrics.live_fragmentation import live_fragmentation, request_trace_of
from ridgeline.perf.fragmentation import SHARES, compare_allocators, expected_slack
from ridgeline.workload.request_trace import TraceRequest, parse_request_trace
from ridgeline.workload.sharegpt_like import sharegpt_like_trace


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FragmentationOptions:
    """Which requests, in how much memory."""

    trace: Path | None = None
    """Requests as JSON lines: {"arrived_at_s": 0.5, "prompt_tokens": 161, "output_tokens": 338}."""
    events: Path | None = None
    """The run that `kv show --save-trace` recorded: its own slack, and its requests as the trace."""
    capacity_tokens: int = 15_700
    """Token slots of the memory; by default those of OPT-13B on 40 GB."""
    max_model_len: int = 2048
    """Longest request, which some allocators reserve for."""
    num_prompts: int = 1000
    """Requests of the built-in trace, whose lengths are like ShareGPT's."""
    request_rate: float = 10.0
    """Requests per second of the built-in trace; a step takes 0.03 s of its time."""
    seed: int = 0
    """Seed of the built-in trace."""
    html: Path | None = None
    """Write a page with plots to this file."""


def fragmentation(
    *,
    options: FragmentationOptions = FragmentationOptions(),
    json: JsonTarget = None,
) -> None:
    """Replay a trace against contiguous, buddy and paged memory: what is used, and how many requests fit.

    Example: ridgeline kv fragmentation --html fragmentation.html

    Parameters
    ----------
    json: str
        Write every figure as JSON to this file; - prints it.
    """
    check_target(json)
    check_writable(html=options.html)
    for name in ("capacity_tokens", "max_model_len", "num_prompts"):
        check_at_least(name, getattr(options, name), 1)
    source, trace, live = _trace(options)
    replays = compare_allocators(trace, capacity=options.capacity_tokens, max_model_len=options.max_model_len)
    document: dict[str, Any] = {
        "trace": {
            "source": source,
            "requests": len(trace),
            "mean_prompt_tokens": fmean(request.num_prompt_tokens for request in trace),
            "mean_output_tokens": fmean(request.num_output_tokens for request in trace),
        },
        "capacity_tokens": options.capacity_tokens,
        "max_model_len": options.max_model_len,
        "live": live,
        "allocators": [replay.document() for replay in replays],
    }
    if options.html is not None:
        write_text("html", options.html, fragmentation_page(document))
    if json is not None:
        write_json(json, document)
    if json != "-":
        print("\n".join(_lines(document)))


def _trace(
    options: FragmentationOptions,
) -> tuple[str, Sequence[TraceRequest], Mapping[str, object] | None]:
    """Where the trace is from, the trace, and what the recorded run itself measured."""
    if options.events is not None:
        header, events = parse_event_trace(read_lines("events", options.events))
        measured = live_fragmentation(block_frames(events, block_size=header.block_size), header.block_size)
        live = {
            "block_size": header.block_size,
            "steps": measured.num_steps,
            "useful_of_held": measured.useful_of_held,
            "slack_tokens_per_sequence": measured.slack_per_sequence,
            "expected_slack_tokens_per_sequence": expected_slack(header.block_size),
        }
        if options.trace is None:
            return f"run recorded in {options.events.name}", request_trace_of(events), live
    else:
        live = None
    if options.trace is not None:
        return options.trace.name, parse_request_trace(read_lines("trace", options.trace)), live
    trace = sharegpt_like_trace(options.num_prompts, request_rate=options.request_rate, seed=options.seed)
    return f"built-in trace like ShareGPT, seed {options.seed}", trace, live


def _lines(document: Mapping[str, Any]) -> list[str]:
    trace, live = document["trace"], document["live"]
    lines = [
        f"{trace['source']}: {trace['requests']:,} requests, on average {trace['mean_prompt_tokens']:.1f} "
        f"prompt and {trace['mean_output_tokens']:.1f} output tokens",
        f"memory of {document['capacity_tokens']:,} token slots; longest request "
        f"{document['max_model_len']:,} tokens; averages over the steps in which a request waited",
        "",
        f"{'% of memory':20}" + "".join(f"{name:>12}" for name in SHARES) + "   fit  preempted      copied",
    ]
    for each in document["allocators"]:
        shares = "".join(f"{100 * each['shares'][name]:12.1f}" for name in SHARES)
        lines.append(
            f"{each['allocator']:20}{shares}{each['requests_that_fit']['mean']:6.1f}"
            f"{each['preemptions']:11,}{each['copied_tokens']:12,}"
        )
    lines += [
        "",
        "slack of a request   measured   (block − 1) / 2   used of held   L / (L + (block − 1) / 2)",
    ]
    for each in document["allocators"]:
        if each["block_size"] is not None:
            lines.append(
                f"{each['allocator']:19}{each['slack_tokens_per_sequence']:10.2f}"
                f"{each['expected_slack_tokens_per_sequence']:18.1f}{100 * each['useful_of_held']:13.1f} %"
                f"{100 * each['expected_useful_of_held']:25.1f} %"
            )
    lines.append("L is the mean number of tokens that a running request has in memory.")
    if live is not None and live["slack_tokens_per_sequence"] is not None:
        lines += [
            "",
            f"the recorded run itself: blocks of {live['block_size']}, {live['steps']:,} steps, "
            f"{100 * live['useful_of_held']:.1f} % of held slots used, slack "
            f"{live['slack_tokens_per_sequence']:.2f} a request "
            f"((block − 1) / 2 = {live['expected_slack_tokens_per_sequence']:.1f})",
        ]
    return lines

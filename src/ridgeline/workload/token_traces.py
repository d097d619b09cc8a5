"""Recorded traces without text: Mooncake, Azure, BurstGPT; instants and numbers of tokens."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ridgeline.errors import ConfigError

MOONCAKE_BLOCK_TOKENS = 512

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request; `block_ids` name its prompt's blocks of 512 tokens, where the trace tells them."""

    arrived_at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """Requests in order of arrival from 0 on, and what a reader must know of how they came about."""

    requests: Sequence[TracedRequest]
    notes: Sequence[str]


def parse_mooncake(lines: Iterable[str]) -> TokenTrace:
    """Mooncake's JSON lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`.

    Raises:
        ConfigError: a line that is not such an object, or none.
    """
    requests, num_odd = [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        request = _mooncake(line, f"trace line {number}")
        num_odd += len(request.block_ids) != -(-request.num_prompt_tokens // MOONCAKE_BLOCK_TOKENS)
        requests.append(request)
    notes = []
    if num_odd:
        notes.append(f"{num_odd} requests have another number of hash_ids than ⌈input_length / 512⌉")
    if _largest_tick(requests) > 1:
        notes.append("timestamps come in ticks: bursts within one are the trace's artefact (--spread-ticks)")
    return _trace(requests, notes)


def parse_azure(lines: Iterable[str]) -> TokenTrace:
    """Azure's CSV: `TIMESTAMP` (any number of fractional digits, with or without a zone), `ContextTokens`,
    `GeneratedTokens`.

    Raises:
        ConfigError: a column that is missing, a row that can't be read, or none.
    """
    requests = []
    for where, row in _rows(lines, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        requests.append(
            TracedRequest(
                _azure_time_s(row["TIMESTAMP"], where),
                _count(row["ContextTokens"], f"{where}: ContextTokens"),
                _count(row["GeneratedTokens"], f"{where}: GeneratedTokens"),
            )
        )
    return _without_silent(requests, ["the trace tells no prefixes: prefix hits can't be studied with it"])


def parse_burstgpt(lines: Iterable[str]) -> TokenTrace:
    """BurstGPT's CSV, columns by name: `Timestamp` in s, `Request tokens`, `Response tokens`.

    Raises:
        ConfigError: as `parse_azure`.
    """
    requests = []
    for where, row in _rows(lines, ("Timestamp", "Request tokens", "Response tokens")):
        requests.append(
            TracedRequest(
                _seconds(row["Timestamp"], f"{where}: Timestamp"),
                _count(row["Request tokens"], f"{where}: Request tokens"),
                _count(row["Response tokens"], f"{where}: Response tokens"),
            )
        )
    return _without_silent(requests, [])


def spread_ticks(trace: TokenTrace) -> TokenTrace:
    """The same with requests of one instant spread evenly up to the next instant (3 s for the last)."""
    sizes = Counter(request.arrived_at_s for request in trace.requests)
    instants = sorted(sizes)
    gaps = {at: later - at for at, later in zip(instants, [*instants[1:], instants[-1] + 3.0], strict=True)}
    seen: Counter[float] = Counter()
    spread = []
    for request in trace.requests:
        at = request.arrived_at_s
        spread.append(replace(request, arrived_at_s=at + gaps[at] * seen[at] / sizes[at]))
        seen[at] += 1
    kept = [note for note in trace.notes if "ticks" not in note]
    return TokenTrace(spread, [*kept, "requests of one timestamp are spread evenly up to the next one"])


def limit_prompts(trace: TokenTrace, max_prompt_tokens: int, *, clips: bool) -> TokenTrace:
    """The same with longer prompts dropped, or clipped to `max_prompt_tokens`; how many is noted."""
    long = [r for r in trace.requests if r.num_prompt_tokens > max_prompt_tokens]
    if not long:
        return trace
    kept = []
    for request in trace.requests:
        if request.num_prompt_tokens <= max_prompt_tokens:
            kept.append(request)
        elif clips:
            kept.append(replace(request, num_prompt_tokens=max_prompt_tokens))
    verb = "clipped to" if clips else "dropped:"
    note = f"{len(long)} of {len(trace.requests)} prompts {verb} {max_prompt_tokens} tokens at most"
    return TokenTrace(kept, [*trace.notes, note])


def _mooncake(line: str, where: str) -> TracedRequest:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, line.strip(), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(where, values, "must be an object with timestamp, input_length, output_length")
    block_ids = values.get("hash_ids")
    if not isinstance(block_ids, list) or not all(type(each) is int for each in block_ids):
        raise ConfigError(f"{where}: hash_ids", block_ids, "must be a list of whole numbers")
    return TracedRequest(
        _seconds(values.get("timestamp"), f"{where}: timestamp") / 1000,
        max(_count(values.get("input_length"), f"{where}: input_length"), 1),
        max(_count(values.get("output_length"), f"{where}: output_length"), 1),
        block_ids,
    )


def _rows(lines: Iterable[str], columns: Sequence[str]) -> Iterable[tuple[str, Mapping[str, str]]]:
    reader = csv.DictReader(lines)
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    missing = [name for name in columns if name not in header]
    if missing:
        raise ConfigError("dataset_path", header, f"the CSV has no column {missing[0]!r}")
    for number, row in enumerate(reader, 2):
        yield f"trace line {number}", {name: row[name] or "" for name in columns}


def _azure_time_s(text: str, where: str) -> float:
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        day, clock, fraction, zone = match.groups()
        whole = datetime.fromisoformat(f"{day}T{clock}{zone or '+00:00'}")
    except ValueError:
        raise ConfigError(f"{where}: TIMESTAMP", text, "must be like 2023-11-16 18:17:03.9799600") from None
    return whole.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _seconds(value: object, where: str) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(value, bool) or not 0 <= seconds < float("inf"):
        raise ConfigError(where, value, "must be a finite number ≥ 0")
    return seconds


def _count(value: object, where: str) -> int:
    number = _seconds(value, where)
    if number != int(number):
        raise ConfigError(where, value, "must be a whole number of tokens")
    return int(number)


def _without_silent(requests: Sequence[TracedRequest], notes: Sequence[str]) -> TokenTrace:
    """Without requests that got no token: they failed, and their length is unknown."""
    kept = [r for r in requests if r.num_output_tokens > 0 and r.num_prompt_tokens > 0]
    dropped = len(requests) - len(kept)
    more = [f"{dropped} requests without tokens (failed when recorded) left out"] if dropped else []
    return _trace(kept, [*notes, *more])


def _trace(requests: Sequence[TracedRequest], notes: Sequence[str]) -> TokenTrace:
    if not requests:
        raise ConfigError("dataset_path", "empty", "the trace holds no request")
    first = min(request.arrived_at_s for request in requests)
    moved = [replace(request, arrived_at_s=request.arrived_at_s - first) for request in requests]
    return TokenTrace(sorted(moved, key=lambda request: request.arrived_at_s), notes)


def _largest_tick(requests: Sequence[TracedRequest]) -> int:
    return max(Counter(request.arrived_at_s for request in requests).values(), default=0)

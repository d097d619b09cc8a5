"""A record of events as JSON lines: written, and read back as the same events.

The first line is the header: what the blocks are. Every other line is one event: its class's name under
`type`, and its fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import asdict, fields

from ridgeline.core import events as ev
from ridgeline.errors import ConfigError

_TYPES: Mapping[str, type] = MappingProxyType({kind.__name__: kind for kind in get_args(ev.Event)})


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the block ids of a record mean; `num_dropped_events` were lost before the first event kept."""

    model: str
    block_size: int
    num_blocks: int
    bytes_per_token: int
    bytes_per_token_formula: str
    num_dropped_events: int = 0


def format_event_trace(header: TraceHeader, events: Iterable[ev.Event]) -> Iterator[str]:
    """The record's lines, each with its line end."""
    for record in ({"type": "TraceHeader"} | asdict(header), *map(event_document, events)):
        yield json.dumps(record, ensure_ascii=False) + "\n"


def event_document(event: ev.Event) -> dict[str, object]:
    """One event as JSON has it."""
    return {"type": type(event).__name__} | asdict(event)


def parse_event_trace(lines: Iterable[str]) -> tuple[TraceHeader, list[ev.Event]]:
    """Read a record back.

    Raises:
        ConfigError: a line is no JSON object, of an unknown type, or lacks a field or holds a wrong one.
    """
    header: TraceHeader | None = None
    events: list[ev.Event] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"trace line {number}"
        values = _object(line, where)
        name = values.pop("type", None)
        if header is None:
            if name != "TraceHeader":
                raise ConfigError(where, name, "must be the TraceHeader that --save-trace writes first")
            header = _restored(TraceHeader, values, where)
        elif not isinstance(name, str) or name not in _TYPES:
            raise ConfigError(f"{where}: type", name, f"must be one of {', '.join(_TYPES)}")
        else:
            events.append(_restored(_TYPES[name], values, where))
    if header is None:
        raise ConfigError("trace", "empty", "give a file that --save-trace wrote")
    if min(header.block_size, header.num_blocks, header.bytes_per_token) < 1:
        raise ConfigError("trace line 1", str(header), "sizes must be ≥ 1")
    return header, events


def _object(line: str, where: str) -> dict[str, object]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, line.strip(), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(where, values, "must be a JSON object")
    return values


def _restored(kind: type[Any], values: Mapping[str, object], where: str) -> Any:
    hints = get_type_hints(kind)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]}", values[unknown[0]], f"is no field of {kind.__name__}")
    arguments = {}
    for each in fields(kind):
        if each.name in values:
            arguments[each.name] = _value(values[each.name], hints[each.name], f"{where}: {each.name}")
    try:
        return kind(**arguments)
    except TypeError:
        missing = sorted(each.name for each in fields(kind) if each.name not in values)
        raise ConfigError(f"{where}: {missing[0]}", None, f"is missing in {kind.__name__}") from None


def _value(value: object, hint: Any, where: str) -> Any:
    """`value` as the annotation `hint` has it: lists become tuples, names become enum members."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        return _value(value, next(a for a in arguments if a is not NoneType), where)
    if origin is dict and isinstance(value, dict):
        return {key: _value(each, arguments[1], where) for key, each in value.items()}
    if origin is not None and isinstance(value, list):
        if origin is tuple and arguments[-1] is not Ellipsis:
            if len(value) == len(arguments):
                return tuple(_value(v, a, where) for v, a in zip(value, arguments, strict=True))
        else:
            return tuple(_value(each, arguments[0], where) for each in value)
    elif origin is None:
        return _scalar(value, hint, where)
    raise ConfigError(where, value, f"must be {hint}")


def _scalar(value: object, hint: type, where: str) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is bool or (hint in (int, str) and not isinstance(value, bool)):
        if isinstance(value, hint):
            return value
    elif isinstance(value, str) and hint not in (int, float, str):
        try:
            return hint(value)
        except ValueError:
            pass
    raise ConfigError(where, value, f"must be {hint.__name__}")

"""Results that `bench serve --json` wrote, read back: documents, and the records where a file has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import Chunk

_NEEDED = ("ridgeline", "rates", "completed", "failed", "failures", "model_id", "request_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run. `records` is None where its file holds no detail; `name` says where it is from."""

    name: str
    document: Mapping[str, Any]
    records: Sequence[ClientRecord] | None


def stored_runs(name: str, text: str) -> list[StoredRun]:
    """The runs of one file: one document, or one a line as --append-result writes them.

    Raises:
        ConfigError: under `result`, naming the file: no JSON, no result of ours, or broken detail.
    """
    documents = _documents(name, text)
    many = len(documents) > 1
    return [
        stored_run(f"{name} #{index}" if many else name, each)
        for index, each in enumerate(documents, start=1)
    ]


def stored_run(name: str, document: object) -> StoredRun:
    """A result as `load_result` makes it, checked as far as reports need it.

    Raises:
        ConfigError: as `stored_runs`.
    """
    if not isinstance(document, dict):
        raise ConfigError("result", name, "is no result of bench serve: no JSON object")
    missing = [key for key in _NEEDED if key not in document]
    if missing:
        raise ConfigError("result", name, f"is no result of bench serve --json: it has no {missing[0]!r}")
    requests = document.get("requests")
    try:
        records = None if requests is None else [_record(each) for each in requests]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError("result", name, f"its requests can't be read: {error!r}") from None
    return StoredRun(name=name, document=document, records=records)


def need_records(run: StoredRun) -> Sequence[ClientRecord]:
    """The records.

    Raises:
        ConfigError: the file has none.
    """
    if run.records is None:
        raise ConfigError("result", run.name, "holds no requests; run bench serve with --save-detailed")
    return run.records


def _documents(name: str, text: str) -> list[object]:
    try:
        return [_parse(text)]
    except (ValueError, RecursionError) as whole:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise ConfigError("result", name, f"is not JSON: {whole}") from None
        try:
            return [_parse(line) for line in lines]
        except (ValueError, RecursionError):
            raise ConfigError("result", name, f"is not JSON: {whole}") from None


def _parse(text: str) -> object:
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no JSON number")


def _record(request: Mapping[str, Any]) -> ClientRecord:
    chunks = [Chunk(float(at_s), int(count)) for at_s, count in request["chunks"]]
    instants = [float(request["scheduled_s"]), *(chunk.at_s for chunk in chunks)]
    if any(later < earlier for earlier, later in pairwise(instants)):
        raise ValueError(f"request {request['id']!r}: its instants run backwards")
    return ClientRecord(
        request_id=str(request["id"]),
        scheduled_at_s=instants[0],
        sent_at_s=request["sent_s"],
        chunks=chunks,
        outcome=Outcome(request["outcome"]),
        closed_at_s=request.get("closed_s"),
        has_chunk_tokens=True,
        num_prompt_tokens=request.get("prompt_tokens"),
        num_output_tokens=request.get("completion_tokens"),
        num_cached_tokens=request.get("cached_tokens"),
        finish_reason=request.get("finish_reason"),
        error=request.get("error"),
        slos_s={name: limit / 1000 for name, limit in (request.get("slo_ms") or {}).items()},
    )

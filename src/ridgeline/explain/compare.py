"""Two explanations side by side: which seconds changed, and the term that moved them.

Seconds factor exactly: steps × work a step ÷ ceiling ÷ roofline fraction, where work and ceiling are those of
the term that binds (bytes and bytes/s, or FLOPs and FLOP/s). Where another term binds, work and ceiling are
one factor, the least seconds a step. The cause is the factor that moved most, as a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.errors import ConfigError

Document = Mapping[str, Any]

_NEEDED = ("model", "hardware", "regime", "request", "path", "phases", "ops")


def check_explanation(field: str, name: str, document: object) -> Document:
    """The document, when it has what a comparison takes.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(document, dict) and all(isinstance(document.get(key), dict | list) for key in _NEEDED):
        return document
    raise ConfigError(field, name, "is no explanation; write one with `ridgeline explain --json FILE`")


def comparison(first: Document, second: Document) -> dict[str, Any]:
    """What `ridgeline explain --compare --json` writes."""
    return {
        "runs": [_run(each) for each in (first, second)],
        "path": list(_path(first, second)),
        "phases": list(_phases(first, second)),
        "ops": list(_ops(first, second)),
    }


def _run(document: Document) -> dict[str, Any]:
    return {
        "model": document["model"]["name"],
        "cpu": document["hardware"]["cpu"],
        "threads": document["hardware"]["threads"],
        "batch": document["regime"]["batch"],
        "prompt_tokens": document["request"]["prompt_tokens"],
        "completion_tokens": document["request"]["completion_tokens"],
        "e2e_s": document["request"]["e2e_s"],
    }


def _path(first: Document, second: Document) -> Iterator[dict[str, Any]]:
    others = {each["step"]: each for each in second["path"]}
    for each in first["path"]:
        if each["step"] in others:
            pair = each["seconds"], others[each["step"]]["seconds"]
            yield {"step": each["step"], "seconds": list(pair), "ratio": _ratio(*pair)}


def _phases(first: Document, second: Document) -> Iterator[dict[str, Any]]:
    for phase, each in first["phases"].items():
        other = second["phases"][phase]
        if each["steps"] and other["steps"]:
            yield {"phase": phase, **_difference(each, other, (each["steps"], other["steps"]))}


def _ops(first: Document, second: Document) -> Iterator[dict[str, Any]]:
    others = {(each["phase"], each["op"]): each for each in second["ops"]}
    for each in first["ops"]:
        phase, op = each["phase"], each["op"]
        if (phase, op) in others:
            steps = _steps(phase, first, second)
            yield {"phase": phase, "op": op, **_difference(each, others[phase, op], steps)}


def _steps(phase: str, first: Document, second: Document) -> tuple[int, int]:
    return first["phases"][phase]["steps"], second["phases"][phase]["steps"]


def _difference(first: Document, second: Document, steps: tuple[int, int]) -> dict[str, Any]:
    """Seconds of both, the factors whose product is their ratio, and the one that moved most."""
    factors = {name: value for name, value in _factors(first, second, steps).items() if value is not None}
    cause = max(factors, key=lambda name: abs(math.log(factors[name])), default=None)
    return {
        "seconds": [first["seconds"], second["seconds"]],
        "step_s": [each["seconds"] / count for each, count in zip((first, second), steps, strict=True)],
        "ratio": _ratio(first["seconds"], second["seconds"]),
        "bound": [first["bound"], second["bound"]],
        "factors": factors,
        "cause": cause,
    }


def _factors(first: Document, second: Document, steps: tuple[int, int]) -> dict[str, float | None]:
    factors = {"steps": _ratio(*steps)}
    least = _ratio(first["bound_s"] / steps[0], second["bound_s"] / steps[1])
    if least is None:
        return factors | {"seconds a step": _ratio(first["seconds"] / steps[0], second["seconds"] / steps[1])}
    if first["bound"] != second["bound"]:
        factors[f"bound: {first['bound']} → {second['bound']}"] = least
    else:
        key, name = (
            ("flops", "FLOPs a step") if first["bound"] == "compute" else ("dram_bytes", "bytes a step")
        )
        work = _ratio(first[key] / steps[0], second[key] / steps[1])
        if work is None:
            factors["least seconds a step"] = least
        else:
            factors[name] = work
            factors["ceiling"] = least / work
    inverse = _ratio(second["roofline_fraction"], first["roofline_fraction"])
    return factors | {"distance from the roofline": inverse}


def _ratio(first: float, second: float) -> float | None:
    """Second over first; None where either is nothing."""
    return second / first if first and second else None

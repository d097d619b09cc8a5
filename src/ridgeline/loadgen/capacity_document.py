"""A capacity search as JSON, and its lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.loadgen.bottleneck import Bottleneck
from ridgeline.loadgen.capacity import (
    ALONE,
    Probe,
    Verdict,
    estimate,
    rate_levels,
    rising_pairs,
    unsteady_rates,
)
from ridgeline.loadgen.capacity_fit import RateLevel, share_interval
from ridgeline.loadgen.capacity_run import CapacitySearch, ProbeRun
from ridgeline.loadgen.validity import MAX_LATENESS_S


def capacity_document(search: CapacitySearch, conditions: Mapping[str, object]) -> dict[str, Any]:
    """The search as JSON: estimate, levels, probes, bottleneck, settings, conditions."""
    settings, found = search.settings, estimate(search.history, search.settings)
    levels = rate_levels(search.history) if search.runs else []
    bottleneck, probes = search.bottleneck(), search.plan.probes
    return {
        "model_id": search.model,
        "slo": {name: 1000 * limit for name, limit in search.plan.slos_s.items()},
        "target": settings.target,
        "confidence": settings.confidence,
        "verdict": search.verdict,
        "interrupted": search.was_interrupted,
        "capacity": asdict(found),
        "levels": [_level(level, settings.confidence) for level in levels],
        "probes": [_probe(run) for run in search.runs],
        "bottleneck": None if bottleneck is None else _bottleneck(bottleneck),
        "notes": _notes(search, rising_pairs(levels, settings.confidence)),
        "settings": {
            **asdict(settings),
            "dataset": search.plan.dataset.name,
            "burstiness": probes.burstiness if math.isfinite(probes.burstiness) else "inf",
            "min_requests": search.plan.dataset.num_prompts,
            "probe_seconds": probes.probe_seconds,
            "random": asdict(search.plan.dataset.random),
        },
        "conditions": dict(conditions),
    }


def _level(level: RateLevel, confidence: float) -> dict[str, object]:
    low, high = level.interval(confidence)
    return {**asdict(level), "share": level.share, "low": low, "high": high}


def _probe(run: ProbeRun) -> dict[str, object]:
    document = asdict(run)
    return {**document.pop("result"), **document}


def _bottleneck(found: Bottleneck) -> dict[str, object]:
    shares = [{**asdict(share), "growth_ms": share.growth_ms} for share in found.shares]
    return {"slo": found.slo, "source": found.source, "shares": shares, "facts": list(found.facts)}


def _notes(search: CapacitySearch, rising: Sequence[tuple[float, float]]) -> list[str]:
    notes = [
        f"attainment rises from {low:g} to {high:g} requests/s by more than noise; the fit lets it only fall"
        for low, high in rising
    ]
    notes += [
        f"the runs at {_pace(rate)} differ by more than noise: the server or its machine changed meanwhile"
        for rate in unsteady_rates(search.history, search.settings.confidence)
    ]
    late = sum((run.lateness_p99_s or 0.0) > MAX_LATENESS_S for run in search.runs)
    if late:
        notes.append(
            f"in {late} of {len(search.runs)} probes the generator itself was more than 10 ms late at P99; "
            "that counts as latency, so the server may do better"
        )
    return notes


def probe_start_line(probe: Probe, count: int) -> str:
    """Before a probe."""
    return f"{_pace(probe.rate)}: {count} requests ({probe.why})"


def probe_lines(run: ProbeRun, target: float, confidence: float) -> list[str]:
    """After a probe."""
    result = run.result
    low, high = share_interval(
        result.num_effective * result.num_good / result.num_sent, result.num_effective, confidence
    )
    side = "meets" if low >= target else "misses" if high < target else "open"
    each = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result.attainment_by_slo.items())
    cut = ", cut short" if run.was_cut else ""
    lines = [
        f"    {100 * result.num_good / result.num_sent:5.1f} % of {result.num_sent} good "
        f"({100 * low:.1f}…{100 * high:.1f} %: {side}{cut}); {each}; {result.seconds:.1f} s"
    ]
    return lines + [f"    {count} × {reason}" for reason, count in run.failures.items()]


def capacity_lines(document: Mapping[str, Any]) -> list[str]:
    """The result for a terminal."""
    limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in document["slo"].items())
    lines = ["", *_verdict_lines(document, limits)]
    found = document["bottleneck"]
    if found is not None:
        lines += ["", *_bottleneck_lines(found, document)]
    lines += [f"note: {note}" for note in document["notes"]]
    spent = sum(probe["seconds"] for probe in document["probes"])
    sent = sum(probe["num_sent"] for probe in document["probes"])
    return [*lines, f"{len(document['probes'])} probes, {sent:,} requests, {spent:.0f} s"]


def _verdict_lines(document: Mapping[str, Any], limits: str) -> list[str]:
    found, target = document["capacity"], f"{100 * document['target']:g} %"
    verdict, rate = document["verdict"], found["rate"]
    goal = f"{target} of requests meet {limits}"
    if verdict == Verdict.NEVER and found["highest_met"] is None:
        where = (
            "one at a time already miss it" if rate is None else f"even {found['lowest_missed']:g}/s miss it"
        )
        return [f"NO RATE: {goal} at no rate; requests {where}"]
    if rate is None:
        return [f"nothing is known yet about the rate at which {goal}"]
    if verdict == Verdict.ALWAYS:
        return [f"at least {rate:g} requests/s (the upper limit): there {goal}"]
    lines = [f"capacity {rate:.3g} requests/s: up to there {goal}"]
    top = "open above" if found["high"] is None else f"{found['high']:.3g}"
    lines.append(
        f"  {100 * document['confidence']:g} % interval {found['low']:.3g}…{top}; highest rate that met "
        f"{_or_none(found['highest_met'])}, lowest that missed {_or_none(found['lowest_missed'])}"
    )
    if verdict == Verdict.BUDGET:
        lines.insert(0, "BUDGET USED UP: the search ended before its ends were near and sure enough")
    if document["interrupted"]:
        lines.insert(0, "INTERRUPTED: what is known so far")
    return lines


def _bottleneck_lines(found: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    below, above = document["capacity"]["highest_met"], document["capacity"]["lowest_missed"]
    source = "the server's /metrics" if found["source"] == "server" else "what the client sees only"
    lines = [
        f"just above, {found['slo']} breaks first; where its time goes at {_pace(below or ALONE)} and at "
        f"{above:g} requests/s, by {source}:"
    ]
    lines += [
        f"  {share['below_ms']:9.2f} → {share['above_ms']:9.2f} ms  ({share['growth_ms']:+.2f})  "
        f"{share['name']}"
        for share in found["shares"]
    ]
    return lines + [f"  {fact}" for fact in found["facts"]]


def _pace(rate: float) -> str:
    return "one at a time" if rate == ALONE else f"{rate:g} requests/s"


def _or_none(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:g}"

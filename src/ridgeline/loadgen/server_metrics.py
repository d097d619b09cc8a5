"""What a server's `/metrics` says of a stretch of time: means per request and step, gauges meanwhile.

Names are those of vLLM, under any prefix; ridgeline's own tell more (steps by what was in them).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ridgeline.loadgen.http_client import HttpClient
from ridgeline.loadgen.server_facts import ServerFacts

SAMPLE_EVERY_S = 1.0
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_STAGES = {
    "queue_ms": "request_queue_time_seconds",
    "prefill_ms": "request_prefill_time_seconds",
    "decode_ms": "request_decode_time_seconds",
    "ttft_ms": "time_to_first_token_seconds",
    "itl_ms": "inter_token_latency_seconds",
}
_GAUGES = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_usage": "kv_cache_usage_perc",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStretch:
    """Means over a stretch; None where the server has no such figure, or nothing of the kind happened.

    Stages in ms per finished request. `steps`: phase mix → (how many, mean ms). Gauges: mean of the samples
    (`kv_usage`: the largest, 0…1).
    """

    stages: Mapping[str, float]
    steps: Mapping[str, tuple[float, float]]
    preemptions: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None


def parse_metrics(text: str) -> dict[tuple[str, str], float]:
    """(name without prefix, phase mix or "") → value, summed over the other labels; of several prefixes that
    expose one name the first.

    Source: the Prometheus text format 0.0.4; lines that are none, and values that are no numbers, are passed
    over.
    """
    found: dict[tuple[str, str], float] = defaultdict(float)
    prefixes: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        full_name, labels, value = match.groups()
        prefix, _, name = full_name.rpartition(":")
        if prefixes.setdefault(name, prefix) != prefix:
            continue
        mix = re.search(r'phase_mix="([^"]*)"', labels or "")
        number = _number(value)
        if number is not None:
            found[name, mix.group(1) if mix else ""] += number
    return dict(found)


def _number(text: str) -> float | None:
    """The format also allows NaN and infinities, of which no mean can be made."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class ServerWatch:
    """Reads a server's `/metrics` at the ends of a run and each second within it."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._samples: list[dict[tuple[str, str], float]] = []

    def begin(self) -> None:
        """Before the run, outside an event loop."""
        self._samples = asyncio.run(self._read())

    async def watch(self) -> None:
        """Within the run; ends when it is cancelled, or at once where there is no `/metrics`."""
        http = HttpClient(self._url)
        facts = ServerFacts(http, self._headers)
        try:
            while self._samples:
                await asyncio.sleep(SAMPLE_EVERY_S)
                text = await facts.text("/metrics")
                if text is not None:
                    self._samples.append(parse_metrics(text))
        finally:
            await http.close()

    def end(self) -> ServerStretch | None:
        """After the run, outside an event loop; None where there is no `/metrics` of known names."""
        within = self._samples[1:]
        last = asyncio.run(self._read())
        if not self._samples or not last:
            return None
        return stretch(self._samples[0], last[0], within or last)

    def is_idle(self) -> bool | None:
        """Nothing runs or waits there; None where it does not tell. Outside an event loop only."""
        now = asyncio.run(self._read())
        return not any(now[0].get((_GAUGES[n], "")) for n in ("running", "waiting")) if now else None

    async def _read(self) -> list[dict[tuple[str, str], float]]:
        http = HttpClient(self._url)
        try:
            text = await ServerFacts(http, self._headers).text("/metrics")
        finally:
            await http.close()
        found = parse_metrics(text or "")
        return [found] if any((name, "") in found for name in _GAUGES.values()) else []


def stretch(
    before: Mapping[tuple[str, str], float],
    after: Mapping[tuple[str, str], float],
    within: Sequence[Mapping[tuple[str, str], float]],
) -> ServerStretch:
    """What happened between two readings; `within` are those whose gauges count."""

    def grown(name: str, mix: str = "") -> float | None:
        end = after.get((name, mix))
        return None if end is None else end - before.get((name, mix), 0.0)

    def mean_ms(name: str, mix: str = "") -> float | None:
        total, count = grown(f"{name}_sum", mix), grown(f"{name}_count", mix)
        return 1000 * total / count if total is not None and count else None

    mixes = sorted({mix for name, mix in after if name == "step_seconds_count"})
    steps = {mix: (grown("step_seconds_count", mix) or 0.0, mean_ms("step_seconds", mix)) for mix in mixes}
    stages = {stage: mean_ms(name) for stage, name in _STAGES.items()}
    gauges = {
        key: [reading[name, ""] for reading in within if (name, "") in reading]
        for key, name in _GAUGES.items()
    }
    return ServerStretch(
        stages={stage: value for stage, value in stages.items() if value is not None},
        steps={mix: (count, each) for mix, (count, each) in steps.items() if each is not None},
        preemptions=grown("num_preemptions_total"),
        running=fmean(gauges["running"]) if gauges["running"] else None,
        waiting=fmean(gauges["waiting"]) if gauges["waiting"] else None,
        kv_usage=max(gauges["kv_usage"], default=None),
    )

"""Runs the probes of a capacity search against a server, and tells after each what it saw."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ridgeline.config.checks import check_at_least
from ridgeline.errors import ConfigError
from ridgeline.loadgen.benchmark import LoadPlan, execute_load, plan_load
from ridgeline.loadgen.bottleneck import (
    Bottleneck,
    LoadPicture,
    count_causes,
    find_bottleneck,
    first_to_break,
    load_picture,
)
from ridgeline.loadgen.capacity import (
    ALONE,
    Done,
    Probe,
    ProbeResult,
    SearchSettings,
    Verdict,
    estimate,
    next_probe,
)
from ridgeline.loadgen.capacity_fit import design_effect, share_interval
from ridgeline.loadgen.run import LoadRun
from ridgeline.loadgen.server_account import ask_server
from ridgeline.loadgen.server_metrics import ServerWatch
from ridgeline.loadgen.settings import TRACES, DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import e2e_s
from ridgeline.metrics.percentiles import percentile
from ridgeline.metrics.slo import meets

_MAX_SETTLE_S = 30.0
_SETTLE_S = 0.5
_ALONE_SHARE = 5
_FEWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What every probe is like."""

    probe_seconds: float = 20.0
    """Shortest time over which a probe's requests arrive."""
    burstiness: float = 1.0
    """Shape of the gaps: 1 is Poisson, inf constant."""
    num_warmups: int = 4
    """Requests before the first probe."""

    def __post_init__(self) -> None:
        if not 0 < self.probe_seconds <= 3600:
            raise ConfigError("probe_seconds", self.probe_seconds, "must lie in 0…3600, above 0")
        TrafficSettings(burstiness=self.burstiness, num_warmups=self.num_warmups)  # checks both


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What every probe sends: at least `dataset.num_prompts` requests, and as many as its seconds take at its
    rate.
    """

    target: TargetSettings
    dataset: DatasetSettings
    slos_s: Mapping[str, float]
    probes: ProbeSettings = ProbeSettings()
    api_key: str | None = None

    def __post_init__(self) -> None:
        if not self.slos_s:
            raise ConfigError("goodput", None, "give the SLOs, as in --goodput ttft:500 tpot:50")
        check_at_least("num_prompts", self.dataset.num_prompts, _FEWEST)
        if self.dataset.name in TRACES:
            remedy = "has instants of its own; take one without for a search"
            raise ConfigError("dataset", self.dataset.name, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """A probe and what it found. `was_cut`: ended early because it could no longer meet the target;
    `failures`: the most frequent reasons of requests that were not answered.
    """

    result: ProbeResult
    why: str
    was_cut: bool
    lateness_p99_s: float | None
    failures: Mapping[str, int]
    picture: LoadPicture


@dataclass(slots=True)
class CapacitySearch:
    """A search and its runs so far; `verdict` is None while it goes on, and after Ctrl-C."""

    plan: ProbePlan
    settings: SearchSettings
    runs: list[ProbeRun] = field(default_factory=list)
    verdict: Verdict | None = None
    was_interrupted: bool = False
    model: str = ""
    _drain_s: float = 0.0

    @property
    def history(self) -> list[ProbeResult]:
        """The runs as the search sees them."""
        return [run.result for run in self.runs]

    def execute(self, on_start: Callable[[Probe, int], None], on_run: Callable[[ProbeRun], None]) -> None:
        """Probe until done or interrupted; a probe that Ctrl-C cut is no run. Outside an event loop only.

        Raises:
            ConfigError: the server, the dataset or a setting allows no run, or no request is answered.
        """
        while True:
            step = next_probe(self.history, self.settings)
            if isinstance(step, Done):
                self.verdict = step.verdict
                return
            try:
                load = self._plan_probe(step)
                on_start(step, len(load.requests))
                run = self._measure(step, load)
            except KeyboardInterrupt:
                run = None
            if run is None:
                self.was_interrupted = True
                return
            if not self.runs and run.picture.num_good == 0:
                reason = next(iter(run.failures), "nothing was sent")
                raise ConfigError("url", load.target.url, f"answers no request: {reason}")
            self.runs.append(run)
            on_run(run)

    def bottleneck(self) -> Bottleneck | None:
        """What grew between the highest rate that met the target and the lowest that missed it."""
        found = estimate(self.history, self.settings)
        above = self._last_at(found.lowest_missed)
        below = self._last_at(found.highest_met if found.highest_met is not None else ALONE)
        if above is None or below is None:
            return None
        slo = first_to_break(above.result.attainment_by_slo)
        return None if slo is None else find_bottleneck(slo, below.picture, above.picture)

    def _last_at(self, rate: float | None) -> ProbeRun | None:
        return next((run for run in reversed(self.runs) if run.result.rate == rate), None)

    def _plan_probe(self, probe: Probe) -> LoadPlan:
        plan, probes, index = self.plan, self.plan.probes, len(self.runs)
        is_alone = probe.rate == ALONE
        count = max(plan.dataset.num_prompts, math.ceil(probes.probe_seconds * probe.rate))
        if is_alone:
            count = max(plan.dataset.num_prompts // _ALONE_SHARE, _FEWEST)
        else:
            left_s = self.settings.max_seconds - sum(run.result.seconds for run in self.runs)
            count = min(count, max(math.ceil(left_s * probe.rate), _FEWEST))
        traffic = TrafficSettings(
            request_rate=math.inf if is_alone else probe.rate,
            burstiness=probes.burstiness,
            max_concurrency=1 if is_alone else None,
            num_warmups=probes.num_warmups if index == 0 else 0,
            seed=self.settings.seed + index,
        )
        target = plan.target if not self.model else replace(plan.target, model=self.model)
        # Another seed for each probe: the prompts of the one before are in the server's prefix cache.
        dataset = replace(plan.dataset, num_prompts=count, seed=self.settings.seed + index)
        load = plan_load(target, dataset, traffic, api_key=plan.api_key)
        self.model = load.model
        return load

    def _measure(self, probe: Probe, load: LoadPlan) -> ProbeRun | None:
        watch = ServerWatch(load.target.url, load.headers)
        _settle(watch, self._drain_s)
        watch.begin()
        judge = _Judge(self.plan.slos_s, len(load.requests), self.settings)
        run = execute_load(load, stop_when=judge.is_lost, beside=watch.watch)
        if run.was_interrupted:
            return None
        # A server that does not notice who has left goes on with what a run cut short leaves behind.
        num_left = sum(record.outcome is Outcome.ABORTED for record in run.records)
        self._drain_s = num_left * (self.runs[0].result.mean_e2e_s or 0.0) if self.runs else 0.0
        server = watch.end()
        account = ask_server(load, run, self.plan.slos_s)
        picture = replace(
            load_picture(probe.rate, run.records, _duration_s(run), server),
            causes=count_causes(account.late_tokens) if account else {},
        )
        return _probe_run(probe, run, judge, picture)


class _Judge:
    """Counts misses while a run goes on: one that can no longer meet the target needn't go on."""

    def __init__(self, slos_s: Mapping[str, float], count: int, settings: SearchSettings) -> None:
        self._slos_s = slos_s
        self._count = count
        self._settings = settings
        self._num_bad = 0
        self.was_cut = False

    def is_lost(self, record: ClientRecord) -> bool:
        """Even if all others were good, the share's interval would lie below the target."""
        if self.verdict(record) is False:
            self._num_bad += 1
        high = share_interval(self._count - self._num_bad, self._count, self._settings.confidence)[1]
        self.was_cut = self.was_cut or (high < self._settings.target and self._num_bad < self._count)
        return self.was_cut

    def verdict(self, record: ClientRecord) -> bool | None:
        """Good or not; None: we stopped it before it could tell."""
        if record.outcome is Outcome.ABORTED and self.was_cut:
            return None
        return record.outcome is Outcome.OK and all(
            meets(record, name, limit_s) for name, limit_s in {**self._slos_s, **record.slos_s}.items()
        )


def _probe_run(probe: Probe, run: LoadRun, judge: _Judge, picture: LoadPicture) -> ProbeRun:
    judged = [(record, verdict) for record in run.records if (verdict := judge.verdict(record)) is not None]
    passes = [verdict for _, verdict in judged]
    records = [record for record, _ in judged]
    ok = [record for record in records if record.outcome is Outcome.OK]
    ends = [end for record in ok if (end := e2e_s(record)) is not None]
    return ProbeRun(
        result=ProbeResult(
            rate=probe.rate,
            num_sent=len(passes),
            num_good=sum(passes),
            num_effective=len(passes) / design_effect(passes),
            seconds=_duration_s(run),
            mean_e2e_s=sum(ends) / len(ends) if ends else None,
            attainment_by_slo={
                name: sum(record.outcome is Outcome.OK and meets(record, name, limit) for record in records)
                / max(len(records), 1)
                for name, limit in judge._slos_s.items()
            },
        ),
        why=probe.why,
        was_cut=judge.was_cut,
        lateness_p99_s=percentile(run.dispatch_lateness_s, 99),
        failures=dict(Counter(str(r.error) for r in records if r.outcome is not Outcome.OK).most_common(3)),
        picture=picture,
    )


def _duration_s(run: LoadRun) -> float:
    return run.finished_at_s - run.started_at_s


def _settle(watch: ServerWatch, drain_s: float) -> None:
    """Wait until the server has forgotten the run before: until it says so, or for `drain_s` if it says
    nothing; half a second at least, half a minute at most.
    """
    end_s = time.monotonic() + _MAX_SETTLE_S
    time.sleep(_SETTLE_S)
    while time.monotonic() < end_s:
        is_idle = watch.is_idle()
        if is_idle is None:
            time.sleep(min(max(drain_s - _SETTLE_S, 0.0), _MAX_SETTLE_S))
        if is_idle is not False:
            return
        time.sleep(_SETTLE_S)

"""What the always-on records, events and metrics cost, as a share of a step.

    python benchmarks/metrics_overhead.py [--rounds N] [--json FILE]

The engine of the server: event log, drift watch and /metrics listen. Batches of 1, 8 and 32 decode. A round
is 16 steps with all of it and 16 with a recorder that drops and without listeners, by turns. Blocks fill and
the metrics are counted at the same places of each 16, so a median is taken for each place, and the figure
compares the sums of these. The listeners' own time is read beside it: it holds where the machine is too noisy
for ratios of a per cent. Predicting a step is no part of it: benchmarks/timing_overhead.py measures that.
Every third round the page of /metrics is rendered: the time of that is told beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median, quantiles

from prediction_error import new_request
from ridgeline.build import EngineParts, build_engine
from ridgeline.config.engine import EngineConfig
from ridgeline.config.env import home_dir
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.events import Event, EventRecorder, StepFinished
from ridgeline.engine.clock import MonotonicClock
from ridgeline.engine.engine import EventListener
from ridgeline.metrics.prometheus import MetricsSettings, ServerMetrics
from ridgeline.outputs import FinishReason
from ridgeline.perf.op_costs import WorkTotals

MAX_SHARE = 0.01
BATCHES = (1, 8, 32)
_PROMPT_TOKENS = 16
_NUM_PLACES = 16
_RENDER_EVERY = 3


class DroppingRecorder(EventRecorder):
    """Forgets at once."""

    def record(self, event: Event) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Overhead:
    """`step_s` without; `share`: (with − without) / without, `quartiles` those of the rounds; `listeners_s`:
    what the listeners take for a step; `render_s`: of one page of /metrics.
    """

    batch: int
    step_s: float
    share: float
    quartiles: tuple[float, float]
    listeners_s: float
    render_s: float


class TimedListeners:
    """All listeners of an engine as one that keeps how long each step's events took."""

    def __init__(self, listeners: Sequence[EventListener]) -> None:
        self._listeners = listeners
        self.seconds: list[float] = []

    def record(self, events: Iterable[Event]) -> None:
        """Hand the events on."""
        started_at_s = time.perf_counter()
        for listener in self._listeners:
            listener.record(events)
        self.seconds.append(time.perf_counter() - started_at_s)


class Switch:
    """Turns records, events and metrics of an engine on and off."""

    def __init__(self, parts: EngineParts) -> None:
        self._engine = parts.engine
        self._holders = (parts.engine, parts.engine.scheduler, parts.engine.scheduler._kv_cache_manager)
        self.listeners = TimedListeners(parts.engine._listeners)
        self._all = parts.engine._listeners
        self._on = parts.engine._recorder, (self.listeners,)
        self._off = DroppingRecorder(), ()

    def set(self, is_on: bool) -> None:
        recorder, listeners = self._on if is_on else self._off
        for holder in self._holders:
            holder._recorder = recorder
        self._engine._listeners = listeners

    def restore(self) -> None:
        self.set(is_on=True)
        self._engine._listeners = self._all


def serving_engine() -> tuple[EngineParts, ServerMetrics]:
    metrics = ServerMetrics(MetricsSettings(model_name="model"))
    config = EngineConfig(
        kv_cache_bytes=2**30, scheduler=SchedulerConfig(max_num_seqs=max(BATCHES), max_num_batched_tokens=512)
    )
    parts = build_engine(config, home=home_dir(), clock=MonotonicClock(), listeners=[metrics])
    metrics.describe_engine(
        max_model_len=parts.limits.max_model_len,
        cache_config={},
        work=WorkTotals(parts.model_shape),
    )
    return parts, metrics


def measure(parts: EngineParts, metrics: ServerMetrics, *, batch: int, num_rounds: int) -> Overhead:
    engine, switch, rng = parts.engine, Switch(parts), random.Random(batch)
    names = [f"{batch}-{index}" for index in range(batch)]
    num_output = 2 * _NUM_PLACES * (num_rounds + 1) + 8
    for name in names:
        engine.add_request(new_request(name, _PROMPT_TOKENS, num_output, rng=rng))
    for _ in range(2 + _NUM_PLACES):  # prompts, within the budget of tokens; then warm
        engine.step()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    render_s = []
    for number in range(num_rounds):
        if number % _RENDER_EVERY == 0:
            render_s.append(timed_s(metrics.render))
        for is_on in (number % 2 == 0, number % 2 == 1):
            switch.set(is_on)
            seconds[is_on] += [timed_s(engine.step) for _ in range(_NUM_PLACES)]
    switch.restore()
    for name in names:
        engine.finish_request(name, FinishReason.ABORT)
    engine.publish_events()
    sums = {is_on: [sum(each) for each in batched(values)] for is_on, values in seconds.items()}
    low, _, high = quantiles((on / off - 1 for on, off in zip(sums[True], sums[False], strict=True)), n=4)
    step_s = by_place(seconds[False])
    return Overhead(
        batch,
        step_s,
        by_place(seconds[True]) / step_s - 1,
        (low, high),
        by_place(switch.listeners.seconds[: len(seconds[True])]),
        median(render_s),
    )


def batched(values: Sequence[float]) -> list[Sequence[float]]:
    """Runs of `_NUM_PLACES`."""
    return [values[at : at + _NUM_PLACES] for at in range(0, len(values), _NUM_PLACES)]


def by_place(values: Sequence[float]) -> float:
    """The mean over the places of the median at each."""
    return mean(median(values[place::_NUM_PLACES]) for place in range(_NUM_PLACES))


def timed_s(work: Callable[[], object]) -> float:
    started_at_s = time.perf_counter()
    work()
    return time.perf_counter() - started_at_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    parts, metrics = serving_engine()
    found = [measure(parts, metrics, batch=batch, num_rounds=arguments.rounds) for batch in BATCHES]
    num_steps = sum(isinstance(event, StepFinished) for event in parts.event_log.events())
    assert num_steps > 0, "the steps with listeners left no record"
    parts.engine.close()
    for each in found:
        low, high = each.quartiles
        print(
            f"batch {each.batch:2}: a step {each.step_s * 1e3:6.2f} ms, records, events and metrics "
            f"{each.share:+.2%} of it (quartiles {low:+.2%} … {high:+.2%}), the listeners alone "
            f"{each.listeners_s * 1e6:.0f} µs or {each.listeners_s / each.step_s:.2%}; "
            f"a page of /metrics {each.render_s * 1e3:.1f} ms"
        )
    print(f"allowed {MAX_SHARE:.0%}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"max_share": MAX_SHARE, "batches": [asdict(each) for each in found]}, file, indent=2)


if __name__ == "__main__":
    main()

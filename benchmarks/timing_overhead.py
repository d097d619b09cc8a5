"""What it costs that every step is timed by op, predicted, and told to its listeners.

    python benchmarks/timing_overhead.py [--pairs N] [--json FILE]

One engine with one request (the shortest steps there are, so the largest share) runs steps by turns with all
of it and without: no prediction, no listeners. Each pair of neighbouring steps gives a ratio; the figure is
their median. The clock reads of the native op table cannot be left out; their number times the time of
one read is an upper bound that is told beside it, since Python's own way to the clock is longer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from dataclasses import dataclass
from statistics import median

from prediction_error import new_engine, new_request
from ridgeline.build import EngineParts
from ridgeline.core.events import StepFinished
from ridgeline.outputs import FinishReason

MAX_SHARE = 0.01
_BOOKINGS_PER_LAYER = 5
_BOOKINGS_PER_STEP = 5  # embed, the last norm, lm_head, sample, and the start
_WARM_UP_PAIRS = 10
_CLOCK_READS = 20_000


@dataclass(frozen=True)
class Overhead:
    """Seconds of a step without; ratios of neighbouring steps, with over without; the clock at most."""

    step_s: float
    with_over_without: float
    quartiles: tuple[float, float]
    clock_share: float

    @property
    def share(self) -> float:
        """Of a step, in all."""
        return self.with_over_without - 1 + self.clock_share


def measure(parts: EngineParts, num_pairs: int) -> Overhead:
    engine = parts.engine
    forecast, listeners = engine._forecast, engine._listeners
    assert forecast is not None, "calibrate first: ridgeline calibrate"
    rng = random.Random(3)
    engine.add_request(new_request("overhead", 16, 2 * (num_pairs + _WARM_UP_PAIRS) + 8, rng=rng))
    engine.step()
    ratios, without_s = [], []
    for number in range(num_pairs + _WARM_UP_PAIRS):
        seconds = {}
        for is_on in (number % 2 == 0, number % 2 == 1):  # who goes first changes: the context grows
            engine._forecast, engine._listeners = (forecast, listeners) if is_on else (None, ())
            started_at_s = time.perf_counter()
            engine.step()
            seconds[is_on] = time.perf_counter() - started_at_s
        if number >= _WARM_UP_PAIRS:
            ratios.append(seconds[True] / seconds[False])
            without_s.append(seconds[False])
    engine._forecast, engine._listeners = forecast, listeners
    engine.finish_request("overhead", FinishReason.ABORT)
    ratios.sort()
    step_s = median(without_s)
    num_reads = _BOOKINGS_PER_LAYER * parts.model.num_layers + _BOOKINGS_PER_STEP
    return Overhead(
        step_s=step_s,
        with_over_without=median(ratios),
        quartiles=(ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]),
        clock_share=num_reads * clock_read_s() / step_s,
    )


def clock_read_s() -> float:
    """Fastest of a few thousand: others' work on this core is no part of it."""
    reads = [time.perf_counter() for _ in range(_CLOCK_READS)]
    return min(after - before for before, after in itertools.pairwise(reads) if after > before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=600)
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    parts = new_engine(1, 512)
    found = measure(parts, arguments.pairs)
    is_recorded = any(isinstance(event, StepFinished) for event in parts.event_log.events())
    assert is_recorded, "the steps with listeners left no record"
    parts.engine.close()
    low, high = found.quartiles
    print(f"a step without: {found.step_s * 1e3:.2f} ms")
    print(f"with over without: {found.with_over_without:.4f} (quartiles {low:.4f} … {high:.4f})")
    print(f"clock reads of the op table: at most {found.clock_share:.3%} of a step")
    print(f"in all {found.share:.2%} of a step; allowed {MAX_SHARE:.0%}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({**vars(found), "share": found.share}, file, indent=2)


if __name__ == "__main__":
    main()

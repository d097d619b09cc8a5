"""How well steps are predicted that calibration never saw: a real engine, a real model, random requests.

    python benchmarks/prediction_error.py [--rounds N] [--stored] [--json FILE]

Each round calibrates (unless --stored), then serves random requests under several settings, so that steps of
every kind occur: batches of 1 to 64, chunks of 1 to 512, contexts of 0 to 4,096, and mixtures. `error` is
that of the prediction as it was made before the step, against the step's wall time. `following` multiplies
it by the median of measured over predicted of the 8 steps before: what is left is the model's own error, the
rest is the machine's speed, which no earlier measurement can know.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ridgeline.bench.calibrate import LONG_PLAN, calibrate, default_shape, keep
from ridgeline.build import EngineParts, build_engine
from ridgeline.config.engine import EngineConfig
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.request import Request
from ridgeline.engine.clock import MonotonicClock
from ridgeline.engine.step_forecast import step_shape_of
from ridgeline.formats.gguf import open_gguf
from ridgeline.outputs import FinishReason
from ridgeline.perf.beaten_ceilings import beaten_ceilings, raised
from ridgeline.perf.model_shape import ModelShape, model_shape_of
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.predict import StepPrediction
from ridgeline.perf.step_shape import StepShape
from ridgeline.sampling_params import SamplingParams

MAX_CONTEXT = 4096
KV_CACHE_BYTES = 3 * 2**30
MAX_PER_REGIME = 40
NUM_FOLLOWED = 8
NUM_WARM_UP = 3
SATURATED_TOKENS = 512


@dataclass(frozen=True)
class Setting:
    """Limits of an engine, and ranges to draw its requests' lengths from."""

    name: str
    max_num_seqs: int
    budget: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    num_steps: int


SETTINGS = (
    Setting("one request, short", 1, 512, (1, 300), (20, 60), 60),
    Setting("one request, long", 1, 512, (1500, 4000), (20, 40), 60),
    Setting("small chunks", 4, 24, (20, 400), (5, 20), 50),
    Setting("chunks of 128", 4, 128, (100, 1500), (5, 20), 40),
    Setting("chunks of 512", 3, 512, (200, 3000), (5, 20), 30),
    Setting("batch of 4", 4, 512, (20, 600), (20, 80), 60),
    Setting("batch of 12", 12, 256, (10, 400), (20, 80), 50),
    Setting("batch of 32", 32, 512, (10, 300), (30, 90), 40),
    Setting("batch of 64", 64, 512, (5, 150), (40, 90), 40),
)


@dataclass(frozen=True)
class MeasuredStep:
    """One step of the engine; `pace` is measured over predicted time of the steps just before it."""

    shape: StepShape
    prediction: StepPrediction
    wall_s: float
    op_seconds: dict[str, float]
    pace: float

    @property
    def error(self) -> float:
        """Relative error of the predicted wall time."""
        return self.prediction.total_s / self.wall_s - 1

    @property
    def following_error(self) -> float:
        """The same at the machine's pace."""
        return self.prediction.total_s * self.pace / self.wall_s - 1


class Run:
    """One engine with one setting, fed with random requests."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._rng = random.Random(seed)
        self.parts = new_engine(setting.max_num_seqs, setting.budget)
        self.bounds = OpBounds(shape_of(self.parts), self.parts.hardware)
        self._num_requests = 0

    def steps(self, num_steps: int) -> Iterator[MeasuredStep]:
        """Serve until `num_steps` are measured, the first few left out; requests come and go at random."""
        engine = self.parts.engine
        paces: deque[float] = deque(maxlen=NUM_FOLLOWED)
        for number in range(num_steps + NUM_WARM_UP):
            self._refill()
            started_at_s = time.perf_counter()
            scheduled = engine.schedule()
            scheduled_at_s = time.perf_counter()
            shape = step_shape_of(scheduled)
            resumed_at_s = time.perf_counter()
            step = engine.execute(scheduled)
            engine.commit(step)
            wall_s = time.perf_counter() - resumed_at_s + scheduled_at_s - started_at_s
            if number >= NUM_WARM_UP:
                pace = median(paces)
                yield MeasuredStep(shape, step.prediction, wall_s, step.runner_output.op_seconds, pace)
            paces.append(wall_s / step.prediction.total_s)

    def _refill(self) -> None:
        scheduler = self.parts.engine.scheduler
        while scheduler.num_running + scheduler.num_waiting < self._setting.max_num_seqs and (
            self._rng.random() < 0.8 or not scheduler.has_unfinished_requests
        ):
            self._num_requests += 1
            lengths = (self._rng.randint(*self._setting.prompt), self._rng.randint(*self._setting.output))
            self.parts.engine.add_request(new_request(str(self._num_requests), *lengths, rng=self._rng))


def new_engine(max_num_seqs: int, budget: int) -> EngineParts:
    config = EngineConfig(
        max_model_len=MAX_CONTEXT + 128,
        kv_cache_bytes=KV_CACHE_BYTES,
        enable_prefix_caching=False,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget),
    )
    return build_engine(config, home=home_dir(), clock=MonotonicClock())


def new_request(request_id: str, num_prompt: int, num_output: int, *, rng: random.Random) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=[rng.randrange(1000, 40000) for _ in range(num_prompt)],
        sampling_params=SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True),
        arrived_at_s=0.0,
        seed=0,
        max_num_tokens=num_prompt + num_output,
    )


def shape_of(parts: EngineParts) -> ModelShape:
    with open_gguf(parts.model_path) as file:
        types = {name: tensor.quant_type.name for name, tensor in file.tensors.items()}
    return model_shape_of(parts.model, types)


def regime(shape: StepShape) -> str:
    """Which row of the table a step belongs to."""
    prefill = [row for row in shape.rows if row.num_scheduled_tokens > 1]
    num_decodes = len(shape.rows) - len(prefill)
    if not prefill:
        longest = max(row.num_computed_tokens for row in shape.rows)
        size = next(limit for limit in (1, 8, 32, 64) if num_decodes <= limit)
        return f"decode, batch ≤ {size}" + (", context > 1,024" if longest > 1024 else "")
    num_tokens = sum(row.num_scheduled_tokens for row in prefill)
    size = next(limit for limit in (32, 128, 512) if num_tokens <= limit)
    return f"{'mixed' if num_decodes else 'prefill'}, chunk ≤ {size}"


def chosen(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """At most `MAX_PER_REGIME` of each regime, evenly over the run, so that no kind outweighs the others."""
    by_regime: dict[str, list[MeasuredStep]] = defaultdict(list)
    for step in steps:
        by_regime[regime(step.shape)].append(step)
    kept = []
    for each in by_regime.values():
        stride = -(-len(each) // MAX_PER_REGIME)
        kept += each[::stride]
    return kept


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def errors_of(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    raw = [abs(step.error) for step in steps]
    following = [abs(step.following_error) for step in steps]
    return {
        "steps": len(steps),
        "median": median(raw),
        "p95": percentile(raw, 0.95),
        "bias": median(step.error for step in steps),
        "following_median": median(following),
        "following_p95": percentile(following, 0.95),
    }


def fractions(steps: Sequence[MeasuredStep]) -> dict[str, tuple[float, float]]:
    """(median, highest) least time over measured time, by op, where the op took at least 0.1 ms."""
    found: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for op, bound_s in step.prediction.bound_op_s.items():
            if bound_s and step.op_seconds[op] >= 1e-4:
                found[op].append(bound_s / step.op_seconds[op])
    return {op: (median(values), max(values)) for op, values in found.items()}


def crossover(parts: EngineParts, num_rounds: int = 7) -> dict[str, float]:
    """The ridge batch of decoding, computed and found by running.

    Computed: memory seconds of the products over compute seconds of one more sequence, at the peak. By
    running: they take t(1) while memory binds, and the slope of t once compute does; the two lines cross at
    t(1) over that slope.
    """
    compute_s, memory_s = OpBounds(shape_of(parts), parts.hardware).matrix_terms(SATURATED_TOKENS)
    computed = memory_s / (compute_s / SATURATED_TOKENS)
    batches = (1, 24, 40)
    seconds: dict[int, list[float]] = {batch: [] for batch in batches}
    engine, rng = parts.engine, random.Random(5)
    for number in range(num_rounds):
        for batch in batches:
            for index in range(batch):
                engine.add_request(new_request(f"{number}-{batch}-{index}", 8, 6, rng=rng))
            while engine.has_unfinished_requests:
                scheduled = engine.schedule()
                step = engine.execute(scheduled)
                engine.commit(step)
                if all(item.num_scheduled_tokens == 1 for item in scheduled.scheduled):
                    seconds[batch].append(sum(step.runner_output.op_seconds[op] for op in MATRIX_OPS))
    best = {batch: median(values) for batch, values in seconds.items()}
    slope = (best[40] - best[24]) / 16
    return {"computed": computed, "measured": best[1] / slope}


def overhead(parts: EngineParts, num_pairs: int = 400) -> dict[str, float]:
    """Cost of prediction and its bookkeeping in a step of one request: timed alone, and on against off."""
    engine, forecast = parts.engine, parts.engine._forecast
    rng = random.Random(3)
    engine.add_request(new_request("overhead", 16, 2 * num_pairs + 8, rng=rng))
    walls: dict[bool, list[float]] = {True: [], False: []}
    alone = []
    for number in range(2 * num_pairs):
        is_on = number % 2 == 0
        engine._forecast = forecast if is_on else None
        started_at_s = time.perf_counter()
        step = engine.execute(scheduled := engine.schedule())
        engine.commit(step)
        walls[is_on].append(time.perf_counter() - started_at_s)
        started_at_s = time.perf_counter()
        forecast(scheduled)
        alone.append(time.perf_counter() - started_at_s)
    engine._forecast = forecast
    engine.finish_request("overhead", FinishReason.ABORT)
    step_s = median(walls[False])
    return {
        "step_s": step_s,
        "forecast_s": median(alone),
        "forecast_share": median(alone) / step_s,
        "on_over_off": median(on / off for on, off in zip(walls[True], walls[False], strict=True)),
    }


def measure(rounds: int, is_stored: bool) -> dict[str, object]:
    num_threads = cpu_limits().num_threads
    steps: list[MeasuredStep] = []
    for number in range(rounds):
        if not is_stored:
            keep(home_dir(), calibrate(default_shape(), num_threads, LONG_PLAN))
        for index, setting in enumerate(SETTINGS):
            run = Run(setting, 100 * number + index)
            steps += run.steps(setting.num_steps)
            run.parts.engine.close()
    kept = chosen(steps)
    parts = new_engine(64, 512)
    document = {
        "overall": errors_of(kept),
        "regimes": {name: errors_of([s for s in kept if regime(s.shape) == name]) for name in regimes(kept)},
        "roofline_fraction": fractions(steps),
        "sum_of_ops": median(sum(s.op_seconds.values()) / s.wall_s for s in steps),
        "overhead": overhead(parts),
        "crossover": crossover(parts),
    }
    parts.engine.close()
    document["notes"] = raise_beaten(parts, steps)
    return document


def raise_beaten(parts: EngineParts, steps: Sequence[MeasuredStep]) -> list[str]:
    """Store the profile with the ceilings raised that these steps beat; returns all of its notes."""
    bounds = OpBounds(shape_of(parts), parts.hardware)
    profile = raised(
        parts.hardware,
        [each for step in steps for each in beaten_ceilings(bounds, step.shape, step.op_seconds)],
    )
    if profile != parts.hardware:
        keep(home_dir(), profile)
    return list(profile.notes)


def regimes(steps: Sequence[MeasuredStep]) -> list[str]:
    return sorted({regime(step.shape) for step in steps})


def show(document: dict[str, object]) -> None:
    print(f"{'regime':38} {'steps':>5} {'error':>7} {'p95':>7} {'bias':>7}   {'following':>9} {'p95':>7}")
    for name, each in [*document["regimes"].items(), ("overall", document["overall"])]:
        print(
            f"{name:38} {each['steps']:5} {each['median']:7.1%} {each['p95']:7.1%} {each['bias']:+7.1%}   "
            f"{each['following_median']:9.1%} {each['following_p95']:7.1%}"
        )
    print("\nfraction of the roofline, median and highest:")
    for op, (middle, highest) in document["roofline_fraction"].items():
        print(f"  {op:14} {middle:6.2f} {highest:6.2f}")
    print(f"\nops are {document['sum_of_ops']:.1%} of a step's wall time")
    cost, ridge = document["overhead"], document["crossover"]
    print(
        f"prediction takes {cost['forecast_s'] * 1e6:.0f} µs of a step of {cost['step_s'] * 1e3:.2f} ms "
        f"({cost['forecast_share']:.2%}); steps with it over steps without: {cost['on_over_off']:.4f}"
    )
    print(f"ridge batch: computed {ridge['computed']:.2f}, found by running {ridge['measured']:.2f}")
    for note in document["notes"]:
        print(f"· {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--stored", action="store_true", help="use the stored profile, do not calibrate")
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    document = measure(arguments.rounds, arguments.stored)
    show(document)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(document, file, indent=2)


if __name__ == "__main__":
    main()

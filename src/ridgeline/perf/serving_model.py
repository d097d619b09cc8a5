"""A model on a machine under a workload: seconds of its steps at every batch, and the requests it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ridgeline.errors import ConfigError
from ridgeline.perf.crossover import MAX_BATCH, decode_step, prefill_step
from ridgeline.perf.hardware import HardwareProfile, Source
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.predict import Predictor
from ridgeline.perf.roofline import ridge_batch_at_peak
from ridgeline.perf.step_shape import StepRow, StepShape

DEFAULT_BUDGET = 512
"""The engine's own max_num_batched_tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one length, in tokens; limits in seconds, arrivals a second; None sets none.

    Raises:
        ConfigError: a length below 1, a rate or a limit that is not above 0.
    """

    input_len: int
    output_len: int
    rate_per_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "must be ≥ 1 token")
        for name in ("rate_per_s", "ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(name.removesuffix("_per_s").removesuffix("_s"), value, "must be above 0")

    @property
    def num_tokens(self) -> int:
        """Tokens of a request at its end."""
        return self.input_len + self.output_len

    @property
    def mean_context(self) -> int:
        """Tokens that a request has in the cache halfway through its output."""
        return self.input_len + self.output_len // 2


class ServingModel:
    """Seconds from the engine's own prediction where the machine was measured, else the least seconds.

    In a steady state with B requests running, each of which leaves after `output_len` steps and makes room
    for one that needs `prefill_s` first, a round of B requests takes output_len × step(B) + B × prefill_s.
    So TPOT(B) = step(B) + B × prefill_s / output_len, and the machine finishes B requests a round.
    """

    def __init__(self, model: ModelShape, profile: HardwareProfile, workload: Workload) -> None:
        self.model = model
        self.profile = profile
        self.workload = workload
        self.bounds = OpBounds(model, profile)
        self._predictor = Predictor(model, profile)

    @property
    def is_least_time(self) -> bool:
        """Whether seconds are lower bounds of a data sheet, with no overhead in them."""
        return self.profile.source is Source.DATA_SHEET

    @property
    def is_compute_known(self) -> bool:
        """Whether the products have a peak; without one all seconds are memory's alone."""
        return ridge_batch_at_peak(self.model, self.profile) is not None

    def step_s(self, step: StepShape) -> float:
        """Seconds of a step."""
        return self._predictor.predict(step).total_s

    def decode_s(self, batch: int) -> float:
        """Seconds of a step in which `batch` requests decode at the mean context."""
        return self.step_s(decode_step(batch, self.workload.mean_context))

    def chunk_s(self, batch: int, num_prompt_tokens: int) -> float:
        """Seconds of a step of `batch` decoding requests and a chunk at the end of a prompt."""
        rows = list(decode_step(batch, self.workload.mean_context).rows)
        num_before = max(self.workload.input_len - num_prompt_tokens, 0)
        return self.step_s(StepShape([*rows, StepRow(num_before, num_prompt_tokens, 1)]))

    def prompt_s(self, budget: int) -> float:
        """Seconds to compute a prompt alone in chunks of `budget` tokens."""
        total_s = 0.0
        for first in range(0, self.workload.input_len, budget):
            size = min(budget, self.workload.input_len - first)
            is_last = first + size == self.workload.input_len
            total_s += self.step_s(StepShape([StepRow(first, size, int(is_last))]))
        return total_s

    @cached_property
    def prefill_s(self) -> float:
        """Seconds that a prompt adds to the steps it is computed in, in chunks of 512."""
        return self.prompt_s(DEFAULT_BUDGET)

    def tpot_s(self, batch: int) -> float:
        """Mean seconds between a request's tokens with `batch` running and prompts coming in between."""
        return self.decode_s(batch) + batch * self.prefill_s / self.workload.output_len

    def requests_per_s(self, batch: int) -> float:
        """Requests finished a second with `batch` always running."""
        return batch / (self.workload.output_len * self.tpot_s(batch))

    def terms(self, batch: int) -> tuple[float, float]:
        """(compute, memory) seconds of a decode step, all ops together."""
        terms = self.bounds.terms(decode_step(batch, self.workload.mean_context)).values()
        return sum(pair[0] for pair in terms), sum(pair[1] for pair in terms)

    @property
    def decode_tok_s_limit(self) -> float:
        """Tokens a second of one request at an empty context, at most: the weights' bytes set it."""
        return 1 / sum(self.bounds.of(decode_step(1, 0)).values())

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that a step of one token reads: of an embedding of its own only a row."""
        return sum(cost.weight_bytes for cost in self.bounds.costs.of(decode_step(1, 0)).values())

    @property
    def prefill_tok_s_limit(self) -> float | None:
        """Prompt tokens a second, at most, in a step of 512; None where no compute peak is known."""
        if not self.is_compute_known:
            return None
        return DEFAULT_BUDGET / sum(self.bounds.of(prefill_step(0, DEFAULT_BUDGET)).values())


def largest(is_ok: Callable[[int], bool], most: int) -> int:
    """The largest whole number in 1…most for which `is_ok`, true up to somewhere; 0 where it never is."""
    if most < 1 or not is_ok(1):
        return 0
    low, high = 1, 2
    while high <= most and is_ok(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_ok(middle) else (low, middle)
    return low


def least(is_ok: Callable[[int], bool], most: int = MAX_BATCH) -> int | None:
    """The least whole number in 1…most for which `is_ok`, false up to somewhere; None where it never is."""
    found = largest(lambda number: not is_ok(number), most) + 1
    return found if found <= most else None

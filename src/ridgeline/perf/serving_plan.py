"""What a machine serves of a workload: which resource binds first as the batch grows, and what to set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.perf.crossover import MAX_BATCH, kv_context, ridge_batch
from ridgeline.perf.kv_memory import RequestMemory
from ridgeline.perf.roofline import ridge_batch_at_peak, ridge_intensity
from ridgeline.perf.serving_model import DEFAULT_BUDGET, ServingModel, largest, least

MEMORY_SHARE = 0.9
"""Of the memory, what weights and KV cache may take together; the rest is for everything else."""
_NEAR_BEST = 0.95
_FAST_ENOUGH = 0.8
_BUDGETS = tuple(1 << power for power in range(5, 14))
_LEAST_CHUNK = 16
_SHOWN_BATCHES = tuple(1 << power for power in range(13))


class Resource(StrEnum):
    """What stops the batch from growing for free."""

    MEMORY_CAPACITY = "memory capacity"
    MEMORY_BANDWIDTH = "memory bandwidth"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting (None: nothing fits), and why, in one line."""

    value: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """A batch at the workload's mean context: seconds, rates, and what bounds the decode step."""

    batch: int
    step_s: float
    tpot_s: float
    decode_tok_s: float
    requests_per_s: float
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBound:
    """The resource that binds first as the batch grows, from which batch on, and the batches of all."""

    resource: Resource
    batch: int
    reason: str
    batches: Mapping[Resource, int | None]


class ServingPlan:
    """Everything derived from a `ServingModel`, the memory that K and V may take, and a block's size."""

    def __init__(self, serving: ServingModel, *, kv_memory_bytes: int, block_size: int) -> None:
        self.serving = serving
        self.request: RequestMemory = serving.model.kv_shape.request(serving.workload.num_tokens, block_size)
        self.capacity = max(kv_memory_bytes, 0) // self.request.allocated_bytes
        self.ridge_batch = ridge_batch(serving.bounds)
        self.first_bound = self._first_bound()
        self.slo_batch = self._slo_batch()
        self.needed_batch = self._needed_batch()
        self.max_num_seqs = self._max_num_seqs()
        self.max_num_batched_tokens = self._max_num_batched_tokens()
        self.kv_cache_bytes = self._kv_cache_bytes()

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token of a request that waits for nobody, with the advised budget; None where
        no compute peak is known.
        """
        if not self.serving.is_compute_known:
            return None
        return self.serving.prompt_s(self.max_num_batched_tokens.value or _BUDGETS[-1])

    def point(self, batch: int) -> BatchPoint:
        """One batch."""
        serving = self.serving
        step_s = serving.decode_s(batch)
        compute_s, memory_s = serving.terms(batch)
        return BatchPoint(
            batch=batch,
            step_s=step_s,
            tpot_s=serving.tpot_s(batch),
            decode_tok_s=batch / step_s,
            requests_per_s=serving.requests_per_s(batch),
            bound="compute" if compute_s > memory_s else "memory",
        )

    def points(self) -> list[BatchPoint]:
        """Batches 1, 2, 4, … to four times the advised one, as far as they fit, and that itself."""
        advised = self.max_num_seqs.value or 1
        most = max(min(self.capacity, 4 * advised), 1)
        return [self.point(batch) for batch in sorted({advised, *_SHOWN_BATCHES}) if batch <= most]

    @property
    def best_requests_per_s(self) -> float | None:
        """Requests a second that the advised batch finishes; None where none fits."""
        batch = self.max_num_seqs.value
        return None if batch is None else self.serving.requests_per_s(batch)

    def document(self) -> dict[str, object]:
        """The plan's speed and advice as JSON has them."""
        serving, first = self.serving, self.first_bound
        profile, model = serving.profile, serving.model
        return {
            "hardware": {"name": profile.name, "source": profile.source.value, "notes": list(profile.notes)},
            "speed": {
                "is_least_time": serving.is_least_time,
                "is_compute_known": serving.is_compute_known,
                "input_len": serving.workload.input_len,
                "output_len": serving.workload.output_len,
                "ridge_batch_at_peak": ridge_batch_at_peak(model, profile),
                "ridge_intensity_flops_per_byte": ridge_intensity(profile, model.main_format),
                "ttft_s": self.ttft_s,
                "capacity_batch": self.capacity,
                "slo_batch": self.slo_batch,
                "needed_batch": self.needed_batch,
                "max_requests_per_s": self.best_requests_per_s,
                "first_bound": {
                    "resource": first.resource.value,
                    "batch": first.batch,
                    "reason": first.reason,
                    "batches": {each.value: batch for each, batch in first.batches.items()},
                },
                "batches": [
                    {name: getattr(point, name) for name in BatchPoint.__dataclass_fields__}
                    for point in self.points()
                ],
            },
            "recommended": {
                name: {"value": advice.value, "reason": advice.reason} for name, advice in self.advice.items()
            },
        }

    @property
    def advice(self) -> dict[str, Advice]:
        """By the engine's own setting."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_cache_bytes": self.kv_cache_bytes,
        }

    def _first_bound(self) -> FirstBound:
        serving, context = self.serving, self.serving.workload.mean_context
        crowd = least(lambda batch: serving.model.weights_bytes <= self._kv_read_bytes(batch))
        batches = {
            Resource.MEMORY_CAPACITY: self.capacity + 1,
            Resource.COMPUTE: least(lambda batch: serving.terms(batch)[0] >= serving.terms(batch)[1]),
            Resource.MEMORY_BANDWIDTH: crowd,
        }
        found = {each: batch for each, batch in batches.items() if batch is not None}
        resource = min(found, key=lambda each: found[each])
        batch = found[resource]
        reasons = {
            Resource.COMPUTE: f"from {batch} sequences on a decode step waits for arithmetic, not for memory",
            Resource.MEMORY_BANDWIDTH: (
                f"from {batch} sequences of {context:,} tokens on K and V are more bytes than the weights: "
                "each further one costs as much again"
            ),
            Resource.MEMORY_CAPACITY: (
                f"{self.capacity:,} requests of {self.request.num_tokens:,} tokens fill what K and V may take"
                if self.capacity
                else f"not one request of {self.request.num_tokens:,} tokens fits what K and V may take"
            ),
        }
        return FirstBound(resource=resource, batch=batch, reason=reasons[resource], batches=batches)

    def _kv_read_bytes(self, batch: int) -> float:
        model, context = self.serving.model, self.serving.workload.mean_context
        if not model.num_window_layers:
            return model.weights_bytes * context / kv_context(model, batch)
        return batch * model.kv_shape.request(context, 1).token_bytes

    def _slo_batch(self) -> int | None:
        """The largest batch whose TPOT meets the limit; None without a limit."""
        limit_s = self.serving.workload.tpot_s
        if limit_s is None:
            return None
        return largest(lambda batch: self.serving.tpot_s(batch) <= limit_s, MAX_BATCH)

    def _needed_batch(self) -> int | None:
        """Requests that run at once at the given rate (Little 1961); None without a rate, or beyond reach."""
        rate = self.serving.workload.rate_per_s
        if rate is None:
            return None
        return least(lambda batch: self.serving.requests_per_s(batch) >= rate)

    def _max_num_seqs(self) -> Advice:
        serving, slo = self.serving, self.slo_batch
        if not self.capacity:
            return Advice(None, "not one request of this length fits the memory beside the weights")
        if slo == 0:
            tpot_ms = 1e3 * serving.tpot_s(1)
            return Advice(1, f"even one request takes {tpot_ms:.3g} ms a token, more than the limit")
        most = min(self.capacity, MAX_BATCH, slo or MAX_BATCH)
        best = serving.requests_per_s(most)
        batch = least(lambda each: serving.requests_per_s(each) >= _NEAR_BEST * best, most) or most
        if self.needed_batch is not None and batch < self.needed_batch <= most:
            rate = serving.workload.rate_per_s
            return Advice(self.needed_batch, f"so many run at once at {rate:g} requests/s")
        if batch < most:
            gain = best / serving.requests_per_s(batch) - 1
            reason = f"{most:,} would serve only {gain:.0%} more requests a second, each of them more slowly"
        elif slo is not None and most == slo:
            reason = f"the largest batch within the TPOT limit: {1e3 * serving.tpot_s(most):.3g} ms"
        elif most == self.capacity:
            reason = f"as many requests of {self.request.num_tokens:,} tokens as the memory holds"
        else:
            reason = f"every request more is served faster together, up to {MAX_BATCH:,}"
        return Advice(batch, reason)

    def _max_num_batched_tokens(self) -> Advice:
        """Large enough for prompts to be fast, small enough for a step with a chunk to keep the limit.

        TPOT is a mean, so where both can't be had the first goes before: the work of a prompt is the same
        in chunks of any size, or less in large ones.
        """
        serving, batch = self.serving, self.max_num_seqs.value or 1
        limit_s = serving.workload.tpot_s
        if not serving.is_compute_known:
            reason = "the engine's default: without a compute peak the speed of prompts is unknown"
            return Advice(max(DEFAULT_BUDGET, batch + _LEAST_CHUNK), reason)
        speeds = {size: size / serving.chunk_s(0, size) for size in _BUDGETS}
        fast = max(speeds.values())
        size = next(each for each in _BUDGETS if speeds[each] >= _NEAR_BEST * fast)
        if limit_s is not None and self.slo_batch:
            chunk = largest(lambda each: serving.chunk_s(batch, each) <= limit_s, _BUDGETS[-1])
            if chunk and chunk / serving.chunk_s(0, chunk) >= _FAST_ENOUGH * fast:
                taken = f"{batch} tokens decoded and {chunk} of a prompt take"
                return Advice(
                    batch + chunk, f"{taken} {_ms(serving.chunk_s(batch, chunk))}: within the limit"
                )
            slow = f"a step with {size} tokens of a prompt takes {_ms(serving.chunk_s(batch, size))}"
            return Advice(batch + size, f"{slow}; fewer are slower, and TPOT as a mean keeps the limit")
        if size < batch + _LEAST_CHUNK:
            reason = f"{batch} running requests need a token each, and a chunk of a prompt a place beside"
            return Advice(batch + _LEAST_CHUNK, reason)
        share = f"chunks of {size} reach {speeds[size] / fast:.0%} of the best prefill speed"
        return Advice(size, f"{share}, {speeds[size]:,.0f} tok/s; larger ones only make others wait")

    def _kv_cache_bytes(self) -> Advice:
        batch = self.max_num_seqs.value
        if batch is None:
            return Advice(None, "no request fits")
        request = self.request
        total = batch * request.allocated_bytes
        return Advice(total, f"{batch} requests × {request.num_blocks:,} blocks of {request.block_size} "
                      f"tokens for {request.num_tokens:,} each")  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"

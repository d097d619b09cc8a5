"""ServerTotals: the counters and histograms of a server, a fold of its event log in plain numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.core import events as ev
from ridgeline.metrics.block_residency import BlockEvent, BlockResidency
from ridgeline.metrics.buckets import Distribution
from ridgeline.metrics.durations import (
    decode_s,
    e2e_s,
    inference_s,
    prefill_s,
    queue_s,
    tpot_s,
    ttft_s,
)
from ridgeline.metrics.server_record import ServerRecord, ServerRecords
from ridgeline.outputs import FinishReason

BYTE_KINDS = ("weight", "kv_read", "kv_written", "activation")
HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "iteration_tokens_total": ("iteration", "Prompt tokens computed and tokens generated, by step"),
    "request_prompt_tokens": ("tokens", "Prompt tokens of finished requests"),
    "request_generation_tokens": ("tokens", "Generated tokens of finished requests"),
    "request_max_num_generation_tokens": ("tokens", "Generated tokens of the longest choice"),
    "request_params_max_tokens": ("tokens", "max_tokens asked for"),
    "request_params_n": ("count", "n asked for"),
    "request_prefill_kv_computed_tokens": ("tokens", "Prompt tokens computed, cached ones left out"),
    "request_num_preemptions": ("count", "Preemptions of finished requests"),
    "time_to_first_token_seconds": ("ttft", "Arrival to first token"),
    "inter_token_latency_seconds": ("itl", "Gap between tokens, one value a token"),
    "request_time_per_output_token_seconds": ("itl", "(Last − first token) / (N − 1); none for one token"),
    "e2e_request_latency_seconds": ("latency", "Arrival to last token"),
    "request_queue_time_seconds": ("latency", "Queued to first scheduled"),
    "request_inference_time_seconds": ("latency", "First scheduled to last token"),
    "request_prefill_time_seconds": ("latency", "First scheduled to first token"),
    "request_decode_time_seconds": ("latency", "First to last token"),
    "kv_block_lifetime_seconds": ("residency", "Allocation to eviction of a cached block"),
    "kv_block_idle_before_evict_seconds": ("residency", "Last release to eviction of a cached block"),
    "kv_block_reuse_gap_seconds": ("residency", "Between two requests that use a cached block"),
    "step_predicted_seconds": ("itl", "Time of a step as predicted before it ran"),
    "step_residual_ratio": ("residual", "Measured by predicted time of a step"),
}
"""Name → (bucket family, help)."""

PHASE_MIXES = ("prefill", "decode", "mixed")
OF_A_FINISHED_REQUEST = {
    "e2e_request_latency_seconds": e2e_s,
    "request_queue_time_seconds": queue_s,
    "request_inference_time_seconds": inference_s,
    "request_prefill_time_seconds": prefill_s,
    "request_decode_time_seconds": decode_s,
    "request_time_per_output_token_seconds": tpot_s,
}
_RECENT_S = 30.0


class WorkCounter(Protocol):
    """Counts the work of steps by op."""

    def add(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Take a step: (computed before, scheduled, rows of logits) of each request."""
        ...

    def by_op(self) -> Mapping[str, Sequence[int]]:
        """Op → (FLOPs, bytes by `BYTE_KINDS`) so far."""
        ...


@dataclass(slots=True)
class OpSums:
    """Seconds by op, `step_overhead` included: measured, predicted, and the least by the ceilings."""

    measured: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    predicted: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    bound: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, step: ev.StepFinished) -> None:
        """Take one step."""
        for op, seconds in step.op_seconds.items():
            self.measured[op] += seconds
        self.measured["step_overhead"] += step.execute_s - sum(step.op_seconds.values())
        for op, seconds in (step.predicted_op_s or {}).items():
            self.predicted[op] += seconds
        for op, seconds in (step.bound_op_s or {}).items():
            self.bound[op] += seconds

    def copy(self) -> OpSums:
        """The sums as they are now."""
        return OpSums(self.measured.copy(), self.predicted.copy(), self.bound.copy())


class ServerTotals:
    """Counts since the start. Not safe for several threads: whoever owns it locks.

    `recent` are the op sums of the last 30 to 60 s in which steps ran.
    """

    def __init__(self, limits: Mapping[str, Sequence[float]], work: WorkCounter | None = None) -> None:
        self.histograms = {name: Distribution(limits[family]) for name, (family, _) in HISTOGRAMS.items()}
        self.step_seconds = {mix: Distribution(limits["itl"]) for mix in PHASE_MIXES}
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.finished: dict[str, int] = {reason.value: 0 for reason in FinishReason}
        self.ops = OpSums()
        self._work = work
        self._residency = BlockResidency(
            self.histograms["kv_block_lifetime_seconds"],
            self.histograms["kv_block_idle_before_evict_seconds"],
            self.histograms["kv_block_reuse_gap_seconds"],
        )
        self._records = ServerRecords()
        self._choices: dict[str, list[int]] = {}
        self._marks = (OpSums(), OpSums())
        self._next_mark_s = float("-inf")
        # Series of all ops from the start, so that their rates begin at 0.
        self.ops.measured |= dict.fromkeys(work.by_op() if work is not None else (), 0.0)

    def record(self, events: Iterable[ev.Event]) -> None:
        """Take the events of one step."""
        events = tuple(events)
        ended = self._records.record(events)
        known = (
            self._records.open_records | {record.request_id: record for record in ended}
            if ended
            else (self._records.open_records)
        )
        for event in events:
            if isinstance(event, ev.TokensEmitted):
                self._count_tokens(event, known)
            elif isinstance(event, ev.StepFinished):
                self._count_step(event, known)
            elif isinstance(event, BlockEvent):
                self._residency.apply(event)
            elif isinstance(event, ev.LogitsCorrupted):
                self.counts["corrupted_requests"] += 1
            elif isinstance(event, ev.RequestPreempted):
                self.counts["num_preemptions"] += 1
            elif isinstance(event, ev.RequestScheduled) and not event.resumed:
                self._count_lookup(event, known)
        for record in ended:
            self._count_end(record)

    @property
    def op_flops(self) -> dict[str, int]:
        """Op → FLOPs."""
        return {op: flops for op, (flops, *_) in self._work_by_op().items()}

    @property
    def op_bytes(self) -> dict[tuple[str, str], int]:
        """(op, one of `BYTE_KINDS`) → bytes."""
        return {
            (op, kind): amount
            for op, (_, *amounts) in self._work_by_op().items()
            for kind, amount in zip(BYTE_KINDS, amounts, strict=True)
        }

    def recent(self) -> dict[str, tuple[float, float, float]]:
        """Op → (measured, predicted, least) seconds of the last half to whole minute of work."""
        before, now = self._marks[0], self.ops
        return {
            op: (
                now.measured.get(op, 0.0) - before.measured.get(op, 0.0),
                now.predicted.get(op, 0.0) - before.predicted.get(op, 0.0),
                now.bound.get(op, 0.0) - before.bound.get(op, 0.0),
            )
            for op in dict.fromkeys((*now.measured, *now.predicted))
        }

    def _count_lookup(self, event: ev.RequestScheduled, known: Mapping[str, ServerRecord]) -> None:
        record = known.get(event.request_id)
        if record is not None and record.fork_of is None:
            self.counts["prefix_cache_queries"] += record.num_prompt_tokens
            self.counts["prefix_cache_hits"] += record.num_cached_tokens

    def _count_tokens(self, event: ev.TokensEmitted, known: Mapping[str, ServerRecord]) -> None:
        gaps = self.histograms["inter_token_latency_seconds"]
        for request_id, count in event.counts:
            self.counts["generation_tokens"] += count
            record = known.get(request_id)
            if record is None:
                continue
            if len(record.chunks) == 1:
                self.counts["prompt_tokens"] += record.num_prompt_tokens
                self.counts["prompt_tokens_cached"] += record.num_cached_tokens
                first_s = ttft_s(record)
                assert first_s is not None
                self.histograms["time_to_first_token_seconds"].observe(first_s)
            else:
                gap_s = record.chunks[-1].at_s - record.chunks[-2].at_s
                gaps.observe(gap_s / count, count)

    def _count_step(self, step: ev.StepFinished, known: Mapping[str, ServerRecord]) -> None:
        num_tokens = num_prefills = 0
        rows: list[tuple[int, int, int]] = []
        for request_id, num_computed, num_scheduled in step.composition:
            record = known.get(request_id)
            num_prompt = record.num_prompt_tokens if record is not None else 0
            if num_computed >= num_prompt:  # a decode: by far the most frequent row
                num_tokens += 1
                rows.append((num_computed, num_scheduled, 1))
                continue
            end = num_computed + num_scheduled
            samples = end >= num_prompt
            num_tokens += min(end, num_prompt) - num_computed + samples
            num_prefills += 1
            rows.append((num_computed, num_scheduled, int(samples)))
        mix = "mixed" if 0 < num_prefills < len(rows) else "prefill" if num_prefills else "decode"
        self.step_seconds[mix].observe(step.execute_s)
        self.histograms["iteration_tokens_total"].observe(num_tokens)
        if step.at_s >= self._next_mark_s:
            self._marks = (self._marks[1], self.ops.copy())
            self._next_mark_s = step.at_s + _RECENT_S
        self.ops.add(step)
        if step.predicted_op_s:
            predicted_s = sum(step.predicted_op_s.values())
            self.histograms["step_predicted_seconds"].observe(predicted_s)
            if predicted_s > 0:
                self.histograms["step_residual_ratio"].observe(step.execute_s / predicted_s)
        if self._work is not None:
            self._work.add(rows)

    def _work_by_op(self) -> Mapping[str, Sequence[int]]:
        return self._work.by_op() if self._work is not None else {}

    def _count_end(self, record: ServerRecord) -> None:
        assert record.finish_reason is not None
        self.finished[record.finish_reason] += 1
        for name, measure in OF_A_FINISHED_REQUEST.items():
            value = measure(record)
            if value is not None:
                self.histograms[name].observe(value)
        counts: dict[str, int | None] = {
            "request_prompt_tokens": record.num_prompt_tokens,
            "request_generation_tokens": record.num_output_tokens,
            "request_params_max_tokens": record.max_tokens,
            "request_params_n": record.num_choices,
            "request_prefill_kv_computed_tokens": record.num_prompt_tokens - record.num_cached_tokens,
            "request_num_preemptions": record.num_preemptions,
        }
        for name, count in counts.items():
            if count is not None:
                self.histograms[name].observe(count)
        self._count_choice(record)

    def _count_choice(self, record: ServerRecord) -> None:
        """The longest choice of a request counts when the last one has ended."""
        lengths = self._choices.setdefault(record.fork_of or record.request_id, [])
        lengths.append(record.num_output_tokens)
        if len(lengths) == record.num_choices:
            self.histograms["request_max_num_generation_tokens"].observe(max(lengths))
            del self._choices[record.fork_of or record.request_id]

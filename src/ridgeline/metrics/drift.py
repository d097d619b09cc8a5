"""Drift: steps that take longer, or shorter, than predicted for a whole minute; which op, and likely why."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ridgeline.core.events import Event, StepFinished
from ridgeline.metrics.server_totals import OpSums

WINDOW_S = 60.0
MAX_DRIFT = 0.25
"""Relative difference of a minute's measured from its predicted seconds that is flagged."""
_SLICE_S = 1.0
_LEAST_BUSY_S = 3.0
_COMMON_SHARE = 0.8
_OVERHEAD = "step_overhead"
_MEMORY_OPS = ("lm_head", "qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Drift:
    """`ratio`: measured over predicted seconds of the last minute; `op` has the largest part in it, and is
    itself `op_ratio` off. `cause` is a likely one, in words.
    """

    ratio: float
    op: str
    op_ratio: float
    cause: str

    def __str__(self) -> str:
        return (
            f"steps take {self.ratio:.2f} × the predicted time: {self.op} {self.op_ratio:.1f} × predicted: "
            f"{self.cause}"
        )


class DriftWatch:
    """Folds steps into slices of a second and compares a minute of them; an event listener.

    `report` is called with each drift that begins, once until it ends and at most once a minute. A
    minute in which steps took less than 3 s in all says nothing.
    """

    def __init__(self, report: Callable[[Drift], None] = lambda _: None) -> None:
        self._report = report
        self._steps: list[StepFinished] = []
        self._slices: deque[tuple[float, OpSums]] = deque()
        self._measured: defaultdict[str, float] = defaultdict(float)
        self._predicted: defaultdict[str, float] = defaultdict(float)
        self._first_at_s: float | None = None
        self._drift: Drift | None = None
        self._reported_at_s = float("-inf")

    @property
    def drift(self) -> Drift | None:
        """The drift that is there now, if any."""
        return self._drift

    def record(self, events: Iterable[Event]) -> None:
        """Take the steps among the events; they are added up once a slice is complete."""
        for event in events:
            if isinstance(event, StepFinished) and event.predicted_op_s is not None:
                if self._steps and event.at_s >= self._steps[0].at_s + _SLICE_S:
                    self._close_slice(event.at_s)
                self._steps.append(event)

    def _close_slice(self, now: float) -> None:
        """Count the finished slice in, drop those older than the window, look at the sums."""
        started_at_s, sums = self._steps[0].at_s, OpSums()
        for step in self._steps:
            sums.add(step)
        self._steps.clear()
        self._slices.append((started_at_s, sums))
        self._count(sums, 1)
        while self._slices and self._slices[0][0] <= now - WINDOW_S - _SLICE_S:
            self._count(self._slices.popleft()[1], -1)
        self._first_at_s = started_at_s if self._first_at_s is None else self._first_at_s
        if now - self._first_at_s < WINDOW_S:
            return
        was_drifting = self._drift is not None
        self._drift = find_drift(self._measured, self._predicted)
        if self._drift is not None and not was_drifting and now - self._reported_at_s >= WINDOW_S:
            self._reported_at_s = now
            self._report(self._drift)

    def _count(self, piece: OpSums, sign: int) -> None:
        for op, seconds in piece.measured.items():
            self._measured[op] += sign * seconds
        for op, seconds in piece.predicted.items():
            self._predicted[op] += sign * seconds


def find_drift(
    measured: Mapping[str, float], predicted: Mapping[str, float], *, least_busy_s: float = _LEAST_BUSY_S
) -> Drift | None:
    """The drift in seconds by op; None where they are near enough, or fewer than `least_busy_s` in all."""
    measured_s, predicted_s = sum(measured.values()), sum(predicted.values())
    if measured_s < least_busy_s or predicted_s <= 0:
        return None
    ratio = measured_s / predicted_s
    if abs(ratio - 1) <= MAX_DRIFT:
        return None
    sign = 1 if ratio > 1 else -1
    differences = {
        op: sign * (measured.get(op, 0.0) - predicted.get(op, 0.0)) for op in {*measured, *predicted}
    }
    op = max(sorted(differences), key=lambda name: differences[name])
    op_ratio = measured.get(op, 0.0) / predicted[op] if predicted.get(op) else float("inf")
    return Drift(ratio, op, op_ratio, _cause(op, ratio, measured, predicted))


def _cause(op: str, ratio: float, measured: Mapping[str, float], predicted: Mapping[str, float]) -> str:
    if ratio < 1:
        return "the machine is faster than when it was calibrated; run `ridgeline calibrate` again"
    if _is_common(ratio, measured, predicted):
        return "all ops are slow alike: another process takes CPU time, a lower clock, or a quota?"
    if op == _OVERHEAD:
        return "the engine's own Python waits: another thread or process has its core?"
    if op == "sample":
        return "sampling beyond greedy (top-k, top-p, penalties, logprobs) was not part of the prediction"
    if op == "attention":
        return "another process uses the memory bus?"
    if op in _MEMORY_OPS:
        return "another process uses the memory bus or the shared cache?"
    return "calibrate again with `ridgeline calibrate`"


def _is_common(ratio: float, measured: Mapping[str, float], predicted: Mapping[str, float]) -> bool:
    """Whether ops with most of the predicted time are all slow, each at least half as much as the whole."""
    least = 1 + (ratio - 1) / 2
    slow_s = sum(s for op, s in predicted.items() if s > 0 and measured.get(op, 0.0) / s >= least)
    return slow_s >= _COMMON_SHARE * sum(predicted.values())

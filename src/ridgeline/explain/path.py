"""The path of a request: every second between arrival and last character, booked on one step of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.explain.recorder import RunRecord, StepRecord
from ridgeline.perf.step_shape import StepRow

PATH_STEPS = ("tokenize", "queue", "prefill", "decode", "sample", "detokenize", "unaccounted")
OWN_WORK: Mapping[str, str] = MappingProxyType(
    {
        "schedule": "choosing what to compute",
        "forecast": "predicting its time",
        "arrays": "its arrays",
        "calls": "calls around the ops",
        "commit": "taking the result",
    }
)
"""In words, what `StepRecord.own_seconds` names."""


@dataclass(slots=True)
class PathStep:
    """`seconds` of one step of the path and how often it ran; `parts` says what they went to."""

    step: str
    seconds: float = 0.0
    count: int = 0
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, parts: Mapping[str, float], *, count: int = 1) -> None:
        """Book `count` runs of it."""
        self.count += count
        for name, seconds in parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + seconds
            self.seconds += seconds


def request_path(run: RunRecord) -> dict[str, PathStep]:
    """Steps of the path by name, in order.

    queue is the time until the request's first step, and whole steps of others in between. prefill and
    decode are the request's own steps without sampling: by whether they compute tokens of its prompt (or
    compute again after a preemption), or one new token. Each second of them was measured by itself; what lies
    between two readings of the clock is `unaccounted`: the recorder's own bookkeeping, the loop around the
    engine.
    """
    path = {name: PathStep(name) for name in PATH_STEPS}
    path["tokenize"].add({"template and encoding": run.tokenized_at_s - run.arrived_at_s})
    queued_from_s, has_run = run.tokenized_at_s, False
    for step in run.steps:
        if step.scheduling_at_s >= run.finished_at_s:
            break
        if run.request_id not in step.request_ids:
            path["queue"].add({"steps of others": step.delivered_at_s - queued_from_s})
        else:
            if not has_run:
                path["queue"].add({"until its first step": step.scheduling_at_s - queued_from_s})
            has_run = True
            _book(path, run, step)
        queued_from_s = step.delivered_at_s
    explained_s = sum(each.seconds for each in path.values())
    path["unaccounted"].add({"between the instants": run.wall_s - explained_s})
    return path


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of the request's time; `start_s` counts from its arrival."""

    step: str
    start_s: float
    seconds: float


def timeline(run: RunRecord) -> list[Segment]:
    """The path in the order it happened; sampling ends when a step's computation does, and lies inside it."""
    arrived_at_s = run.arrived_at_s
    own = [step for step in run.steps if run.request_id in step.request_ids]
    segments = [Segment("tokenize", 0.0, run.tokenized_at_s - arrived_at_s)]
    if own:
        queued_s = own[0].scheduling_at_s - run.tokenized_at_s
        segments.append(Segment("queue", run.tokenized_at_s - arrived_at_s, queued_s))
    for step in own:
        name, sample_s = "prefill" if is_prefill(run, step) else "decode", step.op_seconds.get("sample", 0.0)
        for part, started_at_s, seconds in (
            (name, step.scheduling_at_s, step.committed_at_s - step.scheduling_at_s),
            ("sample", step.finished_at_s - sample_s, sample_s),
            ("detokenize", step.committed_at_s, step.delivered_at_s - step.committed_at_s),
        ):
            segments.append(Segment(part, started_at_s - arrived_at_s, seconds))
    return segments


def own_steps(run: RunRecord, name: str) -> list[StepRecord]:
    """The steps of the run that the path books on `prefill` or on `decode`."""
    own = [step for step in run.steps if run.request_id in step.request_ids]
    return [step for step in own if is_prefill(run, step) == (name == "prefill")]


def is_prefill(run: RunRecord, step: StepRecord) -> bool:
    """Whether the explained request computes known tokens in this step, or draws the next one from one."""
    row = _row(run, step)
    return row.num_computed_tokens < run.num_prompt_tokens or row.num_scheduled_tokens > 1


def _book(path: dict[str, PathStep], run: RunRecord, step: StepRecord) -> None:
    sample_s = step.op_seconds.get("sample", 0.0)
    forward_s = sum(step.op_seconds.values()) - sample_s
    own = {OWN_WORK[name]: seconds for name, seconds in step.own_seconds.items()}
    path["prefill" if is_prefill(run, step) else "decode"].add({"forward pass": forward_s, **own})
    count = int(_row(run, step).num_logits_rows > 0)
    path["sample"].add({"choosing the token": sample_s}, count=count)
    text_s = step.delivered_at_s - step.committed_at_s
    path["detokenize"].add({"text and stop strings": text_s}, count=count)


def _row(run: RunRecord, step: StepRecord) -> StepRow:
    return step.shape.rows[list(step.request_ids).index(run.request_id)]

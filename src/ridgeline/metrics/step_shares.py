"""Whose prompt tokens a step's time went to: by what the step was predicted to cost with and without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ridgeline.core import events as ev

_Row = tuple[str, int, int]
_BY_ROWS = ("lm_head", "sample", "step_overhead")


def decode_step_near(steps: Sequence[ev.StepFinished], index: int) -> ev.StepFinished | None:
    """The step without any prompt that ran last before `steps[index]`, or else first after it; predicted.

    None: there is none, or the machine was not calibrated.
    """
    if not steps[index].predicted_op_s:
        return None
    order = chain(range(index - 1, -1, -1), range(index + 1, len(steps)))
    return next((steps[i] for i in order if steps[i].predicted_op_s and _is_of_decodes(steps[i])), None)


def _is_of_decodes(step: ev.StepFinished) -> bool:
    return bool(step.composition) and all(count == 1 for *_, count in step.composition)


def prompt_rows(step: ev.StepFinished) -> list[_Row]:
    """The rows with several tokens: prompts, and what is computed again after a preemption."""
    return [row for row in step.composition if row[2] > 1]


def prompt_seconds(step: ev.StepFinished, decodes: ev.StepFinished | None) -> dict[str, float]:
    """Request → the seconds that its prompt tokens added to the step.

    What the step was predicted to take beyond `decodes`, a step without prompts, goes to the prompts, op by
    op by their work: attention by tokens times context, the ops of logits by rows, all else by tokens; in the
    proportion of measured to predicted time. Without such a step all of the time is shared among all rows
    that way; without a prediction, by tokens.
    """
    prompts = prompt_rows(step)
    predicted = step.predicted_op_s
    if not predicted or sum(predicted.values()) <= 0:
        shares = _shares("", step.composition)
        return {row[0]: step.execute_s * shares[row[0]] for row in prompts}
    known = decodes.predicted_op_s if decodes is not None and decodes.predicted_op_s else {}
    sharers = prompts if known else step.composition
    seconds = dict.fromkeys((row[0] for row in prompts), 0.0)
    for op, op_s in predicted.items():
        added_s = max(op_s - known.get(op, 0.0), 0.0)
        for request_id, share in _shares(op, sharers).items():
            if request_id in seconds:
                seconds[request_id] += added_s * share
    scale = step.execute_s / sum(predicted.values())
    return {request_id: scale * each for request_id, each in seconds.items()}


def _shares(op: str, rows: Iterable[_Row]) -> Mapping[str, float]:
    work = {request_id: _work(op, computed, count) for request_id, computed, count in rows}
    total = sum(work.values())
    return {request_id: each / total for request_id, each in work.items()}


def _work(op: str, num_computed: int, num_tokens: int) -> float:
    if op == "attention":
        return num_tokens * (num_computed + (num_tokens + 1) / 2)  # each token sees all before it and itself
    return 1.0 if op in _BY_ROWS else float(num_tokens)

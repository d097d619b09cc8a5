"""What-if: how a step's time would change, op by op, and which term it is that moves.

Seconds before are the prediction that the engine makes of the step. After a change of the model or the step
they are the same prediction of the new one. After a change of the machine's ceilings each op keeps its share
of the roofline: t′ = t × bound′ / bound. A machine known from its data sheet is compared by the least time
alone, on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ridgeline.perf.hardware import Source
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.op_cost import OPS
from ridgeline.perf.predict import STEP_OVERHEAD, Predictor
from ridgeline.perf.quantities import milliseconds, number
from ridgeline.perf.what_if_changes import Change, Scenario

_ROUNDING = 1e-9


class Term(StrEnum):
    """What the time of an op is spent on, by the larger side of its roofline."""

    WEIGHTS = "weights from memory"
    PRODUCTS = "arithmetic of the products"
    KV = "K and V from memory"
    ATTENTION = "arithmetic of attention"
    ACTIVATIONS = "activations"
    OVERHEAD = "the engine's own work"


_OTHER_SIDE: Mapping[Term, Term] = MappingProxyType(
    {
        Term.WEIGHTS: Term.PRODUCTS,
        Term.PRODUCTS: Term.WEIGHTS,
        Term.KV: Term.ATTENTION,
        Term.ATTENTION: Term.KV,
    }
)
"""The other term of the same ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpState:
    """Seconds of an op, the least seconds its roofline allows, and the larger term."""

    seconds: float
    bound_s: float
    bound: str | None
    term: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """One op before and after."""

    op: str
    before: OpState
    after: OpState

    @property
    def delta_s(self) -> float:
        """Seconds more; negative where it becomes faster."""
        return self.after.seconds - self.before.seconds

    @property
    def has_flipped(self) -> bool:
        """Whether another term binds it now."""
        return self.before.bound != self.after.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer. `is_least_time`: both sides are lower bounds, for one of them is a data sheet."""

    changes: Sequence[Change]
    before: Scenario
    after: Scenario
    ops: Sequence[OpChange]
    is_least_time: bool

    @property
    def before_s(self) -> float:
        """Seconds of the step as it is."""
        return sum(each.before.seconds for each in self.ops)

    @property
    def after_s(self) -> float:
        """Seconds of the changed step."""
        return sum(each.after.seconds for each in self.ops)

    @property
    def throughput_ratio(self) -> float:
        """Tokens per second after over before."""
        tokens = self.after.step.num_tokens / self.before.step.num_tokens
        return tokens * self.before_s / self.after_s

    @property
    def most_changed(self) -> OpChange:
        """The op whose seconds change most."""
        return max(self.ops, key=lambda each: abs(each.delta_s))

    @property
    def flipped(self) -> list[OpChange]:
        """Ops that another term binds now."""
        return [each for each in self.ops if each.has_flipped]

    @property
    def term_s(self) -> dict[Term, tuple[float, float]]:
        """Seconds before and after by term; an op counts whole for the term that binds it."""
        seconds = {term: (0.0, 0.0) for term in Term}
        for each in self.ops:
            before, after = seconds[each.before.term]
            seconds[each.before.term] = before + each.before.seconds, after
            before, after = seconds[each.after.term]
            seconds[each.after.term] = before, after + each.after.seconds
        return {term: pair for term, pair in seconds.items() if any(pair)}

    @property
    def moved_term(self) -> Term | None:
        """The term whose seconds change most; None where none does."""
        if abs(self.most_changed.delta_s) <= _ROUNDING * self.before_s:
            return None
        return max(self.term_s, key=lambda term: abs(self.term_s[term][1] - self.term_s[term][0]))

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        asked, term = " ".join(change.text for change in self.changes), self.moved_term
        words = "at best " if self.is_least_time else ""
        if term is None:
            return f"{asked}: no term changes; a step takes {words}{milliseconds(self.after_s)} as before"
        line = (
            f"{asked}: a step takes {words}{milliseconds(self.after_s)} instead of {words}"
            f"{milliseconds(self.before_s)}, {number(self.throughput_ratio)} × the tokens per second; "
            f"what moves: {self._move_words(term)}"
        )
        flips: dict[str, list[str]] = {}
        for each in self.flipped:
            flips.setdefault(f"{each.before.bound} → {each.after.bound}", []).append(each.op)
        for bounds, ops in flips.items():
            line += f"; the bound flips {bounds}: {', '.join(ops)}"
        return line

    def _move_words(self, term: Term) -> str:
        """The term's seconds, or those of its other side where the bound has flipped between them."""
        before_s, after_s = self.term_s[term]
        other = _OTHER_SIDE.get(term)
        if other in self.term_s and after_s == 0:
            other_s = milliseconds(self.term_s[other][1])
            return f"{term}, {milliseconds(before_s)} → {other}, {other_s}"
        if other in self.term_s and before_s == 0:
            other_s = milliseconds(self.term_s[other][0])
            return f"{other}, {other_s} → {term}, {milliseconds(after_s)}"
        return f"{term}, {milliseconds(before_s)} → {milliseconds(after_s)}"

    def document(self) -> dict[str, Any]:
        """The answer as JSON has it."""
        return {
            "changes": [change.text for change in self.changes],
            "can_run_here": all(change.can_run for change in self.changes),
            "hardware": {"name": self.after.profile.name, "source": self.after.profile.source.value},
            "is_least_time": self.is_least_time,
            "before_s": self.before_s,
            "after_s": self.after_s,
            "tok_s_before": self.before.step.num_tokens / self.before_s,
            "tok_s_after": self.after.step.num_tokens / self.after_s,
            "throughput_ratio": self.throughput_ratio,
            "moved_term": self.moved_term,
            "terms": {term.value: {"before_s": b, "after_s": a} for term, (b, a) in self.term_s.items()},
            "most_changed_op": self.most_changed.op,
            "flipped_ops": [each.op for each in self.flipped],
            "ops": [
                {
                    "op": each.op,
                    "before_s": each.before.seconds,
                    "after_s": each.after.seconds,
                    "before_bound": each.before.bound,
                    "after_bound": each.after.bound,
                }
                for each in self.ops
            ],
            "sentence": self.sentence,
        }


def what_if(scenario: Scenario, changes: Sequence[Change]) -> WhatIf:
    """A scenario against itself with all changes made at once.

    Raises:
        ConfigError: a change doesn't fit the scenario (threads that were not measured, a quant type whose
            blocks don't fit the rows).
    """
    assert changes, "a question changes something"
    after = scenario
    for change in changes:
        after = change.apply(after)
    is_least_time = Source.DATA_SHEET in (scenario.profile.source, after.profile.source)
    before_ops = _states(scenario, scenario, is_least_time=is_least_time)
    after_ops = _states(after, scenario, is_least_time=is_least_time)
    return WhatIf(
        changes=changes,
        before=scenario,
        after=after,
        ops=[OpChange(op=op, before=state, after=after_ops[op]) for op, state in before_ops.items()],
        is_least_time=is_least_time,
    )


def _states(at: Scenario, measured: Scenario, *, is_least_time: bool) -> dict[str, OpState]:
    """Ops of a step where `measured` is the scenario whose machine has prices."""
    terms = OpBounds(at.model, at.profile).terms(at.step)
    seconds = _seconds(at, measured, terms, is_least_time=is_least_time)
    states = {
        op: OpState(
            seconds=seconds[op],
            bound_s=max(terms[op]),
            bound=_bound(terms[op]),
            term=_term(op, terms[op]),
        )
        for op in OPS
    }
    overhead_s = seconds[STEP_OVERHEAD]
    states[STEP_OVERHEAD] = OpState(seconds=overhead_s, bound_s=0.0, bound=None, term=Term.OVERHEAD)
    return states


def _seconds(
    at: Scenario, measured: Scenario, terms: Mapping[str, tuple[float, float]], *, is_least_time: bool
) -> dict[str, float]:
    if is_least_time:
        return {op: max(pair) for op, pair in terms.items()} | {STEP_OVERHEAD: 0.0}
    predicted = Predictor(at.model, measured.profile).predict(at.step)
    if at.profile is measured.profile:
        return predicted.op_s
    seconds = dict(predicted.op_s)
    for op, pair in terms.items():
        bound_s = predicted.bound_op_s[op]
        if bound_s:
            seconds[op] *= max(pair) / bound_s
    return seconds


def _bound(terms: tuple[float, float]) -> str | None:
    compute_s, memory_s = terms
    if not max(terms):
        return None
    return "compute" if compute_s > memory_s else "memory"


def _term(op: str, terms: tuple[float, float]) -> Term:
    is_compute = terms[0] > terms[1]
    if op in MATRIX_OPS:
        return Term.PRODUCTS if is_compute else Term.WEIGHTS
    if op == "attention":
        return Term.ATTENTION if is_compute else Term.KV
    return Term.ACTIVATIONS

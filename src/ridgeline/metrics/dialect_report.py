"""One run by several tools' definitions: their latencies, and whom they count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.errors import ConfigError
from ridgeline.metrics.client_record import ClientRecord
from ridgeline.metrics.dialect_values import alike, first_to_reach, is_ok, nearest_rank_with_failures
from ridgeline.metrics.dialects import DIALECTS, QUANTITIES, Dialect
from ridgeline.metrics.percentiles import percentile
from ridgeline.metrics.slo import meets


@dataclass(frozen=True, slots=True)
class DialectRow:
    """One quantity by one tool, in seconds; None: it writes nothing, NaN and 0: it writes that.

    `n` as the tool counts: the sum of weights where it weighs.
    """

    dialect: str
    quantity: str
    n: int
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectCounts:
    """Whom a tool counts: requests in its latencies, a second, and good ones; None: it has no such figure."""

    dialect: str
    num_taken: int
    requests_per_s: float | None
    goodput: float | None
    attainment: float | None
    words: str


def dialect_report(records: Sequence[ClientRecord], name: str) -> list[DialectRow]:
    """The rows of one dialect, or of `all`, quantity by quantity; `records` of all requests sent.

    Raises:
        ConfigError: no dialect of that name.
    """
    chosen = chosen_dialects(name)
    rows = []
    for quantity in QUANTITIES:
        for dialect in chosen:
            if quantity in dialect.values:
                rows.append(_row(dialect, quantity, records))
            if quantity in dialect.rules.with_failures:
                rows.append(_adjusted_row(dialect, quantity, records))
    return rows


def dialect_counts(
    records: Sequence[ClientRecord], name: str, *, window_s: float, slos: Mapping[str, float]
) -> list[DialectCounts]:
    """Whom each chosen tool counts, in a run of `window_s` seconds; `slos` in seconds by name.

    Raises:
        ConfigError: no dialect of that name.
    """
    return [_counts(each, records, window_s, slos) for each in chosen_dialects(name)]


def chosen_dialects(name: str) -> list[Dialect]:
    """One dialect, or all of them.

    Raises:
        ConfigError: no dialect of that name.
    """
    if name != "all" and name not in DIALECTS:
        raise ConfigError("dialect", name, f"must be all, {', '.join(DIALECTS)}")
    return list(DIALECTS.values()) if name == "all" else [DIALECTS[name]]


def _row(dialect: Dialect, quantity: str, records: Sequence[ClientRecord]) -> DialectRow:
    rules = dialect.rules
    weight = rules.weights.get(quantity, alike)
    pairs = [
        (value, weight(record))
        for record in records
        if rules.takes(record)
        for value in dialect.values[quantity](record)
    ]
    values, weights = [value for value, _ in pairs], [each for _, each in pairs]
    total = math.fsum(weights)
    formula = dialect.formulas[quantity]
    if total == 0:
        empty_s = rules.empty_e2e_s if quantity == "e2e" else rules.empty_s
        return DialectRow(dialect.name, quantity, 0, empty_s, empty_s, empty_s, formula)
    mean_s = math.fsum(value * each for value, each in pairs) / total
    if rules.is_interpolated:
        ends = percentile(values, 50), percentile(values, 99)
    else:
        ends = first_to_reach(values, 50, weights), first_to_reach(values, 99, weights)
    return DialectRow(dialect.name, quantity, round(total), mean_s, *ends, formula)


def _adjusted_row(dialect: Dialect, quantity: str, records: Sequence[ClientRecord]) -> DialectRow:
    values = [
        v for record in records if dialect.rules.takes(record) for v in dialect.values[quantity](record)
    ]
    num_failed = sum(not is_ok(record) for record in records)
    return DialectRow(
        f"{dialect.name} adj",
        quantity,
        len(values) + num_failed,
        None,
        nearest_rank_with_failures(values, 50, num_failed),
        nearest_rank_with_failures(values, 99, num_failed),
        "the same, each failed request as an infinite one, nearest rank",
    )


def _counts(
    dialect: Dialect, records: Sequence[ClientRecord], window_s: float, slos: Mapping[str, float]
) -> DialectCounts:
    rules = dialect.rules
    taken = [record for record in records if rules.takes(record)]
    duration_s = _first_to_last_s(taken) if rules.is_first_to_last else window_s
    counted = len(records) if rules.rates_all else len(taken)
    has_rate = duration_s > 0 and "e2e" in dialect.values
    num_good = sum(_is_good(dialect, record, slos) for record in taken)
    has_goodput = rules.slos is not None and bool(slos)
    return DialectCounts(
        dialect=dialect.name,
        num_taken=len(taken),
        requests_per_s=counted / duration_s if has_rate else None,
        goodput=num_good / duration_s if has_goodput and has_rate else None,
        attainment=num_good / len(records) if has_goodput and rules.attains and records else None,
        words=rules.words,
    )


def _is_good(dialect: Dialect, record: ClientRecord, slos: Mapping[str, float]) -> bool:
    """SLOs that the tool has no name for bind it to nothing, except ours."""
    rules = dialect.rules
    for name, limit_s in {**slos, **record.slos_s}.items():
        quantity = (rules.slos or {}).get(name)
        if quantity is None:
            if dialect.name == "ridgeline" and not meets(record, name, limit_s):
                return False
            continue
        values = dialect.values[quantity](record)
        if not values and not rules.passes_undefined:
            return False
        if any(value > limit_s for value in values):
            return False
    return True


def _first_to_last_s(taken: Sequence[ClientRecord]) -> float:
    starts = [record.sent_at_s for record in taken if record.sent_at_s is not None]
    ends = [record.chunks[-1].at_s for record in taken if record.chunks]
    return max(ends) - min(starts) if starts and ends else 0.0

"""A result in the terminal: failures first, the number of values beside every percentile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.loadgen.late_tokens import cause_words
from ridgeline.metrics.dialect_report import DialectCounts, DialectRow

_ROWS = (
    ("ttft_ms", "TTFT"),
    ("tpot_ms", "TPOT"),
    ("itl_ms", "ITL"),
    ("icl_ms", "ICL"),
    ("e2e_ms", "E2E"),
    ("lateness_ms", "lateness"),
)
_MAX_LATE_LINES = 12
_VLLM = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2EL"))


def report_lines(document: Mapping[str, Any]) -> list[str]:
    """The lines for a result as `load_result` makes it."""
    return [
        *_failure_lines(document),
        *_head_lines(document),
        *_latency_lines(document),
        *_rate_lines(document),
        *_goodput_lines(document),
        *_late_lines(document),
        *_note_lines(document),
        *_condition_lines(document),
    ]


def dialect_lines(rows: Sequence[DialectRow]) -> list[str]:
    """A table of one run by several tools' definitions."""
    lines = [f"{'':6}{'ms by':12}{'n':>8}{'mean':>10}{'p50':>10}{'p99':>10}  definition"]
    for row in rows:
        figures = "".join(
            _number(None if value is None else 1000 * value) for value in (row.mean_s, row.p50_s, row.p99_s)
        )
        lines.append(f"{row.quantity.upper():6}{row.dialect:12}{row.n:8,}{figures}  {row.formula}")
    return lines


def dialect_count_lines(counts: Sequence[DialectCounts]) -> list[str]:
    """Whom each tool counts, and by which rules."""
    lines = [f"{'requests by':12}{'taken':>8}{'per s':>10}{'good per s':>12}{'good':>9}  rules"]
    for each in counts:
        share = "–" if each.attainment is None else f"{100 * each.attainment:.1f} %"
        lines.append(
            f"{each.dialect:12}{each.num_taken:8,}{_plain(each.requests_per_s, 2):>10}"
            f"{_plain(each.goodput, 2):>12}{share:>9}  {each.words}"
        )
    return lines


def _failure_lines(document: Mapping[str, Any]) -> list[str]:
    failed, sent = document["failed"], document["failed"] + document["completed"]
    lines = []
    if failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in document["failures"].items())
        share = f"{100 * failed / sent:.0f} %"
        lines.append(f"FAILED: {failed} of {sent} requests ({share}): {kinds}")
        lines += [f"  {count} × {reason}" for reason, count in document["failure_reasons"].items()]
    if document["interrupted"]:
        lines.append(f"INTERRUPTED: {document['num_not_sent']} of {document['num_prompts']} were never sent")
    if not document["valid"]:
        lines.append(f"NOT VALID: {document['invalid_because']}")
    return [*lines, ""] if lines else []


def _head_lines(document: Mapping[str, Any]) -> list[str]:
    rate, cap = document["request_rate"], document["max_concurrency"]
    pace = "all at once" if rate == "inf" else f"{rate:g} requests/s"
    loop = f"{document['loop']} loop, {pace}" + (f", at most {cap} in flight" if cap else "")
    warm = f", {document['num_warmups']} warm-ups before" if document["num_warmups"] else ", no warm-up"
    return [
        f"{document['model_id']} by {document['backend']}, dataset {document['dataset']}: "
        f"{document['completed']} good requests in {document['duration']:.2f} s",
        f"{loop}{warm}",
        "",
    ]


def _latency_lines(document: Mapping[str, Any]) -> list[str]:
    lines = [f"{'ms, from schedule':18}{'n':>8}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
    is_flagged = False
    for key, name in _ROWS:
        row = document["ridgeline"][key]
        figures = "".join(_number(row[each]) for each in ("mean", "p50", "p90"))
        mark = "*" if row["low_n"] and row["n"] else " "
        is_flagged = is_flagged or mark == "*"
        lines.append(f"{name:18}{row['n']:8,}{figures}{_number(row['p99'])[1:]}{mark}{_number(row['max'])}")
    if is_flagged:
        lines.append("* P99 of fewer than 100 values lies between the two largest")
    keys = [(key, name) for key, name in _VLLM if f"mean_{key}_ms" in document]
    if keys:
        figures = ", ".join(
            f"{name} mean {_plain(document[f'mean_{key}_ms'])} median {_plain(document[f'median_{key}_ms'])}"
            for key, name in keys
        )
        lines.append(f"by vLLM's definitions, from the send: {figures}")
    return [*lines, ""]


def _rate_lines(document: Mapping[str, Any]) -> list[str]:
    rates = document["rates"]
    text = (
        f"{_plain(rates['requests_per_s'], 2)} requests/s, {_plain(rates['output_tokens_per_s'], 1)} output "
        f"tokens/s, {_plain(rates['total_tokens_per_s'], 1)} with prompts"
    )
    if document["cached_tokens"]:
        text += (
            f", of which {_plain(rates['computed_tokens_per_s'], 1)} were computed "
            f"({document['cached_tokens']:,} prompt tokens came from the prefix cache)"
        )
    return [text + f"; window {rates['window_s']:.2f} s"]


def _goodput_lines(document: Mapping[str, Any]) -> list[str]:
    found = document["goodput"]
    if found is None:
        return []
    limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in found["slo"].items())
    attainment = "–" if found["attainment"] is None else f"{100 * found['attainment']:.1f} %"
    lines = [f"goodput {_plain(found['rate'], 2)} requests/s, {attainment} of all sent meet {limits}"]
    if len(found["slo"]) > 1:
        each = ", ".join(
            f"{name} {100 * share:.1f} %"
            for name, share in found["attainment_by_slo"].items()
            if share is not None
        )
        lines.append(f"  each alone: {each}")
    undefined = {name: count for name, count in found["slo_undefined"].items() if count}
    if undefined:
        passes = ", ".join(f"{name} {count}" for name, count in undefined.items())
        lines.append(f"  passed because undefined: {passes}")
    return lines


def _late_lines(document: Mapping[str, Any]) -> list[str]:
    late = document.get("late_tokens") or []
    lines = ["", "latest tokens, and what the server did meanwhile:"] if late else []
    for each in late[:_MAX_LATE_LINES]:
        causes = ", ".join(words for cause in each["causes"] if (words := cause_words(cause)) is not None)
        what = "first token" if each["kind"] == "ttft" else f"token {each['token']}"
        lines.append(f"  {each['ms']:9.1f} ms  {what} of {each['id']}: {causes or 'no cause recorded'}")
    return lines


def _note_lines(document: Mapping[str, Any]) -> list[str]:
    lines = []
    if document["shaped_by"]:
        lines.append(document["shaped_by"])
    if document["prompt_mismatch"]:
        lines.append(f"prompt lengths: {document['prompt_mismatch']}")
    if document["token_count_source"] != "usage":
        lines.append(f"the server sent no usage: tokens counted by {document['token_count_source']}")
    if document["chunk_tokens"] == "unknown":
        lines.append(
            f"tokens per chunk unknown ({document['chunk_tokens_surplus']} more tokens than chunks): "
            "ITL is by chunk"
        )
    if "probe_completed" in document:
        lines.append(
            f"{document['probe_completed']} probes: median {_plain(document['probe_median_e2el_ms'])}, "
            f"max {_plain(document['probe_max_e2el_ms'])} ms"
        )
    return lines + [f"note: {note}" for note in document["notes"]]


def _condition_lines(document: Mapping[str, Any]) -> list[str]:
    conditions = document["conditions"]
    if not conditions:
        return []
    quota = f", quota {conditions['cgroup_quota']:g} cores" if conditions["cgroup_quota"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    return [
        "",
        f"client: {conditions['cpu']}, {conditions['threads']} cores{quota}; {versions}; "
        f"clock {conditions['clock']}",
    ]


def _number(value: float | None) -> str:
    return f"{'–' if value is None else format(value, ',.2f'):>10}"


def _plain(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"

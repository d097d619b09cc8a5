"""Tables of load runs: n beside every percentile, failures apart, causes of late tokens, conditions."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ridgeline.dashboard.load_view import LoadPageRun

_LATENCIES = (
    ("ttft_ms", "TTFT"),
    ("tpot_ms", "TPOT"),
    ("itl_ms", "ITL"),
    ("icl_ms", "ICL"),
    ("e2e_ms", "E2E"),
    ("lateness_ms", "lateness of the generator"),
)
_MAX_LATE_ROWS = 40


def runs_table(runs: Sequence[LoadPageRun], labels: Sequence[str]) -> str:
    """One row a run: what was asked, what was answered, and the tails."""
    heads = (
        *("run", "sent", "good", "failed", "requests/s", "output tokens/s", "goodput /s", "attainment"),
        *("n", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "lateness P99", "valid"),
    )
    rows = []
    for run, label in zip(runs, labels, strict=True):
        document = run.document
        ours, found = document["ridgeline"], document["goodput"] or {}
        attainment = found.get("attainment")
        rows.append(
            (
                label,
                f"{len(run.records):,}",
                f"{document['completed']:,}",
                f"{document['failed']:,}",
                _figure(document["rates"]["requests_per_s"]),
                _figure(document["rates"]["output_tokens_per_s"], 1),
                _figure(found.get("rate")),
                "–" if attainment is None else f"{100 * attainment:.1f} %",
                f"{ours['ttft_ms']['n']:,}",
                _figure(ours["ttft_ms"]["p50"], 1),
                _tail(ours["ttft_ms"], "p99", 1),
                _figure(ours["tpot_ms"]["p50"]),
                _tail(ours["tpot_ms"], "p99"),
                _figure(ours["lateness_ms"]["p99"]),
                "yes" if document["valid"] else "NO",
            )
        )
    return figures_table(heads, rows)


def latency_table(document: Mapping[str, Any]) -> str:
    """The six latencies of a run in ms."""
    heads = ("ms, from the schedule", "n", "mean", "P50", "P90", "P95", "P99", "max")
    rows = []
    for key, name in _LATENCIES:
        row = document["ridgeline"][key]
        middle = [_figure(row[each]) for each in ("mean", "p50", "p90", "p95")]
        rows.append((name, f"{row['n']:,}", *middle, _tail(row, "p99"), _figure(row["max"])))
    return figures_table(heads, rows)


def failures_table(document: Mapping[str, Any]) -> str:
    """Failures by kind and the most frequent reasons; nothing where all were good."""
    if not document["failed"]:
        return "<p>No request failed.</p>"
    kinds = [(kind, f"{count:,}") for kind, count in document["failures"].items()]
    reasons = [(reason, f"{count:,}") for reason, count in document["failure_reasons"].items()]
    return f"""<h2 class="bad">Failures</h2>{figures_table(("kind", "requests"), kinds)}
{figures_table(("most frequent reasons", "requests"), reasons)}"""


def late_table(document: Mapping[str, Any]) -> str:
    """The latest tokens and what the server did meanwhile."""
    late = document.get("late_tokens")
    if late is None:
        return (
            '<p class="muted">Causes of late tokens: this server does not tell them '
            "(it has no /debug/requests).</p>"
        )
    if not late:
        return ""
    rows = [
        (
            "first token" if each["kind"] == "ttft" else f"token {each['token']}",
            f"{each['ms']:,.1f}",
            str(each["id"]),
            ", ".join(_cause(cause) for cause in each["causes"]) or "no cause recorded",
        )
        for each in late[:_MAX_LATE_ROWS]
    ]
    more = len(late) - len(rows)
    rest = f'<p class="muted">{more:,} more are in the JSON.</p>' if more > 0 else ""
    return f"""<h2>Why the latest tokens were late</h2>
{figures_table(("token", "ms", "request", "causes, from the server's event log"), rows, "words")}{rest}"""


def conditions_table(runs: Sequence[LoadPageRun], labels: Sequence[str]) -> str:
    """Settings, machine and versions: what all runs share, then a row a run of what differs."""
    columns = [_conditions(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    shared = [name for name in names if len({column.get(name, "–") for column in columns}) == 1]
    apart = [name for name in names if name not in shared]
    same = figures_table(
        ("all runs" if len(runs) > 1 else "", ""), [(name, columns[0][name]) for name in shared], "words"
    )
    if not apart:
        return same
    rows = [
        (label, *(column.get(name, "–") for name in apart))
        for label, column in zip(labels, columns, strict=True)
    ]
    return f"{figures_table(('run', *apart), rows, 'words')}{same}"


def _conditions(run: LoadPageRun) -> dict[str, str]:
    document = run.document
    conditions = document.get("conditions") or {}
    versions = conditions.get("versions") or {}
    notes = [document.get("shaped_by"), document.get("prompt_mismatch"), *(document.get("notes") or [])]
    found = {
        "file": run.name,
        "date": document.get("date"),
        "model": document.get("model_id"),
        "backend": document.get("backend"),
        "dataset": f"{document.get('dataset')}, seed {document.get('seed')}",
        "loop": document.get("loop"),
        "rate asked for": document["request_rate"],
        "burstiness": document.get("burstiness"),
        "most in flight": document.get("max_concurrency"),
        "warm-ups": document.get("num_warmups"),
        "window (s)": _figure(document["rates"]["window_s"]),
        "prompt tokens": document.get("total_input_tokens"),
        "output tokens": document.get("total_output_tokens"),
        "from the prefix cache": document.get("cached_tokens"),
        "tokens counted by": document.get("token_count_source"),
        "tokens per chunk": document.get("chunk_tokens"),
        "notes": "; ".join(str(note) for note in notes if note) or None,
        "client's CPU": conditions.get("cpu"),
        "client's cores": conditions.get("threads"),
        "client's quota": conditions.get("cgroup_quota"),
        "client's system": conditions.get("system"),
        "clock": conditions.get("clock"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or None,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _cause(cause: object) -> str:
    if not isinstance(cause, Mapping):
        return str(cause)
    return str(cause.get("text") or cause.get("cause", cause))


def _tail(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    return _figure(row[name], digits) + ("*" if row["low_n"] and row["n"] else "")


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def figures_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    kind: str = "figures",
    *,
    word_columns: Sequence[int] = (),
) -> str:
    """Any table, escaped. `kind` is how cells are set: figures to the right, words to the left; so are the
    `word_columns` of a table of figures.
    """
    classes = [' class="word"' if index in word_columns else "" for index in range(len(heads))]
    head = "".join(f"<th{c}>{html.escape(each)}</th>" for c, each in zip(classes, heads, strict=True))
    cells = (
        "".join(f"<td{c}>{html.escape(str(each))}</td>" for c, each in zip(classes, row, strict=True))
        for row in rows
    )
    lines = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{lines}</table></div>'

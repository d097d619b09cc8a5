"""The load page: closed, escaped, honest about what it leaves out; every plot has its data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.dashboard.test_pages import NASTY, data_of, own_part

from ridgeline.dashboard.load_page import load_page
from ridgeline.dashboard.load_view import MAX_BARS, MAX_POINTS, LoadPageRun, run_view, thin_out
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import Chunk
from ridgeline.metrics.percentiles import summarize

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "icl_ms", "e2e_ms", "lateness_ms")


def record(index: int, *, outcome: Outcome = Outcome.OK, name: str = "", num_chunks: int = 3) -> ClientRecord:
    start = 0.1 * index
    chunks = [Chunk(start + 0.2 + 0.01 * i, 1) for i in range(num_chunks)] if outcome is Outcome.OK else []
    return ClientRecord(
        request_id=name or f"r{index}",
        scheduled_at_s=start,
        sent_at_s=start + 0.01,
        chunks=chunks,
        outcome=outcome,
        closed_at_s=start + 0.5,
        num_prompt_tokens=4,
        num_output_tokens=num_chunks,
        error=None if outcome is Outcome.OK else f"why {NASTY}",
    )


def document(records: list[ClientRecord], rate: float | str = 2.0, **changes: Any) -> dict[str, Any]:
    failed = sum(each.outcome is not Outcome.OK for each in records)
    figures = summarize([1.0] * (len(records) - failed))
    names = ("n", "mean", "p50", "p90", "p95", "p99", "max", "std", "low_n")
    return {
        "model_id": NASTY,
        "request_rate": rate,
        "max_concurrency": None,
        "completed": len(records) - failed,
        "failed": failed,
        "failures": {"rejected": failed} if failed else {},
        "failure_reasons": {f"HTTP 429: {NASTY}": failed} if failed else {},
        "valid": True,
        "invalid_because": None,
        "interrupted": False,
        "num_not_sent": 0,
        "ridgeline": {key: {name: getattr(figures, name) for name in names} for key in LATENCIES},
        "rates": {"requests_per_s": 1.5, "output_tokens_per_s": 30.0, "window_s": 9.0},
        "goodput": {"slo": {"ttft": 250.0, "tpot": 5.0}, "rate": 1.0, "attainment": 0.5},
        "conditions": {"cpu": NASTY, "versions": {"ridgeline": "1"}},
        "notes": [NASTY],
        **changes,
    }


def run(
    records: list[ClientRecord], *, name: str = "a.json", times: dict | None = None, **changes: Any
) -> LoadPageRun:
    return LoadPageRun(
        name=name, document=document(records, **changes), records=records, server_times=times or {}
    )


def test_nothing_from_outside_gets_out() -> None:
    records = [record(0, name=NASTY), record(1, outcome=Outcome.REJECTED)]
    late = [{"id": NASTY, "kind": "ttft", "token": 0, "ms": 9.0, "causes": [{"cause": NASTY}, NASTY]}]
    page = load_page([run(records, name=NASTY, late_tokens=late, valid=False, invalid_because=NASTY)] * 2)
    own = own_part(page)
    assert own.count("</script>") == 1
    assert "<b>&\u2028" not in own
    assert own.count("&lt;/script&gt;") > 8
    assert not re.search(r"(src|href)=|https?://", own)
    assert "default-src 'none'" in own
    assert json.dumps(NASTY)[1:-1].replace("</", "<\\/") in own
    script = own[own.index("const config") :]
    assert "innerHTML" not in script
    assert "fetch(" not in script


def test_one_rate_says_what_more_would_show() -> None:
    own = own_part(load_page([run([record(0)])]))
    assert "One rate only" in own
    assert 'id="run"' not in own
    assert "No request failed." in own
    assert "does not tell them" in own


def test_runs_of_many_rates_are_in_order_and_named_apart() -> None:
    runs = [run([record(0)], rate=rate, name=name) for rate, name in (("inf", "c"), (4.0, "b"), (2.0, "a"))]
    data = data_of(load_page([*runs, run([record(0)], rate=4.0, name="d")]))
    assert [point["rate"] for point in data["points"]] == [2.0, 4.0, 4.0, None]
    labels = [each["label"] for each in data["runs"]]
    assert labels == ["2 req/s", "4 req/s (b)", "4 req/s (d)", "all at once"]
    same = data_of(load_page([run([record(0)]), run([record(0)])]))
    assert len({each["label"] for each in same["runs"]}) == 2


def test_curves_count_failures_as_never() -> None:
    view = run_view(run([record(0), record(1), record(2, outcome=Outcome.TIMEOUT)]))
    assert view["cdf"]["ttft"] == {"n": 2, "x": pytest.approx([200.0, 200.0]), "y": [1 / 3, 2 / 3]}
    assert view["cdf"]["itl"]["y"][-1] == 1.0
    assert view["slo"] == {"ttft": 250.0, "tpot": 5.0}
    points = view["ttft"]
    assert (points["n"], points["n_failed"]) == (2, 1)
    assert points["failed_ms"] == pytest.approx([500.0])
    assert points["failed_why"][0].startswith("timeout: why")


def test_bars_lay_the_servers_queue_behind_the_send() -> None:
    rows = run_view(run([record(0)], times={"r0": {"queue_s": 0.05}}))["gantt"]["rows"]
    [row] = rows
    assert (row["start"], row["wait"], row["queue"]) == pytest.approx((0.0, 0.01, 0.05))
    assert (row["first"], row["decode"], row["failed"]) == pytest.approx((0.14, 0.02, 0.0))


def test_a_queue_longer_than_the_wait_is_cut_to_it() -> None:
    [row] = run_view(run([record(0)], times={"r0": {"queue_s": 9.0}}))["gantt"]["rows"]
    assert (row["queue"], row["first"]) == pytest.approx((0.19, 0.0))


def test_failed_bars_end_where_the_request_did() -> None:
    [row] = run_view(run([record(0, outcome=Outcome.REJECTED)]))["gantt"]["rows"]
    assert (row["first"], row["decode"], row["failed"]) == pytest.approx((0.0, 0.0, 0.49))
    never_sent = ClientRecord(
        request_id="x", scheduled_at_s=0.0, sent_at_s=None, chunks=[], outcome=Outcome.ABORTED
    )
    [row] = run_view(run([never_sent]))["gantt"]["rows"]
    assert row["failed"] == 0.0


def test_no_success_is_a_page_too() -> None:
    page = load_page([run([record(0, outcome=Outcome.REJECTED)])])
    data = data_of(page)
    assert data["runs"][0]["cdf"]["ttft"]["n"] == 0
    assert data["points"][0]["ttft"]["p99"] is None
    assert "1 of 1 requests failed" in page


def test_no_request_at_all_is_a_page_too() -> None:
    page = load_page([run([], valid=False, invalid_because="no request was sent", goodput=None)])
    assert "no request was sent" in page
    assert "No SLO was set" in page


def test_many_requests_are_thinned_out_and_the_page_says_so() -> None:
    records = [record(i, num_chunks=2) for i in range(100_000)]
    page = load_page([run(records)])
    view = data_of(page)["runs"][0]
    assert len(view["ttft"]["ms"]) <= MAX_POINTS
    assert len(view["itl"]["ms"]) <= MAX_POINTS
    assert len(view["gantt"]["rows"]) <= MAX_BARS
    assert len(view["cdf"]["e2e"]["x"]) <= 400
    assert view["cdf"]["e2e"]["n"] == 100_000
    assert re.search(r"of 100,000 first tokens are drawn: the 500 longest", page)
    assert "of 100,000 requests, those around the latest first token" in page
    assert len(page) - len(page[: page.rindex("<script>")]) < 1_000_000


@pytest.mark.parametrize(("latest", "first"), [(0, 0), (150, 100), (299, 200)])
def test_bars_are_the_neighbours_of_the_latest(latest: int, first: int) -> None:
    records = [record(i) for i in range(300)]
    records[latest] = replace(records[latest], chunks=[Chunk(99.0, 1)])
    rows = run_view(run(records))["gantt"]["rows"]
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(first, first + MAX_BARS)]


def test_thinning_keeps_the_longest() -> None:
    values = [float(i % 97) for i in range(10_000)]
    values[5000] = 1e6
    kept = thin_out(values)
    assert len(kept) <= MAX_POINTS
    assert 5000 in kept
    assert kept == sorted(set(kept))
    assert thin_out([3.0, 1.0]) == [0, 1]

"""TTFT and ITL as the client saw them beside the server's own, request by request.

    ridgeline serve smollm2-135m-instruct --port 8000
    python benchmarks/client_server_agreement.py --url http://127.0.0.1:8000 --json agreement.json

The server's figures come from its /debug/requests/{id} (each request's own), and its /metrics (means over the
run). Durations only are compared: the two clocks are another's. The client's begin at the send, since the
server knows nothing of waiting before it. Exit status 1 when they are further apart than 5 ms and 2 %, or the
server tells nothing. To be run on a quiet machine, with the generator on cores of its own if there are any.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from ridgeline.loadgen.benchmark import LoadPlan, execute_load, plan_load
from ridgeline.loadgen.conditions import run_conditions
from ridgeline.loadgen.run import LoadRun
from ridgeline.loadgen.server_account import ask_server
from ridgeline.loadgen.server_metrics import ServerWatch
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings, server_root
from ridgeline.loadgen.vllm_keys import sent_ttft_s
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.percentiles import percentile
from ridgeline.workload.synthetic import RandomLengths

MAX_APART_MS, MAX_APART_SHARE = 5.0, 0.02


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--num-prompts", type=int, default=100)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    plan = make_plan(arguments)
    watch = ServerWatch(plan.target.url, plan.headers)
    watch.begin()
    run = execute_load(plan)
    server = watch.end()
    rows = per_request(plan, run)
    if server is not None:
        ok = good(run)
        means = {"ttft_ms": [sent_ttft_s(r) for r in ok], "itl_ms": [client_gap_s(r) for r in ok]}
        for stage, values in means.items():
            if stage in server.stages:
                ours = fmean(1000 * value for value in values if value is not None)
                name = f"{stage.removesuffix('_ms').upper()} mean, by /metrics"
                rows.append(row(name, len(ok), ours, server.stages[stage]))
    print_rows(rows)
    if arguments.json:
        document = {"settings": vars(arguments) | {"json": None}, "conditions": run_conditions(plan.model)}
        arguments.json.write_text(json.dumps({**document, "rows": rows}, indent=2) + "\n")
    raise SystemExit(0 if rows and all(each["agrees"] for each in rows) else 1)


def make_plan(arguments: argparse.Namespace) -> LoadPlan:
    lengths = RandomLengths(input_len=arguments.input_len, output_len=arguments.output_len)
    return plan_load(
        TargetSettings(url=server_root(arguments.url), ignore_eos=True, extra_body={"temperature": 0}),
        DatasetSettings(num_prompts=arguments.num_prompts, random=lengths),
        TrafficSettings(request_rate=arguments.rate, num_warmups=0),
    )


def good(run: LoadRun) -> list[ClientRecord]:
    return [record for record in run.records if record.outcome is Outcome.OK]


def client_gap_s(record: ClientRecord) -> float | None:
    """The mean ITL of one request."""
    count = (record.num_output_tokens or 0) - 1
    return (record.chunks[-1].at_s - record.chunks[0].at_s) / count if count > 0 else None


def per_request(plan: LoadPlan, run: LoadRun) -> list[dict]:
    """Means and P99 over the requests that both sides know."""
    account = ask_server(plan, run, {}, all_requests=True)
    if account is None:
        return []
    pairs: dict[str, list[tuple[float, float]]] = {"TTFT": [], "ITL": []}
    for record in good(run):
        theirs = account.times.get(record.request_id, {})
        decode_s, count = theirs.get("decode_s"), (record.num_output_tokens or 0) - 1
        server_gap_s = decode_s / count if decode_s is not None and count > 0 else None
        for name, ours, other in (
            ("TTFT", sent_ttft_s(record), theirs.get("ttft_s")),
            ("ITL", client_gap_s(record), server_gap_s),
        ):
            if ours is not None and other is not None:
                pairs[name].append((1000 * ours, 1000 * other))
    rows = []
    for name, both in pairs.items():
        ours, theirs_ms = [a for a, _ in both], [b for _, b in both]
        if both:
            rows.append(row(f"{name} mean", len(both), fmean(ours), fmean(theirs_ms)))
            rows += [row(f"{name} P{p}", len(both), *ends(ours, theirs_ms, p)) for p in (50, 99)]
    return rows


def ends(ours: Sequence[float], theirs: Sequence[float], p: int) -> tuple[float, float]:
    return percentile(ours, p) or 0.0, percentile(theirs, p) or 0.0


def row(name: str, n: int, client_ms: float, server_ms: float) -> dict:
    apart = client_ms - server_ms
    return {
        "name": name,
        "n": n,
        "client_ms": client_ms,
        "server_ms": server_ms,
        "apart_ms": apart,
        "agrees": abs(apart) <= MAX_APART_MS or abs(apart) <= MAX_APART_SHARE * server_ms,
    }


def print_rows(rows: Sequence[dict]) -> None:
    if not rows:
        print("the server tells nothing: no /debug/requests and no /metrics of known names")
        return
    print(f"{'':24}{'n':>6}{'client ms':>12}{'server ms':>12}{'apart':>9}{'of it':>9}  within 5 ms or 2 %")
    for each in rows:
        share = 100 * each["apart_ms"] / each["server_ms"] if each["server_ms"] else float("nan")
        print(
            f"{each['name']:24}{each['n']:6}{each['client_ms']:12.3f}{each['server_ms']:12.3f}"
            f"{each['apart_ms']:+9.3f}{share:+8.2f} %  {'yes' if each['agrees'] else 'NO'}"
        )


if __name__ == "__main__":
    main()

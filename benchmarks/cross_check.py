"""Ours beside GuideLLM on one server, and the clients' figures beside the server's own.

    python -m venv PEERS && PEERS/bin/pip install guidellm
    python benchmarks/cross_check.py --url http://127.0.0.1:8000 --guidellm PEERS/bin/guidellm

The same text prompts go out by both at the same constant rate, one tool after the other, each after
warm-ups. GuideLLM's per-request records are taken, not its summaries, so that percentiles are ours on both
sides; its names are translated by docs/load-generator.md. The server's own means come from its /metrics,
read before and after our run. To be run on a quiet machine; not part of CI.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from random import Random

from ridgeline.loadgen.benchmark import LoadPlan, execute_load, plan_load
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.loadgen.vllm_keys import sent_e2e_s, sent_ttft_s, tpot_s
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.percentiles import percentile

WORDS = ("time", "water", "stone", "light", "paper", "river", "green", "house", "table", "music", "north")
SERVER_HISTOGRAMS = {"TTFT": "time_to_first_token_seconds", "ITL": "inter_token_latency_seconds"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model")
    parser.add_argument("--guidellm", help="path of GuideLLM's command; without it only the server is asked")
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--num-prompts", type=int, default=60)
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--output-len", type=int, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(arguments, Path(folder))
        before = server_histograms(arguments.url)
        records = [r for r in execute_load(plan).records if r.outcome is Outcome.OK]
        after = server_histograms(arguments.url)
        print_server(records, before, after)
        if arguments.guidellm:
            theirs = run_guidellm(arguments, plan, Path(folder))
            print_tools(records, theirs)


def make_plan(arguments: argparse.Namespace, folder: Path) -> LoadPlan:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts(arguments, seed=1)))
    return plan_load(
        TargetSettings(
            url=arguments.url, model=arguments.model, ignore_eos=True, extra_body={"temperature": 0}
        ),
        DatasetSettings(
            name="custom", path=path, num_prompts=arguments.num_prompts, output_len=arguments.output_len
        ),
        TrafficSettings(request_rate=arguments.rate, burstiness=float("inf"), num_warmups=4),
    )


def prompts(arguments: argparse.Namespace, *, seed: int) -> list[str]:
    """Unlike from the first word on, so that no prefix cache helps the tool that comes second."""
    rng = Random(seed)
    return [
        f"{rng.randrange(10**9)} " + " ".join(rng.choices(WORDS, k=arguments.prompt_words))
        for _ in range(arguments.num_prompts)
    ]


def run_guidellm(arguments: argparse.Namespace, plan: LoadPlan, folder: Path) -> list[dict]:
    """GuideLLM's records of its good requests."""
    data, out = folder / "theirs.jsonl", folder / "theirs.json"
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts(arguments, seed=2)))
    body = {"max_tokens": arguments.output_len, "ignore_eos": True, "temperature": 0}
    backend = {
        "kind": "openai_http",
        "target": arguments.url,
        "model": plan.model,
        "request_format": "/v1/completions",
        "extras": {"body": body},
    }
    subprocess.run(
        [
            *(arguments.guidellm, "run", "--disable-console"),
            *("--backend", json.dumps(backend)),
            *("--profile", f"kind=constant,rate={arguments.rate}"),
            *("--constraint", f"kind=max_requests,count={arguments.num_prompts}"),
            *("--data", f"kind=json_file,path={data}"),
            *("--output", f"kind=json,path={out}"),
        ],
        check=True,
        timeout=900,
        capture_output=True,
    )
    [benchmark] = json.loads(out.read_text())["benchmarks"]
    return list(benchmark["requests"]["successful"])


def server_histograms(url: str) -> dict[str, tuple[float, float]]:
    """(sum in seconds, count) of the server's histograms; empty where it has no such /metrics."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except (OSError, ValueError):
        return {}
    found = {}
    for name, suffix in SERVER_HISTOGRAMS.items():
        totals = []
        for part in ("sum", "count"):
            pattern = rf"^\S*[:_]?{suffix}_{part}(?:{{.*}})? (\S+)$"
            totals.append(sum(float(value) for value in re.findall(pattern, text, re.M)))
        if totals[1] or suffix in text:
            found[name] = (totals[0], totals[1])
    return found


def print_server(records: list[ClientRecord], before: dict, after: dict) -> None:
    """Means at the client, from the send, beside the server's own over the same time, warm-ups included."""
    print(f"{'mean, ms':8}{'client':>10}{'server':>10}{'apart':>10}{'of it':>9}  within 5 ms or 2 %")
    ttfts = [value for r in records if (value := sent_ttft_s(r)) is not None]
    gaps = [(r.chunks[-1].at_s - r.chunks[0].at_s, (r.num_output_tokens or 1) - 1) for r in records]
    ours = {
        "TTFT": 1000 * sum(ttfts) / len(ttfts),
        "ITL": 1000 * sum(gap for gap, _ in gaps) / sum(count for _, count in gaps),
    }
    for name, client_ms in ours.items():
        if name not in after or after[name][1] == before.get(name, (0, 0))[1]:
            print(f"{name:8}{client_ms:10.2f}{'–':>10}  the server has no such histogram")
            continue
        total, count = (a - b for a, b in zip(after[name], before.get(name, (0.0, 0.0)), strict=True))
        server_ms = 1000 * total / count
        apart = client_ms - server_ms
        is_near = abs(apart) <= 5 or abs(apart) <= 0.02 * server_ms
        share = 100 * apart / server_ms
        print(f"{name:8}{client_ms:10.2f}{server_ms:10.2f}{apart:+10.2f}{share:+8.1f} %  {yes(is_near)}")


def print_tools(records: list[ClientRecord], theirs: list[dict]) -> None:
    """Both tools by one definition each: GuideLLM's `inter_token_latency_ms` is what others call TPOT."""
    rows = {
        "TTFT": (_ms(map(sent_ttft_s, records)), [r["time_to_first_token_ms"] for r in theirs]),
        "TPOT": (_ms(map(tpot_s, records)), [r["inter_token_latency_ms"] for r in theirs]),
        "E2E": (_ms(map(sent_e2e_s, records)), [1000 * r["request_latency"] for r in theirs]),
    }
    print()
    print(f"{'ms':14}{'ours':>10}{'GuideLLM':>10}{'apart':>10}{'of it':>9}  within 5 %")
    for name, (ours, all_others) in rows.items():
        others = [value for value in all_others if value is not None]
        for p in (50, 90, 99):
            mine, other = percentile(ours, p), percentile(others, p)
            if mine is None or other is None:
                print(f"{name} P{p}: one of the two has no value")
                continue
            share = 100 * (mine - other) / other
            line = f"{name + f' P{p}':14}{mine:10.2f}{other:10.2f}{mine - other:+10.2f}{share:+8.1f} %"
            print(f"{line}  {yes(abs(share) <= 5)}  (n {len(ours)}, {len(others)})")
    per_token = [r["time_per_output_token_ms"] for r in theirs if r["time_per_output_token_ms"] is not None]
    print(f"GuideLLM's own TPOT counts the first token in: P50 {percentile(per_token, 50):.2f} ms")


def _ms(values_s: Iterable[float | None]) -> list[float]:
    return [1000 * value for value in values_s if value is not None]


def yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


if __name__ == "__main__":
    main()

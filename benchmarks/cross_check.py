"""Ours beside GuideLLM or vLLM's `bench serve` on one server, and beside the server's own figures.

    python -m venv PEERS && PEERS/bin/pip install guidellm
    python benchmarks/cross_check.py --url http://127.0.0.1:8000 --guidellm PEERS/bin/guidellm
    python benchmarks/cross_check.py --url http://127.0.0.1:8000 --vllm VLLM/bin/python

Text prompts of one kind go out by both at the same constant rate, one tool after the other, each after
warm-ups. The other's per-request records are taken, not its summaries, so that percentiles are ours on both
sides; names are translated by docs/load-generator.md. The server's own means come from its /metrics, read
before and after our run. vLLM needs pandas and datasets beside it; it counts prompt tokens by a tokenizer of
words made here, since only its times are compared. To be run on a quiet machine; not part of CI.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from random import Random

import tokenizers

from ridgeline.loadgen.benchmark import LoadPlan, execute_load, plan_load
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.loadgen.vllm_keys import sent_e2e_s, sent_ttft_s, tpot_s
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.percentiles import percentile

WORDS = ("time", "water", "stone", "light", "paper", "river", "green", "house", "table", "music", "north")
VLLM_PROGRAM = (
    "import argparse; from vllm.benchmarks import serve; parser = argparse.ArgumentParser(); "
    "serve.add_cli_args(parser); serve.main(parser.parse_args())"
)
SERVER_HISTOGRAMS = {"TTFT": "time_to_first_token_seconds", "ITL": "inter_token_latency_seconds"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model")
    parser.add_argument("--guidellm", help="path of GuideLLM's command; without it only the server is asked")
    parser.add_argument("--vllm", help="path of the Python that has vLLM")
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
            print_tools(records, "GuideLLM", by_guidellm(theirs))
        if arguments.vllm:
            print_tools(records, "vLLM", run_vllm(arguments, plan, Path(folder)))


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


def print_tools(records: list[ClientRecord], name: str, theirs: dict[str, list[float]]) -> None:
    """Both tools by one definition each, from the send."""
    ours = {
        "TTFT": _ms(map(sent_ttft_s, records)),
        "TPOT": _ms(map(tpot_s, records)),
        "E2E": _ms(map(sent_e2e_s, records)),
    }
    print()
    print(f"{'ms':14}{'ours':>10}{name:>10}{'apart':>10}{'of it':>9}  within 5 %")
    for quantity, values in ours.items():
        for p in (50, 90, 99):
            mine, other = percentile(values, p), percentile(theirs[quantity], p)
            if mine is None or other is None:
                print(f"{quantity} P{p}: one of the two has no value")
                continue
            share = 100 * (mine - other) / other
            line = f"{quantity + f' P{p}':14}{mine:10.2f}{other:10.2f}{mine - other:+10.2f}{share:+8.1f} %"
            print(f"{line}  {yes(abs(share) <= 5):3}  (n {len(values)}, {len(theirs[quantity])})")


def by_guidellm(theirs: list[dict]) -> dict[str, list[float]]:
    """Its `inter_token_latency_ms` is what others call TPOT; its own TPOT counts the first token in."""
    per_token = [r["time_per_output_token_ms"] for r in theirs if r["time_per_output_token_ms"] is not None]
    if per_token:
        print(f"GuideLLM's own TPOT counts the first token in: P50 {percentile(per_token, 50):.2f} ms")
    return {
        "TTFT": [r["time_to_first_token_ms"] for r in theirs if r["time_to_first_token_ms"] is not None],
        "TPOT": [r["inter_token_latency_ms"] for r in theirs if r["inter_token_latency_ms"] is not None],
        "E2E": [1000 * r["request_latency"] for r in theirs if r["request_latency"] is not None],
    }


def run_vllm(arguments: argparse.Namespace, plan: LoadPlan, folder: Path) -> dict[str, list[float]]:
    """vLLM's records: E2E is TTFT and all gaps, TPOT those gaps over N − 1."""
    data = folder / "vllm.jsonl"
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts(arguments, seed=3)))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    subprocess.run(
        [
            *(arguments.vllm, "-c", VLLM_PROGRAM, "--base-url", arguments.url, "--backend", "openai"),
            *("--model", plan.model, "--tokenizer", str(folder), "--dataset-name", "custom"),
            *("--dataset-path", str(data), "--skip-chat-template", "--ignore-eos", "--disable-tqdm"),
            *("--custom-output-len", str(arguments.output_len), "--num-prompts", str(arguments.num_prompts)),
            *("--request-rate", str(arguments.rate), "--burstiness", "1000000", "--num-warmups", "4"),
            *("--temperature", "0", "--save-result", "--save-detailed"),
            *("--result-dir", str(folder), "--result-filename", "vllm.json"),
        ],
        check=True,
        timeout=900,
        capture_output=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    document = json.loads((folder / "vllm.json").read_text())
    rows = zip(document["ttfts"], document["itls"], document["output_lens"], document["errors"], strict=True)
    good = [(ttft, sum(itls), count) for ttft, itls, count, error in rows if not error]
    return {
        "TTFT": [1000 * ttft for ttft, _, _ in good],
        "TPOT": [1000 * decode / (count - 1) for _, decode, count in good if count > 1],
        "E2E": [1000 * (ttft + decode) for ttft, decode, _ in good],
    }


def _ms(values_s: Iterable[float | None]) -> list[float]:
    return [1000 * value for value in values_s if value is not None]


def yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


if __name__ == "__main__":
    main()

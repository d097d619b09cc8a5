"""Ours beside GuideLLM or vLLM's `bench serve` on one server, by turns, and each beside that server's log.

    python -m venv PEERS && PEERS/bin/pip install guidellm
    python -m benchmarks.cross_check --guidellm PEERS/bin/guidellm --vllm VLLM/bin/python [--json FILE]

A server without prefix cache is started. Text prompts of one kind go out at the same constant rate, the tools
taking turns whose order alternates, every turn with prompts of its own and after warm-ups. The other's
per-request records are taken, not its summaries, so that percentiles are ours on both sides; names are
translated by docs/load-generator.md. The machine is never equally fast in two turns: the server's own log of
each turn tells by how much, and `drift out` is ours over theirs with both taken relative to what the server
said of the same requests. vLLM needs pandas and datasets beside it; it counts prompt tokens by a tokenizer of
words made here, since only its times are compared. To be run on a quiet machine; not part of CI.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean

import tokenizers

from ridgeline.loadgen.benchmark import LoadPlan, execute_load, plan_load
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.loadgen.vllm_keys import sent_e2e_s, sent_ttft_s, tpot_s
from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.percentiles import percentile

WORDS = ("time", "water", "stone", "light", "paper", "river", "green", "house", "table", "music", "north")
VLLM_PROGRAM = (
    "import argparse; from vllm.benchmarks import serve; parser = argparse.ArgumentParser(); "
    "serve.add_cli_args(parser); serve.main(parser.parse_args())"
)
QUANTITIES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2E": "duration_ms"}
"""What is compared, and how the server's log names it."""

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    **{f"P{p}": partial(lambda p, values: percentile(values, p) or 0.0, p) for p in (50, 90, 99)},
}
MAX_APART = 0.05

Samples = dict[str, list[float]]
"""Milliseconds of each quantity, one value a request."""


@dataclass
class Sides:
    """All turns of one tool: what it saw, and what the server logged of the same requests."""

    client: Samples = field(default_factory=lambda: {name: [] for name in QUANTITIES})
    server: Samples = field(default_factory=lambda: {name: [] for name in QUANTITIES})

    def add(self, client: Samples, server: Samples) -> None:
        for name in QUANTITIES:
            self.client[name] += client[name]
            self.server[name] += server[name]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--guidellm", help="path of GuideLLM's command")
    parser.add_argument("--vllm", help="path of the Python that has vLLM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tools: dict[str, Callable[[LoadPlan, Path], Samples]] = {"ours": lambda plan, _: run_ours(plan)}
    if arguments.guidellm:
        tools["GuideLLM"] = partial(run_guidellm, arguments)
    if arguments.vllm:
        tools["vLLM"] = partial(run_vllm, arguments)
    sides = {name: Sides() for name in tools}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "server.log"
        server, url = start_server(arguments.model, "--no-enable-prefix-caching", log=log)
        try:
            for place in range(arguments.rounds):
                for tool in list(tools) if place % 2 == 0 else reversed(tools):
                    size = log.stat().st_size
                    client = tools[tool](
                        make_plan(arguments, url, folder, seed=len(log_lines(log, 0))), folder
                    )
                    sides[tool].add(client, logged(log, size, arguments.num_prompts))
        finally:
            server.terminate()
            server.wait()
    rows = [row for tool in list(tools)[1:] for row in compared(sides["ours"], tool, sides[tool])]
    print_rows(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


def start_server(model: str, *options: str, log: Path) -> tuple[subprocess.Popen[str], str]:
    """The server and its address; its log, one JSON object a request, goes to a file."""
    command = [sys.executable, "-m", "ridgeline", "serve", "--model", model, "--port", "0", *options]
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, "--log-format", "json"], stdout=subprocess.PIPE, stderr=file, text=True
        )
    assert server.stdout is not None
    for line in server.stdout:
        found = re.match(r"ready (http://\S+)", line)
        if found:
            return server, found.group(1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def log_lines(log: Path, offset: int) -> list[dict]:
    """The lines of finished requests from a byte on."""
    text = log.read_bytes()[offset:].decode()
    documents = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [each for each in documents if each.get("ttft_ms") is not None]


def logged(log: Path, offset: int, count: int) -> Samples:
    """The last `count` requests since `offset`: what came before them were warm-ups."""
    lines = log_lines(log, offset)[-count:]
    assert len(lines) == count, "a tool sent fewer requests than it was told to"
    return {name: [line[key] for line in lines] for name, key in QUANTITIES.items()}


def make_plan(arguments: argparse.Namespace, url: str, folder: Path, *, seed: int) -> LoadPlan:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts(arguments, seed=seed)))
    return plan_load(
        TargetSettings(url=url, ignore_eos=True, extra_body={"temperature": 0}),
        DatasetSettings(
            name="custom", path=path, num_prompts=arguments.num_prompts, output_len=arguments.output_len
        ),
        TrafficSettings(request_rate=arguments.rate, burstiness=float("inf"), num_warmups=4),
    )


def prompts(arguments: argparse.Namespace, *, seed: int) -> list[str]:
    """Unlike from the first word on."""
    rng = Random(seed)
    return [
        f"{rng.randrange(10**9)} " + " ".join(rng.choices(WORDS, k=arguments.prompt_words))
        for _ in range(arguments.num_prompts)
    ]


def run_ours(plan: LoadPlan) -> Samples:
    records = [record for record in execute_load(plan).records if record.outcome is Outcome.OK]
    return {
        "TTFT": _ms(map(sent_ttft_s, records)),
        "TPOT": _ms(map(tpot_s, records)),
        "E2E": _ms(map(sent_e2e_s, records)),
    }


def run_guidellm(arguments: argparse.Namespace, plan: LoadPlan, folder: Path) -> Samples:
    """Its `inter_token_latency_ms` is what others call TPOT; its own TPOT counts the first token in."""
    data, out = folder / "prompts.jsonl", folder / "theirs.json"
    body = {"max_tokens": arguments.output_len, "ignore_eos": True, "temperature": 0}
    backend = {
        "kind": "openai_http",
        "target": plan.target.url,
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
    good = benchmark["requests"]["successful"]
    return {
        "TTFT": [each["time_to_first_token_ms"] for each in good],
        "TPOT": [each["inter_token_latency_ms"] for each in good],
        "E2E": [1000 * each["request_latency"] for each in good],
    }


def run_vllm(arguments: argparse.Namespace, plan: LoadPlan, folder: Path) -> Samples:
    """vLLM's records: E2E is TTFT and all gaps, TPOT those gaps over N − 1."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    subprocess.run(
        [
            *(arguments.vllm, "-c", VLLM_PROGRAM, "--base-url", plan.target.url, "--backend", "openai"),
            *("--model", plan.model, "--tokenizer", str(folder), "--dataset-name", "custom"),
            *(
                "--dataset-path",
                str(folder / "prompts.jsonl"),
                "--skip-chat-template",
                "--ignore-eos",
                "--disable-tqdm",
            ),
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


def compared(ours: Sides, tool: str, theirs: Sides) -> list[dict]:
    """Ours beside one tool: mean and percentiles, as measured and with the server's drift taken out."""
    rows = []
    for name in QUANTITIES:
        for statistic, of in STATISTICS.items():
            mine, other = of(ours.client[name]), of(theirs.client[name])
            drift = of(ours.server[name]) / of(theirs.server[name])
            rows.append(
                {
                    "tool": tool,
                    "quantity": f"{name} {statistic}",
                    "ours_ms": mine,
                    "theirs_ms": other,
                    "apart": mine / other - 1,
                    "apart_drift_out": mine / other / drift - 1,
                    "n": [len(ours.client[name]), len(theirs.client[name])],
                }
            )
    return rows


def print_rows(rows: Sequence[dict]) -> None:
    for row in rows:
        if row["quantity"] == "TTFT mean":
            head = f"{'ours':>10}{row['tool']:>10}{'apart':>9}{'drift out':>11}"
            print(f"\n{'ms':12}{head}  within 5 %")
        verdict = "yes" if abs(row["apart_drift_out"]) <= MAX_APART else "NO"
        figures = f"{row['ours_ms']:10.2f}{row['theirs_ms']:10.2f}{row['apart']:+9.1%}"
        n = f"(n {row['n'][0]}, {row['n'][1]})"
        print(f"{row['quantity']:12}{figures}{row['apart_drift_out']:+11.1%}  {verdict:3} {n}")


if __name__ == "__main__":
    main()

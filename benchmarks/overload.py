"""Ten times what a server sustains: do the accepted requests stay fast, and the rest hear no at once?

    ridgeline serve --port 8000 --max-num-seqs 4 --max-num-waiting 16
    python benchmarks/overload.py --url http://127.0.0.1:8000 --max-num-seqs 4 [--seconds 60] [--json FILE]

Three runs: eight requests one after the other (the uncontended TPOT); a closed loop of `--max-num-seqs`
(the sustainable rate); then an open loop at ten times that rate. Asked of it: every accepted request's TPOT
≤ 2 × the uncontended one's median, every other one got 429 within 50 ms, nothing hung. The exit status is 1
where one of these fails. To be run on a quiet machine, the client's cores counted in.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.run import LoadRun
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import tpot_s, ttft_s
from ridgeline.metrics.percentiles import percentile
from ridgeline.workload.synthetic import RandomLengths

OVERLOAD = 10.0
MAX_TPOT_RATIO = 2.0
MAX_REFUSAL_S = 0.050
HANG_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--json")
    options = parser.parse_args()
    document = measure(options)
    print("\n".join(f"{name:38} {value}" for name, value in document.items()))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
    sys.exit(0 if all(document[name] for name in document if name.startswith("is_")) else 1)


def measure(options: argparse.Namespace) -> dict[str, float | int | bool | str | None]:
    alone = run(options, num_prompts=8, max_concurrency=1, seed=1)
    num_full = 8 * options.max_num_seqs
    full = run(options, num_prompts=num_full, max_concurrency=options.max_num_seqs, seed=2)
    sustainable = len(accepted(full)) / (full.finished_at_s - full.started_at_s)
    rate = OVERLOAD * sustainable
    over = run(options, num_prompts=math.ceil(rate * options.seconds), request_rate=rate, seed=3)
    served = accepted(over)
    refused = [record for record in over.records if record.outcome is Outcome.REJECTED]
    refusal_s = [
        record.closed_at_s - record.sent_at_s for record in refused if record.closed_at_s is not None
    ]
    outcomes = Counter(str(record.outcome) for record in over.records)
    alone_s, tpots_s = percentile(tpots(accepted(alone)), 50), tpots(served)
    return {
        "uncontended_tpot_p50_ms": ms(alone_s),
        "full_batch_tpot_p50_ms": ms(percentile(tpots(accepted(full)), 50)),
        "sustainable_requests_per_s": round(sustainable, 3),
        "offered_requests_per_s": round(len(over.records) / options.seconds, 3),
        "accepted": len(served),
        "accepted_per_s": round(len(served) / (over.finished_at_s - over.started_at_s), 3),
        "accepted_tpot_p50_ms": ms(percentile(tpots_s, 50)),
        "accepted_tpot_p99_ms": ms(percentile(tpots_s, 99)),
        "accepted_tpot_max_ms": ms(max(tpots_s, default=None)),
        "accepted_ttft_p50_ms": ms(percentile([t for r in served if (t := ttft_s(r)) is not None], 50)),
        "refused": len(refused),
        "refusal_p50_ms": ms(percentile(refusal_s, 50)),
        "refusal_p99_ms": ms(percentile(refusal_s, 99)),
        "refusal_max_ms": ms(max(refusal_s, default=None)),
        "outcomes": json.dumps(dict(outcomes)),
        "is_tpot_within_2x_uncontended": bool(tpots_s) and max(tpots_s) <= MAX_TPOT_RATIO * (alone_s or 0.0),
        "is_refused_within_50_ms": bool(refusal_s) and max(refusal_s) <= MAX_REFUSAL_S,
        "is_nothing_else": set(outcomes) <= {str(Outcome.OK), str(Outcome.REJECTED)},
    }


def run(
    options: argparse.Namespace,
    *,
    num_prompts: int,
    seed: int,
    request_rate: float = math.inf,
    max_concurrency: int | None = None,
) -> LoadRun:
    lengths = RandomLengths(input_len=options.input_len, output_len=options.output_len)
    plan = plan_load(
        TargetSettings(url=options.url, request_timeout_s=HANG_S + options.seconds),
        DatasetSettings(num_prompts=num_prompts, random=lengths, seed=seed),
        TrafficSettings(request_rate=request_rate, max_concurrency=max_concurrency, seed=seed),
        ready_timeout_s=HANG_S,
    )
    return execute_load(plan)


def accepted(run: LoadRun) -> list[ClientRecord]:
    return [record for record in run.records if record.outcome is Outcome.OK]


def tpots(records: Sequence[ClientRecord]) -> list[float]:
    return [value for record in records if (value := tpot_s(record)) is not None]


def ms(seconds: float | None) -> float | None:
    return round(1000 * seconds, 2) if seconds is not None else None


if __name__ == "__main__":
    main()

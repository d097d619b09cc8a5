"""The batch at which decoding turns from memory to compute: computed, and found by running.

    python benchmarks/crossover.py [--rounds 5]

Computed: the batch at which the products' FLOPs at the kernels' peak for that many tokens take as long as
their weights at memory bandwidth. Found: products of one sequence take their memory time; those of many
sequences grow by their compute time each. The lines cross at T(1) ÷ (seconds a sequence of large batches).
Exits 1 when they differ by more than 25 % and more than one sequence.
"""

from __future__ import annotations

import argparse
import sys

from ridgeline import LLM, SamplingParams
from ridgeline.bench.calibrate import stored_or_short
from ridgeline.config.env import home_dir
from ridgeline.explain.recorder import Recorder
from ridgeline.perf.crossover import ridge_batch
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds

BATCHES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
SATURATED = (16, 24, 32)


def products_s(recorder: Recorder, batch: int) -> float:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8)
    run = recorder.run(lambda: [100] * 8, params, num_requests=batch)
    full = [step for step in run.steps if step.shape.num_tokens == len(step.shape.rows) == batch]
    return min(sum(step.op_seconds[op] for op in MATRIX_OPS) for step in full)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with LLM() as llm:
        parts = llm.parts
        profile = stored_or_short(home_dir(), parts.num_threads, report=print)
        bounds = OpBounds(parts.model_shape, profile)
        recorder = Recorder(parts.engine, parts.input_processor, parts.tokenizer)
        best = dict.fromkeys(BATCHES, float("inf"))
        for _ in range(rounds):
            best = {batch: min(seconds, products_s(recorder, batch)) for batch, seconds in best.items()}
    print("batch  measured ms  least ms: compute  memory")
    for batch, seconds in best.items():
        compute_s, memory_s = bounds.matrix_terms(batch)
        print(f"{batch:5}  {seconds * 1e3:11.2f}  {compute_s * 1e3:17.2f}  {memory_s * 1e3:6.2f}")
    found, computed = best[1] / min(best[batch] / batch for batch in SATURATED), ridge_batch(bounds)
    print(f"found by running: {found:.2f} sequences; computed: {computed and round(computed, 2)}")
    agrees = computed is not None and abs(found - computed) <= max(1.0, 0.25 * computed)
    print("they agree" if agrees else "they differ by more than 25 % and one sequence")
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()

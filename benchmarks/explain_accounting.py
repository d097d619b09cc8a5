"""Where the seconds of explained requests go: kernels' share of the steps, explained share of the wall time.

    python benchmarks/explain_accounting.py [--rounds 3]

Runs several prompts through the real model on a calibrated machine and prints, for each, the explained share
of the wall time, the kernels' share of prefill and of decode steps, and the bound and roofline fraction.
"""

from __future__ import annotations

import argparse
from statistics import median

from ridgeline import LLM, SamplingParams
from ridgeline.bench.calibrate import stored_or_short
from ridgeline.config.env import home_dir
from ridgeline.explain.explanation import explanation
from ridgeline.explain.prompts import prompt_ids_of_length
from ridgeline.explain.recorder import Recorder

TEXT = "Why is the sky blue?"
CASES = ((1, 40, 32), (1, 40, 128), (1, 512, 32), (1, 1024, 16), (4, 40, 32), (16, 64, 32), (32, 40, 16))
"""(requests, tokens of prompt, tokens of output)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with LLM() as llm:
        parts = llm.parts
        profile = stored_or_short(home_dir(), parts.num_threads, report=print)
        recorder = Recorder(parts.engine, parts.input_processor, parts.tokenizer)
        print(f"{'batch':>5} {'prompt':>6} {'output':>6}  explained  kernels: prefill  decode  bounds")
        for batch, num_prompt, num_output in CASES:
            ids = prompt_ids_of_length(parts.tokenizer, TEXT, num_prompt, raw=False)
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_output)
            made = []
            for _ in range(rounds + 1):
                run = recorder.run(lambda ids=ids: ids, params, num_requests=batch)
                made.append(explanation(parts, profile, run, params))
            explained = median(1 - each["path"][-1]["share"] for each in made[1:])
            phases = [made[-1]["phases"][name] for name in ("prefill", "decode")]
            kernels = [
                median(each["phases"][name]["kernel_share"] for each in made[1:])
                for name in ("prefill", "decode")
            ]
            bounds = ", ".join(f"{p['bound']} {p['roofline_fraction']:.0%}" for p in phases)
            print(
                f"{batch:5} {num_prompt:6} {num_output:6}  {explained:9.2%}  {kernels[0]:16.2%}  "
                f"{kernels[1]:6.2%}  {bounds}"
            )


if __name__ == "__main__":
    main()

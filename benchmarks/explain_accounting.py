"""Where the seconds of explained requests go: ops' share of the steps, explained share of the wall time.

    python benchmarks/explain_accounting.py [--rounds 3]

Runs several prompts through the real model on a calibrated machine and prints, for each, the explained share
of the wall time; of prefill and of decode steps the share of all ops and that of the kernels alone; the bound
and the roofline fraction. Below them, what the engine's own work in a decode step is made of, in µs a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from ridgeline import LLM, SamplingParams
from ridgeline.bench.calibrate import stored_or_short
from ridgeline.config.env import home_dir
from ridgeline.explain.explanation import explanation
from ridgeline.explain.prompts import prompt_ids_of_length
from ridgeline.explain.recorder import Recorder

TEXT = "Why is the sky blue?"
CASES = ((1, 40, 32), (1, 40, 128), (1, 512, 32), (1, 1024, 16), (4, 40, 32), (16, 64, 32), (32, 40, 16))
"""(requests, tokens of prompt, tokens of output)."""
PHASES = ("prefill", "decode")


def shares(made: Sequence[dict[str, Any]], key: str) -> list[float]:
    """Medians over the rounds, of prefill and of decode."""
    return [median(each["phases"][phase][key] for each in made) for phase in PHASES]


def show(case: tuple[int, int, int], made: Sequence[dict[str, Any]]) -> None:
    explained = median(1 - each["path"][-1]["share"] for each in made)
    (prefill, decode), (prefill_kernels, decode_kernels) = (
        shares(made, "op_share"),
        shares(made, "kernel_share"),
    )
    last = [made[-1]["phases"][phase] for phase in PHASES]
    bounds = ", ".join(f"{phase['bound']} {phase['roofline_fraction']:.0%}" for phase in last)
    batch, num_prompt, num_output = case
    print(
        f"{batch:5} {num_prompt:6} {num_output:6}  {explained:9.2%}  {prefill:8.2%} {prefill_kernels:8.2%}  "
        f"{decode:7.2%} {decode_kernels:8.2%}  {bounds}"
    )


def own_work(made: Sequence[dict[str, Any]]) -> str:
    """Medians over the rounds of each part, µs a decode step."""
    decodes = [each["phases"]["decode"] for each in made]
    names = decodes[0]["step_overhead_parts"]
    parts = {n: median(d["step_overhead_parts"][n] / d["steps"] for d in decodes) for n in names}
    return ", ".join(f"{name} {1e6 * seconds:.0f}" for name, seconds in parts.items())


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
        print("batch prompt output  explained   prefill: (kernels)   decode: (kernels)  bounds")
        works = []
        for batch, num_prompt, num_output in CASES:
            ids = prompt_ids_of_length(parts.tokenizer, TEXT, num_prompt, raw=False)
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_output)
            made = []
            for _ in range(rounds + 1):
                run = recorder.run(lambda ids=ids: ids, params, num_requests=batch)
                made.append(explanation(parts, profile, run, params))
            show((batch, num_prompt, num_output), made[1:])
            works.append(f"batch {batch}, {num_prompt} prompt: {own_work(made[1:])}")
    print("\nthe engine's own work, µs a decode step", *works, sep="\n")


if __name__ == "__main__":
    main()

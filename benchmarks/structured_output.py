"""What a form costs and saves: tokens per second with a schema and without, and with tokens added at once.

    python -m benchmarks.structured_output [--rounds 5] [--tokens 128] [--batches 1 32] [--json FILE]

Masks: the same prompts and the same number of tokens, under a schema that dictates nothing (a long list of
small numbers) and free, in turn, for a batch of 1 and of 32. Jumps: an object with long fixed keys; without
jumps each dictated token takes a step of its own, as it does for a request with logprobs. The ids are the
same either way. Figures are medians of the rounds, ratios those of neighbours within a round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median

from ridgeline import LLM, SamplingParams, StructuredOutputs
from ridgeline.core.request import Request
from ridgeline.grammar.masks import GrammarMasks

NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "minItems": 1000}
_KEYS = [
    f"{part}_of_the_{thing}_that_was_ordered_last"
    for part in ("measured_weight", "agreed_price")
    for thing in ("first_article", "second_article", "third_article")
]
LONG_KEYS = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 99} for key in _KEYS},
    "required": _KEYS,
    "additionalProperties": False,
}

Run = Callable[[], tuple[float, list[list[int]]]]
Row = dict[str, str | int | float]


def run_of(llm: LLM, params: SamplingParams, batch: int) -> Run:
    """One way to run a batch: seconds, and the ids of each answer."""
    prompts = [[500 + i, 600, 700, 800] for i in range(batch)]

    def run() -> tuple[float, list[list[int]]]:
        started_at_s = time.perf_counter()
        outputs = llm.generate(prompts, params, progress=False)
        return time.perf_counter() - started_at_s, [output.outputs[0].token_ids for output in outputs]

    return run


def without_jumps(run: Run) -> Run:
    """The same, each dictated token in a step of its own."""

    def stepwise() -> tuple[float, list[list[int]]]:
        jump = GrammarMasks.jump
        GrammarMasks.jump = _no_jump  # type: ignore[method-assign]
        try:
            return run()
        finally:
            GrammarMasks.jump = jump  # type: ignore[method-assign]

    return stepwise


def _no_jump(_: GrammarMasks, request: Request, token_id: int) -> list[int]:
    del request, token_id
    return []


def compare(name: str, batch: int, runs: Sequence[Run], rounds: int) -> Row:
    """Tokens per second of two runs that take turns; `ratio` is the first over the second."""
    rates: tuple[list[float], list[float]] = ([], [])
    num_tokens = 0
    for number in range(rounds + 1):
        for place in (0, 1) if number % 2 else (1, 0):
            seconds, token_ids = runs[place]()
            num_tokens = sum(map(len, token_ids))
            if number:  # the first round compiles the grammar and warms up
                rates[place].append(num_tokens / seconds)
    ratios = [first / second for first, second in zip(*rates, strict=True)]
    return {
        "name": name,
        "batch": batch,
        "tokens": num_tokens,
        "first_tok_s": median(rates[0]),
        "second_tok_s": median(rates[1]),
        "ratio": median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
    }


def measure(llm: LLM, batches: Sequence[int], rounds: int, num_tokens: int) -> list[Row]:
    free = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    masked = SamplingParams(
        temperature=0, max_tokens=num_tokens, structured_outputs=StructuredOutputs(json=NUMBERS)
    )
    dictated = SamplingParams(
        temperature=0, max_tokens=1000, structured_outputs=StructuredOutputs(json=LONG_KEYS)
    )
    rows = []
    for batch in batches:
        runs = (run_of(llm, masked, batch), run_of(llm, free, batch))
        rows.append(compare("masks: with / without", batch, runs, rounds))
    for batch in batches:
        run = run_of(llm, dictated, batch)
        assert run()[1] == without_jumps(run)()[1], "jumps changed the ids"
        rows.append(compare("jumps: with / without", batch, (run, without_jumps(run)), rounds))
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = ["| | batch | tokens | with, tok/s | without, tok/s | ratio |", "|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        rates = f"{row['first_tok_s']:.0f} | {row['second_tok_s']:.0f}"
        ratio = f"{row['ratio']:.2f} [{row['least']:.2f} … {row['greatest']:.2f}]"
        lines.append(f"| {row['name']} | {row['batch']} | {row['tokens']} | {rates} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--json", help="file for the result")
    arguments = parser.parse_args()
    with LLM(arguments.model, max_num_seqs=max(arguments.batches)) as llm:
        rows = measure(llm, arguments.batches, arguments.rounds, arguments.tokens)
    print(table(rows))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()

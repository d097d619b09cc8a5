"""Datasets that are drawn: random lengths, and prefixes that many prompts share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from ridgeline.config.checks import check_at_least, check_fraction
from ridgeline.workload.load_request import LoadRequest, Workload
from ridgeline.workload.prompts import PromptMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLengths:
    """Lengths around `input_len` and `output_len`, uniform within ± `range_ratio` of each.

    `prefix_len` tokens on top begin every prompt alike. Raises ConfigError out of range.
    """

    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0

    def __post_init__(self) -> None:
        check_at_least("random_input_len", self.input_len, 1)
        check_at_least("random_output_len", self.output_len, 1)
        check_fraction("random_range_ratio", self.range_ratio)
        check_at_least("random_prefix_len", self.prefix_len, 0)

    def draw(self, mean: int, rng: Random) -> int:
        """A length: a whole number in ⌊mean·(1 − ratio)⌋ … ⌈mean·(1 + ratio)⌉, at least 1."""
        low = max(math.floor(mean * (1 - self.range_ratio)), 1)
        return rng.randint(low, math.ceil(mean * (1 + self.range_ratio)))


def random_workload(count: int, lengths: RandomLengths, maker: PromptMaker, *, rng: Random) -> Workload:
    """`count` prompts of random tokens."""
    prefix = maker.prompt(lengths.prefix_len) if lengths.prefix_len else ()
    requests = []
    for _ in range(count):
        num_prompt_tokens = lengths.prefix_len + lengths.draw(lengths.input_len, rng)
        requests.append(
            LoadRequest(
                prompt=maker.prompt(num_prompt_tokens, after=prefix),
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=lengths.draw(lengths.output_len, rng),
            )
        )
    return Workload(requests, _length_notes(maker))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRepetition:
    """`num_prefixes` prefixes, each followed by many suffixes. Raises ConfigError out of range."""

    prefix_len: int = 256
    suffix_len: int = 256
    num_prefixes: int = 10
    output_len: int = 128

    def __post_init__(self) -> None:
        for name in ("prefix_len", "suffix_len", "num_prefixes", "output_len"):
            check_at_least(f"prefix_repetition_{name}", getattr(self, name), 1)


def prefix_workload(count: int, shape: PrefixRepetition, maker: PromptMaker, *, rng: Random) -> Workload:
    """`count` prompts, the same number for each prefix up to one, in random order."""
    prefixes = [maker.prompt(shape.prefix_len) for _ in range(min(shape.num_prefixes, count))]
    num_prompt_tokens = shape.prefix_len + shape.suffix_len
    requests = [
        LoadRequest(
            prompt=maker.prompt(num_prompt_tokens, after=prefixes[index % len(prefixes)]),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=shape.output_len,
        )
        for index in range(count)
    ]
    rng.shuffle(requests)
    return Workload(requests, _length_notes(maker))


def _length_notes(maker: PromptMaker) -> tuple[str, ...]:
    if maker.is_exact:
        return ()
    return ("no tokenizer: prompts are counted in short words, their length in tokens is only about right",)

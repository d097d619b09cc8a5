"""The keys of `bench engine`: what each one runs. Other engines' benchmarks print the same ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.errors import ConfigError

DEFAULT_KEYS = (
    "load_s",
    "prefill_512_tok_s",
    "prefill_2048_tok_s",
    "decode_b1_tok_s",
    "decode_b1_depth1024_tok_s",
    "decode_b1_depth4096_tok_s",
    "decode_b8_tok_s",
    "decode_b32_tok_s",
    "e2e_b32_128in_64out_out_tok_s",
)
NUM_DECODE_STEPS = 64
LOAD_PROMPT_TOKENS = 16
_BATCHED_DEPTH = 128


class Kind(StrEnum):
    """What is timed: loading, one prompt, decoding steps, or whole requests."""

    LOAD = "load"
    PREFILL = "prefill"
    DECODE = "decode"
    END_TO_END = "end_to_end"


@dataclass(frozen=True, slots=True)
class Workload:
    """What a key runs: `num_seqs` prompts of `num_in` tokens, `num_out` tokens of each.

    Of a decode key, `num_in` is the depth and `num_out` the number of timed steps.
    """

    key: str
    kind: Kind
    num_seqs: int
    num_in: int
    num_out: int

    @property
    def is_seconds(self) -> bool:
        """Whether less is better."""
        return self.kind is Kind.LOAD

    @property
    def num_units(self) -> int:
        """Tokens that one sample's rate counts; 1 of a duration."""
        if self.kind is Kind.LOAD:
            return 1
        return self.num_in if self.kind is Kind.PREFILL else self.num_seqs * self.num_out


def parse_key(key: str) -> Workload:
    """The workload behind a key: one of `DEFAULT_KEYS`, or of their shapes with other numbers.

    Raises:
        ConfigError: the key has none of the known shapes.
    """
    if key == "load_s":
        return Workload(key, Kind.LOAD, 1, LOAD_PROMPT_TOKENS, 1)
    if match := re.fullmatch(r"prefill_([1-9]\d*)_tok_s", key):
        return Workload(key, Kind.PREFILL, 1, int(match[1]), 1)
    if match := re.fullmatch(r"decode_b([1-9]\d*)(?:_depth([1-9]\d*))?_tok_s", key):
        num_seqs = int(match[1])
        depth = int(match[2] or (1 if num_seqs == 1 else _BATCHED_DEPTH))
        return Workload(key, Kind.DECODE, num_seqs, depth, NUM_DECODE_STEPS)
    if match := re.fullmatch(r"e2e_b([1-9]\d*)_([1-9]\d*)in_([1-9]\d*)out_out_tok_s", key):
        return Workload(key, Kind.END_TO_END, *(int(group) for group in match.groups()))
    raise ConfigError(
        "only", key, f"known are {', '.join(DEFAULT_KEYS)}, with any numbers ≥ 1 in place of theirs"
    )


def prompt_ids(sequence: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Ids that no text, tokenizer or shared prefix explains; the same for every engine measured."""
    ids = ((1000 + (i * 7919 + sequence * 104729) % 40000) for i in range(num_tokens))
    return [token_id % vocab_size for token_id in ids]

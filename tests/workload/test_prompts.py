"""Exact lengths, also with tokenizers that merge across the seams of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from ridgeline.errors import ConfigError
from ridgeline.workload.prompts import PromptMaker, word_ids
from ridgeline.workload.synthetic import PrefixRepetition, RandomLengths, prefix_workload, random_workload


class MergingCodec:
    """One id a letter, but "ab" and "cd" are one as soon as they meet: naive prompts come out too short."""

    num_added_tokens = 1
    merges = ("ab", "cd", "ea")

    def encode(self, text: str) -> list[int]:
        token_ids, place = [], 0
        while place < len(text):
            pair = text[place : place + 2]
            if pair in self.merges:
                token_ids.append(1000 + self.merges.index(pair))
                place += 2
            else:
                token_ids.append(ord(text[place]))
                place += 1
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.merges[each - 1000] if each >= 1000 else chr(each) for each in token_ids)


class SwallowingCodec(MergingCodec):
    """Every prompt is one token: no length but one can be reached."""

    def encode(self, text: str) -> list[int]:
        return [ord("a")] if len(text) < 1000 else [ord("a"), ord("b")]


@pytest.mark.parametrize("length", [2, 3, 17, 512])
def test_texts_have_the_exact_length(length: int) -> None:
    codec = MergingCodec()
    maker = PromptMaker(codec, Random(length), as_text=True)
    naive = [codec.encode(codec.decode(maker.draw(512))) for _ in range(20)]
    assert any(len(each) != 512 for each in naive)
    for _ in range(20):
        assert len(codec.encode(maker.prompt(length))) + codec.num_added_tokens == length


def test_texts_after_a_shared_beginning() -> None:
    codec = MergingCodec()
    shape = PrefixRepetition(prefix_len=40, suffix_len=25, num_prefixes=3, output_len=7)
    maker = PromptMaker(codec, Random(1), as_text=True)
    requests = prefix_workload(10, shape, maker, rng=Random(2)).requests
    assert {len(codec.encode(str(r.prompt))) for r in requests} == {64}
    assert len({str(r.prompt)[:30] for r in requests}) == 3
    assert len({r.prompt for r in requests}) == 10


def test_ids_need_no_tokenizer() -> None:
    lengths = RandomLengths(input_len=50, output_len=20, range_ratio=0.5, prefix_len=8)
    maker = PromptMaker(None, Random(0), as_text=False)
    requests = random_workload(200, lengths, maker, rng=Random(0)).requests
    assert all(len(r.prompt or ()) == r.num_prompt_tokens for r in requests)
    sizes = {r.num_prompt_tokens for r in requests}
    assert min(sizes) >= 33
    assert max(sizes) <= 83
    assert len(sizes) > 20
    assert {r.num_output_tokens for r in requests} <= set(range(10, 31))
    assert len({tuple((r.prompt or ())[:8]) for r in requests}) == 1


def test_equal_seeds_give_equal_prompts() -> None:
    def prompts(seed: int) -> list[object]:
        maker = PromptMaker(None, Random(seed), as_text=False)
        return [r.prompt for r in random_workload(3, RandomLengths(), maker, rng=Random(seed)).requests]

    assert prompts(1) == prompts(1) != prompts(2)


def test_without_a_tokenizer_texts_are_words_and_say_so() -> None:
    maker = PromptMaker(None, Random(0), as_text=True)
    found = random_workload(3, RandomLengths(input_len=30), maker, rng=Random(0))
    assert all(len(str(r.prompt).split()) == 30 for r in found.requests)
    assert "no tokenizer" in found.notes[0]


def test_a_length_that_no_text_has() -> None:
    with pytest.raises(ConfigError, match="prompts-as ids"):
        PromptMaker(SwallowingCodec(), Random(0), as_text=True).prompt(9)


def test_words_need_two_ids() -> None:
    class Blind(MergingCodec):
        def encode(self, text: str) -> list[int]:
            return [5]

    with pytest.raises(ConfigError, match="tokenizer"):
        word_ids(Blind())


@pytest.mark.parametrize(
    "settings", [{"input_len": 0}, {"output_len": 0}, {"range_ratio": 1.0}, {"prefix_len": -1}]
)
def test_impossible_lengths(settings: dict) -> None:
    with pytest.raises(ConfigError, match="random_"):
        RandomLengths(**settings)

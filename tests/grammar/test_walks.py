"""A sampler that means harm: any way through a grammar that it lets end is a valid text, jumped or not."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.grammar.random_schemas import check, whole_schemas

from ridgeline.errors import RequestError
from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.grammar.matcher import GrammarMatcher
from ridgeline.structured_outputs import StructuredOutputs
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

NUM_WALKS, MAX_STEPS = 6, 250


def allowed(matcher: GrammarMatcher, vocab_size: int) -> list[int]:
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    matcher.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def chosen(draw: Random, token_ids: list[int], last: bytes, tokenizer: Tokenizer) -> int:
    """Any token, but rather an end, an escape, and after a backslash a quote: where grammars are wrong."""
    spelled = {token_id: tokenizer.token_bytes(token_id) for token_id in token_ids}
    ends = [token_id for token_id in token_ids if token_id in tokenizer.eos_token_ids]
    escapes = [token_id for token_id, text in spelled.items() if text == b"\\"]
    quotes = [token_id for token_id, text in spelled.items() if text == b'"']
    for rare, chance in ((ends, 0.4), (quotes, 0.5 if last == b"\\" else 0.15), (escapes, 0.15)):
        if rare and draw.random() < chance:
            return draw.choice(rare)
    return draw.choice(token_ids)


@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(schema=whole_schemas(), seed=st.integers(0, 2**31))
def test_any_way_that_ends_is_valid(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, object], seed: int
) -> None:
    try:
        grammar = compiler.compile(StructuredOutputs(json=schema))
    except RequestError:
        return
    for walk in range(NUM_WALKS):
        draw, matcher, ids = Random(seed + walk), GrammarMatcher(grammar), list[int]()
        while len(ids) < MAX_STEPS and not (ids and ids[-1] in tokenizer.eos_token_ids):
            token_ids = allowed(matcher, tokenizer.vocab_size)
            assert matcher.error is None
            assert token_ids, "a request that may take no token could never go on"
            last = tokenizer.token_bytes(ids[-1]) if ids else b""
            ids.append(chosen(draw, token_ids, last, tokenizer))
            if walk % 2:
                ids += matcher.jump(ids[-1])
            else:
                matcher.follow(ids)
        if ids[-1] in tokenizer.eos_token_ids:
            check(schema, tokenizer.decode(ids[:-1]))

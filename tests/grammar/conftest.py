"""The tiny model's tokenizer, a grammar compiler for it, and an LLM on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLParserLimits

from ridgeline import LLM
from ridgeline.formats.gguf import open_gguf
from ridgeline.grammar.compiler import GrammarCompiler, _vocabulary_of
from ridgeline.grammar.matcher import CompiledGrammar
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return build_tokenizer(open_gguf(tiny_model).metadata, path=tiny_model)


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


@pytest.fixture(scope="session")
def fragile_grammar(tokenizer: Tokenizer) -> CompiledGrammar:
    """A grammar that becomes too complex after its first token."""
    return new_fragile_grammar(tokenizer)


def new_fragile_grammar(tokenizer: Tokenizer) -> CompiledGrammar:
    """The same for another vocabulary."""
    properties = {f"p{i}": {"type": "integer"} for i in range(30)}
    source = LLMatcher.grammar_from_json_schema({"type": "object", "properties": properties})
    limits = LLParserLimits(step_max_items=10, verbose_errors=False)
    prototype = LLMatcher(_vocabulary_of(tokenizer), source, log_level=0, limits=limits)
    return CompiledGrammar(
        prototype,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        forces_tokens=False,
    )


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        yield llm
        stats = llm.stats
        assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_used_blocks) == (0, 0, 0)
        llm.parts.engine.scheduler.check_integrity()

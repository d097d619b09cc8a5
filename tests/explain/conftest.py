"""The scripted engine of tests/engine, here as well."""

from tests.engine.conftest import byte_tokenizer, new_bench

__all__ = ["byte_tokenizer", "new_bench"]

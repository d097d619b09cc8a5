"""CompiledGrammar and GrammarMatcher: what a grammar allows next, for a request's output so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_JUMP_TOKENS = 256
"""Most tokens that one step adds without a choice."""


class CompiledGrammar:
    """A grammar for one vocabulary; never changes, any number of requests share it.

    `forces_tokens` says whether text that the grammar dictates is spelled in the tokenizer's own tokens.
    """

    def __init__(
        self,
        prototype: LLMatcher,
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
        forces_tokens: bool,
    ) -> None:
        self._prototype = prototype
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(eos_token_ids)
        self.eos_token_id = min(eos_token_ids)
        self.forces_tokens = forces_tokens

    def new_state(self) -> LLMatcher:
        """A matcher at the beginning."""
        return self._prototype.deep_copy()


class GrammarMatcher:
    """Follows one request's output through a grammar.

    Where the grammar dictates text, the tokens to come are settled: those that the tokenizer cuts it into,
    and EOS after a text that can't go on. They are `settled` ahead and the mask allows nothing else, so
    that the ids are the same whether they are sampled one by one or added at once by `jump`.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._restart()

    @property
    def error(self) -> str | None:
        """Why the grammar can't be followed any more (it grew too complex); None while it can."""
        if not self._state.is_error():
            return None
        return one_line(self._state.get_error()) or "llguidance gives no reason"

    def follow(self, output_token_ids: Sequence[int]) -> None:
        """Take what is new in a request's output; starts over if there is less than was taken before."""
        if len(output_token_ids) < self._num_taken:
            self._restart()
        for token_id in output_token_ids[self._num_taken :]:
            self._take(token_id)

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Write which tokens may come next: bit t % 32 of word t // 32 of `mask` for token t."""
        if self._settled:
            mask.fill(0)
            token_id = self._settled[0]
            mask[token_id // 32] = np.uint32(1 << (token_id % 32))
        else:
            self._state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def jump(self, token_id: int) -> list[int]:
        """Take a sampled token; the tokens that must follow it, at most `MAX_JUMP_TOKENS`, taken as well."""
        self._take(token_id)
        forced: list[int] = []
        while self._settled and len(forced) < MAX_JUMP_TOKENS:
            forced.append(self._settled[0])
            self._take(forced[-1])
        return forced

    def _restart(self) -> None:
        self._state = self._grammar.new_state()
        self._num_taken = 0
        self._settled: deque[int] = deque()
        self._settle()

    def _take(self, token_id: int) -> None:
        self._num_taken += 1
        if self._settled:
            assert token_id == self._settled[0], "the mask allowed one token only"
            self._settled.popleft()
        if token_id not in self._grammar.eos_token_ids:
            self._state.consume_token(token_id)
            if not self._settled:
                self._settle()

    def _settle(self) -> None:
        """Look ahead for what is dictated."""
        state = self._state
        if state.is_error():
            return
        if state.is_stopped():
            self._settled.append(self._grammar.eos_token_id)
        elif self._grammar.forces_tokens:
            self._settled.extend(state.compute_ff_tokens())


def one_line(message: str) -> str:
    """llguidance's message without line breaks and backtrace; what it repeats of a long grammar is cut."""
    words = message.partition("<backtrace>")[0].replace("<non-verbose/>", "").split()
    line = " ".join(word if len(word) <= 80 else f"{word[:40]}…{word[-20:]}" for word in words)
    return line if len(line) <= 1000 else f"{line[:500]} … {line[-500:]}"

"""GrammarMasks: the masks of a step, made by a thread of their own while the model computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.request import Request
from ridgeline.grammar.matcher import CompiledGrammar, GrammarMatcher

Mask = NDArray[np.uint32]


class GrammarMasks:
    """Holds the matchers of the requests whose output follows a grammar, and makes their masks.

    A matcher is made at a request's first step, follows its output from then on (over preemptions too) and
    is dropped when the request is finished. The thread starts with the first grammar.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._matchers: dict[Request, GrammarMatcher] = {}

    def start(self, requests: Sequence[Request]) -> Future[list[Mask | None]] | None:
        """Begin with the masks for the next token of each request; None where no request has a grammar.

        An entry is None for a request without a grammar, or whose grammar can't be followed any more.
        """
        if not any(request.grammar is not None for request in requests):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ridgeline-grammar")
        return self._thread.submit(self._masks, requests)

    def jump(self, request: Request, token_id: int) -> list[int]:
        """Tell of the token sampled for a request; what must follow it and needs no sampling.

        Nothing follows where logprobs are wanted: they take a pass through the model for each token.
        """
        matcher = self._matchers.get(request)
        if matcher is None or request.sampling_params.logprobs is not None:
            return []
        return matcher.jump(token_id)

    def error(self, request: Request) -> str | None:
        """Why a request's grammar can't be followed any more, None where it can."""
        matcher = self._matchers.get(request)
        return matcher.error if matcher is not None else None

    def close(self) -> None:
        """Stop the thread and forget the requests."""
        if self._thread is not None:
            self._thread.shutdown()
        self._matchers.clear()

    def _masks(self, requests: Sequence[Request]) -> list[Mask | None]:
        return [self._mask(request) if request.grammar is not None else None for request in requests]

    def _mask(self, request: Request) -> Mask | None:
        assert isinstance(request.grammar, CompiledGrammar)
        matcher = self._matchers.get(request)
        if matcher is None:
            self._matchers = {r: m for r, m in self._matchers.items() if not r.is_finished}
            matcher = self._matchers[request] = GrammarMatcher(request.grammar)
        matcher.follow(request.output_token_ids)
        mask = np.zeros(-(-request.grammar.vocab_size // 32), np.uint32)
        matcher.fill_mask(mask)
        return mask if matcher.error is None else None

"""The sampler of an executor: native for the native one, NumPy for the reference. Both choose alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.request import Request
from ridgeline.core.step import TokenLogprobs
from ridgeline.kernels import sampling_ops
from ridgeline.sampling import sampler as numpy_sampler

AllowedTokens = Sequence[NDArray[np.uint32] | None]
"""A mask for each row: bit t % 32 of word t // 32 allows token t; None allows all."""


class SamplerOutput(NamedTuple):
    """The next tokens of a step, logprobs where asked for, and the seconds that choosing took."""

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    seconds: float


class Sampler(Protocol):
    """Chooses tokens from logits float32[R, vocab_size]."""

    def sample(
        self, logits: NDArray[np.float32], requests: Sequence[Request], allowed_tokens: AllowedTokens = ()
    ) -> SamplerOutput:
        """The next token of each request, and logprobs where it asked for them.

        Raises:
            EngineError: a row has no finite maximum, or nothing is allowed.
        """
        ...

    def prompt_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Logprobs of a known text: `token_ids[i]` stands at the position that `logits[i]` predicts."""
        ...

    def close(self) -> None:
        """Give back threads and memory; nothing can be sampled afterwards."""
        ...


class ReferenceSampler:
    """The NumPy sampler. `now` reads the clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def sample(
        self, logits: NDArray[np.float32], requests: Sequence[Request], allowed_tokens: AllowedTokens = ()
    ) -> SamplerOutput:
        """See `Sampler.sample`."""
        rows = [
            numpy_sampler.SamplingRow(
                params=request.sampling_params,
                seed=request.seed,
                choice_index=request.choice_index,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                eos_token_ids=request.eos_token_ids,
                allowed_tokens=allowed,
            )
            for request, allowed in zip(requests, allowed_tokens or [None] * len(requests), strict=True)
        ]
        started_at_s = self._now()
        sampled = numpy_sampler.sample(logits, rows)
        seconds = self._now() - started_at_s
        return SamplerOutput([s.token_id for s in sampled], [s.logprobs for s in sampled], seconds)

    def prompt_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_logprobs: int
    ) -> list[TokenLogprobs]:
        """See `Sampler.prompt_logprobs`."""
        return numpy_sampler.prompt_logprobs(logits, token_ids, num_logprobs)

    def close(self) -> None:
        """Nothing to give back."""


class NativeSampler:
    """The native sampler, and what it remembers of the requests of the last step."""

    def __init__(self, vocab_size: int, *, num_threads: int) -> None:
        self._sampler = sampling_ops.Sampler(vocab_size, num_threads=num_threads)
        self._requests: Sequence[Request] = []
        self._rows: list[sampling_ops.RowSettings] = []

    def sample(
        self, logits: NDArray[np.float32], requests: Sequence[Request], allowed_tokens: AllowedTokens = ()
    ) -> SamplerOutput:
        """See `Sampler.sample`."""
        if requests != self._requests:
            # Who is not in this batch is forgotten; should it come back, its row is made again.
            known = dict(zip(self._requests, self._rows, strict=True))
            self._rows = [known.get(request) or _row(request) for request in requests]
            self._requests = requests
        positions = []
        for request, row in zip(requests, self._rows, strict=True):
            positions.append(len(request.output_token_ids))
            if row.counts_tokens:
                row.count_output(request.output_token_ids)
        return SamplerOutput(*self._sampler.sample(logits, self._rows, positions, allowed_tokens))

    def prompt_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_logprobs: int
    ) -> list[TokenLogprobs]:
        """See `Sampler.prompt_logprobs`."""
        return self._sampler.prompt_logprobs(logits, token_ids, num_logprobs)

    def close(self) -> None:
        """Stop the threads and forget the requests."""
        self._sampler.close()
        self._requests, self._rows = [], []


def _row(request: Request) -> sampling_ops.RowSettings:
    return sampling_ops.RowSettings(
        request.sampling_params,
        seed=request.seed,
        choice_index=request.choice_index,
        prompt_token_ids=request.prompt_token_ids,
        eos_token_ids=tuple(request.eos_token_ids),
    )

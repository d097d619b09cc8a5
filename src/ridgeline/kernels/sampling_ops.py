"""The native sampler, typed: one call for all rows of a step.

`Sampler` gives the same tokens and the same bits of every logprob as the NumPy sampler in `sampling`, for
any instruction set and number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import TokenLogprobs
from ridgeline.errors import ConfigError, EngineError, NonFiniteLogitsError
from ridgeline.kernels import _native
from ridgeline.sampling_params import SamplingParams

_NO_LOGPROBS = -2
_MAX_TOP_K = 2**31 - 1
_NON_FINITE = "without a finite maximum"
"""What the native sampler says of such logits."""


def available_sampling_isas() -> tuple[str, ...]:
    """Names of the instruction sets this machine has sampling kernels for, slowest first."""
    return tuple(_native.available_sampling_isas())


class RowSettings:
    """What the sampler knows of one request; made once, then told of new output tokens.

    `eos_token_ids` and the stop tokens are held back until `min_tokens`. Only a row that `counts_tokens`
    needs `count_output`.
    """

    __slots__ = ("counts_tokens", "native")

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice_index: int,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
    ) -> None:
        row = self.native = _native.SamplingRow()
        row.temperature, row.top_p, row.min_p = params.temperature, params.top_p, params.min_p
        row.top_k = min(params.top_k, _MAX_TOP_K)
        row.seed, row.choice_index = seed, choice_index
        row.num_logprobs = _NO_LOGPROBS if params.logprobs is None else params.logprobs
        row.min_tokens = min(params.min_tokens, _MAX_TOP_K)
        row.repetition_penalty = params.repetition_penalty
        row.presence_penalty, row.frequency_penalty = params.presence_penalty, params.frequency_penalty
        if params.min_tokens:
            row.hold_back([i for i in (*eos_token_ids, *params.stop_token_ids) if i <= _MAX_TOP_K])
        for token_id, bias in params.logit_bias.items():
            row.add_logit_bias(token_id, bias)
        self.counts_tokens = (
            params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        if self.counts_tokens:
            row.count_prompt(list(prompt_token_ids))

    def count_output(self, output_token_ids: Sequence[int]) -> None:
        """Tell of the output so far, if `counts_tokens`; only what is new is looked at."""
        num_counted = self.native.num_counted
        if len(output_token_ids) != num_counted:
            self.native.count_output(output_token_ids[num_counted:])


class Sampler:
    """Samples and ranks rows of logits float32[num_rows, vocab_size], with its own threads.

    `isa` picks the kernels of one instruction set, None the fastest.

    Raises:
        ConfigError: the system does not give the threads.
        EngineError: the size of the vocabulary or the name of the instruction set is wrong.
    """

    def __init__(self, vocab_size: int, *, num_threads: int = 1, isa: str | None = None) -> None:
        with _engine_errors():
            try:
                self._native = _native.Sampler(vocab_size, num_threads, isa)
            except RuntimeError as error:
                remedy = f"the system does not give the threads ({error}); take fewer"
                raise ConfigError("num_threads", num_threads, remedy) from None

    def close(self) -> None:
        """End the threads; nothing can be sampled afterwards. May be repeated."""
        self._native.close()

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[RowSettings],
        positions: Sequence[int],
        allowed_tokens: Sequence[NDArray[np.uint32] | None] = (),
    ) -> tuple[list[int], list[TokenLogprobs | None], float]:
        """One token for each row, logprobs where its request asked for them, and native seconds.

        `positions[i]` is the number of output tokens of row i, `allowed_tokens[i]` (if given) its mask: bit
        t % 32 of word t // 32 allows token t.

        Raises:
            EngineError: logits without a finite maximum, nothing allowed, or arrays that don't fit.
        """
        natives = [row.native for row in rows]
        try:  # not `_engine_errors`: this is called in every step
            token_ids, lists, seconds = self._native.sample(logits, natives, positions, allowed_tokens)
        except (ValueError, TypeError) as error:
            raise _engine_error(error) from error
        return token_ids, [entry if entry is None else TokenLogprobs(*entry) for entry in lists], seconds

    def prompt_logprobs(
        self, logits: NDArray[np.float32], token_ids: Sequence[int], num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Logprobs of a known text: `token_ids[i]` stands at the position that `logits[i]` predicts.

        `num_logprobs` as in `SamplingParams`.

        Raises:
            EngineError: logits without a finite maximum, or arrays that don't fit.
        """
        with _engine_errors():
            lists = self._native.token_logprobs(logits, list(token_ids), num_logprobs)
        return [TokenLogprobs(*entry) for entry in lists]


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise _engine_error(error) from error


def _engine_error(error: Exception) -> EngineError:
    message = str(error).partition("\n")[0]
    return NonFiniteLogitsError(message) if _NON_FINITE in message else EngineError(message)

"""Where each step of the path becomes the bottleneck: at which batch, context, length or rate, computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.config.engine import EngineLimits
from ridgeline.core.kv_cache_manager import num_blocks_for
from ridgeline.explain.path import PathStep
from ridgeline.perf import crossover
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.predict import Predictor
from ridgeline.perf.quantities import milliseconds

NOTABLE_SHARE = 0.1
_WORDS = {
    "batch": "a batch of {}",
    "context": "a context of {} tokens",
    "prompt_tokens": "{} tokens of prompt",
    "chunk_tokens": "{} tokens in a chunk",
    "requests_at_once": "{} requests at once",
    "requests_per_s": "{} requests a second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """What ran: requests together, tokens of each prompt and answer, and the engine's limits."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    limits: EngineLimits

    @property
    def context(self) -> int:
        """Tokens of a request at its end."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def fitting_requests(self) -> int:
        """Requests of this length that run at once: by max_num_seqs, or by blocks."""
        by_blocks = self.limits.num_blocks // num_blocks_for(self.context, self.limits.block_size)
        return max(min(self.max_num_seqs, by_blocks), 1)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """At `at` of `variable` the step begins to rule; None: nowhere up to `most`. `what` says what then."""

    variable: str
    at: float | None
    most: int
    what: str

    @property
    def text(self) -> str:
        """One sentence."""
        words = _WORDS[self.variable]
        if self.at is None:
            return f"not up to {words.format(f'{self.most:,}')}: {self.what}"
        return f"from {words.format(_number(self.at))} on: {self.what}"

    def document(self) -> dict[str, Any]:
        """The crossing as JSON has it."""
        return {"variable": self.variable, "at": self.at, "most": self.most, "what": self.what}


class Bottlenecks:
    """Computes the crossings for one model, machine and regime; sampling and text at their measured pace."""

    def __init__(self, model: ModelShape, profile: HardwareProfile, regime: Regime) -> None:
        self._model = model
        self._regime = regime
        self._bounds = OpBounds(model, profile)
        self._predictor = Predictor(model, profile)

    def of(self, path: Mapping[str, PathStep]) -> dict[str, Sequence[Bottleneck]]:
        """By step of the path."""
        return {
            "tokenize": self._tokenize(path["tokenize"].seconds),
            "queue": self._queue(),
            "prefill": self._prefill(),
            "decode": self._decode(),
            "sample": self._each("sample", path["sample"], "choosing tokens"),
            "detokenize": self._each("detokenize", path["detokenize"], "making text"),
        }

    def _tokenize(self, seconds: float) -> list[Bottleneck]:
        """Both grow by the token, so what it competes with is a step that computes no prompt."""
        step_s = self._decode_s(1)
        at = self._regime.num_prompt_tokens * step_s / seconds if seconds else None
        what = (
            f"tokenising takes longer than a decode step of {milliseconds(step_s)}: half of TTFT where the "
            "prefix cache holds the prompt"
        )
        return [Bottleneck("prompt_tokens", at, crossover.MAX_CONTEXT, what)]

    def _queue(self) -> list[Bottleneck]:
        regime = self._regime
        fitting = regime.fitting_requests
        by_blocks = fitting < regime.max_num_seqs
        limit = f"KV blocks ({regime.limits.num_blocks:,})" if by_blocks else "max_num_seqs"
        found = [
            Bottleneck("requests_at_once", fitting + 1, fitting + 1, f"requests wait for {limit} to be free")
        ]
        if regime.num_output_tokens:
            rate = crossover.requests_per_s(
                self._predictor,
                fitting,
                num_prompt_tokens=regime.num_prompt_tokens,
                num_output_tokens=regime.num_output_tokens,
            )
            what = f"requests like this arrive faster than {fitting} at once finish: the queue grows"
            found.append(Bottleneck("requests_per_s", rate, 0, what))
        return found

    def _prefill(self) -> list[Bottleneck]:
        chunk = min(self._regime.max_num_batched_tokens, self._regime.limits.max_model_len)
        ridge = crossover.ridge_prompt_tokens(self._bounds)
        attention = crossover.attention_prompt_tokens(self._predictor, chunk)
        stall = crossover.stalling_chunk(self._predictor, 1, self._regime.context)
        attended = (
            f"attention takes more of a chunk of {chunk} than everything else (it grows with the square)"
        )
        return [
            Bottleneck(
                "prompt_tokens", ridge, crossover.MAX_BATCH, "the products are bound by compute, not weights"
            ),
            Bottleneck("chunk_tokens", stall, crossover.MAX_BATCH, "a decode beside it waits twice as long"),
            Bottleneck("context", attention, crossover.MAX_CONTEXT, self._within(attended, attention)),
        ]

    def _decode(self) -> list[Bottleneck]:
        batch = self._regime.num_requests
        ridge = crossover.ridge_batch(self._bounds)
        kv = crossover.kv_context(self._model, batch)
        attention = crossover.attention_context(self._predictor, batch)
        beside = "" if batch == 1 else f" in a batch of {batch}"
        return [
            Bottleneck(
                "batch", ridge, crossover.MAX_BATCH, "the products are bound by compute: the ridge"
            ),
            Bottleneck(
                "context", kv, crossover.MAX_CONTEXT,
                self._within(f"a step reads more K and V than weights{beside}", kv),
            ),
            Bottleneck(
                "context", attention, crossover.MAX_CONTEXT,
                self._within(f"attention takes longer than everything else{beside}", attention),
            ),
        ]  # fmt: skip

    def _each(self, step: str, taken: PathStep, doing: str) -> list[Bottleneck]:
        if not taken.count:
            return []
        # Sampling is one native call a step for all requests; text is made one by one.
        each_s = taken.seconds / taken.count / (self._regime.num_requests if step == "sample" else 1)

        def rest_s(batch: int) -> float:
            predicted = self._predictor.predict(crossover.decode_step(batch, self._regime.context))
            return predicted.total_s - (predicted.op_s["sample"] if step == "sample" else 0.0)

        at = crossover.saturation_batch(rest_s, each_s=each_s, share=NOTABLE_SHARE)
        most = crossover.MAX_BATCH
        what = f"{doing} takes {100 * NOTABLE_SHARE:.0f} % of a decode step"
        if at is None:
            share = each_s * most / (rest_s(most) + each_s * most)
            what += f" ({100 * share:.1f} % there)"
        return [Bottleneck("batch", at, most, what)]

    def _decode_s(self, batch: int) -> float:
        return self._predictor.predict(crossover.decode_step(batch, self._regime.context)).total_s

    def _within(self, what: str, context: float | None) -> str:
        longest = self._regime.limits.max_model_len
        if context is None or context <= longest:
            return what
        return f"{what}; beyond the {longest:,} of this engine"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"

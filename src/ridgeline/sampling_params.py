"""SamplingParams: what a user wishes of one request, in vLLM's names and meanings."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.errors import RequestError
from ridgeline.structured_outputs import StructuredOutputs, ToolCallForm

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request; validated on construction, then frozen.

    Raises:
        RequestError: a field is out of range; names the field, its value and the remedy.
    """

    n: int = 1
    """Completions per prompt, 1…128."""
    temperature: float = 1.0
    """0 is greedy; any other value ≥ 0 divides the logits."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probabilities sum to at least this; in (0, 1]."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 and −1 keep all."""
    min_p: float = 0.0
    """Drop tokens below this fraction of the best token's probability; in [0, 1]."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token generated so far; in [−2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit per time it was generated; in [−2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive (multiplies negative) logits of tokens in prompt or output; > 0."""
    seed: int | None = None
    """0…2⁶³−1 makes the draw repeatable; None and −1 draw a seed at arrival."""
    stop: Sequence[str] = ()
    """At most 16 strings that end the text; a single string is taken as one."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the request; kept in `token_ids`, left out of the text."""
    include_stop_str_in_output: bool = False
    """Keep the matched stop string at the end of the text."""
    ignore_eos: bool = False
    """Go on after the model's own end-of-sequence token."""
    max_tokens: int | None = 16
    """Most tokens to generate, ≥ 1; None means until the context is full."""
    min_tokens: int = 0
    """No EOS, stop token or stop string before this many tokens."""
    logprobs: int | None = None
    """Top-n log-probabilities per generated token; −1 is the whole vocabulary."""
    prompt_logprobs: int | None = None
    """Top-n log-probabilities per prompt token; −1 is the whole vocabulary."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logit of each token id; values in [−100, 100]."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the text."""
    structured_outputs: StructuredOutputs | ToolCallForm | None = None
    """The form that the text must have; None leaves it free."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _tuple_of("stop", stop, str))
        object.__setattr__(self, "stop_token_ids", _tuple_of("stop_token_ids", self.stop_token_ids, int))
        if isinstance(self.seed, int) and self.seed == -1:
            object.__setattr__(self, "seed", None)
        object.__setattr__(self, "logit_bias", _checked_logit_bias(self.logit_bias))
        self._check_numbers()
        self._check_counts()
        self._check_stops()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(name, getattr(self, name), "must be true or false")
        if self.structured_outputs is not None:
            self._check_structure()

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken without a draw."""
        return self.temperature == 0

    def _check_numbers(self) -> None:
        _check_number("temperature", self.temperature, "must be a finite number ≥ 0", low=0.0)
        _check_number("top_p", self.top_p, "must be in (0, 1]; 1 keeps all tokens", high=1.0, above=0.0)
        _check_number("min_p", self.min_p, "must be in [0, 1]; 0 keeps all tokens", low=0.0, high=1.0)
        _check_number("presence_penalty", self.presence_penalty, "must be in [-2, 2]", low=-2.0, high=2.0)
        _check_number("frequency_penalty", self.frequency_penalty, "must be in [-2, 2]", low=-2.0, high=2.0)
        _check_number("repetition_penalty", self.repetition_penalty, "must be > 0; 1 is none", above=0.0)

    def _check_counts(self) -> None:
        _check_int("n", self.n, f"must be a whole number in 1…{MAX_N}", low=1, high=MAX_N)
        _check_int("top_k", self.top_k, "must be ≥ 1, or 0 or -1 to keep all tokens", low=-1)
        _check_int("min_tokens", self.min_tokens, "must be a whole number ≥ 0", low=0)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, "must be a whole number ≥ 1", low=1)
            if self.min_tokens > self.max_tokens:
                raise RequestError("min_tokens", self.min_tokens, f"must be ≤ max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), "must be ≥ 0, or -1 for the whole vocabulary", low=-1)
        if self.seed is not None:
            _check_int("seed", self.seed, "must be in 0…2**63-1, or -1 for none", low=0, high=MAX_SEED)

    def _check_structure(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputs | ToolCallForm):
            raise RequestError("structured_outputs", self.structured_outputs, "must be StructuredOutputs")
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                remedy = "leave it out: with structured_outputs the form alone says where the text ends"
                raise RequestError(name, getattr(self, name), remedy)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError("stop", list(self.stop), f"at most {MAX_STOP_STRINGS} stop strings")
        if "" in self.stop:
            raise RequestError("stop", list(self.stop), "a stop string may not be empty")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, "token ids are whole numbers ≥ 0", low=0)


def _tuple_of(name: str, value: object, kind: type) -> tuple[object, ...]:
    if value is None:
        return ()
    if isinstance(value, bytes | str) or not isinstance(value, Sequence | set | frozenset):
        raise RequestError(name, value, f"must be a list of {kind.__name__}")
    for item in value:
        if not isinstance(item, kind) or isinstance(item, bool):
            raise RequestError(name, item, f"every entry must be {kind.__name__}")
    return tuple(value)


def _checked_logit_bias(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError("logit_bias", value, "must map token ids to numbers")
    checked: dict[int, float] = {}
    for key, bias in value.items():
        is_digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20
        token_id = int(key) if is_digits else key
        _check_int("logit_bias", token_id, "token ids are whole numbers ≥ 0", low=0)
        _check_number(
            "logit_bias", bias, f"the bias of token {token_id} must be in [-100, 100]", low=-100.0, high=100.0
        )
        checked[token_id] = float(bias)
    return checked


def _check_number(
    name: str,
    value: object,
    remedy: str,
    *,
    low: float = -sys.float_info.max,
    high: float = sys.float_info.max,
    above: float = -math.inf,
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value <= above:  # type: ignore[operator]
        raise RequestError(name, value, remedy)


def _check_int(name: str, value: object, remedy: str, *, low: int, high: float = math.inf) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(name, value, remedy)

"""Options that several commands take, and how they become settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ridgeline.errors import ConfigError
from ridgeline.llm import LLM
from ridgeline.sampling_params import SamplingParams

Flag = Parameter(negative="")
Repeated = Parameter(negative="", consume_multiple=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which model to load, and how."""

    model: str = "smollm2-135m-instruct"
    """Catalogue name, hf: name or path of a .gguf file."""
    executor: str = "native"
    """native, or reference: NumPy in float32, exact and some ten times slower."""
    num_threads: int | None = None
    """CPU threads; by default the physical cores this process may use."""
    block_size: int = 32
    """Tokens per KV block: 16, 32 or 64."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; by default the model's own."""
    kv_cache_bytes: int | None = None
    """Bytes of K and V of all layers; by default at most a quarter of the available memory."""
    max_num_seqs: int = 32
    """Most requests running at once."""
    max_num_batched_tokens: int = 512
    """Most tokens computed in one step."""
    enable_prefix_caching: bool = True
    """Share the blocks of what requests have in common at their beginning."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in one step, and the length above which a prompt is long; 0 sets none."""
    max_num_partial_prefills: int = 2
    """Most prompts that may be partly computed after a step."""
    max_long_partial_prefills: int = 1
    """Most of these that may be long."""
    scheduling_policy: str = "fcfs"
    """fcfs: first come, first served; priority: lower priority first."""
    priority_aging_s: float = 30.0
    """Seconds of waiting that count as one step of priority."""
    watermark: float = 0.01
    """Share of the KV blocks that admission leaves free."""
    chat_template: Path | None = None
    """File with a Jinja2 chat template to use instead of the model's."""

    def load(self) -> LLM:
        """The loaded model.

        Raises:
            ConfigError: the chat template can't be read; otherwise as `LLM`.
        """
        return LLM(**self.settings())

    def settings(self) -> dict[str, Any]:
        """The arguments of `LLM`, and of `AsyncLLM`, by name.

        Raises:
            ConfigError: the chat template can't be read.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "chat_template": _template_text(self.chat_template)}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How to choose the next token, and when to stop."""

    max_tokens: int = 256
    """Most tokens to generate."""
    min_tokens: int = 0
    """No end before this many tokens."""
    temperature: float = 0.0
    """0 takes the most probable token; higher is more varied."""
    top_k: int = 0
    """Draw from the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this probability."""
    min_p: float = 0.0
    """Drop tokens below this fraction of the best one's probability."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that are there already; 1 is none."""
    presence_penalty: float = 0.0
    """Subtracted once from every token generated so far."""
    frequency_penalty: float = 0.0
    """Subtracted from a token per time it was generated."""
    seed: int | None = None
    """Makes the draws repeatable."""
    stop: Annotated[tuple[str, ...], Repeated] = ()
    """Text that ends the answer; may be given several times."""
    ignore_eos: Annotated[bool, Flag] = False
    """Go on after the model's own end token."""

    def params(self) -> SamplingParams:
        """The same as SamplingParams.

        Raises:
            RequestError: an option is out of range.
        """
        return SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
        )


def _template_text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("chat_template", str(path), f"can't be read: {error}") from None

"""Options of a load run, under vLLM's names, and how they become settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.options import Flag
from ridgeline.config.env import openai_api_key
from ridgeline.errors import ConfigError
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings, server_root
from ridgeline.workload.arrivals import Ramp
from ridgeline.workload.synthetic import PrefixRepetition, RandomLengths

Words = Parameter(negative="", consume_multiple=True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Which server, and how to speak to it."""

    url: Annotated[str, Parameter(name=["--url", "--base-url"])] = "http://127.0.0.1:8000"
    """The server's root; a /v1 at its end may stay."""
    backend: str = "openai"
    """openai or vllm: /v1/completions; openai-chat: /v1/chat/completions."""
    endpoint: str | None = None
    """Another path below the root."""
    model: str | None = None
    """The model's name in requests; by default the first of /v1/models."""
    served_model_name: str | None = None
    """The name in requests where it differs from --model, which then only labels the result."""
    tokenizer: str | None = None
    """A .gguf or tokenizer.json for exact text lengths, and for counts where the server sends no usage."""
    api_key: str | None = None
    """Bearer token; by default $OPENAI_API_KEY."""
    header: Annotated[tuple[str, ...], Words] = ()
    """NAME=VALUE, more headers for every request."""
    extra_body: str | None = None
    """A JSON object whose keys go into every request, as {"temperature": 0}."""
    request_timeout_s: float = 600.0
    """Longest time from a request's send to its end; longer is a failure of kind timeout."""
    ready_check_timeout_sec: float = 0.0
    """Wait at most so long for a 200 from /health before the run; 0 does not ask."""
    stream_usage: str = "chunk"
    """Ask for usage in every chunk, in a final one, or none."""
    ignore_eos: bool | None = None
    """Generate all tokens asked for; by default on for drawn prompts and traces, off for conversations."""

    def settings(self) -> TargetSettings:
        """The same, checked.

        Raises:
            ConfigError: an option is out of range or no NAME=VALUE or JSON.
        """
        return TargetSettings(
            url=server_root(self.url),
            backend=self.backend,
            endpoint=self.endpoint,
            model=self.model,
            served_model_name=self.served_model_name,
            tokenizer=self.tokenizer,
            headers=name_values("header", self.header),
            extra_body=_json_object(self.extra_body),
            request_timeout_s=self.request_timeout_s,
            stream_usage=self.stream_usage,
            ignore_eos=self.ignore_eos,
        )

    @property
    def key(self) -> str | None:
        """The API key, from the option or the environment."""
        return self.api_key if self.api_key is not None else openai_api_key()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Which prompts."""

    dataset: Annotated[str, Parameter(name=["--dataset", "--dataset-name"])] = "random"
    """random, prefix_repetition, sharegpt, custom, mooncake, azure or burstgpt."""
    dataset_path: Path | None = None
    """The dataset's file; nothing is downloaded."""
    num_prompts: int = 1000
    """How many requests; fewer where the dataset has fewer."""
    random_input_len: int = 1024
    """Prompt tokens of random requests."""
    random_output_len: int = 128
    """Output tokens of random requests."""
    random_range_ratio: float = 0.0
    """Lengths vary uniformly by this share up and down."""
    random_prefix_len: int = 0
    """Tokens on top that begin every random prompt alike."""
    prefix_repetition_prefix_len: int = 256
    """Tokens of each shared prefix."""
    prefix_repetition_suffix_len: int = 256
    """Tokens after it, another for each request."""
    prefix_repetition_num_prefixes: int = 10
    """How many prefixes."""
    prefix_repetition_output_len: int = 128
    """Output tokens."""
    output_len: Annotated[
        int | None, Parameter(name=["--output-len", "--sharegpt-output-len", "--custom-output-len"])
    ] = None
    """Output tokens of a conversation, in place of the dataset's own."""
    max_prompt_tokens: int | None = None
    """Longer prompts of a trace are left out, and counted."""
    long_prompts: str = "drop"
    """drop or clip what --max-prompt-tokens finds too long."""
    spread_ticks: Annotated[bool, Flag] = False
    """Spread a trace's requests of one timestamp evenly up to the next."""
    prompts_as: str = "auto"
    """ids or text; auto sends ids to completions and text to a chat."""

    def settings(self, seed: int) -> DatasetSettings:
        """The same, checked.

        Raises:
            ConfigError: an option is out of range, or a file is missing or not wanted.
        """
        return DatasetSettings(
            name=self.dataset.replace("-", "_"),
            path=self.dataset_path,
            num_prompts=self.num_prompts,
            random=RandomLengths(
                input_len=self.random_input_len,
                output_len=self.random_output_len,
                range_ratio=self.random_range_ratio,
                prefix_len=self.random_prefix_len,
            ),
            prefix_repetition=PrefixRepetition(
                prefix_len=self.prefix_repetition_prefix_len,
                suffix_len=self.prefix_repetition_suffix_len,
                num_prefixes=self.prefix_repetition_num_prefixes,
                output_len=self.prefix_repetition_output_len,
            ),
            output_len=self.output_len,
            max_prompt_tokens=self.max_prompt_tokens,
            long_prompts=self.long_prompts,
            spread_ticks=self.spread_ticks,
            prompts_as=self.prompts_as,
            seed=seed,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """When to send."""

    request_rate: float = math.inf
    """Requests per second; inf sends all at once. Sending never waits for answers."""
    burstiness: float = 1.0
    """Shape of the gaps: 1 is Poisson, below it burstier, above smoother, inf constant."""
    max_concurrency: int | None = None
    """Most requests in flight; with a finite rate the wait for a place counts as latency."""
    ramp_up_strategy: str | None = None
    """linear or exponential: the rate climbs over the run."""
    ramp_up_start_rps: int | None = None
    """Rate at the ramp's start."""
    ramp_up_end_rps: int | None = None
    """Rate at its end."""
    self_timed: Annotated[bool, Flag] = False
    """Send at the dataset's own instants; traces do so unless a rate is given."""
    trace_speed: float = 1.0
    """Replay so many times as fast."""
    num_warmups: int = 0
    """Requests before the run, of its lengths and other prompts; no part of the result."""
    probe_request_rate: float = 0.0
    """Single-token requests per second beside the run, outside the cap."""
    seed: int = 0
    """Seed of prompts and arrivals."""

    def settings(self) -> TrafficSettings:
        """The same, checked.

        Raises:
            ConfigError: an option is out of range or contradicts another.
        """
        return TrafficSettings(
            request_rate=self.request_rate,
            burstiness=self.burstiness,
            max_concurrency=self.max_concurrency,
            ramp=self._ramp(),
            self_timed=self.self_timed,
            trace_speed=self.trace_speed,
            num_warmups=self.num_warmups,
            probe_request_rate=self.probe_request_rate,
            seed=self.seed,
        )

    def _ramp(self) -> Ramp | None:
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise ConfigError("ramp_up_strategy", None, "give linear or exponential with the rates")
            return None
        start, end = ends
        if start is None or end is None:
            raise ConfigError("ramp_up_start_rps", start, "a ramp needs --ramp-up-start-rps and -end-rps")
        return Ramp(self.ramp_up_strategy, start, end)


def name_values(field: str, words: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE words as a dict; of a name given twice the last one counts.

    Raises:
        ConfigError: a word without = or without a name.
    """
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(field, word, "must be NAME=VALUE")
        pairs[name.strip()] = value
    return pairs


def _json_object(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("extra_body", text, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("extra_body", text, "must be a JSON object")
    return value

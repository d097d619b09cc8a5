"""The settings of a load run, checked once; names and meanings are vLLM's where it has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.config.checks import check_at_least, check_one_of
from ridgeline.errors import ConfigError
from ridgeline.workload.arrivals import Ramp
from ridgeline.workload.synthetic import PrefixRepetition, RandomLengths

BACKENDS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
DATASETS = ("random", "prefix_repetition", "sharegpt", "custom", "mooncake", "azure", "burstgpt")
TRACES = ("mooncake", "azure", "burstgpt")


def server_root(url: str) -> str:
    """The server's root of a URL that may end in /v1, as clients of OpenAI's API are given it."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Which server, and how to speak to it. `url` is the server's root, without /v1."""

    url: str
    backend: str = "openai"
    endpoint: str | None = None
    model: str | None = None
    served_model_name: str | None = None
    tokenizer: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, object] = field(default_factory=dict)
    request_timeout_s: float = 600.0
    stream_usage: str = "chunk"
    ignore_eos: bool | None = None

    def __post_init__(self) -> None:
        check_one_of("backend", self.backend, tuple(BACKENDS))
        check_one_of("stream_usage", self.stream_usage, ("chunk", "final", "none"))
        if not 0 < self.request_timeout_s < math.inf:
            raise ConfigError("request_timeout_s", self.request_timeout_s, "must be finite and > 0 seconds")
        if self.endpoint is not None and not self.endpoint.startswith("/"):
            raise ConfigError("endpoint", self.endpoint, "must begin with /")

    @property
    def is_chat(self) -> bool:
        """Messages in, deltas out."""
        return self.backend == "openai-chat"

    @property
    def path(self) -> str:
        """Path of the endpoint below the server's root."""
        return self.endpoint or BACKENDS[self.backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """Which prompts. `max_prompt_tokens` drops longer ones of a trace, or clips them (`long_prompts`)."""

    name: str = "random"
    path: Path | None = None
    num_prompts: int = 1000
    random: RandomLengths = RandomLengths()  # noqa: RUF009 - frozen
    prefix_repetition: PrefixRepetition = PrefixRepetition()  # noqa: RUF009 - frozen
    output_len: int | None = None
    max_prompt_tokens: int | None = None
    long_prompts: str = "drop"
    spread_ticks: bool = False
    prompts_as: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check_one_of("dataset", self.name, DATASETS)
        check_one_of("long_prompts", self.long_prompts, ("drop", "clip"))
        check_one_of("prompts_as", self.prompts_as, ("auto", "ids", "text"))
        check_at_least("num_prompts", self.num_prompts, 1)
        for name in ("output_len", "max_prompt_tokens"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        if (self.path is None) != (self.name in ("random", "prefix_repetition")):
            remedy = f"{self.name} takes no file" if self.path else f"{self.name} needs its file"
            raise ConfigError("dataset_path", self.path and str(self.path), remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSettings:
    """When to send. `self_timed`: at the dataset's own instants, `trace_speed` times as fast."""

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp: Ramp | None = None
    self_timed: bool = False
    trace_speed: float = 1.0
    num_warmups: int = 0
    probe_request_rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_concurrency is not None:
            check_at_least("max_concurrency", self.max_concurrency, 1)
        check_at_least("num_warmups", self.num_warmups, 0)
        if self.ramp is not None and self.request_rate != math.inf:
            raise ConfigError("request_rate", self.request_rate, "is set by --ramp-up-strategy; give one")
        if self.self_timed and (self.ramp is not None or self.request_rate != math.inf):
            raise ConfigError("self_timed", True, "excludes --request-rate and --ramp-up-strategy")
        if not 0 <= self.probe_request_rate < math.inf:
            raise ConfigError("probe_request_rate", self.probe_request_rate, "must be finite and ≥ 0")
        if not self.request_rate > 0:
            raise ConfigError("request_rate", self.request_rate, "must be > 0 requests/s")
        if not self.burstiness > 0:
            raise ConfigError("burstiness", self.burstiness, "must be > 0: 1 is Poisson, inf constant gaps")

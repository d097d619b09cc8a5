"""EngineConfig: what a user may set of an engine; EngineLimits: what it came to on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.config.checks import check_at_least, check_one_of
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.errors import ConfigError

BLOCK_SIZES = (16, 32, 64)
MAX_NUM_THREADS = 256
EXECUTORS = ("native", "reference")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; None means "decide from the machine and the model".

    Raises:
        ConfigError: a setting is out of range.
    """

    model: str = "smollm2-135m-instruct"
    """Catalogue name, `hf:` name or path of a .gguf file."""
    executor: str = "native"
    """`native`, or `reference`: NumPy in float32, slow and exact."""
    num_threads: int | None = None
    """CPU threads; None takes the physical cores this process may use."""
    block_size: int = 32
    """Tokens per KV block: 16, 32 or 64."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; None takes the model's own."""
    kv_cache_bytes: int | None = None
    """Bytes of K and V of all layers; None takes at most a quarter of the available memory."""
    enable_prefix_caching: bool = True
    """Whether requests that begin alike share the blocks of what they have in common."""
    max_num_events: int = 100_000
    """Length of the event log, in events; one about a batch counts once for every four of its requests."""
    chat_template: str | None = None
    """Text of a Jinja2 chat template; None takes the model file's."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        check_one_of("executor", self.executor, EXECUTORS)
        check_at_least("block_size", self.block_size, 1)
        check_one_of("block_size", self.block_size, BLOCK_SIZES)
        if self.chat_template is not None and not isinstance(self.chat_template, str):
            raise ConfigError("chat_template", self.chat_template, "must be the template's text")
        check_at_least("max_num_events", self.max_num_events, 1)
        for name, minimum in (("num_threads", 1), ("max_model_len", 2), ("kv_cache_bytes", 1)):
            value = getattr(self, name)
            if value is not None:
                check_at_least(name, value, minimum)
        if self.num_threads is not None and self.num_threads > MAX_NUM_THREADS:
            raise ConfigError("num_threads", self.num_threads, f"at most {MAX_NUM_THREADS}")


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The numbers a request is checked against."""

    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int

"""ServerConfig: where the HTTP server listens, whom it lets in, and how much it takes on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ridgeline.config.checks import check_at_least, check_one_of, check_seconds
from ridgeline.errors import ConfigError

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
LOG_FORMATS = ("text", "json")
TOOL_CALL_PARSERS = ("auto", "hermes", "llama3_json", "json")
"""Those of the table in tools/formats, and the choice by template and family."""
_DURATIONS = ("body_timeout_s", "stalled_client_timeout_s", "max_request_timeout_s", "drain_timeout_s")
_KEY = re.compile(r"[\x21-\x7e]+")
_HTTP_URL = re.compile(r"https?://[\x21-\x7e]+")
_METRICS_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the server around one engine. Its repr never shows a key.

    Raises:
        ConfigError: a setting is out of range.
    """

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 and :: take requests from other machines."""
    port: int = 8000
    """TCP port; 0 lets the system choose a free one."""
    metrics_port: int | None = None
    """Own port for /metrics and the admin routes; None keeps them on `port`."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Any of these opens the server; none leaves it open to everyone who reaches the port."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may call from a browser, as https://host; * is every page; none sends no CORS header."""
    served_model_names: tuple[str, ...] = ()
    """Names of the model in requests, the first in answers; none takes the model's own."""
    strict: bool = False
    """Whether an unknown field of a request is an error instead of a warning header."""
    max_body_bytes: int = 16 * 2**20
    """Largest request body in bytes."""
    body_timeout_s: float = 30.0
    """Longest time for a request's headers, and again for its body, to arrive."""
    stalled_client_timeout_s: float = 120.0
    """A client that reads nothing for so long, while its answer waits, is disconnected."""
    max_num_waiting: int = 512
    """Most sequences waiting for one of the `max_num_seqs` places; more get 429."""
    max_logprobs: int = 20
    """Most logprobs that a request may ask for at each token, of its prompt too; -1 sets no limit."""
    request_timeout_s: float | None = None
    """Time from a request's arrival to its end where it names none; None sets no limit."""
    max_request_timeout_s: float = 3600.0
    """Longest time that a request may ask for."""
    drain_timeout_s: float = 30.0
    """How long running requests may go on after SIGTERM; then they end with finish reason timeout."""
    metrics_prefixes: tuple[str, ...] = ("ridgeline",)
    """Prefixes of the metrics' names; each metric is exposed under all of them."""
    metrics_buckets: tuple[str, ...] = ()
    """FAMILY=LIMITS for each family of the histograms' buckets to replace."""
    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector that gets a span for each request, as http://localhost:4318."""
    tool_call_parser: str = "auto"
    """How the model writes tool calls: auto goes by its template, then by its family."""
    log_format: str = "text"
    """text or json: one line a request, and one a message."""
    log_bodies: bool = False
    """Whether request bodies go into the log, cut at 2,000 bytes."""

    def __post_init__(self) -> None:
        self._check_addresses()
        self._check_names()
        check_at_least("max_body_bytes", self.max_body_bytes, 1024)
        check_at_least("max_num_waiting", self.max_num_waiting, 0)
        check_at_least("max_logprobs", self.max_logprobs, -1)
        for name in _DURATIONS:
            check_seconds(name, getattr(self, name))
        if self.request_timeout_s is not None:
            check_seconds("request_timeout_s", self.request_timeout_s)
            if self.request_timeout_s > self.max_request_timeout_s:
                remedy = f"must be ≤ max_request_timeout_s ({self.max_request_timeout_s:g})"
                raise ConfigError("request_timeout_s", self.request_timeout_s, remedy)
        if self.otlp_endpoint is not None and not _HTTP_URL.fullmatch(self.otlp_endpoint):
            raise ConfigError("otlp_endpoint", self.otlp_endpoint, "must be a URL, as http://localhost:4318")
        check_one_of("tool_call_parser", self.tool_call_parser, TOOL_CALL_PARSERS)
        check_one_of("log_format", self.log_format, LOG_FORMATS)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK_HOSTS

    def _check_addresses(self) -> None:
        if not self.host or self.host != self.host.strip():
            raise ConfigError("host", self.host, "must be an address, as 127.0.0.1")
        for name in ("port", "metrics_port"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or not 0 <= value <= 65535):
                raise ConfigError(name, value, "must be in 0…65535; 0 takes a free one")
        if self.metrics_port is not None and self.metrics_port == self.port != 0:
            raise ConfigError("metrics_port", self.metrics_port, "must differ from port, or be left out")
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
                raise ConfigError("allowed_origins", origin, "must be https://host, http://host:port or *")

    def _check_names(self) -> None:
        for key in self.api_keys:
            if not _KEY.fullmatch(key):
                # The key itself must not be shown, not even a wrong one.
                raise ConfigError("api_key", "…", "a key is printable ASCII without spaces")
        for name in self.served_model_names:
            if not name.strip():
                raise ConfigError("served_model_name", name, "may not be empty")
        if not self.metrics_prefixes:
            raise ConfigError("metrics_prefix", "", "give at least one, as ridgeline or ridgeline,vllm")
        for prefix in self.metrics_prefixes:
            if not _METRICS_PREFIX.fullmatch(prefix):
                raise ConfigError("metrics_prefix", prefix, "must be letters, digits and _")

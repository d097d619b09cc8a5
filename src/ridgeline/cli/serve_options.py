"""Options of `ridgeline serve`, and how they become a ServerConfig."""

from __future__ import annotations

import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.load_options import Words
from ridgeline.cli.options import Flag, Repeated
from ridgeline.cli.text_files import read_lines
from ridgeline.config.env import server_api_keys
from ridgeline.config.server import ServerConfig
from ridgeline.errors import ConfigError


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where to listen, whom to let in, and how much to take on."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 takes requests from other machines."""
    port: int = 8000
    """TCP port; 0 takes a free one, which the ready line on stdout names."""
    metrics_port: int | None = None
    """Own port for /metrics and the admin routes; by default they are on --port."""
    api_key: Annotated[tuple[str, ...], Repeated] = ()
    """A key that clients must send; may be given several times. Better: --api-key-file."""
    api_key_file: Path | None = None
    """File with one key a line; lines that begin with # are left out. Also: $RIDGELINE_API_KEY."""
    allowed_origins: Annotated[tuple[str, ...], Words] = ()
    """Web pages that may call from a browser, as https://host; none by default."""
    served_model_name: Annotated[tuple[str, ...], Words] = ()
    """Names of the model in requests, the first in answers; by default the model's own."""
    strict: Annotated[bool, Flag] = False
    """Refuse unknown fields of a request, instead of naming them in a warning header."""
    max_body_bytes: int = 16 * 2**20
    """Largest request body in bytes."""
    body_timeout_s: float = 30.0
    """Longest time for a request's headers, and again for its body, to arrive."""
    stalled_client_timeout_s: float = 120.0
    """Disconnect a client that reads nothing for so long while its answer waits."""
    max_num_waiting: int = 512
    """Most sequences waiting for one of the --max-num-seqs places; more get 429."""
    max_logprobs: int = 20
    """Most logprobs a token that a request may ask for; -1 sets no limit."""
    request_timeout_s: float | None = None
    """Time from a request's arrival to its end where it names none; by default no limit."""
    max_request_timeout_s: float = 3600.0
    """Longest time that a request may ask for."""
    drain_timeout_s: float = 30.0
    """How long running requests may go on after SIGTERM."""
    metrics_prefix: str = "ridgeline"
    """Prefixes of the metrics' names, separated by commas: vllm serves vLLM's dashboards."""
    metrics_buckets: Annotated[tuple[str, ...], Words] = ()
    """Replace a family of buckets of histograms, as itl=0.005,0.01,0.02; may name several."""
    calibrate: bool = True
    """Measure a machine without a stored profile for 3 s before it loads, so that steps are predicted."""
    otlp_endpoint: str | None = None
    """OpenTelemetry collector for a span a request, as http://localhost:4318; needs the extra otel."""
    tool_call_parser: str = "auto"
    """How the model writes tool calls: hermes, llama3_json, json, or auto, which goes by its template."""
    log_format: str = "text"
    """text or json: one line a request."""
    log_bodies: Annotated[bool, Flag] = False
    """Put request bodies into the log, cut at 2,000 bytes."""

    def config(self) -> ServerConfig:
        """The same, checked; keys from the options, the file and the environment.

        Raises:
            ConfigError: an option is out of range, or the key file can't be used.
        """
        return ServerConfig(
            host=self.host,
            port=self.port,
            metrics_port=self.metrics_port,
            api_keys=(*self.api_key, *_keys_of(self.api_key_file), *server_api_keys()),
            allowed_origins=self.allowed_origins,
            served_model_names=self.served_model_name,
            strict=self.strict,
            max_body_bytes=self.max_body_bytes,
            body_timeout_s=self.body_timeout_s,
            stalled_client_timeout_s=self.stalled_client_timeout_s,
            max_num_waiting=self.max_num_waiting,
            max_logprobs=self.max_logprobs,
            request_timeout_s=self.request_timeout_s,
            max_request_timeout_s=self.max_request_timeout_s,
            drain_timeout_s=self.drain_timeout_s,
            metrics_prefixes=tuple(name.strip() for name in self.metrics_prefix.split(",")),
            metrics_buckets=self.metrics_buckets,
            otlp_endpoint=self.otlp_endpoint,
            tool_call_parser=self.tool_call_parser,
            log_format=self.log_format,
            log_bodies=self.log_bodies,
        )


def _keys_of(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = [line.strip() for line in read_lines("api_key_file", path)]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError("api_key_file", str(path), "holds no key; write one a line")
    if path.stat().st_mode & stat.S_IROTH:
        print(f"ridgeline: warning: {path} can be read by every user: chmod 600", file=sys.stderr)
    return keys

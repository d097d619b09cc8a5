"""`ridgeline serve`: a model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import logging
from dataclasses import replace

from ridgeline.async_llm import AsyncLLM
from ridgeline.bench.calibrate import stored_or_short
from ridgeline.cli.options import EngineOptions
from ridgeline.cli.serve_options import ServerOptions
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.config.server import ServerConfig
from ridgeline.engine.clock import Clock, MonotonicClock, wall_time_s
from ridgeline.engine.machine_profile import stored_profile
from ridgeline.errors import ConfigError
from ridgeline.hub.catalogue import CATALOGUE
from ridgeline.hub.store import resolve_model
from ridgeline.metrics.trace_export import TraceExport, open_trace_export
from ridgeline.perf.hardware import UNCERTAIN, HardwareProfile
from ridgeline.server.admin import new_admin_app
from ridgeline.server.admission import Admission
from ridgeline.server.app import new_app
from ridgeline.server.guards import guarded
from ridgeline.server.lifecycle import Lifecycle, Listening
from ridgeline.server.listeners import listen, url_of
from ridgeline.server.log_writer import log_to_stderr
from ridgeline.server.observation import describe_engine
from ridgeline.server.process_title import hide_arguments
from ridgeline.server.state import ServerState

_logger = logging.getLogger("ridgeline")


def serve(
    model: str | None = None,
    /,
    *,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
    server: ServerOptions = ServerOptions(),  # noqa: B008 - frozen
) -> None:
    """Serve a model to OpenAI clients: /v1/chat/completions, /v1/completions, /v1/models, /metrics and more.

    Prints `ready URL model=NAME` to stdout when the first request can be sent. SIGTERM or Ctrl-C stops
    taking requests, lets the running ones end (--drain-timeout-s) and exits 0; a second one exits at once.

    Example: ridgeline serve smollm2-135m-instruct --port 8000 --max-num-seqs 32

    Parameters
    ----------
    model: str
        Catalogue name, hf: name or path of a .gguf file; the same as --model.
    """
    options = _with_model(engine, model)
    config = _named(server.config(), options.model)
    hides_keys = hide_arguments(server.api_key)
    clock = MonotonicClock()
    state = ServerState(
        config,
        clock,
        Admission(max_num_seqs=options.max_num_seqs, max_num_waiting=config.max_num_waiting),
        trace_export=_trace_export(config, clock),
    )
    listening = _listening(state)
    log_writer = log_to_stderr(config.log_format)
    if not hides_keys:
        _logger.warning("--api-key shows in the list of processes here; use --api-key-file")
    _tell_where(config, [url_of(part.listener) for part in listening])
    try:
        Lifecycle(
            state,
            listening,
            lambda: _load(options, state, may_calibrate=server.calibrate),
            lambda: _tell_ready(url_of(listening[0].listener), state),
            log_writer=log_writer,
        ).run()
    finally:
        if state.trace_export is not None:
            state.trace_export.close()
        log_writer.close()


def _load(options: EngineOptions, state: ServerState, *, may_calibrate: bool) -> AsyncLLM:
    _find_profile(options, may_calibrate=may_calibrate)
    listeners = [each for each in (state.metrics, state.trace_export) if each is not None]
    llm = AsyncLLM(**options.settings(), listeners=listeners, clock=state.clock)
    describe_engine(state.metrics, llm)
    hardware = llm.parts.hardware
    if hardware is not None and (notice := prediction_notice(hardware)) is not None:
        _logger.info("%s", notice)
    return llm


def _find_profile(options: EngineOptions, *, may_calibrate: bool) -> None:
    """See that there is a profile of this machine, without which no step is predicted, and say which."""
    num_threads = options.num_threads or cpu_limits().num_threads
    if options.executor != "native":
        _logger.info("machine profile: none; steps of --executor %s are not predicted", options.executor)
    elif not may_calibrate and stored_profile(home_dir(), num_threads) is None:
        _logger.info("machine profile: none, by --no-calibrate; steps are not predicted")
    else:
        told: list[str] = []
        if may_calibrate:
            stored_or_short(home_dir(), num_threads, report=lambda line: told.append(_told_profile(line)))
        if not told:
            _told_profile("measured earlier; steps are predicted")


def _told_profile(line: str) -> str:
    _logger.info("machine profile: %s", line)
    return line


def _trace_export(config: ServerConfig, clock: Clock) -> TraceExport | None:
    if config.otlp_endpoint is None:
        return None
    return open_trace_export(
        config.otlp_endpoint, config.served_model_names[0], epoch_offset_s=wall_time_s() - clock.now()
    )


def prediction_notice(hardware: HardwareProfile) -> str | None:
    """What to do for predictions of steps, in /metrics and in the log, that hold."""
    return None if hardware.is_stable else UNCERTAIN


def _with_model(engine: EngineOptions, model: str | None) -> EngineOptions:
    default = EngineOptions().model
    if model is not None and engine.model not in (default, model):
        raise ConfigError("model", engine.model, f"{model!r} is named, too; give one of them")
    return replace(engine, model=model) if model is not None else engine


def _named(config: ServerConfig, model: str) -> ServerConfig:
    """With the model's own name where none is given; a missing model shows before the sockets open."""
    path = resolve_model(model, home_dir())
    names = config.served_model_names or (model if model in CATALOGUE else path.stem,)
    return replace(config, served_model_names=names)


def _listening(state: ServerState) -> list[Listening]:
    """The sockets, bound, and what answers on each."""
    config = state.config
    listening = [Listening(listen(config.host, config.port), guarded(new_app(state), state))]
    if config.metrics_port is not None:
        listener = listen(config.host, config.metrics_port, field="metrics_port")
        listening.append(Listening(listener, guarded(new_admin_app(state), state)))
    return listening


def _tell_where(config: ServerConfig, urls: list[str]) -> None:
    places = urls[0] + (f", metrics and admin on {urls[1]}" if len(urls) > 1 else "")
    if config.is_loopback:
        hint = "from this machine only; --host 0.0.0.0 --api-key-file FILE opens it to others"
    elif config.api_keys:
        hint = f"from every machine that reaches {config.host}, with one of {len(config.api_keys)} keys"
    else:
        hint = f"from every machine that reaches {config.host}"
    _logger.info("listening on %s, %s", places, hint)
    if not config.is_loopback and not config.api_keys:
        _logger.warning("anyone who reaches %s can use this server: set --api-key-file", config.host)


def _tell_ready(url: str, state: ServerState) -> None:
    print(f"ready {url} model={state.served_model_names[0]}", flush=True)

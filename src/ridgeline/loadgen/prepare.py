"""From settings to requests and instants, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

from ridgeline.errors import ConfigError
from ridgeline.loadgen.codecs import ServerCodec, file_codec
from ridgeline.loadgen.run import Schedule
from ridgeline.loadgen.settings import TRACES, DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.workload.arrivals import paced_arrivals, ramp_arrivals, trace_arrivals
from ridgeline.workload.conversations import custom_workload, read_text, sharegpt_workload
from ridgeline.workload.load_request import Workload
from ridgeline.workload.prompts import Codec, PromptMaker
from ridgeline.workload.replay import replay_workload
from ridgeline.workload.synthetic import prefix_workload, random_workload
from ridgeline.workload.token_traces import (
    limit_prompts,
    parse_azure,
    parse_burstgpt,
    parse_mooncake,
    spread_ticks,
)

_PARSERS = {"mooncake": parse_mooncake, "azure": parse_azure, "burstgpt": parse_burstgpt}
_SAMPLE = "The quick brown fox jumps over 13 lazy dogs; naïve café, 日本."


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """What it takes to ask the server while prompts are made."""

    url: str
    headers: dict[str, str]
    model: str


def make_workload(dataset: DatasetSettings, target: TargetSettings, access: ServerAccess) -> Workload:
    """The requests of a run; the server's `/tokenize` is asked only where lengths depend on it.

    Raises:
        ConfigError: a dataset that can't be read, or that needs a tokenizer where there is none.
    """
    as_text = dataset.prompts_as == "text" or (dataset.prompts_as == "auto" and target.is_chat)
    rng = Random(dataset.seed)
    if dataset.name == "custom":
        lines = _file_text(dataset).split("\n")
        return custom_workload(lines, dataset.num_prompts, output_len=dataset.output_len)
    with _codec(target, access, is_needed=as_text or dataset.name == "sharegpt") as (codec, notes):
        workload = _drawn(dataset, codec, rng, as_text=as_text)
        return replace(workload, notes=(*notes, *workload.notes))


def _drawn(dataset: DatasetSettings, codec: Codec | None, rng: Random, *, as_text: bool) -> Workload:
    if dataset.name == "sharegpt":
        return _sharegpt(dataset, codec, rng)
    maker = PromptMaker(codec, rng, as_text=as_text)
    if dataset.name == "random":
        return random_workload(dataset.num_prompts, dataset.random, maker, rng=rng)
    if dataset.name == "prefix_repetition":
        return prefix_workload(dataset.num_prompts, dataset.prefix_repetition, maker, rng=rng)
    return _replay(dataset, maker, as_text=as_text)


def make_schedule(traffic: TrafficSettings, workload: Workload) -> Schedule:
    """When to send each request.

    Raises:
        ConfigError: the dataset has no instants to replay.
    """
    count = len(workload.requests)
    rng = Random(f"arrivals {traffic.seed}")
    if traffic.self_timed:
        instants = [request.arrived_at_s for request in workload.requests]
        arrivals = trace_arrivals(instants, speed=traffic.trace_speed)
    elif traffic.ramp is not None:
        arrivals = ramp_arrivals(count, traffic.ramp, burstiness=traffic.burstiness, rng=rng)
    else:
        arrivals = paced_arrivals(
            count, request_rate=traffic.request_rate, burstiness=traffic.burstiness, rng=rng
        )
    return Schedule(arrivals_s=arrivals, max_concurrency=traffic.max_concurrency)


def with_own_times(traffic: TrafficSettings, dataset: DatasetSettings) -> TrafficSettings:
    """A trace is replayed at its own instants unless the user set a rate."""
    is_free = traffic.request_rate == math.inf and traffic.ramp is None
    return replace(traffic, self_timed=traffic.self_timed or (dataset.name in TRACES and is_free))


def sends_ids(dataset: DatasetSettings, target: TargetSettings) -> bool:
    """Prompts go out as token ids."""
    return dataset.prompts_as == "ids" or (dataset.prompts_as == "auto" and not target.is_chat)


@contextmanager
def _codec(
    target: TargetSettings, access: ServerAccess, *, is_needed: bool
) -> Iterator[tuple[Codec | None, Sequence[str]]]:
    """The tokenizer given, unless the server's `/tokenize` contradicts it: then that one, and a note."""
    given = file_codec(target.tokenizer) if target.tokenizer is not None else None
    if given is None and not is_needed:
        yield None, ()
        return
    server = ServerCodec(access.url, access.headers, access.model)
    try:
        if not server.is_there:
            yield given, ()
        elif given is None:
            yield server, ()
        else:
            here, there = given.encode(_SAMPLE), server.encode(_SAMPLE)
            yield (given, ()) if here == there else (server, (_disagreement(len(here), len(there)),))
    finally:
        server.close()


def _disagreement(here: int, there: int) -> str:
    return (
        f"--tokenizer is not the server's: it makes {here} tokens of a sample of which the server makes "
        f"{there}; prompts have their lengths by the server's /tokenize"
    )


def _sharegpt(dataset: DatasetSettings, codec: Codec | None, rng: Random) -> Workload:
    if codec is None:
        raise ConfigError("tokenizer", None, "ShareGPT's lengths need one: the server has no /tokenize")
    return sharegpt_workload(
        _file_text(dataset), dataset.num_prompts, encode=codec.encode, output_len=dataset.output_len, rng=rng
    )


def _replay(dataset: DatasetSettings, maker: PromptMaker, *, as_text: bool) -> Workload:
    if dataset.name == "mooncake" and as_text:
        raise ConfigError("prompts_as", "text", "Mooncake's shared blocks need token ids: --backend openai")
    trace = _PARSERS[dataset.name](_file_text(dataset).splitlines())
    if dataset.spread_ticks:
        trace = spread_ticks(trace)
    if dataset.max_prompt_tokens is not None:
        trace = limit_prompts(trace, dataset.max_prompt_tokens, clips=dataset.long_prompts == "clip")
    if not trace.requests:
        raise ConfigError("max_prompt_tokens", dataset.max_prompt_tokens, "leaves no request of the trace")
    return replay_workload(trace, dataset.num_prompts, maker, seed=dataset.seed)


def _file_text(dataset: DatasetSettings) -> str:
    assert dataset.path is not None
    return read_text(dataset.path)

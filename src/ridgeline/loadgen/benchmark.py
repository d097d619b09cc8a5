"""One load run from settings to records: find the model, make prompts, warm up, run, ask for causes."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from ridgeline.loadgen.bodies import DEFAULT_OUTPUT_TOKENS, prepare_requests, request_headers
from ridgeline.loadgen.client import Endpoint, LoadClient, PreparedRequest
from ridgeline.loadgen.http_client import HttpClient
from ridgeline.loadgen.prepare import ServerAccess, make_schedule, make_workload, sends_ids, with_own_times
from ridgeline.loadgen.probes import Prober
from ridgeline.loadgen.run import LoadRun, Schedule, run_load
from ridgeline.loadgen.server_facts import ServerFacts
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import ClientRecord
from ridgeline.workload.load_request import LoadRequest
from ridgeline.workload.synthetic import RandomLengths

_NO_FULL_COLLECTION = 2**31 - 1
"""Threshold of the oldest generation that is never reached; the largest C int."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All that is fixed before a run; requests, headers and instants included."""

    target: TargetSettings
    dataset: DatasetSettings
    traffic: TrafficSettings
    model: str
    headers: dict[str, str]
    requests: Sequence[PreparedRequest]
    warmups: Sequence[PreparedRequest]
    schedule: Schedule
    notes: Sequence[str]


def plan_load(
    target: TargetSettings,
    dataset: DatasetSettings,
    traffic: TrafficSettings,
    *,
    api_key: str | None = None,
    ready_timeout_s: float = 0.0,
) -> LoadPlan:
    """Ask the server for what is not given, and make the requests ready. To be called outside an event loop.

    Raises:
        ConfigError: a setting, a dataset or a server with which no run can begin.
    """
    headers = request_headers(target, api_key)
    model = asyncio.run(_find_model(target, headers, ready_timeout_s))
    served_name = target.served_model_name or model
    access = ServerAccess(target.url, headers, served_name)
    traffic = with_own_times(traffic, dataset)
    workload = make_workload(dataset, target, access)
    warmups = _warmups(workload.requests[0], dataset, traffic.num_warmups)
    ignores_eos = target.ignore_eos
    if ignores_eos is None:
        ignores_eos = dataset.name in ("random", "prefix_repetition", "mooncake", "azure", "burstgpt")
    return LoadPlan(
        target=target,
        dataset=dataset,
        traffic=traffic,
        model=model,
        headers=headers,
        requests=prepare_requests(workload.requests, target, model=served_name, ignore_eos=ignores_eos),
        warmups=prepare_requests(
            make_workload(warmups, target, access).requests if warmups is not None else (),
            target,
            model=served_name,
            ignore_eos=ignores_eos,
        ),
        schedule=make_schedule(traffic, workload),
        notes=workload.notes,
    )


def _warmups(first: LoadRequest, dataset: DatasetSettings, count: int) -> DatasetSettings | None:
    """Random prompts as long as the run's first, never its own: those would be in the prefix cache then."""
    if count == 0:
        return None
    lengths = RandomLengths(
        input_len=first.num_prompt_tokens or 128, output_len=first.num_output_tokens or DEFAULT_OUTPUT_TOKENS
    )
    return DatasetSettings(
        num_prompts=count, random=lengths, prompts_as=dataset.prompts_as, seed=dataset.seed + 7919
    )


def execute_load(
    plan: LoadPlan,
    on_record: Callable[[ClientRecord], None] = lambda _: None,
    *,
    stop_when: Callable[[ClientRecord], bool] = lambda _: False,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> LoadRun:
    """Warm up, then run; SIGINT ends the run early with what was done. To be called outside an event loop.

    `stop_when` ends it too, at the first record for which it is true; `beside` runs as long as the run does.
    """
    return asyncio.run(_execute(plan, on_record, stop_when, beside))


async def _execute(
    plan: LoadPlan,
    on_record: Callable[[ClientRecord], None],
    stop_when: Callable[[ClientRecord], bool],
    beside: Callable[[], Awaitable[None]] | None,
) -> LoadRun:
    http = HttpClient(plan.target.url)
    endpoint = Endpoint(
        path=plan.target.path,
        is_chat=plan.target.is_chat,
        headers=plan.headers,
        timeout_s=plan.target.request_timeout_s,
    )
    client = LoadClient(http, endpoint)
    stop, interrupt = asyncio.Event(), asyncio.Event()

    def take(record: ClientRecord) -> None:
        on_record(record)
        if stop_when(record):
            stop.set()

    with _interruptible(stop, interrupt), _short_collections():
        try:
            await _warm_up(client, plan, stop)
            async with Prober(client, plan) as prober, _running(beside):
                run = await run_load(client, plan.requests, plan.schedule, stop=stop, on_record=take)
            return replace(run, probes=prober.records, was_interrupted=interrupt.is_set())
        finally:
            await http.close()


async def _warm_up(client: LoadClient, plan: LoadPlan, stop: asyncio.Event) -> None:
    """The warm-ups, as many at a time as the run's cap, all answered before the run begins."""
    if plan.warmups and not stop.is_set():
        schedule = Schedule(
            arrivals_s=[0.0] * len(plan.warmups), max_concurrency=plan.traffic.max_concurrency
        )
        await run_load(client, plan.warmups, schedule, stop=stop)


async def _find_model(target: TargetSettings, headers: dict[str, str], ready_timeout_s: float) -> str:
    http = HttpClient(target.url)
    facts = ServerFacts(http, headers)
    try:
        if ready_timeout_s > 0:
            await facts.wait_until_ready(ready_timeout_s)
        return target.model or target.served_model_name or await facts.model_name()
    finally:
        await http.close()


@asynccontextmanager
async def _running(work: Callable[[], Awaitable[None]] | None) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work()) if work is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _interruptible(*events: asyncio.Event) -> Iterator[None]:
    """SIGINT sets `events`; a second one kills, as it does outside."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        for event in events:
            event.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (ValueError, RuntimeError, NotImplementedError):  # no main thread: whoever runs us has the signals
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def _short_collections() -> Iterator[None]:
    """Collect young objects only: a full pass, over all records so far, would be measured as latency."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NO_FULL_COLLECTION)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def describe_prompts(plan: LoadPlan) -> str:
    """How prompts are sent: token ids or text."""
    return "token_ids" if sends_ids(plan.dataset, plan.target) else "text"

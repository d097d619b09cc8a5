"""Probes: single-token requests at a slow rate beside the run, to see how long the load holds others up."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from ridgeline.loadgen.bodies import prepare_requests
from ridgeline.loadgen.client import LoadClient
from ridgeline.loadgen.settings import TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import ClientRecord
from ridgeline.workload.load_request import LoadRequest

_MAX_PROBES = 100_000


class ProbePlan(Protocol):
    """The part of a plan that probes need."""

    @property
    def target(self) -> TargetSettings:
        """Where probes go."""

    @property
    def traffic(self) -> TrafficSettings:
        """Holds their rate."""

    @property
    def model(self) -> str:
        """The model's name."""


class Prober:
    """Sends `probe_request_rate` probes a second, at fixed instants and outside the cap, while it is open.

    `records` are those of the probes answered when the run ended.
    """

    def __init__(self, client: LoadClient, plan: ProbePlan) -> None:
        self._client = client
        self._plan = plan
        self._tasks: list[asyncio.Task[None]] = []
        self.records: list[ClientRecord] = []

    async def __aenter__(self) -> Prober:
        """Start."""
        if self._plan.traffic.probe_request_rate > 0:
            self._tasks.append(asyncio.create_task(self._send_all()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stop; a probe still out is no result."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        started_at_s = loop.time()
        target = self._plan.target
        name = target.served_model_name or self._plan.model
        request = LoadRequest(prompt="Hello", num_output_tokens=1)
        for index in range(_MAX_PROBES):
            at_s = started_at_s + index / self._plan.traffic.probe_request_rate
            await asyncio.sleep(max(at_s - loop.time(), 0))
            self._tasks.append(loop.create_task(self._send_one(request, name, at_s)))

    async def _send_one(self, request: LoadRequest, name: str, at_s: float) -> None:
        [prepared] = prepare_requests([request], self._plan.target, model=name, ignore_eos=False)
        record = await self._client.send(prepared, at_s)
        if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            self.records.append(record)

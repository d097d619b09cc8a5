"""What a server with an event log says of a run's requests: causes of late tokens, its own durations."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ridgeline.loadgen.benchmark import LoadPlan
from ridgeline.loadgen.http_client import HttpClient
from ridgeline.loadgen.late_tokens import LateToken, causes_of, find_late_tokens
from ridgeline.loadgen.run import LoadRun
from ridgeline.loadgen.server_facts import FACT_TIMEOUT_S, ServerFacts

MAX_ASKED = 5000
PATIENCE_S = 2.0
"""How long an interrupted run goes on asking: somebody waits for its report."""
TIMES = ("ttft_s", "queue_s", "prefill_s", "decode_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """`times` by request id: `ttft_s`, `queue_s`, `prefill_s`, `decode_s` in seconds on the server's clock,
    null where undefined; requests that the server no longer knows are missing.
    """

    late_tokens: Sequence[Mapping[str, object]] = ()
    times: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def ask_server(
    plan: LoadPlan, run: LoadRun, slos_s: Mapping[str, float], *, all_requests: bool = False
) -> ServerAccount | None:
    """Ask `/debug/requests/{id}` for the late tokens' requests, or for the first 5,000 of all; None where the
    server has no such route. To be called outside an event loop.
    """
    late = find_late_tokens(run.records, slos_s)
    ids = [each.request_id for each in late]
    if all_requests:
        ids += [record.request_id for record in run.records[:MAX_ASKED]]
    patience_s = PATIENCE_S if run.was_interrupted else math.inf
    documents = asyncio.run(_ask(plan, ids, patience_s)) if ids else {}
    if not documents:
        return None
    return ServerAccount(
        late_tokens=[_explained(each, documents.get(each.request_id)) for each in late],
        times={name: _times(document) for name, document in documents.items()},
    )


def _explained(late: LateToken, document: object) -> dict[str, object]:
    return {
        "id": late.request_id,
        "kind": "itl" if late.token else "ttft",
        "token": late.token,
        "ms": 1000 * late.seconds,
        "causes": causes_of(document, late.token),
    }


def _times(document: Mapping[str, Any]) -> dict[str, float | None]:
    found = {name: document.get(name) for name in TIMES}
    return {
        name: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        for name, value in found.items()
    }


async def _ask(plan: LoadPlan, request_ids: Iterable[str], patience_s: float) -> dict[str, dict[str, Any]]:
    """Documents by request id; a server that lacks the first three, or falls silent, is asked no more."""
    http = HttpClient(plan.target.url)
    facts = ServerFacts(http, plan.headers)
    documents: dict[str, dict[str, Any]] = {}
    loop = asyncio.get_running_loop()
    end_s = loop.time() + patience_s
    try:
        for index, request_id in enumerate(dict.fromkeys(request_ids)):
            asked_at_s = loop.time()
            if asked_at_s > end_s:
                break
            document = await facts.ask(f"/debug/requests/{quote(request_id, safe='')}")
            if isinstance(document, dict):
                documents[request_id] = document
            elif (index >= 2 and not documents) or loop.time() - asked_at_s >= FACT_TIMEOUT_S:
                break
    finally:
        await http.close()
    return documents

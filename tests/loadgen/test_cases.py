"""The shared cases of kinds q and r that need no server: on a virtual clock, so to the last digit.

C23 is in test_result and test_bench_serve, C24 in test_codecs and test_cases_bench, C28 in test_prometheus.
"""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest
from tests.loadgen.fake_server import chat, completion, usage
from tests.loadgen.test_run import ScriptedSender, run
from tests.loadgen.virtual_time import run_virtually, sleep_until
from tests.metrics.test_dialects import BY_HAND

from ridgeline.loadgen.client import Endpoint, LoadClient, PreparedRequest
from ridgeline.loadgen.counts import chunk_tokens
from ridgeline.loadgen.http_client import HttpRequest, Sink
from ridgeline.loadgen.validity import invalid_reason, shaped_by
from ridgeline.loadgen.vllm_keys import metric_keys, metric_values_s
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.dialects import DIALECTS
from ridgeline.metrics.durations import icl_s, itl_s, lateness_s, tpot_s, ttft_s
from ridgeline.metrics.run_metrics import run_metrics
from ridgeline.workload.arrivals import paced_arrivals

Line = tuple[float, object]


class ScriptedHttp:
    """Hands over each event at its instant; stands for `HttpClient`."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    async def send(self, request: HttpRequest, sink: Sink) -> None:
        assert request.method == "POST"
        sink.head(200, {"content-type": "text/event-stream"})
        for at_s, document in self._lines:
            await sleep_until(at_s)
            text = document if isinstance(document, str) else json.dumps(document)
            if sink.body(f"data: {text}\n\n".encode(), asyncio.get_running_loop().time()):
                return


def seen(lines: list[Line], *, is_chat: bool = False, sent_at_s: float = 0.0) -> ClientRecord:
    """The record of a request scheduled at 0 and sent at `sent_at_s`."""

    async def work() -> ClientRecord:
        endpoint = Endpoint(path="/", is_chat=is_chat, headers={}, timeout_s=60)
        await sleep_until(sent_at_s)
        client = LoadClient(ScriptedHttp(lines), endpoint)  # type: ignore[arg-type]
        return await client.send(PreparedRequest(request_id="r", body=b"{}"), 0.0)

    return run_virtually(work())


def test_c21_the_waiting_line_outside_the_door_is_latency() -> None:
    """--request-rate 10 --burstiness inf --max-concurrency 1 --num-prompts 8, 500 ms each, one at a time."""
    arrivals = paced_arrivals(8, request_rate=10, burstiness=float("inf"), rng=Random(0))
    done = run(ScriptedSender(0.5, is_serial=True), arrivals, cap=1)
    ours = run_metrics(done.records, done.started_at_s, finished_at_s=done.finished_at_s)
    assert ours.e2e.mean == pytest.approx(1.9)
    assert ours.e2e.p99 == pytest.approx(3.272)
    theirs = metric_keys(metric_values_s(done.records), [99])
    assert theirs["mean_e2el_ms"] == pytest.approx(500)
    assert theirs["p99_e2el_ms"] == pytest.approx(500)
    assert theirs["mean_e2el_including_client_queue_ms"] == pytest.approx(1900)
    waits = [lateness_s(record) or 0.0 for record in done.records]
    told = shaped_by(waits, 1)
    assert told is not None
    assert "the cap of 1 shaped the load, not the server alone: 7 of 8" in told


def test_c21_without_a_cap_the_generator_tells_its_own_lateness() -> None:
    """A server that takes its time makes the generator no later; a generator that is late says so itself."""
    arrivals = paced_arrivals(8, request_rate=10, burstiness=float("inf"), rng=Random(0))
    done = run(ScriptedSender(5.0), arrivals)
    assert max(done.dispatch_lateness_s) == pytest.approx(0)
    assert invalid_reason(done.dispatch_lateness_s, [0.5], is_capped=False) is None
    assert "the generator was late: P99 20.0 ms" in str(invalid_reason([0.02] * 8, [0.5], is_capped=False))


def coalesced(*, per_chunk: bool) -> list[Line]:
    """Twelve tokens as chunks of 1, 3, 3 and 5 at 100, 160, 220 and 320 ms."""
    lines: list[Line] = []
    total = 0
    for at_s, count in ((0.1, 1), (0.16, 3), (0.22, 3), (0.32, 5)):
        total += count
        finish = "length" if total == 12 else None
        counts = usage(2, total) if per_chunk else None
        lines.append((at_s, completion("x" * count, finish=finish, usage=counts)))
    return [*lines, (0.32, {"choices": [], "usage": usage(2, 12)}), (0.32, "[DONE]")]


def test_c22_coalesced_chunks_with_their_counts() -> None:
    record = seen(coalesced(per_chunk=True))
    assert (record.outcome, chunk_tokens([record])) == (Outcome.OK, ("usage", 0))
    assert ttft_s(record) == pytest.approx(0.1)
    assert tpot_s(record) == pytest.approx(0.22 / 11)
    assert itl_s(record) == pytest.approx([0.02] * 11)
    assert icl_s(record) == pytest.approx([0.06, 0.06, 0.1])


def test_c22_coalesced_chunks_without_their_counts_are_flagged() -> None:
    record = seen(coalesced(per_chunk=False))
    assert chunk_tokens([record]) == ("unknown", 8)
    assert ttft_s(record) == pytest.approx(0.1)
    assert tpot_s(record) == pytest.approx(0.22 / 11)
    assert itl_s(record) == icl_s(record) == pytest.approx([0.06, 0.06, 0.1])


@pytest.mark.parametrize("name", BY_HAND)
def test_c22_the_record_of_all_dialects_off_the_wire(name: str) -> None:
    """Scheduled 0, sent 200 ms; role 300, chunks of 2, 1, 3 at 500, 600, 900, usage, [DONE] 950."""
    lines: list[Line] = [
        (0.3, chat({"role": "assistant", "content": ""})),
        (0.5, chat({"content": "ab"}, usage=usage(4, 2))),
        (0.6, chat({"content": "c"}, usage=usage(4, 3))),
        (0.9, chat({"content": "def"}, finish="stop", usage=usage(4, 6))),
        (0.905, {"choices": [], "usage": usage(4, 6)}),
        (0.95, "[DONE]"),
    ]
    record = seen(lines, is_chat=True, sent_at_s=0.2)
    assert record.empty_at_s == pytest.approx([0.3])
    found = {quantity: list(values(record)) for quantity, values in DIALECTS[name].values.items()}
    assert found == {quantity: pytest.approx(values) for quantity, values in BY_HAND[name].items()}

"""An engine's thread that dies: everybody who waits is told, and so is whoever asks for its health."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import httpx
import pytest
from tests.server.conftest import NewServer, Served
from tests.server.server_process import read_answer, request_bytes
from tests.server.test_too_long import rejections

from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput
from ridgeline.errors import NonFiniteLogitsError

BODY = {"prompt": [5, 6], "max_tokens": 200, "ignore_eos": True, "temperature": 0}


class StoppingExecutor:
    """Holds a step up until a test has sent what is to happen next, then computes it."""

    def __init__(self, inner: object, before_step: Callable[[SchedulerOutput], None]) -> None:
        self._inner = inner
        self._before_step = before_step

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self._before_step(scheduler_output)
        return self._inner.execute(scheduler_output)  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        self._inner.close()  # type: ignore[attr-defined]


def kill(server: Served, fault: type[BaseException] = AssertionError) -> None:
    """The engine's thread meets a fault between two steps."""

    def fail() -> None:
        raise fault

    server.llm.engine._send(fail)


def get(server: Served, path: str) -> httpx.Response:
    return httpx.get(server.url + path, timeout=30)


def post(server: Served, **fields: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**BODY, **fields}, timeout=30)


@pytest.mark.parametrize("fault", [AssertionError, SystemExit])
def test_streams_and_answers_end_and_health_tells_why(
    new_server: NewServer, fault: type[BaseException]
) -> None:
    server = new_server()
    engine = server.llm.parts.engine
    assert get(server, "/health").status_code == 200

    def kill_when_both_run(scheduler_output: SchedulerOutput) -> None:
        if len(scheduler_output.scheduled) == 2:
            kill(server, fault)
        time.sleep(0.02)  # so that the first does not end before the second comes

    engine._executor = StoppingExecutor(engine._executor, kill_when_both_run)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as whole:
        text = json.dumps(BODY).encode()
        whole.sendall(request_bytes("POST", "/v1/completions", body=text, content_type="application/json"))
        streamed = post(server, stream=True).text
        answered = read_answer(whole)
    assert (answered.status, answered.error["code"]) == (500, "engine_error")
    event = json.loads([line for line in streamed.splitlines() if line.startswith("data: {")][-1][6:])
    assert event["error"]["message"] == f"the engine has failed: {fault.__name__}"
    assert streamed.rstrip().endswith("data: [DONE]")
    for path in ("/health", "/ping", "/ready"):
        answer = get(server, path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "failed")
        assert fault.__name__ in error["message"]


def test_nothing_is_taken_after_it_and_metrics_go_on(new_server: NewServer) -> None:
    server = new_server()
    assert post(server, max_tokens=2).status_code == 200
    kill(server)
    while server.llm.failure is None:
        pass
    refused = post(server)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "failed")
    assert "restarted" in refused.json()["error"]["message"]
    assert get(server, "/debug/requests/x").status_code == 503
    page = get(server, "/metrics")
    assert page.status_code == 200
    assert 'num_requests_running{engine="0",model_name="ridgeline"} 0.0' in page.text
    assert rejections(server, '"failed"') == 2
    assert server.state.admission.num_sequences == 0


def test_a_failed_step_is_no_failed_engine(new_server: NewServer) -> None:
    server = new_server()
    engine = server.llm.parts.engine

    def fail(scheduler_output: SchedulerOutput) -> None:
        if any(item.request.num_output_tokens == 3 for item in scheduler_output.scheduled):
            raise NonFiniteLogitsError("the model gave logits without a finite maximum (nan)")

    engine._executor, executor = StoppingExecutor(engine._executor, fail), engine._executor
    answer = post(server)
    assert answer.status_code == 500
    assert "finite maximum (nan)" in answer.json()["error"]["message"]
    engine._executor = executor
    assert get(server, "/health").status_code == 200
    assert post(server, max_tokens=2).status_code == 200
    server.assert_idle()

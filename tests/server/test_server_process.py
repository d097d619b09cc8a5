"""Guards and lifecycle of a real process over real sockets."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.server_process import HANG_S, Process, read_answer, request_bytes, started, stub


def last_line(body: bytes) -> str:
    return body.decode().splitlines()[-1]


def open_stream(server: Process, num_lines: int) -> socket.socket:
    """A connection whose answer has begun."""
    connection = server.connect()
    connection.sendall(request_bytes("GET", f"/v1/count?n={num_lines}"))
    assert connection.recv(8, socket.MSG_PEEK)
    return connection


def test_503_while_loading_then_served(tmp_path: Path) -> None:
    loadable = tmp_path / "loadable"
    with stub(until="listening", load_once_there=str(loadable)) as server:
        loading = server.send("GET", "/v1/echo")
        health = json.loads(server.send("GET", "/health").body)
        assert (health["phase"], health["num_settled_objects"]) == ("loading", 0)
        loadable.touch()
        server.wait_for("ready", server.out)
        assert server.send("GET", "/v1/echo").status == 200
        health = json.loads(server.send("GET", "/health").body)
        assert health["num_settled_objects"] > 10_000  # modules alone
        assert server.end() == 0
    assert (loading.status, loading.headers["retry-after"]) == (503, "2")
    assert loading.error["type"] == "service_unavailable_error"
    assert loading.error["code"] == "loading"


def test_a_signal_while_loading_ends_it_at_once() -> None:
    with stub(until="listening", load_s=1000) as server:
        server.send("GET", "/health")
        assert server.end() == 0


def test_a_model_that_does_not_load_is_one_line() -> None:
    with stub(until="listening", load_s=-1) as server:
        assert server.wait() == 1
    assert server.err == ["error: model='stub': does not load"]


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "tests.server.stub_server", json.dumps({"port": port})]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: port={port}: is taken by another process")


def test_a_drain_lets_streams_end_and_takes_no_more() -> None:
    with stub() as server:
        stream, idle = open_stream(server, 150), server.connect()
        server.popen.send_signal(signal.SIGTERM)
        server.wait_for("stopping: 1 sequences", server.err)
        refused = server.send("GET", "/v1/echo")
        assert json.loads(server.send("GET", "/health").body)["phase"] == "draining"
        answer = read_answer(stream)
        assert server.wait() == 0
        idle.close()
        stream.close()
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) >= 1
    assert last_line(answer.body) == "length"
    assert server.out[-1] == "closed"


def test_a_drain_ends_what_takes_too_long() -> None:
    with stub(drain_timeout_s=0.3) as server, open_stream(server, 100_000) as stream:
        server.popen.send_signal(signal.SIGINT)
        answer = read_answer(stream)
        assert server.wait() == 0
    assert last_line(answer.body) == "timeout"


def test_a_second_signal_ends_at_once() -> None:
    with stub() as server, open_stream(server, 100_000):
        server.popen.send_signal(signal.SIGTERM)
        server.wait_for("stopping", server.err)
        assert server.end() == 128 + signal.SIGTERM


def test_overload_is_refused_and_the_accepted_end() -> None:
    with stub(max_num_waiting=3) as server, ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: server.send("GET", "/v1/count?n=100"), range(20)))
        accepted = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 429]
        assert json.loads(server.send("GET", "/health").body)["num_sequences"] == 0
    assert len(accepted) >= 5
    assert len(accepted) + len(refused) == 20
    assert {last_line(answer.body) for answer in accepted} == {"length"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.error["type"] for answer in refused} == {"rate_limit_error"}


def test_places_are_given_back_when_a_client_leaves() -> None:
    with stub(max_num_waiting=0) as server:
        for _ in range(6):
            open_stream(server, 100_000).close()
            while json.loads(server.send("GET", "/health").body)["num_sequences"]:
                pass
        assert server.end() == 0


@pytest.mark.parametrize("authorization", ["Bearer k2", "bearer k1", "BEARER  k1"])
def test_any_of_the_keys_opens(authorization: str) -> None:
    with stub(api_keys=["k1", "k2"]) as server:
        assert server.send("GET", "/v1/echo", authorization=authorization).status == 200


def test_no_or_a_wrong_key_is_401_everywhere_but_on_liveness_routes() -> None:
    headers = (
        {},
        {"authorization": "Bearer sk-secreu"},
        {"authorization": "Basic sk-secret"},
        {"x_api_key": "a"},
    )
    with stub(api_keys=["sk-secret"], log_format="json") as server:
        for path in ("/v1/echo", "/metrics", "/ready", "/nowhere", "/docs", "/HEALTH", "//health"):
            for given in headers:
                answer = server.send("GET", path, **given)
                assert answer.status == 401, (path, given)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.error["type"] == "authentication_error"
        assert [server.send("GET", path).status for path in ("/health", "/ping")] == [200, 200]
        assert server.send("OPTIONS", "/v1/echo", origin="http://evil.example").status == 401
        assert server.end() == 0
    assert "sk-secret" not in "".join(server.out + server.err)
    assert "sk-secreu" not in "".join(server.out + server.err)


def test_no_page_may_call_unless_it_is_configured() -> None:
    preflight = {"origin": "http://evil.example", "access_control_request_method": "POST"}
    with stub() as server:
        answers = [
            server.send("OPTIONS", "/v1/echo", **preflight),
            server.send("POST", "/v1/echo", **preflight),
        ]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control")]
    with stub(allowed_origins=["https://good.example"], api_keys=["k"]) as server:
        evil = server.send("OPTIONS", "/v1/echo", **preflight)
        good = server.send("OPTIONS", "/v1/echo", **{**preflight, "origin": "https://good.example"})
        refused = server.send("POST", "/v1/echo", origin="https://good.example")
    assert "access-control-allow-origin" not in evil.headers
    assert good.headers["access-control-allow-origin"] == "https://good.example"
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "https://good.example"


def test_too_large_a_body_is_413_and_the_next_request_is_answered() -> None:
    with stub(max_body_bytes=100_000) as server, server.connect() as connection:
        connection.sendall(request_bytes("POST", "/v1/echo", body=b"x" * 100_000))
        assert json.loads(read_answer(connection).body)["num_bytes"] == 100_000
        connection.sendall(request_bytes("POST", "/v1/echo", body=b"x" * 3_000_000))
        told = read_answer(connection)
        chunk = b"%x\r\n%b\r\n" % (50_000, b"x" * 50_000)
        connection.sendall(
            request_bytes("POST", "/v1/echo", transfer_encoding="chunked") + chunk * 3 + b"0\r\n\r\n"
        )
        chunked = read_answer(connection)
        connection.sendall(request_bytes("GET", "/v1/echo"))
        assert read_answer(connection).status == 200
    for answer in (told, chunked):
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_zeros_before_a_length_change_nothing() -> None:
    with stub(max_body_bytes=100_000) as server, server.connect() as connection:
        for length, status in (("0" * 6000 + "5", 200), ("0" * 6000 + "3000000", 413), ("0" * 6000, 200)):
            body = b"x" * int(length.lstrip("0") or "0")
            connection.sendall(request_bytes("POST", "/v1/echo", content_length=length) + body)
            assert read_answer(connection).status == status
        assert server.end() == 0
    assert "Traceback" not in "".join(server.err)


@pytest.mark.parametrize("piece", [b"x-a: b\r\n", b"a"], ids=["many headers", "one header"])
def test_a_head_without_end_is_431(piece: bytes) -> None:
    with stub() as server:
        with server.connect() as connection:
            connection.sendall(
                b"GET /v1/echo HTTP/1.1\r\nhost: x\r\nx-long: " if len(piece) == 1 else b"GET / HTTP/1.1\r\n"
            )
            with contextlib.suppress(ConnectionError):
                for _ in range(2000):
                    connection.sendall(piece * 8192)
            answer = read_answer(connection)
        with server.connect() as connection:  # a long body, and the beginning of the next head, are no head
            for _ in range(3):
                connection.sendall(
                    request_bytes("POST", "/v1/echo", body=b"x" * 300_000, x_long="y" * 20_000)
                )
                assert read_answer(connection).status == 200
    assert (answer.status, answer.error["type"]) == (431, "invalid_request_error")


def test_slow_senders_are_sent_away() -> None:
    with stub(body_timeout_s=0.5) as server:
        with server.connect() as silent, server.connect() as headers, server.connect() as body:
            headers.sendall(b"GET /v1/echo HTTP/1.1\r\nhost:")
            body.sendall(request_bytes("POST", "/v1/echo", content_length="10") + b"12345")
            answers = [read_answer(headers), read_answer(body)]
            assert silent.recv(1) == b""
        assert server.send("GET", "/health").status == 200
    assert [answer.status for answer in answers] == [408, 408]
    assert {answer.error["type"] for answer in answers} == {"timeout_error"}


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    with stub(stalled_client_timeout_s=0.5) as server, server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request_bytes("GET", "/v1/big"))
        server.wait_for("/v1/big", server.err)
        assert server.end() == 0


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /v1/echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nx y: z\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400_in_openais_shape(junk: bytes) -> None:
    with stub() as server:
        with server.connect() as connection:
            connection.sendall(junk)
            answer = read_answer(connection)
            assert connection.recv(1) == b""
        assert server.send("GET", "/v1/echo").status == 200
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


HEAD = b"POST /v1/echo HTTP/1.1\r\nhost: x\r\n"
SMUGGLED = b"GET /v1/count?n=1 HTTP/1.1\r\nhost: x\r\n\r\n"


def test_no_second_request_hides_in_a_first() -> None:
    """Two lengths, a length beside chunks, unusual spellings: one 400 each, and nothing behind it is read."""
    ambiguous = [
        b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
        b"content-length: 2, 2\r\n\r\n{}",
        b"content-length: +2\r\n\r\n{}",
        b"content-length: 99999999999999999999999\r\n\r\n{}",
        b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n-1\r\n",
        b"transfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        b"x: a\rb\r\ncontent-length: 2\r\n\r\n{}",
        b"x: a\x00b\r\ncontent-length: 2\r\n\r\n{}",
    ]
    with stub() as server:
        for junk in ambiguous:
            with server.connect() as connection:
                connection.sendall(HEAD + junk + SMUGGLED)
                answer = read_answer(connection)
                assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), junk
                assert connection.recv(1) == b"", junk
        assert server.end() == 0
    assert "/v1/count" not in "".join(server.err)


def test_requests_in_one_piece_are_answered_in_turn_and_half_ones_forgotten() -> None:
    with stub() as server:
        with server.connect() as connection:
            pieces = [request_bytes("POST", "/v1/echo", body=b"x" * n) for n in (1, 2, 3)]
            connection.sendall(b"".join(pieces))
            # One reader: it may hold more than one answer.
            reader = connection.makefile("rb")
            sizes = []
            for _ in pieces:
                while line := reader.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                sizes.append(json.loads(reader.read(length))["num_bytes"])
        for half in (
            b"content-length: 100\r\n\r\nabc",
            b"transfer-encoding: chunked\r\n\r\n10\r\nabc",
            b"x: ",
        ):
            with server.connect() as connection:
                connection.sendall(HEAD + half)
        assert server.send("GET", "/v1/echo").status == 200
        assert server.end() == 0
    assert sizes == [1, 2, 3]
    assert "Traceback" not in "".join(server.err)


def test_ids_are_echoed_unless_they_could_forge_something() -> None:
    with stub() as server:
        kept = server.send("GET", "/v1/echo", x_request_id="run-1/a.b:c=")
        made = [
            server.send("GET", "/v1/echo", x_request_id=bad) for bad in ("a b", "x" * 129, "\x7f", 'a"', "é")
        ]
    assert kept.headers["x-request-id"] == json.loads(kept.body)["id"] == "run-1/a.b:c="
    ids = {answer.headers["x-request-id"] for answer in made if answer.status == 200}
    assert all(len(request_id) == 32 and request_id.isalnum() for request_id in ids)
    assert len(ids) == sum(answer.status == 200 for answer in made) >= 4


def test_one_line_a_request_with_its_figures_and_no_body() -> None:
    with stub(log_format="json") as server:
        server.send("GET", "/v1/count?n=2", x_request_id="abc")
        server.send("POST", "/v1/echo", body=b"a secret prompt")
        server.send("GET", "/v1/fail")
        server.send("GET", "/%0a%22forged")
        server.send("GET", "/health")
        assert server.end() == 0
    lines = [json.loads(line) for line in server.err]
    requests = [line for line in lines if line["message"] == "request"]
    assert [line["status"] for line in requests] == [200, 200, 500, 404]
    counted = requests[0]
    assert (counted["request_id"], counted["path"], counted["finish_reason"]) == (
        "abc",
        "/v1/count",
        "length",
    )
    assert (counted["prompt_tokens"], counted["cached_tokens"], counted["completion_tokens"]) == (7, 3, 5)
    assert (counted["ttft_ms"], counted["tpot_ms"], counted["queue_ms"]) == (11.0, 22.0, 1.0)
    assert requests[2]["error"] == "ZeroDivisionError"
    assert "secret" not in "".join(server.err)


def test_bodies_are_logged_where_asked_for() -> None:
    with stub(log_bodies=True) as server:
        server.send("POST", "/v1/echo", body=b'{"prompt": "hi\nthere"}' + b"x" * 5000)
        assert server.end() == 0
    (line,) = [line for line in server.err if "body=" in line]
    assert r'body="{\"prompt\": \"hi\nthere\"}xxx' in line
    assert len(line) < 2400


def test_a_reader_that_never_reads_the_log_stops_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.server.stub_server", "{}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as popen:
        line = next(line for line in popen.stdout if line.startswith("ready"))
        host, _, port = line.split("http://")[1].strip().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
            for _ in range(1500):
                connection.sendall(request_bytes("GET", "/v1/echo"))
                assert read_answer(connection).status == 200
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(HANG_S) == 0


def test_a_key_among_the_arguments_is_hidden_from_ps() -> None:
    program = (
        "import pathlib, sys; from ridgeline.server.process_title import hide_arguments; "
        "done = hide_arguments(['sk-12345']); "
        "print('ready', done, pathlib.Path('/proc/self/cmdline').read_bytes(), sys.argv)"
    )
    command = [sys.executable, "-c", program, "--api-key", "sk-12345"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S)
    assert "True" in done.stdout
    shown, _, argv = done.stdout.partition(" ['-c'")
    assert r"\x00--api-key\x00********\x00" in shown
    assert "sk-12345" in argv


def test_the_server_listens_on_ipv6_too() -> None:
    with started("tests.server.stub_server", json.dumps({"host": "::1"}), until="ready") as server:
        assert "http://[::1]:" in server.out[0]
        port = int(server.out[0].rpartition(":")[2])
        with socket.create_connection(("::1", port), timeout=HANG_S) as connection:
            connection.sendall(request_bytes("GET", "/v1/echo"))
            assert read_answer(connection).status == 200

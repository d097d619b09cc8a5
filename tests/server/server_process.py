"""Starts server processes for tests, and speaks raw HTTP to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

HANG_S = 60.0
"""Nothing in these tests takes so long unless it hangs."""


@dataclass
class Answer:
    """A whole HTTP/1.1 answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict:
        return json.loads(self.body)["error"]


@dataclass
class Process:
    """A running server: what it printed so far, and where it listens."""

    popen: subprocess.Popen
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    _num_open: int = 2
    _threads: list[threading.Thread] = field(default_factory=list)
    _said: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        for stream, lines in ((self.popen.stdout, self.out), (self.popen.stderr, self.err)):
            thread = threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _read(self, stream, lines: list[str]) -> None:
        for line in stream:
            with self._said:
                lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._num_open -= 1
            self._said.notify_all()

    def wait_for(self, text: str, lines: Sequence[str]) -> str:
        """The first line that holds `text`, once it is there."""
        with self._said:
            found = self._said.wait_for(lambda: self._found(text, lines), HANG_S)
        assert isinstance(found, list), (text, self.out, self.err)
        assert found, (text, self.out, self.err)
        return found[0]

    def _found(self, text: str, lines: Sequence[str]) -> list[str] | bool:
        return [line for line in lines if text in line] or not self._num_open

    @property
    def address(self) -> tuple[str, int]:
        line = next(line for line in self.out if "http://" in line)
        host, _, port = line.partition("http://")[2].split()[0].rpartition(":")
        return host, int(port)

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=HANG_S)

    def send(self, method: str, path: str, *, body: bytes = b"", **headers: str) -> Answer:
        """One request over its own connection."""
        with self.connect() as connection:
            connection.sendall(request_bytes(method, path, body=body, **headers))
            return read_answer(connection)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal, wait, give the exit status."""
        self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.popen.wait(HANG_S)
        for thread in self._threads:
            thread.join(HANG_S)
        return status


def request_bytes(method: str, path: str, *, body: bytes = b"", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body:
        named.setdefault("content-length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", "host: x", *[f"{name}: {value}" for name, value in named.items()]]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_answer(connection: socket.socket) -> Answer:
    reader = connection.makefile("rb")
    status = int(reader.readline().split()[1])
    headers = {}
    while line := reader.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(reader.readline() or b"0", 16):
            body += reader.read(size)
            reader.readline()
        reader.readline()
    else:
        body = reader.read(int(headers.get("content-length", 0)))
    return Answer(status, headers, body)


@contextlib.contextmanager
def started(*command: str, until: str = "ready", **environment: str) -> Iterator[Process]:
    """A process that has printed `until`, if that is not empty; killed at the end if it still runs."""
    popen = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    process = Process(popen)
    try:
        if until:
            process.wait_for(until, process.out)
        yield process
    finally:
        if popen.poll() is None:
            popen.kill()
        process.wait()
        for stream in (popen.stdout, popen.stderr):
            stream.close()


def stub(until: str = "ready", **settings: object) -> contextlib.AbstractContextManager[Process]:
    """The stub server with these settings."""
    return started("tests.server.stub_server", json.dumps(settings), until=until)

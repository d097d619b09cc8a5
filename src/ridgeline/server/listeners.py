"""Sockets that listen before anything is loaded, so that a taken port shows at once."""

from __future__ import annotations

import errno
import socket

from ridgeline.errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted."""
_REMEDIES = {
    errno.EADDRINUSE: "is taken by another process; stop it, or choose another port (0 takes a free one)",
    errno.EACCES: "may not be opened by this user; ports from 1024 on may",
}


def listen(host: str, port: int, *, field: str = "port") -> socket.socket:
    """A TCP socket that listens on an address; port 0 is a free one. Who connects waits for the server.

    Raises:
        ConfigError: the address can't be had; `field` names the port's setting.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError("host", host, f"is no address of this machine: {error}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in _REMEDIES:
            raise ConfigError(field, port, _REMEDIES[error.errno]) from None
        raise ConfigError("host", host, f"is no address of this machine: {error.strerror}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to call it by; for 0.0.0.0 and :: that of this machine itself."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

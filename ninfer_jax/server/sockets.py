"""The listening socket: opened before weights are loaded, so that a clash costs milliseconds."""

from __future__ import annotations

import errno
import socket

from ninfer_jax.errors import ConfigError

BACKLOG = 2048
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_UNACKNOWLEDGED_MILLISECONDS = 15_000


def listen(host: str, port: int) -> socket.socket:
    """Binds and listens. Raises `ConfigError` saying why the address cannot be used.

    Accepted connections inherit keep-alive probes and a limit of 15 s on data that the peer does
    not acknowledge, so a dead client is noticed within about 20 s.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: not an address of this machine: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_dead_peers(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(_refusal(error, host, port)) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """`http://host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _notice_dead_peers(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS
        )


def _refusal(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another program; stop it or give another --port"
    if error.errno == errno.EACCES:
        return f"port {port}: no permission to listen there; give a --port of 1024 or more"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"

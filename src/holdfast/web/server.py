"""Serves an ASGI application until the process is asked to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from holdfast.config.hosts import is_local
from holdfast.errors import UsageError
from holdfast.registry import needing

CLOSING_PATIENCE = 5
"""Seconds that open connections have when the server stops."""


def listen(host: str, port: int, *, allow_remote: bool) -> socket.socket:
    """A socket that listens there; port 0 is any that is free.

    Raises `UsageError` if that is impossible, and for an address that other hosts can reach unless that is allowed.
    """
    if not allow_remote and not (host and is_local(host)):
        raise UsageError(
            f"{host or 'every address'} can be reached from other hosts, and whoever can reach it may read: "
            "add --allow-remote if that is intended"
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def serve(app: Callable[..., Any], listening: socket.socket, announce: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; open channels are closed. Blocks. `announce` is called before that.

    Raises `UsageError` if the extra `web` is not installed.
    """
    with needing("`holdfast reindex serve`", "uvicorn", "web"):
        import uvicorn
        import websockets  # noqa: F401 - uvicorn would refuse WebSocket connections without it
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=CLOSING_PATIENCE,
    )
    announce()
    with closing(listening), suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])

"""A TCP proxy that can break a connection at a given request, refuse connections, or forward nothing."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

CHUNK = 1 << 16
RESPONDS_WITHIN = 10.0


@dataclass(frozen=True)
class Cut:
    """Where a connection breaks, once: at the next request that contains `request`.

    If `delivered`, the server gets the request, and all but the last `withheld` bytes of its response are forwarded.
    """

    request: bytes
    delivered: bool
    withheld: int


class TcpProxy:
    """Forwards between clients and one port of this host, and simulates failures on request.

    Use it as a context manager; clients connect to `port` on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: Cut | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._flows.set()
        self.refuse()
        for thread in self._threads:
            thread.join(5)

    def refuse(self) -> None:
        """Close all connections and refuse new ones, like a server that is not running."""
        with suppress(OSError):  # it may be refusing already
            # Unlike close, shutdown wakes the thread that waits in accept.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def accept(self) -> None:
        """Accept connections again, on the same port, after `refuse`."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def drop(self) -> None:
        """Close all connections; new ones are accepted."""
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Accept connections and requests, and forward nothing, like a server that hangs."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward what was held back, and everything after it."""
        self._flows.set()

    def cut(self, request: bytes = b"", *, delivered: bool = True, withheld: int = CHUNK) -> None:
        """Break the connection at the next request that contains `request`."""
        self._cut = Cut(request, delivered, withheld)

    @property
    def is_cut(self) -> bool:
        """Whether the connection has been broken since `cut`."""
        return self._cut is None

    def _listen(self) -> None:
        self._start(self._accept, self._listener)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._clients = [*(other for other in self._clients if other.fileno() >= 0), client]
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            # A server that is down is for the client to see: its connection ends.
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target)) as server,
            selectors.DefaultSelector() as ready,
        ):
            for side in (client, server):
                ready.register(side, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if not self._pass_on(client, server, from_client=key.fileobj is client):
                        return

    def _pass_on(self, client: socket.socket, server: socket.socket, *, from_client: bool) -> bool:
        source, target = (client, server) if from_client else (server, client)
        try:
            data = source.recv(CHUNK)
            self._flows.wait()
            cut = self._cut
            if from_client and data and cut is not None and cut.request in data:
                self._cut = None
                self._break(cut, data, client, server)
                return False
            target.sendall(data)
        except OSError:
            return False
        return bool(data)

    def _break(self, cut: Cut, request: bytes, client: socket.socket, server: socket.socket) -> None:
        if not cut.delivered:
            return
        server.sendall(request)
        server.settimeout(RESPONDS_WITHIN)
        response = server.recv(CHUNK)
        client.sendall(response[: max(0, len(response) - cut.withheld)])

"""A TCP proxy that cuts the line at the worst moment, or keeps everything back for a while."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

CHUNK = 1 << 16


@dataclass(frozen=True)
class Cut:
    """Where the line breaks, once: at the next request that contains `request`.

    If `delivered`, the server gets it, and all but the last `withheld` bytes of its answer still come through.
    """

    request: bytes
    delivered: bool
    withheld: int


class Proxy:
    """Passes everything on between clients and one port, until it is told to cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: Cut | None = None
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        # Unlike close, shutdown wakes the thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # Clients keep their connections for the next time, which does not come.
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def cut(self, request: bytes = b"", *, delivered: bool = True, withheld: int = CHUNK) -> None:
        """Break the line at the next such request."""
        self._cut = Cut(request, delivered, withheld)

    @property
    def is_cut(self) -> bool:
        """Whether such a request has come since."""
        return self._cut is None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients = [*(known for known in self._clients if known.fileno() >= 0), client]
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            # A server that is down is for the client to see: its connection ends.
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target)) as server,
            selectors.DefaultSelector() as ready,
        ):
            for one in (client, server):
                ready.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if not self._pass_on(client, server, from_client=key.fileobj is client):
                        return

    def _pass_on(self, client: socket.socket, server: socket.socket, *, from_client: bool) -> bool:
        source, target = (client, server) if from_client else (server, client)
        try:
            data = source.recv(CHUNK)
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
        answer = server.recv(CHUNK)
        client.sendall(answer[: max(0, len(answer) - cut.withheld)])

"""A proxy for PostgreSQL that keeps one chosen request, or its answer, back for as long as a test wants."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field

from holdfast.testing.proxy import CHUNK, TcpProxy

SYNC = b"S\0\0\0\4"
"""The last message of every request of the extended protocol."""


@dataclass(frozen=True)
class Hold:
    """One request that contains all of `parts`. If `delivered`, the server gets it and only its answer is kept back."""

    parts: tuple[bytes, ...]
    delivered: bool
    reached: threading.Event = field(default_factory=threading.Event)
    """Set when the request is there, and has been applied if it is to be delivered."""
    released: threading.Event = field(default_factory=threading.Event)
    """To be set when it may go on; a request then reaches the server even if its sender is dead by now."""


class HoldingProxy(TcpProxy):
    """Passes everything on but the next request that is to be held. Other connections are not held up."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._hold: Hold | None = None
        self._lock = threading.Lock()
        self._requests: dict[socket.socket, bytes] = {}
        """What each client has sent since it got an answer: a long request comes in pieces."""

    def hold(self, *parts: bytes, delivered: bool) -> Hold:
        """Hold the next such request, once."""
        self._hold = Hold(parts, delivered)
        return self._hold

    def give_up(self, hold: Hold) -> None:
        """Hold nothing more; what is held goes on."""
        self._hold = None
        hold.released.set()

    def _pass_on(self, client: socket.socket, server: socket.socket, *, from_client: bool) -> bool:
        source, target = (client, server) if from_client else (server, client)
        try:
            data = source.recv(CHUNK)
            hold = self._matching(client, data, from_client=from_client)
            if hold is None:
                target.sendall(data)
            else:
                _keep_back(hold, data, client, server)
        except OSError:
            return False
        return bool(data)

    def _matching(self, client: socket.socket, data: bytes, *, from_client: bool) -> Hold | None:
        request = self._requests[client] = self._requests.get(client, b"") + data if from_client else b""
        with self._lock:
            hold = self._hold
            if hold is None or not request.endswith(SYNC) or not all(part in request for part in hold.parts):
                return None
            self._hold = None
            return hold


def _keep_back(hold: Hold, request: bytes, client: socket.socket, server: socket.socket) -> None:
    if not hold.delivered:
        hold.reached.set()
        hold.released.wait()
    server.sendall(request)
    answer = server.recv(CHUNK)
    if hold.delivered:
        hold.reached.set()
        hold.released.wait()
    client.sendall(answer)

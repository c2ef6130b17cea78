"""A proxy before an HTTP server that is slow, refuses, hangs up or loses answers: S3 or OpenSearch on a bad day.

    with HttpProxy(s3.port, delay=0.05) as proxy:
        client = s3.client(proxy.port)
        proxy.fail(Fault.ANSWER_LOST, "PUT /lake/a")

It does not understand HTTP beyond the first line of a request: as nobody pipelines, what a client says first, or after
it was answered, is a new request.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

from holdfast.testing.proxy import CHUNK, TcpProxy

LINGER = 1.0  # seconds in which a client may say the rest of a request that was refused

_REFUSAL = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_REFUSED = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_REFUSAL), _REFUSAL)
)


_OVERLOAD = b'{"error":{"type":"circuit_breaking_exception","reason":"[parent] Data too large"},"status":429}'
_OVERLOADED = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_OVERLOAD), _OVERLOAD)
)


class Fault(Enum):
    REFUSED = auto()
    """The request is answered with 503, as S3 does, and never reaches the server."""
    OVERLOADED = auto()
    """The request is answered with 429, as OpenSearch does, and never reaches the server."""
    DROPPED = auto()
    """The connection ends, and the request never reaches the server."""
    ANSWER_LOST = auto()
    """The server does what it is asked, but the connection ends before its answer comes."""


_RESPONSES: dict[Fault | None, bytes] = {Fault.REFUSED: _REFUSED, Fault.OVERLOADED: _OVERLOADED}


class HttpProxy(TcpProxy):
    """Passes requests on after `delay` seconds each, which may be changed at any time.

    `decide` is asked about every request that `fail` does not name; it gets the request's first line, in the thread of
    its connection.
    """

    def __init__(
        self, port: int, delay: float = 0.0, decide: Callable[[str], Fault | None] = lambda _request: None
    ) -> None:
        super().__init__(port)
        self.delay = delay
        self.requests: list[str] = []
        """First lines of all requests, in the order in which they came."""
        self._decide = decide
        self._planned: list[tuple[Fault, str]] = []
        self._lock = threading.Lock()

    def fail(self, fault: Fault, request: str = "", times: int = 1) -> None:
        """Let that happen to the next requests whose first line contains `request`."""
        with self._lock:
            self._planned += [(fault, request)] * times

    def fault_of(self, request: str) -> Fault | None:
        """What happens to this request, which comes now."""
        with self._lock:
            self.requests.append(request)
            for planned in self._planned:
                if planned[1] in request:
                    self._planned.remove(planned)
                    return planned[0]
        return self._decide(request)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            _Line(self, client, server).run()


class _Line:
    """One client's connection and its counterpart to the server."""

    def __init__(self, proxy: HttpProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._answered = True
        self._lost = False

    def run(self) -> None:
        """Pass on what comes until one side is done. Raises `OSError` when one side is gone."""
        with selectors.DefaultSelector() as ready:
            for side, handle in ((self._client, self._ask), (self._server, self._answer)):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(side, selectors.EVENT_READ, (side, handle))
            while all(self._pass_on(*key.data) for key, _ in ready.select()):
                pass

    def _pass_on(self, side: socket.socket, handle: Callable[[bytes], bool]) -> bool:
        data = side.recv(CHUNK)
        return bool(data) and handle(data)

    def _ask(self, data: bytes) -> bool:
        if self._answered:
            self._answered = False
            fault = self._proxy.fault_of(data.split(b"\r\n", 1)[0].decode(errors="replace"))
            time.sleep(self._proxy.delay)
            if fault in _RESPONSES:
                self._refuse(_RESPONSES[fault])
            if fault in {*_RESPONSES, Fault.DROPPED}:
                return False
            self._lost = fault is Fault.ANSWER_LOST
        self._server.sendall(data)
        return True

    def _answer(self, data: bytes) -> bool:
        # "100 Continue" lets the client say the rest of its request; the answer follows.
        if self._answered or not (data.startswith(b"HTTP/1.1 100") and data.endswith(b"\r\n\r\n")):
            self._answered = True
            if self._lost:
                return False
        self._client.sendall(data)
        return True

    def _refuse(self, response: bytes) -> None:
        self._client.sendall(response)
        self._client.shutdown(socket.SHUT_WR)
        # Closed at once, the connection would be reset by what the client still says, and take the answer along.
        self._client.settimeout(LINGER)
        while self._client.recv(CHUNK):
            pass

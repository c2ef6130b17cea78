"""The HTTP endpoint of a node: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors of processes.

Alive: the loop is within the limit of its step. A restart mends a node that is not alive. Ready: the node has joined,
and the store has responded to its last heartbeat. A restart does not mend a node that is not ready: its store may be
away.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from holdfast.errors import UsageError
from holdfast.events import Event, Heartbeat, HeartbeatWithheld, NodeJoined, NodeLeft, SessionEnded, Unreachable

STORE = "store"
Start = Callable[[str, list[tuple[str, str]]], Any]


class Health:
    """Follows the events of one node. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hangs_in: str | None = None
        self._joined = False
        self._store_away: str | None = None
        self._usable_until: float | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Note the event if it says something about the node."""
        with self._lock:
            if isinstance(event, Heartbeat):
                self._hangs_in = self._store_away = None
                self._joined, self._usable_until = True, self._clock() + event.usable_for
            elif isinstance(event, NodeJoined):
                self._joined, self._hangs_in, self._store_away = True, None, None
            elif isinstance(event, SessionEnded | NodeLeft):
                self._joined, self._usable_until = False, None
            elif isinstance(event, HeartbeatWithheld):
                self._hangs_in = event.step
            elif isinstance(event, Unreachable) and event.what == STORE:
                self._store_away = event.error

    def trouble(self) -> str | None:
        """Return why the node is not alive; None if it is. A node that starts or waits for a server is alive."""
        with self._lock:
            return None if self._hangs_in is None else f"the loop hangs in its step {self._hangs_in!r}"

    def not_ready(self) -> str | None:
        """Return why the node cannot work; None if it can."""
        if (trouble := self.trouble()) is not None:
            return trouble
        with self._lock:
            if not self._joined:
                return "the node has not joined"
            if self._store_away is not None:
                return f"the store does not respond: {self._store_away}"
            if self._usable_until is not None and self._clock() >= self._usable_until:
                return "the session was not renewed in time"
            return None

    @property
    def usable_for(self) -> float:
        """Seconds for which the node can rely on its session; 0 without one."""
        with self._lock:
            return 0.0 if self._usable_until is None else max(0.0, self._usable_until - self._clock())


class Endpoint:
    """The address under which a node is scraped and probed, from construction to `stop`.

    Serves on threads of its own. Raises `UsageError` for a port that is taken.
    """

    def __init__(self, metrics: Collector, health: Health, port: int, address: str) -> None:
        registry = CollectorRegistry()
        registry.register(metrics)
        self._scrape = make_wsgi_app(registry)
        self._probes = {"/healthz": health.trouble, "/readyz": health.not_ready}
        try:
            self._server = make_server(address, port, self._respond, _server_of(address, port), _QuietHandler)
        except OSError as error:
            raise UsageError(f"metrics cannot be served on {address}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is served; chosen by the system if the configured one was 0."""
        return self._server.server_port

    def stop(self) -> None:
        """Stop serving and free the port. Blocks until current scrapes are finished; may be called repeatedly."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _respond(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        probe = self._probes.get(environ["PATH_INFO"])
        if probe is None:
            scraped: Iterable[bytes] = self._scrape(environ, start)
            return scraped
        wrong = probe()
        start("200 OK" if wrong is None else "503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{wrong or 'ok'}\n".encode()]


class _QuietHandler(WSGIRequestHandler):
    """Does not log requests: stderr has the log of the node."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per request, so that a slow scrape does not keep a probe waiting."""

    daemon_threads = True


def _server_of(address: str, port: int) -> type[WSGIServer]:
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return type("_ServerOfFamily", (_Server,), {"address_family": family})

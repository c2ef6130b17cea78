"""The HTTP endpoint of a node: `/metrics` for Prometheus, `/healthz` and `/readyz` for what restarts processes."""

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
from holdfast.observe.health import Health

Start = Callable[[str, list[tuple[str, str]]], Any]


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
    """Writes no line for each request: the log is that of the node."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per request, so that a slow scrape does not keep a probe waiting."""

    daemon_threads = True


def _server_of(address: str, port: int) -> type[WSGIServer]:
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return type("_ServerOfFamily", (_Server,), {"address_family": family})

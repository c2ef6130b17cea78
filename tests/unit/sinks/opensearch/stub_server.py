"""A stub of a cluster, or of a proxy in front of it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StubServer:
    """Records requests, and responds with one status, or by path."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.status = 200
        self.body = b"{}"
        self.content_type: str | None = "application/json"
        self.by_path: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                self.rfile.read(int(self.headers.get("content-length", 0)))
                status, body = stub.by_path.get(self.path.partition("?")[0], (stub.status, stub.body))
                self.send_response(status)
                if stub.content_type is not None:
                    self.send_header("content-type", stub.content_type)
                if 300 <= status < 400:
                    self.send_header("location", f"{stub.url}/login")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_GET  # noqa: N815 - the library's names

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


StubServers = Callable[..., StubServer]

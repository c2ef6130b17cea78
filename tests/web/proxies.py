"""A reverse proxy that serves a dashboard below a prefix, as nginx or an ingress does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

PATIENCE = 60.0


class PrefixProxy:
    """Forwards requests and sockets below a prefix, which it removes or leaves; everything else is 404."""

    def __init__(self, upstream: str, prefix: str, *, removes: bool) -> None:
        self._upstream = urlsplit(upstream)
        self._prefix = prefix.encode()
        self._removes = removes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request, or a socket."""
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, rest = head.split(b" ", 2)
            if target.startswith(self._prefix + b"/"):
                path = target.removeprefix(self._prefix) if self._removes else target
                await self._forward(b" ".join((method, path, rest)), reader, writer)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
        writer.close()

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        if b"upgrade: websocket" not in head.lower():
            # So that the server ends the connection, and the next request has one of its own.
            head = head.replace(b"\r\nConnection: keep-alive\r\n", b"\r\nConnection: close\r\n")
        to_server.write(head)
        sending = asyncio.create_task(_pipe(reader, to_server))
        await _pipe(from_server, writer)
        sending.cancel()
        to_server.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@contextmanager
def proxied(upstream: str, prefix: str, *, removes: bool) -> Iterator[str]:
    """Start a proxy in front of a server, and yield its address with the prefix."""
    proxy = PrefixProxy(upstream, prefix, removes=removes)
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        ended = asyncio.Event()
        started.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), ended))
        await ended.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    port, loop, ended = started.result(PATIENCE)
    try:
        yield f"http://127.0.0.1:{port}{prefix}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE)

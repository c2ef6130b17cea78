"""The channel `searchIndexJobStatus`: the progress of reindex runs for WebSocket clients, as an ASGI application.

A client gets the status of a run when it connects, and after that whenever it has changed, at most every two seconds;
the last status is always sent. A GET request returns the same JSON. However many clients there are, the store is read
once in two seconds, and never without clients. Plain ASGI: one route needs no framework, and any can mount it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from holdfast.config.hosts import is_local
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.flow.run import Run

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PATH = "/api/v1/searchIndexJobStatus"
EVERY = 2.0
"""Seconds between two reads, and between two messages to a client."""
_POLICY_VIOLATION = 1008


def status_message(run: Run) -> str:
    """The status of a run, as JSON in the form of OpenMetadata."""
    counts = run.counts
    of_entities = {
        name: _records(group.total, group.succeeded, group.failed) for name, group in sorted(run.groups.items())
    }
    of_job = _records(run.total, counts.succeeded, counts.failed)
    return json.dumps({"status": run.status.value, "stats": {"jobStats": of_job, "entityStats": of_entities}})


def _records(total: int, succeeded: int, failed: int) -> dict[str, int]:
    return {"totalRecords": total, "successRecords": succeeded, "failedRecords": failed}


class _Reading(NamedTuple):
    """What the latest read has found: the runs, the latest first, or why there is nothing."""

    runs: tuple[Run, ...] = ()
    fault: str | None = None
    next_at: float = 0.0

    def message(self, wanted: str | None) -> str | None:
        """The status of that run, or of the latest one; None if there is no such run."""
        chosen = next((run for run in self.runs if wanted in {None, run.id}), None)
        return None if chosen is None else status_message(chosen)


class JobStatus:
    """The ASGI application. `read` returns the reindex runs, the latest first; it is called in a thread.

    `report` is called once when the store does not respond any more: clients wait meanwhile, and GET requests get 503.
    With `local_only`, requests are refused that name another host than this one, so that a web page cannot reach
    the application through a host name of its own. A page of another origin is refused in any case, unless the
    application is `guarded`: another layer has checked host and origin.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Run]],
        *,
        report: Callable[[str], None] = lambda _message: None,
        local_only: bool = False,
        guarded: bool = False,
        every: float = EVERY,
    ) -> None:
        self._read = read
        self._report = report
        self._local_only = local_only
        self._guarded = guarded
        self._every = every
        self._reading = _Reading()
        self._refreshing: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await self._serve_channel(scope, receive, send)
        elif scope["type"] == "http":
            await self._respond(scope, send)

    # --- WebSocket -----------------------------------------------------------------------------------------------

    async def _serve_channel(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if not _is_route(scope) or not self._may_read(scope):
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        await send({"type": "websocket.accept"})
        sending = asyncio.create_task(self._send_changes(_wanted(scope), send))
        closing = asyncio.create_task(_until_closed(receive))
        try:
            await asyncio.wait((sending, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, closing):
                task.cancel()
            ended = await asyncio.gather(sending, closing, return_exceptions=True)
        for error in ended:
            # A client that went away while a message was sent is not an error.
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise error

    async def _send_changes(self, wanted: str | None, send: Send) -> None:
        sent: str | None = None
        while True:
            reading = await self._latest()
            message = reading.message(wanted)
            if message not in {None, sent}:
                await send({"type": "websocket.send", "text": message})
                sent = message
            # All clients wake up together: the first one reads, and the others get what it has read.
            await asyncio.sleep(max(0.0, reading.next_at - time.monotonic()))

    # --- polling -------------------------------------------------------------------------------------------------

    async def _respond(self, scope: Scope, send: Send) -> None:
        if not self._may_read(scope):
            await _send_json(send, 403, _error("this host or origin is not allowed"))
        elif not _is_route(scope):
            await _send_json(send, 404, _error(f"there is only {PATH}"))
        elif scope["method"] not in {"GET", "HEAD"}:
            await _send_json(send, 405, _error("only GET and HEAD are allowed"), (b"allow", b"GET, HEAD"))
        else:
            reading = await self._latest()
            message = reading.message(_wanted(scope))
            if reading.fault is not None:
                await _send_json(send, 503, _error(reading.fault))
            elif message is None:
                await _send_json(send, 404, _error("there is no such reindex run"))
            else:
                await _send_json(send, 200, message)

    # --- the one read --------------------------------------------------------------------------------------------

    async def _latest(self) -> _Reading:
        """What was found by the latest read, which is at most as old as the interval."""
        if self._refreshing is None and time.monotonic() >= self._reading.next_at:
            self._refreshing = asyncio.create_task(self._refresh())
        if self._refreshing is not None:
            # The read goes on if this client goes away, so that the next one does not begin another.
            await asyncio.shield(self._refreshing)
        return self._reading

    async def _refresh(self) -> None:
        try:
            self._reading = await asyncio.to_thread(self._found)
        finally:
            self._refreshing = None

    def _found(self) -> _Reading:
        try:
            runs, fault = tuple(self._read()), None
        except (StoreUnavailable, StoreError) as error:
            runs, fault = (), str(error)
            if self._reading.fault is None:
                self._report(fault)
        return _Reading(runs, fault, time.monotonic() + self._every)

    def _may_read(self, scope: Scope) -> bool:
        if self._guarded:
            return True
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, page = urlsplit(f"//{host}").hostname, host if origin is None else urlsplit(origin).netloc
        except ValueError:
            return False
        return page == host and (not self._local_only or (name is not None and is_local(name)))


def _is_route(scope: Scope) -> bool:
    """Whether the path is that of the channel, or that at which another application has mounted this one."""
    mounted_at: str = scope.get("root_path", "")
    path = scope["path"].removeprefix(mounted_at).rstrip("/")
    return path == PATH or (path == "" and mounted_at != "")


def _wanted(scope: Scope) -> str | None:
    """The run that the query names."""
    query: bytes = scope.get("query_string", b"")
    return next(iter(parse_qs(query.decode("latin-1")).get("run", ())), None)


def _error(reason: str) -> str:
    return json.dumps({"error": reason})


async def _send_json(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    kind = (b"content-type", b"application/json")
    await send(
        {"type": "http.response.start", "status": status, "headers": [kind, (b"cache-control", b"no-store"), *headers]}
    )
    await send({"type": "http.response.body", "body": text.encode()})


async def _until_closed(receive: Receive) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass  # clients have nothing to say


async def _live(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] != "lifespan.shutdown":
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})

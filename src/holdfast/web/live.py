"""The live channel: one tick names the regions of a page that have changed, and the cells of a map.

A client sends the topics that it looks at; each message replaces those before:

    {"subscribe": ["/pipelines/events?status=FAILED", "map:events", "map:events?run=backfill-1"],
     "seen": {"counts": "9f…", "partitions": "04…"}}

A topic is the address of a page, without the prefix of a proxy, or a map. `seen` are the digests of the regions that
the client shows, as the page and each fetched region came with: regions that are different now are named at once. The
server sends, every two seconds or when something has changed:

    {"snapshot": 812, "at": "…", "store": "ok", "age": 0.1, "page": "/", "regions": ["counts"]}
    {"map": "events", "run": "", "from": 811, "to": 812, "changes": [[17, 4]]}

`store` is `ok`, or why the data are old. A client fetches the regions, and after a gap in the numbers the whole map. A
client that is slow gets the newest state when it is ready, instead of a queue of old ones. However many clients there
are, each topic is read once per tick, and nothing without clients.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.errors import HoldfastError
from holdfast.web.maps import Map, Maps
from holdfast.web.page import as_json, digests_of
from holdfast.web.readings import EVERY, Reading, Readings
from holdfast.web.responses import reason_of

MOST_TOPICS = 8
"""Topics of one client."""
LONGEST_TOPIC = 8192
_UNSUPPORTED = 1003

ReadPage = Callable[[str], Awaitable[Reading]]
"""Returns the data of the page at this address. Raises `NotFound` if there is none."""


@dataclass
class _Topic:
    """What is known about a topic: the latest digests of its regions, and the latest map."""

    clients: int = 0
    looks: int = 0
    at: str = ""
    read_at: float = 0.0
    fault: str | None = None
    value: Any = field(default=None, repr=False)
    digests: Mapping[str, str] = field(default_factory=dict)
    map: Map | None = None
    texts: dict[Hashable, str] = field(default_factory=dict, repr=False)
    """Messages about the latest look, by what a client has seen before: most clients get the same one."""


class Live:
    """All clients of the live channel. Used from one event loop."""

    def __init__(self, read_page: ReadPage, maps: Maps, readings: Readings, report: Callable[[str], None]) -> None:
        """`report` gets what goes wrong inside of a page."""
        self._read_page = read_page
        self._maps = maps
        self._report = report
        # Readings keep a pace of their own: browsers take a server that is silent for longer to be away.
        self._every = min(readings.every, EVERY)
        self._topics: dict[str, _Topic] = {}
        self._ticked = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    async def serve(self, socket: WebSocket) -> None:
        """Serve one client until it goes away."""
        await socket.accept()
        client = _Client(self, socket)
        try:
            await client.serve()
        finally:
            client.leave()

    def join(self, topic: str) -> _Topic:
        """Count a client of a topic, and begin to read the topic if it is the first one."""
        found = self._topics.setdefault(topic, _Topic())
        found.clients += 1
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
        return found

    def part(self, topic: str) -> None:
        """Note that a client has left a topic; without clients a topic is not read any more."""
        found = self._topics[topic]
        found.clients -= 1
        if not found.clients:
            del self._topics[topic]

    async def look_at(self, name: str) -> None:
        """Read a topic, unless it was read just before, and note what has changed."""
        topic = self._topics.get(name)
        if topic is None:
            return
        try:
            if name.startswith("map:"):
                topic.map, reading = await self._maps.get(*_map_of(name))
            else:
                reading = await self._read_page(name)
                if reading.value is not topic.value:
                    topic.value, topic.digests = reading.value, digests_of(reading.value)
            topic.read_at, topic.fault = reading.read_at, reading.fault
        except Exception as error:  # noqa: BLE001 - one page must not stop the ticks of others
            topic.fault = reason_of(error)
            if not isinstance(error, HoldfastError):
                self._report(f"{name}: {type(error).__name__}: {error}")
        topic.looks += 1
        topic.texts = {}
        topic.at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    async def next_tick(self) -> None:
        """Wait for the next tick."""
        await self._ticked.wait()

    async def _tick(self) -> None:
        while self._topics:
            await asyncio.sleep(self._every)
            await asyncio.gather(*map(self.look_at, list(self._topics)))
            self._ticked.set()
            self._ticked = asyncio.Event()


class _Client:
    """One socket: what it looks at, and what it has been sent."""

    def __init__(self, live: Live, socket: WebSocket) -> None:
        self._live = live
        self._socket = socket
        self._topics: dict[str, _Topic] = {}
        self._seen: dict[str, Mapping[str, str]] = {}
        self._maps: dict[str, int] = {}

    async def serve(self) -> None:
        """Receive and send until either ends."""
        tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._send_ticks())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            # A client that went away while a message was sent is not an error.
            if isinstance(error, Exception) and not isinstance(error, OSError | WebSocketDisconnect | RuntimeError):
                raise error

    def leave(self) -> None:
        """Look at nothing any more."""
        for topic in self._topics:
            self._live.part(topic)
        self._topics = {}

    async def _receive(self) -> None:
        async for text in self._socket.iter_text():
            try:
                message = json.loads(text)
                topics = [str(topic)[:LONGEST_TOPIC] for topic in message["subscribe"]][:MOST_TOPICS]
                seen = {str(region): str(digest) for region, digest in message.get("seen", {}).items()}
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                await self._socket.close(_UNSUPPORTED, 'expected {"subscribe": ["/"]}')
                return
            await self._subscribe(topics, seen)

    async def _subscribe(self, topics: list[str], seen: Mapping[str, str]) -> None:
        self.leave()
        # A topic that is named twice is joined once, as it is left once.
        self._topics = {topic: self._live.join(topic) for topic in dict.fromkeys(topics)}
        self._seen = dict.fromkeys(self._topics, seen) if seen else {}
        self._maps = {}
        await asyncio.gather(*map(self._live.look_at, self._topics))
        await self._send_news()

    async def _send_ticks(self) -> None:
        while True:
            await self._live.next_tick()
            await self._send_news()

    async def _send_news(self) -> None:
        for name, topic in list(self._topics.items()):
            text = self._of_map(name, topic) if name.startswith("map:") else self._of_page(name, topic)
            if text is not None:
                await self._socket.send_text(text)

    def _of_page(self, name: str, topic: _Topic) -> str:
        now = topic.digests
        before = self._seen.get(name, now)
        if now:
            self._seen[name] = now
        changed = () if before is now or not now else _different(before, now)
        if changed not in topic.texts:
            topic.texts[changed] = as_json(self._tick(name, topic, changed))
        return topic.texts[changed]

    def _tick(self, name: str, topic: _Topic, changed: Sequence[str]) -> Mapping[str, Any]:
        age = time.monotonic() - topic.read_at if topic.read_at else None
        return {
            "snapshot": topic.looks,
            "at": topic.at,
            "store": topic.fault or "ok",
            "age": None if age is None else round(age, 3),
            "page": name,
            "regions": changed,
        }

    def _of_map(self, name: str, topic: _Topic) -> str | None:
        latest, sent = topic.map, self._maps.get(name)
        if latest is None or sent == latest.number:
            return None
        self._maps[name] = latest.number
        if sent not in topic.texts:
            topic.texts[sent] = as_json(self._change(name, latest, sent))
        return topic.texts[sent]

    def _change(self, name: str, latest: Map, sent: int | None) -> Mapping[str, Any]:
        pipeline, run = _map_of(name)
        follows = latest.changes is not None and sent == latest.number - 1
        # The first message tells a client whether its map is current; after a gap it fetches the whole map.
        before = latest.number if sent is None else latest.number - 1 if follows else None
        changes = latest.changes if follows else ()
        return {"map": pipeline, "run": run, "from": before, "to": latest.number, "changes": changes}


def _different(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(region for region in {**now, **before} if now.get(region) != before.get(region))


def _map_of(topic: str) -> tuple[str, str]:
    """The pipeline and the run of a map's topic."""
    pipeline, _, query = topic.removeprefix("map:").partition("?")
    return pipeline, next(iter(parse_qs(query).get("run", ())), "")

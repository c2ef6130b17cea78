"""A bad network between nodes and a server: it holds, drops, loses answers, delivers late, and repeats.

What a client sent is passed on even if the client has gone meanwhile, so that a write may land long after its sender
gave up. `repeat` sends everything that a client has sent so far once more, over a connection of its own: every write of
it lands twice. That works only where a login is not bound to one connection, that is without a password.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

CHUNK = 1 << 16
MOST_KEPT = 1 << 20
"""Bytes of a connection that can be repeated; one that sent more is passed over."""
REPEAT_WITHIN = 2.0


@dataclass(eq=False)
class _Line:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    sent: bytearray = field(default_factory=bytearray)

    def abort(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class BadNetwork:
    """Passes everything on to one port of this host, until a test says otherwise. Runs on a thread of its own."""

    def __init__(self, target: int, seed: int) -> None:
        self._target = target
        self._dice = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._lines: set[_Line] = set()
        self._requests_pass = asyncio.Event()
        self._answers_pass = asyncio.Event()
        self._refusing = False
        self._answers_to_lose = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.repeated = 0
        """How many connections were sent once more, to their end."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_loop(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    # --- faults; each returns at once --------------------------------------------------------------------------

    def hold(self, seconds: float) -> None:
        """Nothing passes for so long; then all of it does."""
        self._gate_for([self._requests_pass, self._answers_pass], seconds)

    def hold_requests(self, seconds: float) -> None:
        """What clients send lands late, if need be after they gave up."""
        self._gate_for([self._requests_pass], seconds)

    def hold_answers(self, seconds: float) -> None:
        """Requests arrive, and responses come late or not at all."""
        self._gate_for([self._answers_pass], seconds)

    def drop(self) -> None:
        """Every connection breaks."""
        self._loop.call_soon_threadsafe(self._drop_all)

    def refuse(self, seconds: float) -> None:
        """Every connection breaks, and new ones too for so long."""
        self._on_loop(self._refuse(seconds))

    def lose_answers(self, number: int) -> None:
        """So many connections break at the moment at which an answer comes."""
        self._answers_to_lose = number

    def repeat(self, number: int) -> None:
        """Send once more what so many of the connections have sent."""
        self._on_loop(self._repeat_some(number))

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _gate_for(self, gates: list[asyncio.Event], seconds: float) -> None:
        def shut() -> None:
            for gate in gates:
                gate.clear()
                self._loop.call_later(seconds, gate.set)

        self._loop.call_soon_threadsafe(shut)

    # --- on the loop -------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._requests_pass.set()
        self._answers_pass.set()
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self._drop_all()

    def _drop_all(self) -> None:
        for line in self._lines:
            line.abort()

    async def _refuse(self, seconds: float) -> None:
        self._refusing = True
        self._drop_all()
        self._loop.call_later(seconds, setattr, self, "_refusing", False)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if self._refusing:
                to_client.transport.abort()
                return
            try:
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                to_client.transport.abort()
                raise
            line = _Line(to_client, to_server)
            self._lines.add(line)
            try:
                await asyncio.gather(self._requests(line, from_client), self._answers(line, from_server))
            finally:
                self._lines.discard(line)
                line.abort()

    async def _requests(self, line: _Line, source: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                line.sent += data
                await self._requests_pass.wait()
                line.server.write(data)
                await line.server.drain()
        # In order: what was sent before is delivered, whether or not anybody waits for the answer.
        if line.server.can_write_eof():
            with suppress(OSError):
                line.server.write_eof()

    async def _answers(self, line: _Line, source: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                await self._answers_pass.wait()
                if self._answers_to_lose > 0 and self._dice.random() < 0.3:
                    self._answers_to_lose -= 1
                    break
                line.client.write(data)
                await line.client.drain()
        line.client.transport.abort()

    async def _repeat_some(self, number: int) -> None:
        able = [bytes(line.sent) for line in self._lines if 0 < len(line.sent) <= MOST_KEPT]
        for sent in self._dice.sample(able, min(number, len(able))):
            task = self._loop.create_task(self._repeat(sent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _repeat(self, sent: bytes) -> None:
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.timeout(REPEAT_WITHIN):
                    # Answers are read while it is sent, or both sides would wait for each other.
                    await asyncio.gather(self._send(writer, sent), self._swallow(reader))
            finally:
                writer.transport.abort()
                self.repeated += 1

    async def _send(self, writer: asyncio.StreamWriter, sent: bytes) -> None:
        writer.write(sent)
        await writer.drain()

    async def _swallow(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(CHUNK):
            pass

"""Viewers of a dashboard that hold a socket of the live channel, as open pages do."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from websockets.asyncio.client import connect

PAGES = (["/"], ["/pipelines/events", "map:events"], ["/nodes"], ["/pipelines/events?status=FAILED", "map:events"])
"""What viewers look at, in turn."""
PATIENCE = 60.0


@contextmanager
def viewers(url: str, number: int, token: str = "", pages: Sequence[Sequence[str]] = PAGES) -> Iterator[None]:
    """Hold that many sockets open, and read all that comes. Begins when each has heard of its page."""
    loop = asyncio.new_event_loop()
    heard = threading.Semaphore(0)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    address = f"{url.replace('http', 'ws', 1)}/api/v1/live"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    looked_at = itertools.islice(itertools.cycle(pages), number)
    for page in looked_at:
        asyncio.run_coroutine_threadsafe(_view(address, headers, page, heard), loop)
    try:
        for _ in range(number):
            if not heard.acquire(timeout=PATIENCE):
                raise TimeoutError("viewers hear nothing")
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _view(address: str, headers: dict[str, str], page: Sequence[str], heard: threading.Semaphore) -> None:
    async with connect(address, additional_headers=headers, open_timeout=PATIENCE) as socket:
        await socket.send(json.dumps({"subscribe": list(page)}))
        await socket.recv()
        heard.release()
        async for _ in socket:
            pass


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

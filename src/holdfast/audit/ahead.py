"""Doing a few things ahead of time, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from itertools import islice
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

THREADS = 8
WINDOW = 16


def ahead(pool: Executor, do: Callable[[Given], Made], inputs: Iterable[Given], window: int = WINDOW) -> Iterator[Made]:
    """`do` of each input in order, with up to `window` under way; an error is raised when its turn comes."""
    waiting: deque[Future[Made]] = deque()
    rest = iter(inputs)
    try:
        while True:
            waiting.extend(pool.submit(do, one) for one in islice(rest, window - len(waiting)))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()

"""Watching what a job reads while it runs: a task may wait long for records that are gone, and all others with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from holdfast.flow.batch import Batch
from holdfast.flow.source import MayChange, Source

WATCH_EVERY = 5.0
"""Seconds between two questions to the source; most jobs are done before the first."""


@contextmanager
def watched(source: Source, batches: Sequence[Batch], cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel`, once at most, when the source has come to doubt one of the batches; never after the end."""
    if not isinstance(source, MayChange):
        yield
        return
    over, lock = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.wait(WATCH_EVERY):
            doubts = {}
            with suppress(Exception):  # one that does not answer is no reason to cancel
                doubts = dict(source.doubts(batches))
            if doubts:
                with lock:
                    if not over.is_set():
                        cancel()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.set()

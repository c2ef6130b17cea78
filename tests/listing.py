"""A reader who knows nothing of commits: lists again and again, and notes every object that changed or went away.

For judges of an output, which share it; no code of the product is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

BETWEEN_LISTINGS = 1.0


class Lister:
    """Lists once a second in a thread of its own, and once more at the end."""

    def __init__(self, listing: Callable[[], Mapping[str, str]], away: tuple[type[Exception], ...] = ()) -> None:
        """`listing` tells the state of each visible object by name; what `away` names means that nobody could look."""
        self._listing = listing
        self._away = away
        self._seen: Mapping[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.listings = 0
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look_if_possible()

    def look(self) -> None:
        """List everything, and compare with what was there before."""
        seen, now = self._seen, self._listing()
        self.complaints += [f"{name} has disappeared" for name in seen if name not in now]
        changed = [(name, was, now[name]) for name, was in seen.items() if now.get(name, was) != was]
        self.complaints += [f"{name} has changed: {was} is {is_now}" for name, was, is_now in changed]
        self._seen = now
        self.listings += 1

    def _run(self) -> None:
        while not self._stop.wait(BETWEEN_LISTINGS):
            self._look_if_possible()

    def _look_if_possible(self) -> None:
        # A bucket that is down has not lost anything yet.
        with suppress(*self._away):
            self.look()

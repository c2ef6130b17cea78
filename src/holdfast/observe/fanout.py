"""One `emit` for many consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from holdfast.events import Event, Notice

Consumer: TypeAlias = Callable[[Event], None]


class Reporter:
    """Hands every event to every consumer. Never raises: no consumer is worth the pipeline or another consumer.

    When a consumer begins to fail, the others are told once; it is told of later events all the same.
    """

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        self._consumers = tuple(consumers)
        self._failing: set[int] = set()

    def __call__(self, event: Event) -> None:
        """Report the event. Blocks as long as the consumers do."""
        for index, consumer in enumerate(self._consumers):
            error = _told(consumer, event)
            if error is None:
                self._failing.discard(index)
            elif index not in self._failing:
                self._failing.add(index)
                self._tell_the_others(index, error)

    def _tell_the_others(self, failed: int, error: Exception) -> None:
        name = type(self._consumers[failed]).__name__
        notice = Notice(f"{name} could not take an event: {type(error).__name__}: {error}")
        for index, consumer in enumerate(self._consumers):
            if index not in self._failing:
                _told(consumer, notice)


def _told(consumer: Consumer, event: Event) -> Exception | None:
    try:
        consumer(event)
    except Exception as error:  # noqa: BLE001 (whatever a consumer raises is its own trouble)
        return error
    return None

"""The log: one line per event, for people or for machines."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, TextIO, get_args

from holdfast.events import Event, Level, Notice
from holdfast.observe.plain import plain, worded
from holdfast.observe.text import printable, timestamp

Form = Literal["text", "json"]

LEVELS: tuple[Level, ...] = get_args(Level)


class Log:
    """Writes events at or above a level to a stream. May be called from several threads; lines never mix.

    Text is a sentence: `<time> <level> <event in words>: <field> <value>, …`, without fields that are None. JSON is one
    object per line with `ts`, `level`, `event` (the class name) and the event's fields.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        form: Form = "text",
        level: Level = "info",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._stream = stream
        self._line = _json_line if form == "json" else _text_line
        self._shown = LEVELS[LEVELS.index(level) :]
        self._now = now
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write the event, if it is important enough, and flush."""
        if event.level not in self._shown:
            return
        line = self._line(timestamp(self._now()), event)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def event_fields(event: Event) -> dict[str, Any]:
    """What the event tells, by name, in the order of its definition."""
    return {field.name: getattr(event, field.name) for field in fields(event)}


def in_words(event: type[Event]) -> str:
    """`PartitionsCreated` as `partitions created`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", event.__name__).lower()


def _text_line(at: str, event: Event) -> str:
    return f"{at} {event.level:7} {_sentence(event)}"


def _sentence(event: Event) -> str:
    if isinstance(event, Notice):
        return printable(plain(event.message))
    told = [f"{name} {worded(value)}" for name, value in event_fields(event).items() if value is not None]
    return ": ".join([in_words(type(event)), *([", ".join(told)] if told else [])])


def _json_line(at: str, event: Event) -> str:
    head: Mapping[str, Any] = {"ts": at, "level": event.level, "event": type(event).__name__}
    return json.dumps({**head, **plain(event_fields(event))})

"""The log: one line per event, as text or as JSON."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, Protocol, get_args

from holdfast.events import Event, Level, NodeJoined, Notice
from holdfast.observe.json_values import plain, worded
from holdfast.observe.text import printable, timestamp

Form = Literal["text", "json"]

LEVELS: tuple[Level, ...] = get_args(Level)

REPEAT_AFTER = 10.0
"""Seconds in which the same warning is written only once."""
_REMEMBERED = 1000


class TextStream(Protocol):
    """A stream of text."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class Log:
    """Writes events at or above a level to a stream. Thread-safe; lines never mix.

    Text has the form `<time> <level> <event in words>: <field> <value>, …`, without fields that are None. JSON is one
    object per line with `ts`, `level`, `event` (the class name), `node`, `session`, `pipeline` and the event's fields.
    `session` is that of the node, unless the event is about another one; it is null before the node has joined, and
    `pipeline` is null if the event is about none.

    Warnings that differ only in durations are written once in `REPEAT_AFTER` seconds; the next one that is written has
    the number of those left out (`repeated` in JSON).
    """

    def __init__(
        self,
        stream: TextStream,
        *,
        form: Form = "text",
        level: Level = "info",
        node: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`node` is the name of the node whose events these are."""
        self._stream = stream
        self._is_json = form == "json"
        self._subject: dict[str, str | None] = {"node": node, "session": None, "pipeline": None}
        self._shown = LEVELS[LEVELS.index(level) :]
        self._now = now
        self._repeats = _Repeats()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write the event, if it is important enough and not a repetition, and flush."""
        if isinstance(event, NodeJoined):
            self._subject = {**self._subject, "node": event.node, "session": event.session}
        if event.level not in self._shown:
            return
        now = self._now()
        with self._lock:
            left_out = self._repeats.before(event, now) if event.level == "warning" else 0
            if left_out is not None:
                self._stream.write(self._line(timestamp(now), event, left_out) + "\n")
                self._stream.flush()

    def _line(self, at: str, event: Event, left_out: int) -> str:
        return _json_line(at, event, left_out, self._subject) if self._is_json else _text_line(at, event, left_out)


class _Repeats:
    """Counts repeated warnings."""

    def __init__(self) -> None:
        self._written: dict[tuple[Any, ...], tuple[float, int]] = {}

    def before(self, event: Event, now: float) -> int | None:
        """Return how many equal warnings were suppressed since the last one written; None to suppress this one too."""
        key = (type(event), *(repr(value) for value in event_fields(event).values() if not isinstance(value, float)))
        at, left_out = self._written.get(key, (-REPEAT_AFTER, 0))
        # A clock that was set back must not suppress warnings.
        if at <= now < at + REPEAT_AFTER:
            self._written[key] = (at, left_out + 1)
            return None
        if len(self._written) >= _REMEMBERED:
            self._written.clear()
        self._written[key] = (now, 0)
        return left_out


def event_fields(event: Event) -> dict[str, Any]:
    """Return the event's fields by name, in the order of its definition."""
    return {field.name: getattr(event, field.name) for field in fields(event)}


def in_words(event: type[Event]) -> str:
    """Return `partitions created` for `PartitionsCreated`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", event.__name__).lower()


def _text_line(at: str, event: Event, left_out: int) -> str:
    return f"{at} {event.level:7} {_sentence(event)}" + (f" (and {left_out} more like it)" if left_out else "")


def _sentence(event: Event) -> str:
    if isinstance(event, Notice):
        return printable(plain(event.message))
    shown = [f"{name} {worded(value)}" for name, value in event_fields(event).items() if value is not None]
    return ": ".join([in_words(type(event)), *([", ".join(shown)] if shown else [])])


def _json_line(at: str, event: Event, left_out: int, subject: Mapping[str, str | None]) -> str:
    head: Mapping[str, Any] = {"ts": at, "level": event.level, "event": type(event).__name__, **subject}
    tail: Mapping[str, Any] = {"repeated": left_out} if left_out else {}
    return json.dumps({**head, **plain(event_fields(event)), **tail})

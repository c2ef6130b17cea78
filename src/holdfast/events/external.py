"""Events about stores, sources and sinks, notices, and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.events.event import Event, Level


@dataclass(frozen=True, slots=True)
class Unreachable(Event):
    """A server does not respond; the same call is repeated after a while, nothing is skipped."""

    level: ClassVar[Level] = "warning"
    what: str
    error: str
    retry_in: float
    pipeline: str | None = None
    """The pipeline of the source or sink; None if it is unknown, and for the store."""


@dataclass(frozen=True, slots=True)
class SinkOpened(Event):
    """A sink has checked its output; `verdict` describes the result and how the output will be used."""

    pipeline: str
    sink: str
    verdict: str


@dataclass(frozen=True, slots=True)
class LagMeasured(Event):
    """How far a partition is behind its source: unread records, and the age of the oldest of them.

    Emitted repeatedly while the partition is held, also without lag. None: the source does not report it.
    """

    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    records: int | None
    seconds: float | None
    kept: float | None = None
    """Retention of the source in seconds; None: for ever, or unknown."""


@dataclass(frozen=True, slots=True)
class RecordsLost(Event):
    """The source has deleted records before they were read, from `start` up to `end` (exclusive)."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicDenied(Event):
    """The brokers deny access to a partition's topic; other topics are unaffected. Emitted every minute."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class WaitsBehindTransaction(Event):
    """A partition waits behind an open transaction: records from `offset` on cannot be read before it ends.

    Emitted after a minute, and then every minute. `since` is when the wait began, as a time in UTC; `seconds`, how long
    ago that was.
    """

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    offset: int
    since: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A message for people, for example about the limits of a store."""

    level: ClassVar[Level] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class AlertRaised(Event):
    """Something needs a person. Emitted once, and again after a while if the cause persists.

    `pipeline` and `key` are None if the alert concerns no single one.
    """

    level: ClassVar[Level] = "error"
    kind: str
    pipeline: str | None
    key: str | None
    message: str


@dataclass(frozen=True, slots=True)
class AlertCleared(Event):
    """The cause of an alert is gone, as far as this node can see; `reason` explains why."""

    kind: str
    pipeline: str | None
    key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class AlertsNotSent(Event):
    """`count` alerts will never reach the webhook; they are in the log."""

    level: ClassVar[Level] = "error"
    count: int
    reason: str

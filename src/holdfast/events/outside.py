"""Facts about what is outside: stores, sources, sinks, and what people should hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.events.event import Event, Level


@dataclass(frozen=True, slots=True)
class Unreachable(Event):
    """Something outside does not answer; the same call is made again after a while, nothing is skipped."""

    level: ClassVar[Level] = "warning"
    what: str
    error: str
    retry_in: float
    pipeline: str | None = None
    """Whose source or sink it is; None where that is not known, and for the store."""


@dataclass(frozen=True, slots=True)
class SinkOpened(Event):
    """A sink found its output fit for use; `verdict` says what it found there and how it will be used."""

    pipeline: str
    sink: str
    verdict: str


@dataclass(frozen=True, slots=True)
class LagMeasured(Event):
    """How far a partition is behind what its source has: records not yet read, and the age of the oldest of them.

    Told again and again while the partition is held, also when it is not behind. None: the source cannot tell.
    """

    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    records: int | None
    seconds: float | None
    kept: float | None = None
    """Seconds for which the source keeps records before it deletes them; None: for ever, or it cannot tell."""


@dataclass(frozen=True, slots=True)
class RecordsLost(Event):
    """The source has deleted records before they were read: from `start` up to `end`, which is the next one it has."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicDenied(Event):
    """The brokers do not let this node read a partition's topic; others go on. Told every minute while it lasts."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class WaitsBehindTransaction(Event):
    """A partition waits behind an open transaction: nothing from `offset` on can be read before it ends.

    Told when a minute has passed, and every minute from then on. `since`: the time in UTC; `seconds` ago.
    """

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    offset: int
    since: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A sentence for people, such as what a store is good for."""

    level: ClassVar[Level] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class AlertRaised(Event):
    """Something needs a person. Told once, and again after a while if it goes on.

    `pipeline` and `key` are None where no single one is concerned.
    """

    level: ClassVar[Level] = "error"
    kind: str
    pipeline: str | None
    key: str | None
    message: str


@dataclass(frozen=True, slots=True)
class AlertCleared(Event):
    """What was raised is over, as far as this node can tell; `reason` says from what it can."""

    kind: str
    pipeline: str | None
    key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class AlertsNotSent(Event):
    """So many alerts will never reach the webhook; they are in the log."""

    level: ClassVar[Level] = "error"
    count: int
    reason: str

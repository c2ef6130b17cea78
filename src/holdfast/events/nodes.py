"""Events about nodes and their sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.events.event import Event, Level


@dataclass(frozen=True, slots=True)
class SparkStarted(Event):
    """Spark runs; the node checks its pipelines and joins next."""

    version: str
    master: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeJoined(Event):
    node: str
    session: str


@dataclass(frozen=True, slots=True)
class NodeLeft(Event):
    node: str
    session: str


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """The session was renewed; `usable_for` is how long the node may rely on it by its own clock."""

    level: ClassVar[Level] = "debug"
    session: str
    counter: int
    usable_for: float


@dataclass(frozen=True, slots=True)
class HeartbeatWithheld(Event):
    """A step of the loop exceeded its deadline, so the keeper stopped renewing on purpose."""

    level: ClassVar[Level] = "error"
    session: str
    step: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SessionEnded(Event):
    """This node was declared dead, or could not renew in time; its work is cancelled and it joins again."""

    level: ClassVar[Level] = "warning"
    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeExpired(Event):
    """Another node's session has passed its timeout and was marked as ended."""

    level: ClassVar[Level] = "warning"
    session: str
    seen_by: str

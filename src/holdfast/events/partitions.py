"""Events about partitions and their discovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from holdfast.events.event import Event, Level


@dataclass(frozen=True, slots=True)
class PartitionsCreated(Event):
    pipeline: str
    count: int


@dataclass(frozen=True, slots=True)
class PartitionsCounted(Event):
    """How many partitions a pipeline has in each status, of all nodes; only on nodes that serve metrics."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    statuses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PartitionAcquired(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    token: int
    taken_over_from: str | None = None


@dataclass(frozen=True, slots=True)
class NothingAcquired(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str


@dataclass(frozen=True, slots=True)
class PartitionChanged(Event):
    """A row was written: before and after, for history and dashboards."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartitionCompleted(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    records: int


@dataclass(frozen=True, slots=True)
class PartitionClosed(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    reopen_at: float


@dataclass(frozen=True, slots=True)
class PartitionReleased(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str


@dataclass(frozen=True, slots=True)
class PartitionSplit(Event):
    """What was left of the partition is shared with new partitions, because no other partition was free."""

    pipeline: str
    key: str
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionHandedOff(Event):
    """The partition was given to another node under the next token, so that all hold a fair share."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    to: str


@dataclass(frozen=True, slots=True)
class PartitionOrphaned(Event):
    """The owner's session is dead; any node may take the partition now."""

    pipeline: str
    key: str
    owner: str


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class PartitionFailed(Event):
    """Retries are used up; only a person can reopen the partition."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class PartitionHalted(Event):
    """Evidence disagrees or the partition kills its owners; a person must check."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionLost(Event):
    """A write found another owner or token; this node gave the partition up."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    reason: str
    missing: bool = False
    """The row no longer exists."""


Action: TypeAlias = Literal["saveState", "close", "complete", "giveUp", "delete"]


@dataclass(frozen=True, slots=True)
class PartitionErrorRaised(Event):
    """The API for source authors raised an error to its caller."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    kind: Literal["not_found", "not_owned", "update"]
    action: Action


@dataclass(frozen=True, slots=True)
class DiscoveryFinished(Event):
    """Discovery ran on this node; `exhausted` means that there is nothing more to find."""

    pipeline: str
    found: int
    created: int
    exhausted: bool


@dataclass(frozen=True, slots=True)
class DiscoveryFailed(Event):
    level: ClassVar[Level] = "error"
    pipeline: str
    error: str

"""Every fact that the system reports, as frozen dataclasses.

Log, metrics and history consume them; nothing else is logged or counted. Lower layers get an `emit` function and know
no consumer. `pipeline` is the identifier with its prefix. Rows travel as plain mappings; the consumer adds the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    level: ClassVar[Level] = "info"


# --- nodes -----------------------------------------------------------------------------------------------------


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
    """This node was declared dead, or could not renew in time; its work is cancelled and it joins anew."""

    level: ClassVar[Level] = "warning"
    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeExpired(Event):
    """Another node's session has passed its timeout and was marked as ended."""

    level: ClassVar[Level] = "warning"
    session: str
    seen_by: str


# --- partitions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionsCreated(Event):
    pipeline: str
    count: int


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
class PartitionHandedOff(Event):
    """Given to another node under the next token, so that all hold a fair share."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    to: str


@dataclass(frozen=True, slots=True)
class PartitionOrphaned(Event):
    """The owner's session is dead; anybody may take the partition now."""

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
    """Retries are used up; only a person reopens it."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    error: str


@dataclass(frozen=True, slots=True)
class PartitionHalted(Event):
    """Evidence disagrees or the partition kills its owners; a person must look."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionLost(Event):
    """A write found another owner or token; this node let go."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    reason: str
    missing: bool = False
    """The row is gone altogether."""


Action: TypeAlias = Literal["saveState", "close", "complete", "giveUp"]


@dataclass(frozen=True, slots=True)
class PartitionErrorRaised(Event):
    """The API for source authors raised an error to its caller."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    kind: Literal["not_found", "not_owned", "update"]
    action: Action


# --- discovery -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiscoveryFinished(Event):
    """The supplier ran once on this node; `exhausted` means that there is nothing more to find."""

    pipeline: str
    found: int
    created: int
    exhausted: bool


@dataclass(frozen=True, slots=True)
class DiscoveryFailed(Event):
    level: ClassVar[Level] = "error"
    pipeline: str
    error: str


# --- flow ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundSubmitted(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    batches: int


@dataclass(frozen=True, slots=True)
class BatchCommitted(Event):
    """The fenced write that decides a batch has been applied."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    sequence: int
    records: int
    dead: int


@dataclass(frozen=True, slots=True)
class BatchPublished(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    sequence: int
    rolled_forward: bool
    """True when the commit was found in the row, made by an earlier owner or an earlier try."""


@dataclass(frozen=True, slots=True)
class BatchCancelled(Event):
    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchRebuilt(Event):
    """Staged data of a committed batch was gone; it was made again from the source."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    sequence: int


@dataclass(frozen=True, slots=True)
class PipelineFinished(Event):
    """Nothing is left to do in a bounded pipeline."""

    pipeline: str
    completed: int
    failed: int


# --- the outside -----------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class RecordsLost(Event):
    """The source has deleted records before they were read: from `start` up to `end`, which is the next one it has."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A sentence for people, such as what a store is good for."""

    level: ClassVar[Level] = "warning"
    message: str


# --- alerts ----------------------------------------------------------------------------------------------------


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

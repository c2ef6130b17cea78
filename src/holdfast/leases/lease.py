"""The lease: who works on a partition, under which token, and how far it got.

A lease is frozen. It changes only through the functions in `transitions`, and a store keeps it only through a
compare-and-swap on `version`. Three numbers guard it:

- `token` grows by one each time the lease is taken; nothing is written under an old one.
- `version` grows by one on every write; a write names the version it was derived from.
- `sequence` grows by one with every commit; it names the commit's manifest.

`position` names the *next* item of the partition. None means that it was never read, so that the pipeline's start
setting applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

Part = TypeVar("Part")

Json: TypeAlias = Any
"""A value that survives a round trip through JSON."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Offsets [from, to), in order and apart from each other."""


class Status(StrEnum):
    """The state of a partition."""

    UNASSIGNED = "UNASSIGNED"
    """It has no owner; it may be claimed from `due_at` on."""
    ASSIGNED = "ASSIGNED"
    """A session owns it; it may be claimed once the session has ended or `due_at`, if set, has passed."""
    CLOSED = "CLOSED"
    """There is nothing to do until `due_at`; it may be claimed then."""
    COMPLETED = "COMPLETED"
    """All of it is processed. Nothing happens to it unless a person reopens it."""
    FAILED = "FAILED"
    """Its retries are used up, or it was halted. Nothing happens to it unless a person reopens it."""


FINISHED = (Status.COMPLETED, Status.FAILED)
"""Partitions that stay as they are unless a person reopens them."""
UNFINISHED = tuple(status for status in Status if status not in FINISHED)


class Key(NamedTuple):
    """Primary key of a row. All three are opaque text; `run` is empty for a live pipeline."""

    pipeline: str
    run: str
    key: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A unit of work as a source describes it, before there is a row for it.

    `group` is the topic, bucket or entity type that it belongs to; `range_start`, `range_end` and `estimated_count`
    describe a key range of a table. `spec` is JSON that the source needs to read the partition.
    """

    key: str
    group: str = ""
    spec: Mapping[str, Json] = field(default_factory=dict)
    priority: int = 0
    work_units: int = 1
    range_start: int | str | None = None
    range_end: int | str | None = None
    estimated_count: int | None = None
    index: int | None = None
    """Number of the partition within its group."""
    incarnation: str = ""
    """Distinguishes incarnations of the same name, such as a Kafka topic's id."""
    after: tuple[str, ...] = ()
    """Keys of partitions that come first: the row is added by the first discovery that finds all of them complete."""


@dataclass(frozen=True, slots=True)
class Ownership:
    status: Status = Status.UNASSIGNED
    owner: str | None = None
    token: int = 0
    version: int = 0
    write_id: str = ""
    due_at: float | None = 0.0
    """Store time. UNASSIGNED: not before; CLOSED: reopens; ASSIGNED: the lease's own deadline, None if it has none."""


@dataclass(frozen=True, slots=True)
class Order:
    priority: int = 0
    ordinal: int = 0
    work_units: int = 1
    range_start: int | str | None = None
    range_end: int | str | None = None
    estimated_count: int | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    processed: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    dropped: int = 0
    """Good rows that were read and that processors left out; the other counts do not include them."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.processed + other.processed,
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.dead + other.dead,
            self.dropped + other.dropped,
        )


class LetterWindow(NamedTuple):
    """Records of the last commits, and how many of them are dead letters: the tolerance applies to these numbers."""

    records: int = 0
    letters: int = 0

    def plus(self, counts: Counts, chosen: int = 0) -> LetterWindow:
        """The window with another commit added. `chosen` letters, which a setting asks for, do not count."""
        return LetterWindow(self.records + counts.processed - chosen, self.letters + counts.dead - chosen)


@dataclass(frozen=True, slots=True)
class Progress:
    position: Json = None
    acked: Ranges = ()
    """Ranges [from, to) beyond the position that are acknowledged already; bounded by the window."""
    state: Json = None
    counts: Counts = Counts()
    window: LetterWindow = LetterWindow()
    forwarded: Ranges = ()
    """Ranges that nodes without the lease have acknowledged, until the owner has committed them; bounded."""

    @property
    def acknowledged(self) -> Ranges:
        """The ranges that no owner may hand to a handler, regardless of which node has acknowledged them."""
        return joined([*self.acked, *self.forwarded]) if self.forwarded else self.acked

    def forwarded_without(self, taken: Ranges) -> Ranges:
        """The acks of other nodes that are left when these are committed."""
        left = self.forwarded
        for first, end in taken:
            parts = (part for start, stop in left for part in ((start, min(stop, first)), (max(start, end), stop)))
            left = tuple((start, stop) for start, stop in parts if start < stop)
        return left


@dataclass(frozen=True, slots=True)
class Commit:
    sequence: int = 0
    generation: int = 1
    incarnation: str = ""
    commit_id: str = ""
    receipts: Mapping[str, Json] | None = None
    """Receipts of the last commit by sink; None once all of it is published."""
    switched_at: int = 0
    """Sequence at which the row was switched to its generation: commits with a higher one were made in it."""


@dataclass(frozen=True, slots=True)
class History:
    attempts: int = 0
    takeovers: int = 0
    closed_count: int = 0
    last_error: str | None = None
    halt_reason: str | None = None
    created_at: float | None = None
    claimed_at: float | None = None
    started_at: float | None = None
    updated_at: float | None = None
    completed_at: float | None = None
    lost: Sequence[int] | None = None
    """Items [from, to) that the source deleted before they were read, if that is why it was halted."""
    begun: bool | None = None
    """Whether the owner has begun a batch; None if that is not recorded, as no owner has died at this position."""
    out: Json = None
    """Where the batch ends that `begun` is about."""
    died: str | None = None
    """The owner that has died at this position, until a batch is begun again."""
    done_by: str | None = None
    """The session that finished the partition; None while it is not finished."""
    tenures: Sequence[Sequence[Json]] = ()
    """Who held the lease before, the last tenures in order; see `holdfast.leases.tenures`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One row of the store."""

    pipeline: str
    key: str
    run: str = ""
    group: str = ""
    spec: Mapping[str, Json] = field(default_factory=dict)
    ownership: Ownership = Ownership()
    order: Order = Order()
    progress: Progress = Progress()
    commit: Commit = Commit()
    history: History = History()
    unreadable: str | None = None
    """The stored body, if it could not be decoded. Such a row is kept as it is and can only be failed."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Fields of the body that a node of a later version wrote; kept, never read."""

    @property
    def id(self) -> Key:
        return Key(self.pipeline, self.run, self.key)

    @property
    def status(self) -> Status:
        return self.ownership.status

    @property
    def owner(self) -> str | None:
        return self.ownership.owner

    @property
    def token(self) -> int:
        return self.ownership.token

    @property
    def version(self) -> int:
        return self.ownership.version


def new_lease(
    pipeline: str, partition: Partition, write_id: str, *, run: str = "", now: float, index: int = 0, floor: int = 0
) -> Lease:
    """A row for a new partition. `now` is the store's time, `index` the supplier's order.

    Token and version start at the floor, see `holdfast.leases.token_floor`.
    """
    order = Order(
        priority=partition.priority,
        ordinal=int(now * 1_000_000) + index,
        work_units=partition.work_units,
        range_start=partition.range_start,
        range_end=partition.range_end,
        estimated_count=partition.estimated_count,
        index=partition.index,
    )
    return Lease(
        pipeline=pipeline,
        key=partition.key,
        run=run,
        group=partition.group,
        spec=partition.spec,
        ownership=Ownership(token=floor, version=floor, write_id=write_id),
        order=order,
        commit=Commit(incarnation=partition.incarnation),
        history=History(created_at=now),
    )


def changed(part: Part, **changes: Any) -> Part:
    """A copy of a lease or of a part of it with these fields changed: `replace` in half the time.

    Every heartbeat, claim and commit changes rows. Raises `KeyError` if there is no such field.
    """
    kind: type[Any] = type(part)
    members = _MEMBERS.get(kind) or _MEMBERS.setdefault(kind, _members(kind))
    made: Part = object.__new__(kind)
    for get, put in members.values():
        put(made, get(part))
    for name, value in changes.items():
        members[name][1](made, value)
    return made


def _members(kind: type[Any]) -> Mapping[str, tuple[Any, Any]]:
    """How the slots of a class are read and written, by name; a frozen class has no other way that is quick."""
    slots = {name: getattr(kind, name) for name in kind.__slots__}
    return {name: (member.__get__, member.__set__) for name, member in slots.items()}


_MEMBERS: dict[type[Any], Mapping[str, tuple[Any, Any]]] = {}


def facts(lease: Lease) -> dict[str, Json]:
    """The part of a row that events carry: enough to show who owned what, when, and how far it got."""
    return {
        "key": lease.key,
        "status": lease.status.value,
        "owner": lease.owner,
        "token": lease.token,
        "version": lease.version,
        "position": lease.progress.position,
        "sequence": lease.commit.sequence,
        "attempts": lease.history.attempts,
    }


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges in order, with those that touch or overlap joined."""
    done: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if done and start <= done[-1][1]:
            done[-1] = done[-1][0], max(done[-1][1], end)
        else:
            done.append((start, end))
    return tuple(done)

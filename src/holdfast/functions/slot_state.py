"""What the driver keeps about each worker slot, worker and shard, and the actions that it may take."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from holdfast.functions.messages import Down
from holdfast.leases.lease import Json, Ranges


@dataclass(frozen=True, slots=True)
class SlotRules:
    """The limits by which slots are managed; all durations are in seconds."""

    static: bool = False
    """Whether a shard always goes to the same slot; otherwise to the one with the fewest shards."""
    overrun: float = 1.0
    """How long a record that was begun under a grant may take after its end, before the worker ends itself."""
    let_go_within: float = 5.0
    """How long a worker may take to confirm a revoked shard, before it is ended."""
    silence: float = 10.0
    """How long a worker whose grant has run out may be silent before its connection is closed."""
    patience: float = 5.0
    """How long a shard waits for an equal share of the slots, before it goes to any of them."""
    restart_after: float = 0.1
    """Pause before a worker that has ended is started again; it doubles with each that never came up."""
    max_pause: float = 30.0
    max_crashes: int = 3
    """How often a worker may die with a record of a shard in hand before the batch fails."""
    max_rss: int | None = None
    """Bytes of memory at which a worker is replaced by a new one."""


# --- what follows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    connection: int
    message: Down


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close this connection."""

    connection: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Submit a Spark job for this slot; its task says hello with this attempt."""

    slot: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Cancel that job."""

    slot: int
    attempt: int


Action: TypeAlias = Send | HangUp | Launch | Kill


# --- the account -----------------------------------------------------------------------------------------------------


class State(Enum):
    WAITING = "waiting"
    """For a slot, or for an earlier worker to let go of it."""
    RUNNING = "running"
    DRAINING = "draining"
    REVOKED = "revoked"
    """A worker may still have a record of it in hand."""


@dataclass(eq=False)
class Shard:
    """A batch: one shard under one lease."""

    id: str
    key: str
    home: int
    """The number from which its slot follows where slots are static."""
    position: Json
    acked: Ranges = ()
    spec: Json = None
    state: State = State.WAITING
    since: float = 0.0
    deadline: float = float("inf")
    moves: bool = False
    """Whether the shard is drained because its worker is being replaced; it continues in another worker."""
    crashes: int = 0
    careful: bool = False


@dataclass(eq=False)
class Worker:
    """A process that has said hello."""

    attempt: int
    connection: int | None
    """None when it is lost."""
    until: float
    heard: float
    shards: dict[str, Shard] = field(default_factory=dict)
    began: tuple[str, int] | None = None
    """The record of a careful shard that it has in hand, as far as is known."""
    ended: bool = False
    """Whether Spark has reported that its process has ended."""
    closed: bool = False
    """Whether the worker itself has closed the connection; if not, it may be cut off and still work."""
    hang_up_at: float = float("inf")
    leaving: bool = False
    """Whether it gets no more shards."""

    def is_over(self, now: float) -> bool:
        """Whether the worker certainly handles no record any more."""
        return self.connection is None and ((self.ended and self.closed) or now >= self.until)


@dataclass(eq=False)
class Slot:
    number: int
    attempt: int = 0
    running: bool = False
    """Whether the job of the last attempt is under way."""
    launch_at: float = 0.0
    failures: int = 0
    """Workers in a row that never came up."""
    worker: Worker | None = None
    waiting: tuple[int, int] | None = None
    """Connection and attempt of a worker that waits until the one before is over."""

    @property
    def ready(self) -> bool:
        return self.worker is not None and self.worker.connection is not None and not self.worker.leaving

    @property
    def doing(self) -> str:
        """What the slot's worker does: `busy` if it has shards, `idle`, `leaving`, or `starting` if it is not up."""
        worker = self.worker  # once: heartbeats look without a lock
        if worker is None or worker.connection is None:
            return "starting"
        if worker.leaving:
            return "leaving"
        return "busy" if worker.shards else "idle"

    @property
    def load(self) -> int:
        """Number of shards that the slot's worker has."""
        return len(self.worker.shards) if self.worker is not None else 0

    @property
    def attempts_under_way(self) -> list[int]:
        """The attempts whose jobs have not ended: the last one, and that of a worker which is being replaced."""
        replaced = self.worker is not None and not self.worker.ended and self.worker.attempt != self.attempt
        before = [self.worker.attempt] if self.worker is not None and replaced else []
        return [*before, *([self.attempt] if self.running else [])]

    def has(self, connection: int) -> bool:
        """Whether this is the connection of the slot's worker."""
        return self.worker is not None and self.worker.connection == connection


def worker_states(slots: Iterable[Slot]) -> dict[str, int]:
    """Number of slots by what their worker does; states without slots are left out."""
    return dict(Counter(slot.doing for slot in slots))


def home_of(key: str, number: int | None) -> int:
    """The number that determines the static slot of a shard: the same on every node and after every restart."""
    return number if number is not None else zlib.crc32(key.encode())

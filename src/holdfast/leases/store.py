"""The store: a table of leases with a small set of operations. Policy is above it, in pure functions.

Rules for every implementation, checked by `holdfast.testing.stores`:

- All operations block until the server has responded, take batches and return results in the order of their argument.
- A read that decides something is linearizable: it sees every write that was acknowledged before it began.
- A write returns an outcome per row: OK (applied), CONFLICT (not applied: the row has another version, or exists),
  UNKNOWN (sent, no response; it may be applied now or later). UNKNOWN is never reported as CONFLICT.
- `StoreUnavailable` means that a read has no result and that a write was not sent. It is never an empty result.
- Keys, groups and owners are opaque text: any character but NUL and lone surrogates, compared byte by byte.
- A row that cannot be decoded is returned with `unreadable` set, does not affect other rows, and is written back as it
  was. Bytes that are not UTF-8 are escaped in it (`surrogateescape`), so that none is lost.
- Times are kept to the microsecond, and `now()` is the server's clock, never that of the calling process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.leases.columns import OutlineRow, columns, outline_of
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query, claim_statuses
from holdfast.leases.transitions import take_stamped


class Outcome(Enum):
    OK = "ok"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Take up to `limit` free leases for `owner` in the order of claim."""

    pipeline: str
    owner: str
    write_id: str
    limit: int = 1
    run: str = ""
    closed_last: bool = False
    ownership_timeout: float | None = None
    """Seconds until the deadline of the lease; None if the owner's session alone keeps it."""

    @property
    def order(self) -> tuple[Status, ...]:
        """Statuses in the order in which leases are taken."""
        return claim_statuses(closed_last=self.closed_last)

    def take(self, row: Lease, now: float) -> Lease:
        """The row as this claim leaves it."""
        return take_stamped(row, self.owner, now, self.due_at(now), self.write_id)

    def due_at(self, now: float) -> float | None:
        """The deadline of a lease that is taken now; None if it has none."""
        return None if self.ownership_timeout is None else now + self.ownership_timeout


@dataclass(frozen=True, slots=True)
class Swap:
    """Replace the row of that key if it still has that version."""

    version: int
    lease: Lease


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Sessions and leases of a pipeline. `consistent`: whether both were read at one moment."""

    sessions: tuple[Lease, ...]
    leases: tuple[Lease, ...]
    consistent: bool


OUTLINE_PAGE = 1000
SMALLEST_BODY = 256 * 1024
"""Every store holds bodies of this size."""


class Store(ABC):
    """The table of leases. One instance is used by one process; it must be safe to call from several threads."""

    durable: bool = True
    """False for a store that loses its rows when its process ends."""
    shared: bool = True
    """False for a store that only one process can see."""
    forgets_after: float | None = None
    """Seconds after which the store deletes rows of completed partitions by itself; None: never."""
    has_clock: bool = True
    """False if `now()` is exact enough for `due_at`, but not to decide that a session has ended; nodes then watch each
    other, see `holdfast.leases.session_watch`."""
    charges_for_reads: bool = False
    """True if every read costs money: displays then read less often."""
    max_body_bytes: int = 1 << 20
    """Largest body of a row, at least `SMALLEST_BODY`. A larger one raises `RowTooLarge` before anything is written."""

    @property
    def max_receipt_bytes(self) -> int:
        """Maximum bytes of a row with its receipts; more than a body if receipts are stored outside the row."""
        return self.max_body_bytes

    def recent(self, max_age: float) -> Store:  # noqa: ARG002 - for stores whose reads are expensive
        """This store, with reads that may be up to `max_age` seconds old.

        For reads that decide nothing: a write based on them swaps by version. They include writes through this
        instance. Stores whose reads are cheap return current rows.
        """
        return self

    @abstractmethod
    def open(self) -> None:
        """Connect, and create or migrate tables unless the settings forbid it. May be repeated."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. May be repeated; never raises."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970 by the store's own clock."""

    @abstractmethod
    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        """Insert the rows whose key does not exist yet; CONFLICT for the others, which stay unchanged."""

    @abstractmethod
    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        """The current rows."""

    @abstractmethod
    def find(self, query: Query) -> list[Lease]:
        """Matching rows, ordered by key and run, or in the order of claim if the query selects due rows.

        The order of claim is that of `holdfast.leases.query.in_order`: by status in the order of the query, or of
        `ALL_STATUSES` if it names none; within a status by `CLAIM_COLUMNS`.
        """

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        """All rows of a pipeline and run without their bodies, ordered by key and run; of all runs if `run` is None.

        A row that cannot be decoded is included. A store that can read columns alone overrides this: here, whole rows
        are read, page by page.
        """
        found: list[OutlineRow] = []
        after, limit = None, OUTLINE_PAGE
        while len(page := self.find(Query(pipeline, run, after_key=after, limit=limit))) == limit:
            # Further runs may have a row with the last key.
            whole = [row for row in page if row.key != page[-1].key]
            if whole:
                found += [outline_of(columns(row)) for row in whole]
                after, limit = whole[-1].key, OUTLINE_PAGE
            else:
                limit *= 2
        return [*found, *(outline_of(columns(row)) for row in page)]

    @abstractmethod
    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        """All rows of `sessions` (the pipeline that holds node rows), and the unfinished ones of the pipeline.

        Both are ordered by key and run.
        """

    @abstractmethod
    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        """Replace each row by version, independently of the others. A missing row is a CONFLICT."""

    @abstractmethod
    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        """Delete each row if it still has that version. A missing row is OK.

        Callers ensure that the key is never reused, or that the row has rested below the token floor, see
        `holdfast.leases.token_floor`. The same holds for a store that deletes rows by itself.
        """

    @abstractmethod
    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        """Number of rows by status; statuses without rows are left out."""


class ClaimingStore(Store):
    """A store that can claim in one step, without a find and a swap. The result is the same."""

    @abstractmethod
    def claim(self, request: ClaimRequest) -> list[Lease]:
        """The leases taken, each changed by `transitions.take` and stamped with the request's write id.

        A candidate that is unreadable is returned as it is, not taken. Raises `StoreUnavailable` if nothing was
        sent, `AnswerLost` if the claim may have been applied.
        """

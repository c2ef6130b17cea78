"""The audit log: every action of a person is a row before it is done, and the row gets the outcome afterwards.

The rows of a fleet are kept below its `$audit`, the newest first in the order of their keys. Logins are kept apart, in
`$logins`, so that a client that tries many tokens does not push actions out of the log. Rows are written once, and
changed once, when the outcome is known. A row without an outcome belongs to an action that is under way, or whose
process has ended before it could say how it went.

A request that names an idempotency key is carried out at most once: a row below `$requests` names its entry, and only
the process that has added the entry acts. A repeated request gets the outcome of the entry.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from zlib import crc32

from holdfast.errors import AnswerLost, NotAudited, PartitionError, StoreError, Unavailable, UsageError
from holdfast.leases.action import Action, ActionOutcome, Entry, Request, hash_of
from holdfast.leases.lease import Key, Lease, Ownership, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Store

KEPT_SECONDS = 30 * 86_400.0
MOST_ENTRIES, MOST_LOGINS = 10_000, 1_000
SLACK = 20
"""One part in so many may be there in addition until the oldest are removed."""
CHUNK = 1000
TRIES = 5
_LAST_MICROSECOND = 10**17 - 1


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The audit log of one fleet. Raises `StoreUnavailable` at once."""

    store: Store
    new_id: Callable[[], str]
    fleet: str
    """The pipeline name under which the store keeps the fleet's node rows."""
    part: str = "$audit"
    most: int = MOST_ENTRIES
    kept_seconds: float = KEPT_SECONDS

    @property
    def logins(self) -> AuditLog:
        """The logins, a part of the log with a bound of its own; `list` of the whole log includes them."""
        return replace(self, part="$logins", most=MOST_LOGINS)

    def begin(self, request: Request, action: Action) -> Entry:
        """Write the entry of an action that is about to be done.

        Raises `NotAudited` or `StoreError` if it cannot be written, and `UsageError` if the idempotency key belongs to
        another action: the action must then not be done. Nor must it be done if the entry is `repeated`.
        """
        try:
            if request.idempotency_key is None:
                return self._add(self._new_key(), request, action)
            return self._once(request, request.idempotency_key, action)
        except Unavailable as away:
            # The entry may have been added: a repeated request would find it, and take it for that of one that acts.
            again = "" if request.idempotency_key is None else "; repeat it with a new idempotency key"
            raise NotAudited(f"nothing was done, because the audit log cannot be written: {away}{again}") from away
        except StoreError as error:
            raise StoreError(f"nothing was done, because the audit log cannot be written: {error}") from error

    def end(self, entry: Entry, outcome: ActionOutcome) -> Entry:
        """Write how the action went, and remove old entries. The outcome stays unknown if it cannot be written."""
        with suppress(Unavailable, StoreError, PartitionError):
            row = self._rows.change(
                entry.id, lambda row, now: replace(row, progress=Progress(state={**outcome.row(), "ended_at": now}))
            )
            entry = _entry(row)
            # Counting may read every entry, so that few actions do it.
            self.purge(counted=crc32(entry.id.encode()) % max(1, self.most // (10 * SLACK)) == 0)
        return replace(entry, outcome=outcome)

    def list(self, after: str | None = None, limit: int = 100) -> list[Entry]:
        """The newest entries, or those before the entry with the id `after`, with the logins among them."""
        parts = {self.part: self, "$logins": self.logins}.values()
        found = [self.store.find(Query(log._pipeline, after_key=after, limit=limit)) for log in parts]  # noqa: SLF001
        return [_entry(row) for row in islice(merge(*found, key=lambda row: row.key), limit)]

    def show(self, entry_id: str) -> Entry:
        """The entry with this id; logins are not found. Raises `PartitionNotFound`."""
        return _entry(self._rows.show(entry_id))

    def purge(self, *, counted: bool = True) -> int:
        """Remove entries that are too old and, if `counted`, too many; a bounded number of them. May be repeated.

        Returns how many were removed. Keys of entries are never used again, so that their tokens need not be
        remembered.
        """
        oldest = _key_of(max(0.0, self.store.now() - self.kept_seconds), "")
        if counted:
            self._purge_requests(oldest)
        if counted and sum(self.store.count(self._pipeline).values()) > self.most + self.most // SLACK:
            oldest = min(oldest, self._last_kept())
        rows = self.store.find(Query(self._pipeline, after_key=oldest, limit=CHUNK))
        requests = [Key(self._requests, "", row.spec["request"]) for row in rows if row.spec.get("request")]
        # First: a request without its entry would be carried out a second time.
        self.store.remove([row for row in self.store.get(requests) if row is not None] if requests else [])
        return sum(outcome is Outcome.OK for outcome in self.store.remove(rows))

    def _purge_requests(self, oldest: str) -> None:
        """Remove requests whose entry would be too old; it was never written if its process has died before."""
        after: str | None = None
        while page := self.store.find(Query(self._requests, after_key=after, limit=CHUNK)):
            self.store.remove([row for row in page if row.spec.get("entry", "") > oldest])
            after = page[-1].key

    def _last_kept(self) -> str:
        """The key of the last of the newest `most` entries."""
        after: str | None = None
        for read in range(0, self.most, CHUNK):
            page = self.store.find(Query(self._pipeline, after_key=after, limit=min(CHUNK, self.most - read)))
            after = page[-1].key if page else after
        return after or ""

    def _once(self, request: Request, idempotency_key: str, action: Action) -> Entry:
        name = hash_of(request.who, idempotency_key)
        first = {"entry": self._new_key(), "digest": action.digest()}
        row, _ = self._ensure(Lease(self._requests, name, spec=first, ownership=self._never_due()))
        if row.spec["digest"] != first["digest"]:
            raise UsageError("this idempotency key was used for another action; use a new one for each action")
        return self._add(row.spec["entry"], request, action, name)

    def _add(self, key: str, request: Request, action: Action, of_request: str | None = None) -> Entry:
        fields = {"at": self.store.now(), **request.row(), **action.row()}
        if of_request is not None:
            fields["request"] = of_request
        row, mine = self._ensure(Lease(self._pipeline, key, spec=fields, ownership=self._never_due()))
        return replace(_entry(row), repeated=not mine)

    def _ensure(self, row: Lease) -> tuple[Lease, bool]:
        """Add the row unless it exists. Returns the row as it is stored, and whether this call has added it."""
        for _ in range(TRIES):
            if self.store.add([row]) == [Outcome.OK]:
                return row, True
            (stored,) = self.store.get([row.id])
            if stored is not None:
                return stored, stored.ownership.write_id == row.ownership.write_id
        raise AnswerLost("the store did not respond to a write")

    def _new_key(self) -> str:
        return _key_of(self.store.now(), self.new_id())

    def _never_due(self) -> Ownership:
        return Ownership(Status.UNASSIGNED, due_at=None, write_id=self.new_id())

    @property
    def _rows(self) -> Operator:
        return Operator(self.store, self.new_id, self._pipeline)

    @property
    def _pipeline(self) -> str:
        return f"{self.fleet}/{self.part}"

    @property
    def _requests(self) -> str:
        return f"{self.fleet}/$requests"


def _key_of(seconds: float, suffix: str) -> str:
    """A key that sorts before those of earlier times."""
    return f"{_LAST_MICROSECOND - int(seconds * 1_000_000):017d}-{suffix}"


def _entry(row: Lease) -> Entry:
    if row.unreadable is not None:
        return Entry(row.key, {"action": "its row cannot be read"}, ActionOutcome())
    return Entry(row.key, row.spec, ActionOutcome.of(row.progress.state))

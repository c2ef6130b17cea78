"""Policy over a store, for one pipeline on behalf of one session: claim, write, sweep, hand back.

Order of claim: leases whose owner is gone or late, then closed ones that are due, then unassigned ones by priority and
supplier order. Every write goes through `FencedWrites`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import AnswerLost, LeaseLost, LeaseMissing, StoreUnavailable
from holdfast.events import (
    PartitionAcquired,
    PartitionChanged,
    PartitionHalted,
    PartitionLost,
    PartitionOrphaned,
    PartitionReleased,
    PartitionsCreated,
    Unreachable,
)
from holdfast.leases import transitions
from holdfast.leases.lease import Key, Lease, Partition, Status, facts, new_lease
from holdfast.leases.query import Query
from holdfast.leases.session import Session, expire_silent_sessions, node_info, was_planned
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.leases.suspicion import ended_node
from holdfast.leases.token_floor import read_floor
from holdfast.leases.transitions import RetryLimits, stamped
from holdfast.leases.world import Dice, World
from holdfast.leases.writes import FencedWrites, ensure_rows, until_answered

CREATE_CHUNK = 500
RECENT = 0.5
"""Maximum age of a read that decides nothing, as a part of the heartbeat. One read serves a whole pass."""


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """How leases of a pipeline are taken and for how long."""

    closed_last: bool = False
    ownership_timeout: float | None = None
    """None: the lease lasts as long as the session, as in the built-in loop."""
    limits: RetryLimits = RetryLimits()


class Coordinator:
    """Leases of one pipeline (and run) for one session. Blocks while the store does not respond.

    Thread-safe; one session may have several coordinators.
    """

    def __init__(
        self,
        store: Store,
        world: World,
        session: Session,
        pipeline: str,
        *,
        run: str = "",
        policy: ClaimPolicy,
    ) -> None:
        self.store = store
        self.world = world
        self.session = session
        self.pipeline = pipeline
        self.run = run
        self.policy = policy
        self._writes = FencedWrites(store, world)
        self._contention = Contention(world.dice)
        self._checkouts = session.checkouts(pipeline, run)

    def now(self) -> float:
        """The store's time."""
        return until_answered(self.world, "store", self.store.now)

    @property
    def recent(self) -> Store:
        """The store for reads that decide nothing, see `Store.recent`."""
        return self.store.recent(self.session.timing.heartbeat * RECENT)

    # --- taking ------------------------------------------------------------------------------------------------

    def claim(self, limit: int) -> list[Lease]:
        """Take up to `limit` free leases. If the response is lost, `owned` returns the leases later.

        A lease that was taken over too often since its last commit is halted and not returned. None are taken while
        the store does not respond.
        """
        try:
            return self.adopt(self._claim(limit) if limit > 0 else [])
        except StoreUnavailable as away:
            self._report_away(away)
            return []

    def check_out(self) -> Lease | None:
        """A free lease, or one that a lost response has left with the session, for one of the session's threads.

        The thread calls `check_in` when it is done. Raises `StoreUnavailable` if nothing was sent.
        """
        checkouts = self._checkouts
        try:
            taken = checkouts.check_out(lambda: self._claim(1))
        except AnswerLost:
            taken = []  # `owned` returns what was taken, now or later
        for lease in taken or checkouts.check_out_left_over(self.owned):
            if self._fit_for_work(lease):
                return lease
            checkouts.check_in(lease)
        return None

    def check_in(self, lease: Lease) -> None:
        """Note that no thread works on this lease any more. Writes nothing to the store."""
        self._checkouts.check_in(lease)

    def adopt(self, found: Iterable[Lease]) -> list[Lease]:
        """Of leases that `owned` returned and that are not held yet, those fit for work; the others are halted."""
        return [lease for lease in found if self._fit_for_work(lease)]

    def claim_rows(self, rows: Sequence[Lease]) -> list[Lease]:
        """Take these leases of a snapshot; leases that have changed since are left out."""
        if not rows:
            return []
        try:
            return self.adopt(self._take(self._request(len(rows)), rows))
        except StoreUnavailable as away:
            self._report_away(away)
            return []

    def owned(self) -> list[Lease]:
        """The leases that this session owns; more than `claim` returned if a response was lost."""
        query = Query(self.pipeline, self.run, (Status.ASSIGNED,), owner=self.session.id)
        return until_answered(self.world, "store", lambda: self.recent.find(query))

    def _request(self, limit: int) -> ClaimRequest:
        return ClaimRequest(
            self.pipeline,
            self.session.id,
            self.world.new_id(),
            limit,
            self.run,
            self.policy.closed_last,
            self.policy.ownership_timeout,
        )

    def _claim(self, limit: int) -> list[Lease]:
        request = self._request(limit)
        if isinstance(self.store, ClaimingStore):
            return self.store.claim(request)
        return self._find_and_swap(request)

    def _report_away(self, away: StoreUnavailable) -> None:
        self.world.emit(Unreachable("store", str(away), self.session.timing.heartbeat))

    def _find_and_swap(self, request: ClaimRequest) -> list[Lease]:
        limit = request.limit * self._contention.width
        found = self.recent.find(Query(self.pipeline, self.run, request.order, due=True, limit=limit))
        return self._take(request, self._contention.choose(found, request.limit)) if found else []

    def _take(self, request: ClaimRequest, found: Sequence[Lease]) -> list[Lease]:
        now = self.store.now()
        readable = [row for row in found if row.unreadable is None and transitions.claimable(row, now)]
        taken = [request.take(row, now) for row in readable]
        outcomes = self.store.swap([Swap(row.version, lease) for row, lease in zip(readable, taken, strict=True)])
        won = [lease for lease, outcome in zip(taken, outcomes, strict=True) if outcome is Outcome.OK]
        self._contention.learn(len(won), outcomes.count(Outcome.CONFLICT))
        return won + [row for row in found if row.unreadable is not None]

    def _fit_for_work(self, lease: Lease) -> bool:
        if lease.unreadable is not None:
            self._halt_unread(lease)
            return False
        takeovers, limits = lease.history.takeovers, self.policy.limits
        if takeovers > limits.max_takeovers:
            self.halt(lease, f"its owner died {takeovers} times since the last commit: {lease.history.last_error}")
            return False
        self.world.emit(PartitionAcquired(self.pipeline, lease.key, lease.token))
        return True

    def _halt_unread(self, row: Lease) -> None:
        reason = "the stored row cannot be read; it is kept as it is"
        failed = stamped(row, transitions.halt(row, reason, 0.0), self.world.new_id())
        until_answered(self.world, "store", lambda: self.store.swap([Swap(row.version, failed)]))
        self.world.emit(PartitionHalted(self.pipeline, row.key, reason))

    # --- changing what is held ---------------------------------------------------------------------------------

    def write(self, leases: Sequence[Lease], change: Callable[[Lease, float], Lease]) -> list[Lease | LeaseLost]:
        """Apply one change, given the store's time, to each lease; returns what `FencedWrites.apply` returns."""
        now = self.now()
        return self.write_each([(lease, lambda row: change(row, now)) for lease in leases])

    def write_each(self, changes: Sequence[tuple[Lease, Callable[[Lease], Lease]]]) -> list[Lease | LeaseLost]:
        """Apply each change to its lease and report those that are lost."""
        results = self._writes.apply(changes)
        for (lease, _), result in zip(changes, results, strict=True):
            if isinstance(result, LeaseLost):
                self.world.emit(PartitionLost(self.pipeline, lease.key, str(result), isinstance(result, LeaseMissing)))
            else:
                self.world.emit(PartitionChanged(self.pipeline, facts(lease), facts(result)))
        return results

    def release(self, leases: Sequence[Lease]) -> None:
        """Hand back at once. Leases that are lost already are left out."""
        for result in self.write(leases, transitions.release) if leases else ():
            if isinstance(result, Lease):
                self.world.emit(PartitionReleased(self.pipeline, result.key))

    def release_former(self, session: str) -> None:
        """Hand back leases of an ended session of this process: the process lives, so no batch has killed it."""
        query = Query(self.pipeline, self.run, (Status.ASSIGNED,), owner=session)
        self.release(until_answered(self.world, "store", lambda: self.store.find(query)))

    def halt(self, lease: Lease, reason: str, lost: tuple[int, int] | None = None) -> bool:
        """Set the lease to FAILED with an alert; returns False if it is lost already.

        `lost`: items that were deleted before they were read.
        """
        (result,) = self.write([lease], lambda row, now: transitions.halt(row, reason, now, lost))
        if isinstance(result, LeaseLost):
            return False
        self.world.emit(PartitionHalted(self.pipeline, lease.key, reason))
        return True

    # --- looking after the others ------------------------------------------------------------------------------

    def sweep(self) -> None:
        """End silent sessions, then make leases of ended sessions claimable.

        Runs on every pass, because a claim may land after its owner was ended. Does nothing if the store does not
        respond.
        """
        session = self.session
        expire_silent_sessions(self.recent, self.world, session.fleet, session.id, session.watch)
        try:
            self._orphan(self._rows_without_session())
        except StoreUnavailable:
            return

    def _rows_without_session(self) -> list[Lease]:
        live = self.recent.find(Query(self.session.fleet, statuses=(Status.ASSIGNED,)))
        query = Query(
            self.pipeline,
            self.run,
            (Status.ASSIGNED,),
            without_owners=tuple(row.key for row in live),
            not_due=True,
        )
        return self.recent.find(query)

    def _orphan(self, rows: list[Lease]) -> None:
        if not rows:
            return
        # A node may have joined and claimed after the sessions were listed: look at its session row itself.
        owners = sorted({row.owner for row in rows if row.owner is not None})
        sessions = self.store.get([Key(self.session.fleet, "", owner) for owner in owners])
        dead = {
            owner: row
            for owner, row in zip(owners, sessions, strict=True)
            if row is None or row.status is not Status.ASSIGNED
        }
        orphans = [row for row in rows if row.owner in dead]
        if not orphans:
            return
        now = self.store.now()
        freed = [_freed(row, dead[str(row.owner)], now, self.policy.limits) for row in orphans]
        swaps = [
            Swap(row.version, stamped(row, free, self.world.new_id())) for row, free in zip(orphans, freed, strict=True)
        ]
        for row, outcome in zip(orphans, self.store.swap(swaps), strict=True):
            if outcome is Outcome.OK:
                self.world.emit(PartitionOrphaned(self.pipeline, row.key, str(row.owner)))

    # --- making partitions -------------------------------------------------------------------------------------

    def create(self, partitions: Iterable[Partition], added: Callable[[], None] = lambda: None) -> int:
        """Add rows for the partitions that have none, in this order; returns how many were new.

        Streams: holds some hundred partitions at a time, and calls `added` when some were added and more follow. May be
        repeated.
        """
        created = index = 0
        chunk: list[Partition] = []
        for partition in partitions:
            chunk.append(partition)
            if len(chunk) == CREATE_CHUNK:
                created += self._add(chunk, index)
                index += len(chunk)
                chunk = []
                added()
        created += self._add(chunk, index)
        if created:
            self.world.emit(PartitionsCreated(self.pipeline, created))
        return created

    def _add(self, partitions: list[Partition], index: int) -> int:
        partitions = self._without_waiting(partitions)
        if not partitions:
            return 0
        now, write_id = self.now(), self.world.new_id()

        def rows() -> list[Lease]:
            floor = read_floor(self.store, self.pipeline)
            return [
                new_lease(self.pipeline, partition, write_id, run=self.run, now=now, index=index + i, floor=floor)
                for i, partition in enumerate(partitions)
            ]

        return ensure_rows(self.store, self.world, rows)

    def _without_waiting(self, partitions: list[Partition]) -> list[Partition]:
        """The partitions without those that must wait until others are complete."""
        first = sorted({key for partition in partitions for key in partition.after})
        if not first:
            return partitions
        keys = [Key(self.pipeline, self.run, key) for key in first]
        rows = until_answered(self.world, "store", lambda: self.store.get(keys))
        complete = {row.key for row in rows if row is not None and row.status is Status.COMPLETED}
        return [partition for partition in partitions if complete.issuperset(partition.after)]

    def counts(self) -> dict[Status, int]:
        """Rows by status."""
        return dict(until_answered(self.world, "store", lambda: self.store.count(self.pipeline, self.run)))


def _freed(row: Lease, session: Lease | None, now: float, limits: RetryLimits) -> Lease:
    """A lease of an ended session, made claimable; handed back if the session's end was planned."""
    if session is not None and was_planned(session):
        return transitions.release(row, now)
    name = None if session is None else node_info(session).name
    return transitions.orphan(row, now, ended_node(name, str(row.owner)), limits)


WIDEST = 16
"""Maximum factor by which more leases are searched for than are wanted."""


class Contention:
    """How many candidates a claimer chooses from, adapted to the claims that it has lost to other nodes."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.width = 1
        """Factor by which more leases are searched for than are wanted."""

    def choose(self, found: Sequence[Lease], limit: int) -> list[Lease]:
        """At most `limit` of the leases found, at random, in the order in which they were found."""
        if self.width == 1 or len(found) <= limit:
            return list(found[:limit])
        drawn = sorted(range(len(found)), key=lambda _: self._dice.random())[:limit]
        return [found[index] for index in sorted(drawn)]

    def learn(self, won: int, lost: int) -> None:
        """Double the width after a claim that lost more leases than it took; halve it after a claim that lost none."""
        if lost > won:
            self.width = min(2 * self.width, WIDEST)
        elif not lost:
            self.width = max(1, self.width // 2)

"""A node's session: its row in `$nodes`, and the heartbeat that keeps all its leases.

A lease is live while the session of its owner is live. A session ends when the store's clock has passed its `due_at`
(in a store without a clock: when its row has not changed for its timeout) and a node has marked it as ended; after that
it can never send a heartbeat again. The node itself stops relying on it a margin earlier, by its own clock. That saves
work; the token keeps data safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from holdfast.errors import LeaseLost, SessionExpired, StoreError, StoreUnavailable, TransitionRefused
from holdfast.events import Heartbeat, NodeExpired, NodeJoined, NodeLeft, SessionEnded
from holdfast.leases.checkouts import Checkouts
from holdfast.leases.lease import Json, Lease, Ownership, Progress, Status, changed
from holdfast.leases.query import Query
from holdfast.leases.session_watch import SessionWatch
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.suspicion import ended_node
from holdfast.leases.transitions import stamped
from holdfast.leases.world import World
from holdfast.leases.writes import FencedWrites, ensure_rows, until_answered

CLOCK_RATE_BOUND = 0.05
"""How much a node's clock may deviate from the store's clock without the node relying on its leases for too long."""
KEEP_ENDED_SESSIONS = 24 * 3600.0
"""Seconds for which ended sessions are kept, for diagnosis."""


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """How long a silent node counts as alive, how often it sends a heartbeat, and how much earlier it stops itself."""

    timeout: float = 30.0
    heartbeat: float = 10.0
    margin: float = 2.0


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as it describes itself, kept in its row for people and for planning; safety does not depend on it."""

    name: str
    session: str
    pipelines: tuple[str, ...] = ()
    slots: int = 1
    generations: tuple[int, ...] = ()
    draining: bool = False
    counter: int = 0
    last_heartbeat: float = 0.0
    measured: Json = field(default_factory=dict)
    """By pipeline, what the node has measured and the store does not hold, such as lag; small, as it is sent often."""
    file_digest: str | None = None
    """What tells the text of the file that the node has read from another one; None if nobody knows."""


@dataclass(frozen=True, slots=True)
class _Beat:
    """What a heartbeat adds to the row of its node."""

    counter: int = 0
    at: float = 0.0
    measured: Json = field(default_factory=dict)


_announced = attrgetter(*NodeInfo.__slots__)


def node_info(row: Lease) -> NodeInfo:
    """The node of a row of `$nodes`."""
    state: Mapping[str, Any] = row.progress.state
    # A node of a later version may have more fields.
    fields = {name: state[name] for name in NodeInfo.__dataclass_fields__ if name in state}
    return NodeInfo(**{**fields, "pipelines": tuple(state["pipelines"]), "generations": tuple(state["generations"])})


def was_planned(ended: Lease) -> bool:
    """Whether the node of this ended session was asked to stop, and was draining."""
    state = ended.progress.state
    return isinstance(state, dict) and state.get("draining") is True


def nodes_of(prefix: str) -> str:
    """The pipeline name under which a fleet's node rows are kept; fleets with other prefixes never see them."""
    return f"{prefix}|$nodes" if prefix else "$nodes"


class Session:
    """One process's presence. `heartbeat` may run on another thread than the rest."""

    def __init__(self, store: Store, world: World, fleet: str, info: NodeInfo, timing: SessionTiming) -> None:
        """`info.session` is the readable part of the session id: host and process."""
        self._store = store
        self._world = world
        self._fleet = fleet
        self._writes = FencedWrites(store, world)
        self._info = info
        """What the node announces. Never changed by `heartbeat`, whose thread would undo changes of another one."""
        self._beat = _Beat()
        self._process = info.session
        self._row: Lease | None = None
        self._usable_until = 0.0
        self._store_ahead: float | None = None
        self._unreported: dict[str, bool] = {}
        """Sessions of this node whose end was not reported yet."""
        self.timing = timing
        self.measured: Callable[[], Json] = dict
        """Returns `NodeInfo.measured` for every heartbeat. Must not block."""
        self.watch = SessionWatch()
        self._checkouts: dict[tuple[str, str], Checkouts] = {}

    @property
    def id(self) -> str:
        return self._info.session

    @property
    def name(self) -> str:
        """The node's name, which stays the same over sessions."""
        return self._info.name

    def ended_by(self, reason: str) -> str:
        """The name of this node in rows of partitions if it ends for that reason."""
        return ended_node(self._info.name, self.id, reason)

    @property
    def fleet(self) -> str:
        return self._fleet

    @property
    def usable(self) -> bool:
        """Whether this node may still start work under its leases, by its own clock. Does not block."""
        return self._world.clock.monotonic() < self._usable_until

    @property
    def usable_for(self) -> float:
        """Seconds for which this node may start work under its leases; 0 if it may not. Any thread may call it."""
        return max(0.0, self._usable_until - self._world.clock.monotonic())

    def checkouts(self, pipeline: str, run: str) -> Checkouts:
        """The leases of that pipeline and run that threads of this process work on.

        Returns the same object each time.
        """
        return self._checkouts.setdefault((pipeline, run), Checkouts(self._world))

    @property
    def store_time(self) -> float:
        """The store's time when it was last read, advanced by this node's own clock. Does not block.

        Raises `SessionExpired` before the node has joined.
        """
        if self._store_ahead is None:
            raise SessionExpired("the session has not joined")
        return self._world.clock.monotonic() + self._store_ahead

    def join(self) -> None:
        """Begin a session with a new id and add its row. Blocks until the store has responded."""
        self._info = changed(self._info, session=self._new_session_id(), draining=False)
        self._unreported[self.id] = True
        started = self._world.clock.monotonic()
        now = self._store_now()
        self._beat = _Beat(0, now)
        self._row = self._first_row(now)
        ensure_rows(self._store, self._world, lambda: [self._joined_row])
        self._forget_long_gone(now)
        self._renewed(started)
        self._world.emit(NodeJoined(self._info.name, self.id))

    def heartbeat(self) -> None:
        """Renew the session. Blocks while the store does not respond. Raises `SessionExpired` when it is too late.

        A heartbeat that began before the node joined again belongs to the old session and does not renew the new one.
        """
        session, started = self._joined_row, self._world.clock.monotonic()
        now = self._store_now()
        self._require_current(session)
        self._beat = _Beat(self._beat.counter + 1, now, self.measured())
        self._write(lambda row: self._renew(row, now))
        self._renewed(started)
        self._world.emit(Heartbeat(self.id, self._beat.counter, self._usable_until - started))

    def drain(self) -> None:
        """Announce with the next heartbeat that this node takes no more work."""
        self._info = changed(self._info, draining=True)

    def announce(self) -> None:
        """Write now what other nodes should know, and renew. Blocks and raises like `heartbeat`."""
        started = self._world.clock.monotonic()
        now = self._store_now()
        self._write(lambda row: self._renew(row, now))
        self._renewed(started)

    def take_part(self, pipeline: str, *, taking: bool) -> None:
        """Announce with the next heartbeat whether this node takes a share of that pipeline."""
        if taking != (pipeline in self._info.pipelines):
            others = tuple(name for name in self._info.pipelines if name != pipeline)
            self._info = changed(self._info, pipelines=(*others, pipeline) if taking else others)

    def leave(self) -> None:
        """End the session at once, so that no node waits for its timeout. Does not raise if it has ended already."""
        self._usable_until = 0.0
        try:
            now = self._store_now()
            self._write(lambda row: changed(_ended(row, now), progress=Progress(state=self._state)))
        except SessionExpired as expired:
            self.tell_ended(self.id, str(expired))
            return
        if self._unreported.pop(self.id, False):
            self._world.emit(NodeLeft(self._info.name, self.id))

    def tell_ended(self, session: str, reason: str) -> None:
        """Report, once, that a session of this node has ended without `leave`. May be called by several threads.

        The session is never renewed after that.
        """
        if self._unreported.pop(session, False):
            self._world.emit(SessionEnded(session, reason))

    def abandon(self) -> None:
        """Stop relying on the session. Writes and reports nothing."""
        self._usable_until = 0.0

    def _store_now(self) -> float:
        now = until_answered(self._world, "store", self._store.now)
        self._store_ahead = now - self._world.clock.monotonic()
        return now

    @property
    def _joined_row(self) -> Lease:
        if self._row is None:
            raise SessionExpired("the session has not joined")
        return self._row

    @property
    def _state(self) -> dict[str, Json]:
        """The state of the session's row."""
        info, beat = self._info, self._beat
        # `asdict` copies deeply and takes ten times as long; this is written with every heartbeat.
        announced = dict(zip(NodeInfo.__slots__, _announced(info), strict=True))
        return announced | {"counter": beat.counter, "last_heartbeat": beat.at, "measured": beat.measured}

    def _new_session_id(self) -> str:
        # A restarted process has another session, and so has one that joins again.
        return f"{self._process}:{self._world.new_id()}"

    def _write(self, change: Callable[[Lease], Lease]) -> None:
        before = self._joined_row
        (written,) = self._writes.apply([(before, change)])
        self._require_current(before)
        if isinstance(written, LeaseLost):
            self._usable_until = 0.0
            raise SessionExpired(f"it was ended by another node: {written}")
        self._row = written

    def _forget_long_gone(self, now: float) -> None:
        # A session id is never reused, so that no fence is lost with its row.
        ended = Query(self._fleet, statuses=(Status.COMPLETED,))
        rows = until_answered(self._world, "store", lambda: self._store.find(ended))
        old = [row for row in rows if (row.history.completed_at or 0.0) < now - KEEP_ENDED_SESSIONS]
        if old:
            # A store in which this node may not delete keeps them.
            with suppress(StoreError):
                until_answered(self._world, "store", lambda: self._store.remove(old))

    def _require_current(self, row: Lease) -> None:
        if row.key != self.id or row.key not in self._unreported:
            raise SessionExpired(f"session {row.key} was replaced by a new one")

    def _renewed(self, started: float) -> None:
        timing = self.timing
        self._usable_until = started + timing.timeout * (1 - CLOCK_RATE_BOUND) - timing.margin

    def _first_row(self, now: float) -> Lease:
        ownership = Ownership(
            Status.ASSIGNED, self.id, token=1, version=1, write_id=self.id, due_at=now + self.timing.timeout
        )
        return Lease(self._fleet, self.id, ownership=ownership, progress=Progress(state=self._state))

    def _renew(self, row: Lease, now: float) -> Lease:
        _require_live(row)
        ownership = changed(row.ownership, due_at=now + self.timing.timeout)
        return changed(row, ownership=ownership, progress=Progress(state=self._state))


def _require_live(row: Lease) -> None:
    # The row of an ended session keeps its owner and token; only its status shows that it has ended.
    if row.status is not Status.ASSIGNED:
        raise TransitionRefused(f"session {row.key} has ended")


def _ended(row: Lease, now: float) -> Lease:
    _require_live(row)
    ownership = changed(row.ownership, status=Status.COMPLETED, due_at=None)
    return changed(row, ownership=ownership, history=changed(row.history, completed_at=now))


def expire_silent_sessions(
    store: Store, world: World, fleet: str, seen_by: str, watch: SessionWatch | None = None
) -> None:
    """Mark expired sessions as ended: by the store's clock, or by the watch if the store has no clock.

    An ended session cannot send a heartbeat any more. If a session renews at the same moment, its version decides which
    write is applied. Does nothing if the store does not respond.
    """
    try:
        silent = _silent_sessions(store, world, fleet, watch)
        now = store.now() if silent else 0.0
        swaps = [Swap(row.version, stamped(row, _ended(row, now), world.new_id())) for row in silent]
        outcomes = store.swap(swaps) if swaps else []
    except StoreUnavailable:
        return
    for row, outcome in zip(silent, outcomes, strict=True):
        if outcome is Outcome.OK:
            world.emit(NodeExpired(row.key, seen_by))


def _silent_sessions(store: Store, world: World, fleet: str, watch: SessionWatch | None) -> list[Lease]:
    if store.has_clock or watch is None:
        return store.find(Query(fleet, statuses=(Status.ASSIGNED,), due=True))
    live = store.find(Query(fleet, statuses=(Status.ASSIGNED,)))
    return watch.silent(live, world.clock.monotonic())

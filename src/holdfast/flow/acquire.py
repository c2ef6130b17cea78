"""Acquire: which leases this node holds, and when it gives them back.

A pass compares the held leases with the store, frees leases of dead nodes and takes new ones. If nothing was acquired,
discovery looks for more partitions. Before work on a new lease begins, the sinks check that they have no more commits
of its partition than its row.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from holdfast.errors import Halt, LeaseLost, StoreUnavailable
from holdfast.events import NothingAcquired, PartitionHandedOff, PipelineFinished, Unreachable
from holdfast.flow.batch import Name
from holdfast.flow.commit import Committer
from holdfast.flow.generations import NodeGeneration
from holdfast.flow.holdings import Capacity, Held, Holdings
from holdfast.flow.pipeline import Pipeline, call_isolated, describe, reported
from holdfast.flow.sink import KeepsStaged, Witness
from holdfast.flow.source import CountsScans, Source, SplitsPartitions, UsesStoreClock
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.discovery import Discovery
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.sharing import Sharing
from holdfast.leases.writes import Change

EAGER = 0.2
"""Part of a heartbeat after which a node that holds less than its share looks again."""
EAGER_FOR_ENDLESS = 0.25
"""The same in seconds, at most, where batches are endless: their records wait until the next node has the lease."""
NAMELESS = Name("", "")


class Permission:
    """Whether this node may work on the pipeline now, and under which generation."""

    def __init__(self, coordinator: Coordinator, may_claim: Callable[[], bool], generation: NodeGeneration) -> None:
        self._coordinator = coordinator
        self._may_claim = may_claim
        self._current = generation
        self.generation: int | None = None
        """The current generation; None if this node does not have its parsing."""
        self.granted = False

    def refresh(self, *, finished: bool) -> None:
        """Read the current generation from the store. While the store does not respond, the last result is kept."""
        session = self._coordinator.session
        try:
            generation = None if finished else self._current.current()
            granted = generation is not None and self._may_claim()
        except StoreUnavailable as away:
            self._coordinator.world.emit(Unreachable("store", str(away), session.timing.heartbeat))
            return
        self.generation, self.granted = generation, granted
        if not self._coordinator.run:
            session.take_part(self._coordinator.pipeline, taking=granted)


class Acquirer:
    """Takes, checks and gives back the leases of one pipeline on one node."""

    def __init__(
        self,
        coordinator: Coordinator,
        pipeline: Pipeline,
        holdings: Holdings,
        *,
        committer: Committer,
        capacity: Capacity,
        sharing: Sharing,
        permission: Permission,
    ) -> None:
        self._coordinator = coordinator
        self._world = coordinator.world
        self._source = source = pipeline.source
        self._splits = isinstance(source, SplitsPartitions)
        self._counting = source if isinstance(source, CountsScans) else None
        self._witnesses = [sink for sink in pipeline.sinks.values() if isinstance(sink, Witness)]
        self._keeping = {name: sink for name, sink in pipeline.sinks.items() if isinstance(sink, KeepsStaged)}
        self._holdings = holdings
        self._committer = committer
        self._capacity = capacity
        self._sharing = sharing
        self._permission = permission
        self._hand_off = HandOff(coordinator, holdings)
        self._discovery = _discovery(coordinator, source, self._look_soon)
        self._next_look = 0.0
        self._next_pass = 0.0
        heartbeat = coordinator.session.timing.heartbeat
        self._eager_pause = min(heartbeat * EAGER, EAGER_FOR_ENDLESS if holdings.endless else heartbeat)
        self.eager = False
        """Whether this node holds less than its share, so that others will hand it leases soon."""
        self.has_taken = False
        """Whether the last look has taken leases: there may be more."""
        self.shared = False
        """Whether other nodes take part, as far as the last look has shown."""
        self.draining = False
        """Whether no more leases are taken."""
        self.finished = False
        if isinstance(source, UsesStoreClock):
            source.use_clock(lambda: coordinator.session.store_time)

    @property
    def discovering(self) -> bool:
        return self._discovery is not None and self._discovery.running

    def learn(self) -> None:
        """Note that a batch has ended: there may be room for more leases, even if the last look found none."""
        if not self._source.lives_long:
            self._look_soon()

    def look(self) -> None:
        """Take leases if there is room for more; about once per heartbeat, make a whole pass."""
        now = self._world.clock.monotonic()
        if self.draining or now < self._next_look:
            return
        passing = self._pass_is_due(now)
        if passing:
            # A run may get partitions of a further phase at any time; its row says when it has ended.
            self._permission.refresh(finished=self.finished and not self._coordinator.run)
            # Also where nothing may be claimed: a lost response or a hand-off may have left leases with this node.
            self._reconcile()
        if not self._permission.granted:
            self._next_look = self._next_pass
            self._hand_back_gently()
            return
        if passing:
            self._coordinator.sweep()
        self._take(now, passing=passing)

    def _pass_is_due(self, now: float) -> bool:
        if now < self._next_pass:
            return False
        self._next_pass = now + self._world.jittered(self._coordinator.session.timing.heartbeat)
        return True

    def _take(self, now: float, *, passing: bool) -> None:
        idle = len(self._holdings.where(lambda held: held.at_rest))
        room = self._capacity.room([held.lease for held in self._holdings], idle)
        if room <= 0 and not passing:
            self.has_taken = False
            return
        look = self._sharing.look(len(self._holdings), max(room, 0))
        self._hold(look.taken)
        self._hand_off.choose(look.shed_to)
        self.eager, self.shared, self.has_taken = look.short, look.shared, bool(look.taken)
        # Where partitions are split, there may be a new one at any time.
        is_eager = look.short or self._splits
        pause = self._eager_pause if is_eager else self._coordinator.session.timing.heartbeat
        if not look.taken and room > 0:
            self._next_look = now + self._world.jittered(pause)
            self._nothing_acquired()
        if look.short:
            self._next_pass = min(self._next_pass, now + pause)

    def _reconcile(self) -> None:
        """Compare with the store: drop leases that were taken away, and hold those that were claimed unnoticed."""
        rows = {row.key: row for row in self._coordinator.owned()}
        for held in self._holdings:
            row = rows.get(held.lease.key)
            if row is None or row.token != held.lease.token:
                self._holdings.cancel([held])
                self._holdings.drop(held)
            else:
                self._holdings.acknowledge(held, row)
                del rows[row.key]
        self._hold(self._coordinator.adopt(rows.values()))

    def _hold(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if (earlier := self._holdings.get(lease.key)) is not None:
                self._holdings.cancel([earlier])
                self._holdings.drop(earlier)
            try:
                name = self._source.name(lease)
            except Exception as error:  # noqa: BLE001 - sources are foreign code
                self._committer.count_attempt(Held(lease, NAMELESS), f"it could not be named: {describe(error)}")
            else:
                self._holdings.add(Held(lease, name, found_pending=lease.commit.receipts is not None))

    # --- discovery ---------------------------------------------------------------------------------------------

    def _nothing_acquired(self) -> None:
        self._world.emit(NothingAcquired(self._coordinator.pipeline))
        if self._discovery is None or (self._may_end and self._discovery.exhausted):
            if not len(self._holdings):
                self._check_finished()
        else:
            self._discovery.turn()

    @property
    def _may_end(self) -> bool:
        """Whether there may be a last discovery."""
        return self._source.rediscover_after is None if self._counting is None else self._counting.may_end

    def _look_soon(self) -> None:
        self._next_look = 0.0

    def pass_soon(self) -> None:
        """Make a whole pass with the next look."""
        self._next_look = self._next_pass = 0.0

    def _check_finished(self) -> None:
        counts = self._coordinator.counts()
        was_finished = self.finished
        self.finished = not any(number for status, number in counts.items() if status not in FINISHED)
        if self.finished and not was_finished:
            completed, failed = counts.get(Status.COMPLETED, 0), counts.get(Status.FAILED, 0)
            self._world.emit(PipelineFinished(self._coordinator.pipeline, completed, failed))

    # --- admit -------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Let the sinks check new leases. No work begins under a lease before that."""
        new = self._holdings.ready(self._world.clock.monotonic(), lambda held: not held.admitted)
        if not new:
            return
        taken = [(held.lease, held.name) for held in new]
        verdicts: list[Sequence[Exception | None]] = [call_isolated(sink.witness, taken) for sink in self._witnesses]
        for held, *found in zip(new, *verdicts, strict=True):
            self._judge(held, [verdict for verdict in found if verdict is not None])
        for name, sink in self._keeping.items():
            with reported(self._world.emit, f"{self._coordinator.pipeline}: `sweep` of sink {name!r}"):
                sink.sweep([(held.lease, held.name) for held in new if held.admitted])

    def _judge(self, held: Held, errors: Sequence[Exception]) -> None:
        halt = next((error for error in errors if isinstance(error, Halt)), None)
        if halt is not None:
            self._coordinator.halt(held.lease, str(halt))
            self._holdings.drop(held)
        elif errors:
            self._committer.put_off([held], "sink", errors[0])
        else:
            held.admitted = True

    # --- give back ---------------------------------------------------------------------------------------------

    def hand_off(self) -> None:
        """Hand off the leases chosen for other nodes, as soon as they are at rest."""
        self._hand_off.give()

    def hand_back(self) -> None:
        """Cancel running batches and hand back every lease at once."""
        self._holdings.cancel(list(self._holdings))
        self._coordinator.release([held.lease for held in self._holdings])
        self._holdings.clear()

    def _hand_back_gently(self) -> None:
        """Hand back every lease at once or, if batches are endless, each when its batch is drained."""
        running = self._holdings.where(lambda held: not held.at_rest) if self._holdings.endless else []
        if not running:
            self.hand_back()
            return
        self._holdings.drain(running)
        self._look_soon()
        resting = self._holdings.where(lambda held: held.at_rest)
        self._coordinator.release([held.lease for held in resting])
        for held in resting:
            self._holdings.drop(held)

    def abandon(self) -> None:
        """Cancel running batches and forget every lease. Writes nothing."""
        self._holdings.cancel(list(self._holdings))
        self._holdings.clear()
        self.pass_soon()


class HandOff:
    """Hands off leases to nodes that hold less than their share, each once none of its batches is running."""

    def __init__(self, coordinator: Coordinator, holdings: Holdings) -> None:
        self._coordinator = coordinator
        self._holdings = holdings
        self._chosen = False

    def choose(self, targets: Sequence[str]) -> None:
        """Choose a lease for each target. Replaces earlier choices that were not carried out yet."""
        if not targets and not self._chosen:
            return
        self._chosen = bool(targets)
        wanted = Counter(targets)
        for held in self._holdings:
            if held.hand_to is not None and wanted[held.hand_to] > 0:
                wanted[held.hand_to] -= 1
            else:
                held.hand_to = None
        # In this order: candidates are not sorted where no target is left.
        for target, held in zip(wanted.elements(), self._candidates(), strict=False):
            held.hand_to = target
        self._holdings.drain([held for held in self._holdings if held.hand_to])

    def _candidates(self) -> Iterator[Held]:
        """Leases that may be handed off, each from the group with the most left, so that busy topics are shared too."""
        staying = self._holdings.where(lambda held: held.hand_to is None)
        groups: dict[str, list[Held]] = defaultdict(list)
        for held in sorted(staying, key=lambda held: held.at_rest):  # taken from the end: those at rest first
            groups[held.lease.group].append(held)
        left = [(-len(group), not group[-1].at_rest, name) for name, group in groups.items()]
        heapq.heapify(left)
        while left:
            name = heapq.heappop(left)[2]
            group = groups[name]
            yield group.pop()
            if group:
                heapq.heappush(left, (-len(group), not group[-1].at_rest, name))

    def give(self) -> None:
        """Hand off the chosen leases that are at rest, in one write each, so that none is ever without an owner."""
        if not self._chosen:
            return
        going = self._holdings.where(lambda held: held.hand_to is not None and held.at_rest)
        if not going:
            return
        now = self._coordinator.now()
        results = self._coordinator.write_each([(held.lease, _given(held, now)) for held in going])
        for held, result in zip(going, results, strict=True):
            self._holdings.drop(held)
            if not isinstance(result, LeaseLost):
                event = PartitionHandedOff(result.pipeline, result.key, str(result.owner))
                self._coordinator.world.emit(event)


def _given(held: Held, now: float) -> Change:
    target = str(held.hand_to)
    return lambda row: transitions.hand_off(row, target, now)


def _discovery(coordinator: Coordinator, source: Source, added: Callable[[], None]) -> Discovery | None:
    """Discovery for a live pipeline. A run has none: its partitions were made when it was created."""
    if coordinator.run:
        return None
    next_scan = source.next_scan_after if isinstance(source, CountsScans) else lambda _state: source.rediscover_after
    return Discovery(coordinator, source.discover, rerun_after=next_scan, added=added)

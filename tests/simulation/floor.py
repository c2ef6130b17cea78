"""A world in which somebody forgets partitions while they are found again and old owners sleep.

What must hold: nobody works under a token that an earlier row of the same key has had, and no write that was derived
from an earlier row lands on a row made anew.
"""

from __future__ import annotations

from collections import Counter

from holdfast.errors import PartitionError, StoreUnavailable
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Key, Lease, Partition, Status
from holdfast.leases.operate import Operator
from holdfast.leases.transitions import RetryLimits, is_stripped
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.scenario import Knobs
from tests.simulation.site import NoBatches, Running, Site
from tests.simulation.worker import Hands, Worker, session_of

ITEMS = 2
FLOOR = Key(f"{PIPELINE}/$floor", "", "$floor")


class FloorOracle(Oracle):
    """Judges tokens over all lives of a key: from each time that its row is made until it is removed."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.kernel)
        self._past: Counter[Key] = Counter()
        """The highest token that earlier lives of the key have reached."""
        self._workers: dict[tuple[str, int], str | None] = {}

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        if row.pipeline != PIPELINE:
            super().row_written(row, sender)
            return
        self.rows[row.id] = row
        if before is None:
            return
        if not self._below_floor(before):
            self._require_successor(before, row, sender)
        if row.commit.sequence != before.commit.sequence:
            self._committed(before, row, sender)

    def _require_successor(self, before: Lease, row: Lease, sender: Host) -> None:
        if row.version <= before.version or row.token < before.token:
            self.fail(f"{row.key}: version {before.version} -> {row.version}, token {before.token} -> {row.token}")
        if not _same_life(before, row):
            self.fail(f"{row.key}: {sender.name} wrote what it derived from an earlier row")

    def _below_floor(self, row: Lease) -> bool:
        """Whether nobody works on the row yet: it was made below the floor and is lifted before any work begins."""
        floor = self.rows.get(FLOOR)
        return floor is not None and row.token <= floor.token and row.status is not Status.COMPLETED

    def _committed(self, before: Lease, row: Lease, sender: Host) -> None:
        if row.commit.sequence != before.commit.sequence + 1:
            self.fail(f"{row.key}: sequence went from {before.commit.sequence} to {row.commit.sequence}")
        if row.token <= self._past[row.id]:
            self.fail(f"{row.key}: {sender.name} committed under token {row.token}, which an earlier row had reached")

    @property
    def may_be_undone(self) -> bool:
        return True

    def row_removed(self, row: Lease) -> None:
        stored = self.rows[row.id]
        super().row_removed(row)
        if row.pipeline != PIPELINE:
            return
        if stored.status is not Status.COMPLETED and not self._below_floor(stored):
            self.fail(f"{row.key}: was removed while {stored.status}")
        self._past[row.id] = max(self._past[row.id], stored.token)

    def works(self, lease: Lease) -> None:
        """A node begins work under this lease; it may have lost it without knowing."""
        first = self._workers.setdefault((lease.key, lease.token), lease.owner)
        if first != lease.owner:
            self.fail(f"{lease.key}: {first} and {lease.owner} both worked under token {lease.token}")

    def judge_end(self) -> None:
        for key, row in self.rows.items():
            if key.pipeline == PIPELINE and row.status is not Status.COMPLETED:
                self.fail(f"{row.key}: rests as {row.status}")


class ForgetfulSite(Site):
    """Workers that find all partitions again and again, and a person who forgets completed ones."""

    oracle: FloorOracle

    def make_oracle(self) -> FloorOracle:
        self.names.append("person")
        self.keys = [f"p{n}" for n in range(self.scenario.partitions)]
        return FloorOracle(self)

    def assemble(self, name: str, host: Host) -> Running:
        if name == "person":
            return Running(host, Person(self, host), NoBatches())
        return Running(host, Finder(self, name, host), NoBatches())

    @property
    def unfinished(self) -> object:
        rows = [self.oracle.rows.get(Key(PIPELINE, "", key)) for key in self.keys]
        return [row for row in rows if row is None or row.status not in FINISHED]

    @property
    def work_is_done(self) -> bool:
        person = self.nodes.get("person")
        return not self.unfinished and (person is None or not person.host.running)


class Finder(Worker):
    """Makes rows for all partitions on every pass, as discovery does, and works off what it gets."""

    def __init__(self, site: ForgetfulSite, name: str, host: Host) -> None:
        store = site.connect(host)
        super().__init__(host, session_of(name, host, store, site.knobs), site.knobs)
        policy = ClaimPolicy(limits=RetryLimits(max_takeovers=1 << 30))
        self._leases = Coordinator(store, host.world, self.session, PIPELINE, policy=policy)
        self._site = site

    def begin(self) -> None:
        self._hands = Hands(self._leases, lambda _: ITEMS, self._site.oracle.works)

    def turn(self) -> None:
        self._leases.create(Partition(key) for key in self._site.keys)
        self._hands.take(1)
        self._hands.step()

    def end(self) -> None:
        self._hands.release()


class Person:
    """Forgets and purges what is complete, while there are faults."""

    def __init__(self, site: ForgetfulSite, host: Host) -> None:
        self._site = site
        self._host = host
        self._operator = Operator(site.connect(host), host.world.new_id, PIPELINE)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        knobs: Knobs = self._site.knobs
        while self._site.faults.active and not self._stopping:
            try:
                self._act()
            except (StoreUnavailable, PartitionError):
                self._host.kernel.note(self._host.name, "tries again later")
            self._host.wait(knobs.heartbeat * self._host.kernel.random())

    def _act(self) -> None:
        done = list(self._operator.rows((Status.COMPLETED,)))
        if self._host.kernel.random() < 0.3:
            self._operator.purge([row for row in done if not is_stripped(row)])
        else:
            self._operator.forget(done)


def _same_life(before: Lease, row: Lease) -> bool:
    if is_stripped(row):
        return before.status is Status.COMPLETED and before.token == row.token
    return row.order.ordinal == before.order.ordinal

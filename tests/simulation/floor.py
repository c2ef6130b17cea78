"""A world in which somebody purges and forgets partitions while they are found again and old owners sleep.

What must hold: a row made anew starts above every token and version that earlier rows of the key have had, nobody works
under a token that an earlier row has had, and no request that was derived from an earlier row changes or removes a
later one. Requests of every kind are late at will; only those that add rows keep to what `holdfast.leases.token_floor`
assumes, or there would be nothing to prove.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.errors import PartitionError, StoreUnavailable
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import FINISHED, Key, Lease, Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Outcome
from holdfast.leases.transitions import RetryLimits, is_stripped
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.scenario import Knobs
from tests.simulation.site import NoBatches, Running, Site
from tests.simulation.store import ClaimingStoreClient, StoreClient
from tests.simulation.worker import Hands, Worker, session_of

ITEMS = 2
FLOOR = Key(f"{PIPELINE}/$floor", "", "$floor")
REST_TTLS = 0.5
"""How long a tombstone rests; far less than requests may be late."""


class FloorOracle(Oracle):
    """Judges all lives of a key together: each goes from the making of its row to the removal."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.kernel)
        self._tokens: Counter[Key] = Counter()
        self._versions: Counter[Key] = Counter()
        """The highest that earlier lives of the key have reached."""
        self._workers: dict[tuple[str, int], str | None] = {}

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        if row.pipeline == PIPELINE and before is None:
            self._require_above_earlier_lives(row)
        elif row.pipeline == PIPELINE and before is not None:
            self._require_same_life(before, row, sender)
        if before is not None and before.status is row.status is Status.COMPLETED and is_stripped(row):
            self.rows[row.id] = row
        else:
            super().row_written(row, sender)

    def _require_above_earlier_lives(self, row: Lease) -> None:
        if row.id in self._versions and row.version <= self._versions[row.id]:
            self.fail(f"{row.key}: was made with version {row.version}, which an earlier row has had")
        if row.token < self._tokens[row.id]:
            self.fail(f"{row.key}: was made with token {row.token}, which an earlier row has had")

    def _require_same_life(self, before: Lease, row: Lease, sender: Host) -> None:
        if is_stripped(row):
            same = before.status is Status.COMPLETED
        else:
            same = not is_stripped(before) and row.order.ordinal == before.order.ordinal
        if not same or row.token < before.token or row.version != before.version + 1:
            self.fail(f"{row.key}: {sender.name} wrote what it derived from an earlier row")

    def committed(self, before: Lease, row: Lease) -> None:
        if row.token <= self._tokens[row.id]:
            self.fail(f"{row.key}: a commit under token {row.token}, which an earlier row has had")

    @property
    def may_be_undone(self) -> bool:
        return True

    def row_removed(self, row: Lease) -> None:
        stored = self.rows[row.id]
        super().row_removed(row)
        if row.pipeline != PIPELINE:
            return
        if not is_stripped(stored):
            self.fail(f"{row.key}: was removed while {stored.status} and not purged")
        self._tokens[row.id] = max(self._tokens[row.id], stored.token)
        self._versions[row.id] = max(self._versions[row.id], stored.version)

    def works(self, lease: Lease) -> None:
        """A node begins work under this lease; it may have lost it without knowing."""
        first = self._workers.setdefault((lease.key, lease.token), lease.owner)
        if first != lease.owner:
            self.fail(f"{lease.key}: {first} and {lease.owner} both worked under token {lease.token}")

    def judge_end(self) -> None:
        for key, row in self.rows.items():
            if key.pipeline == PIPELINE and row.status is not Status.COMPLETED:
                self.fail(f"{row.key}: rests as {row.status}")


class Punctual(StoreClient):
    """What it adds is lost when it would land later after the reading of the floor than tombstones rest."""

    _floor_read_at = 0.0

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        def ask() -> list[Lease | None]:
            if FLOOR in keys:
                self._floor_read_at = self._kernel.now
            return self._server.memory.get(keys)

        return self._read("get", ask)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        if any(lease.pipeline != PIPELINE for lease in leases):
            return super().add(leases)
        unknown = [Outcome.UNKNOWN] * len(leases)
        latest = self._floor_read_at + REST_TTLS * self._ttl

        def send() -> list[Outcome]:
            return unknown if self._kernel.now > latest else self._server.add(leases, self._host)

        return self._write("add", send, lambda: unknown)


class PunctualClaiming(Punctual, ClaimingStoreClient):
    """As `Punctual`, for a store that claims in one statement."""


class ForgetfulSite(Site):
    """Workers that find all partitions again and again, and a person who purges and forgets completed ones."""

    oracle: FloorOracle

    def make_oracle(self) -> FloorOracle:
        self.names.append("person")
        self.keys = [f"p{n}" for n in range(self.scenario.partitions)]
        return FloorOracle(self)

    def assemble(self, name: str, host: Host) -> Running:
        if name == "person":
            return Running(host, Person(self, host), NoBatches())
        return Running(host, Finder(self, name, host), NoBatches())

    def connect(self, host: Host) -> StoreClient:
        client = PunctualClaiming if self.knobs.claims_in_one else Punctual
        return client(self.store, host, self.knobs.latency, self.knobs.ttl)

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
    """Purges what is complete and forgets what was purged, while there are faults."""

    def __init__(self, site: ForgetfulSite, host: Host) -> None:
        self._site = site
        self._host = host
        rest = REST_TTLS * site.knobs.ttl
        self._operator = Operator(site.connect(host), host.world.new_id, PIPELINE, rest=rest)
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
        done = self._operator.rows((Status.COMPLETED,))
        self._operator.purge([row for row in done if not is_stripped(row)])
        self._operator.forget(list(self._operator.forgettable()))

"""A world of the API for source authors: threads of a node share one session, and some of them one coordinator.

What must hold beside the rules of the floor: under one token one thread works and saves state, a session runs its
supplier once at a time, and what is deleted can be made anew without meeting a token of its earlier life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError, Interrupted, PartitionError, SessionExpired, StoreUnavailable, SupplierFailed
from holdfast.leases.discovery import discovery_of
from holdfast.leases.lease import Lease, Partition
from holdfast.leases.source_coordinator import SourceCoordinator
from tests.simulation.floor import FloorOracle, ForgetfulSite, Person
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.site import NoBatches, Running
from tests.simulation.worker import Worker, session_of

PAGES = 2
COORDINATORS = (0, 0, 1)
"""Which coordinator each thread of a node uses."""


class SourcingOracle(FloorOracle):
    """Judges threads, where the others judge nodes."""

    def row_written(self, row: Lease, sender: Host) -> None:
        before, state = self.rows.get(row.id), row.progress.state
        if row.pipeline == PIPELINE and state is not None and before is not None and state != before.progress.state:
            self._require_own_token(row)
        super().row_written(row, sender)

    def _require_own_token(self, row: Lease) -> None:
        if row.progress.state["token"] != row.token:
            self.fail(f"{row.key}: under token {row.token} was saved what belongs to {row.progress.state}")

    def _taken_again(self, before: Lease, row: Lease) -> bool:
        # A thread may take what another one of its session has held past the lease's own deadline.
        return before.ownership.due_at is not None and row.token == before.token + 1

    def thread_works(self, lease: Lease, thread: str) -> None:
        """A thread begins work under this lease; it may have lost it without knowing."""
        first = self._workers.setdefault((lease.key, lease.token), thread)
        if first != thread:
            self.fail(f"{lease.key}: {first} and {thread} both worked under token {lease.token}")


class SourcingSite(ForgetfulSite):
    """Nodes of several threads, and a person who forgets what they have deleted."""

    oracle: SourcingOracle

    def make_oracle(self) -> SourcingOracle:
        self.names.append("person")
        self.keys = [f"p{n}" for n in range(self.scenario.partitions)]
        return SourcingOracle(self)

    def assemble(self, name: str, host: Host) -> Running:
        if name == "person":
            return Running(host, Forgetter(self, host), NoBatches())
        return Running(host, SourceNode(self, name, host), NoBatches())


class Forgetter(Person):
    """Leaves purging to those who delete."""

    def _act(self) -> None:
        self._operator.forget(list(self._operator.forgettable()))


class SourceNode(Worker):
    """One session; its threads acquire partitions, save pages, and let go in every way there is."""

    def __init__(self, site: SourcingSite, name: str, host: Host) -> None:
        store = site.connect(host)
        super().__init__(host, session_of(name, host, store, site.knobs), site.knobs)
        timing: dict[str, Any] = {"ownership_timeout": site.knobs.ttl, "patience": site.knobs.ttl}
        self._sources = [
            SourceCoordinator(store, host.world, self.session, PIPELINE, **timing) for _ in set(COORDINATORS)
        ]
        self._site = site
        self._suppliers: Counter[tuple[str, int]] = Counter()
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            for number, source in enumerate(COORDINATORS):
                self.host.spawn(partial(self._run, f"{self.host.name}/{number}", source))

    def end(self) -> None:
        for source in self._sources:
            source.give_up_all()

    def _run(self, thread: str, number: int) -> None:
        with suppress(Interrupted):
            while not self.stopping:
                try:
                    self._work(thread, self._sources[number])
                except (StoreUnavailable, SupplierFailed, SessionExpired, PartitionError) as trouble:
                    self.host.kernel.note(thread, type(trouble).__name__, trouble)
                self.host.wait(self._pause())

    def _work(self, thread: str, source: SourceCoordinator) -> None:
        dice = self.host.kernel
        lease = source.acquire_next(self._supplier, force_supplier=dice.below(4) == 0)
        if lease is None:
            return
        for page in range(PAGES):
            self._site.oracle.thread_works(lease, thread)
            if self.host.faults.active:
                self.host.sleep(self.knobs.ttl * dice.random() ** 4)
            source.save_state(lease, {"token": lease.token, "page": page})
        self._let_go(source, lease, dice.below(8) if self.host.faults.active else 0)

    def _let_go(self, source: SourceCoordinator, lease: Lease, way: int) -> None:
        if way == 1:
            source.give_up(lease, priority=self.host.kernel.below(3))
        elif way == 2:
            source.close(lease, self.knobs.ttl / 2, max_closed_count=3)
        elif way == 3:
            source.complete(lease)
        elif way == 4:
            source.give_up_all()
        else:
            source.delete(lease)

    def _supplier(self, state: dict[str, Any]) -> Iterator[Partition]:
        row = self._site.oracle.rows[discovery_of(PIPELINE)]
        run = (self.session.id, row.token)
        self._suppliers[run] += 1
        if self._suppliers[run] > 1:
            self._site.oracle.fail(f"{self.session.id} runs its supplier twice at once under token {row.token}")
        try:
            self.host.sleep(self.knobs.latency)
            if self.host.faults.active and self.host.kernel.below(10) == 0:
                raise SupplierBroken("cannot list")
            yield from map(Partition, self._site.keys)
        finally:
            self._suppliers[run] -= 1


class SupplierBroken(HoldfastError):
    """What a supplier raises that cannot list."""

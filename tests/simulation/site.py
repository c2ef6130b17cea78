"""What every simulated world has: nodes over one store, started, stopped and troubled until all comes to rest."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from functools import partial
from typing import Protocol

from holdfast.errors import Interrupted
from holdfast.leases.lease import Lease
from tests.simulation.bucket import BucketServer
from tests.simulation.faults import Faults
from tests.simulation.host import Host
from tests.simulation.indexed_store import IndexedStoreClient
from tests.simulation.kernel import Crash, Kernel, Trace
from tests.simulation.nemesis import Nemesis
from tests.simulation.oracle import Oracle, nobody_works
from tests.simulation.scenario import Scenario, draw_knobs
from tests.simulation.session_events import SessionEvents
from tests.simulation.store import ClaimingStoreClient, StoreClient
from tests.simulation.store_server import StoreServer
from tests.simulation.watching_store import WatchingStoreClient

PATIENCE_TTLS = 60.0
PATIENCE = 400.0
"""After the last fault all work must be done within that many TTLs and seconds."""


class Program(Protocol):
    """What a node's process runs."""

    def run(self) -> object:
        """From start to end; the answer does not matter."""
        ...

    def stop(self) -> None:
        """Asked by a signal; does not block."""
        ...


class Working(Protocol):
    """What carries out batches, if anything does."""

    def works_on(self, lease: Lease) -> bool: ...


class NoBatches:
    """Nobody carries out anything beside the program itself."""

    def works_on(self, lease: Lease) -> bool:
        return False


class Running:
    """A node's process and what the nemesis needs of it."""

    def __init__(self, host: Host, node: Program, engine: Working) -> None:
        self.host = host
        self.node = node
        self.engine = engine
        self.stopped = False


class Site(ABC):
    """Runs a world to its end. Subclasses say what its nodes do."""

    def __init__(self, scenario: Scenario, seed: int, trace: Trace | None = None) -> None:
        self.kernel = Kernel(f"{scenario.name}-{seed}", trace)
        self.faults = Faults(self.kernel.dice, scenario.kinds)
        self.knobs = draw_knobs(self.kernel, scenario)
        self.scenario = scenario
        self.nodes: dict[str, Running] = {}
        self.names = [f"n{n}" for n in range(scenario.nodes)]
        self.oracle = self.make_oracle()
        self.store = StoreServer(self.kernel, self.faults, self.oracle, self.knobs.ttl)
        self._all: list[Running] = []
        self._ids = itertools.count(1)
        self._runs = itertools.count(1)
        self._nemesis = Nemesis(self)
        self._events = SessionEvents(self.oracle.fail)
        self.oracle.owner_works = self._works_on
        self.oracle.sessions.heartbeat = self.knobs.heartbeat
        self.oracle.sessions.ends_by_clock = not (scenario.watching or scenario.indexed)

    # --- what a world is made of ----------------------------------------------------------------------------------

    @abstractmethod
    def make_oracle(self) -> Oracle:
        """Who judges; called once, before there is a store."""

    @abstractmethod
    def assemble(self, name: str, host: Host) -> Running:
        """The program of a node."""

    @property
    @abstractmethod
    def work_is_done(self) -> bool:
        """Whether everything has come to rest, if nothing goes wrong any more."""

    @property
    @abstractmethod
    def unfinished(self) -> object:
        """What is left to do, for people."""

    @property
    def shown(self) -> object:
        """What people should know of this world."""
        return self.scenario

    @property
    def buckets(self) -> list[BucketServer]:
        return []

    def prepare(self) -> None:
        """What has been there before the first node."""

    @property
    def endless(self) -> bool:
        """Whether nodes go on looking for work when all is done."""
        return True

    def look_after(self) -> None:
        """Called now and then when the faults are over: what people would do so that everything gets done."""

    # --- from start to end ----------------------------------------------------------------------------------------

    def run(self) -> str | None:
        """Everything from the first node to the last event; answers the violation, if there was one."""
        try:
            self.prepare()
            for name in self.names:
                self.kernel.after(self.knobs.starts_within * self.kernel.random(), self.start, name)
            self._nemesis.begin()
            self.kernel.run(self.knobs.quiet_at + PATIENCE_TTLS * self.knobs.ttl + PATIENCE)
            self._judge_end()
        except Crash:
            pass
        finally:
            self._dismantle()
        return self.oracle.violation

    def _dismantle(self) -> None:
        """End what still runs, and cut the circles of references: collecting them would take a tenth of the time."""
        self.kernel.halt()
        self.kernel.lives.clear()
        processes = [process for running in self._all for process in running.host.processes]
        for process in processes:
            process.kill()
        for ended in (*processes, *(running.host for running in self._all)):
            vars(ended).clear()
        self._all.clear()
        self.nodes.clear()
        vars(self._nemesis).clear()
        vars(self.store).clear()
        self.oracle.owner_works = nobody_works

    def _judge_end(self) -> None:
        for running in self._all:
            self._require_no_failure(running)
        if self.hosts:
            self.oracle.fail(f"{[host.name for host in self.hosts]} find no end; unfinished: {self.unfinished}")
        self.oracle.judge_end()

    def _require_no_failure(self, running: Running) -> None:
        for process in running.host.processes:
            if process.failure is not None:
                self.oracle.fail(f"{running.host.name} ended by {process.failure!r}")

    # --- nodes ----------------------------------------------------------------------------------------------------

    @property
    def somebody_sleeps(self) -> bool:
        """Whether a node is paused that may do anything when it wakes up."""
        return any(host.paused_until > self.kernel.now for host in self.hosts)

    @property
    def hosts(self) -> list[Host]:
        return [running.host for running in self.nodes.values() if running.host.running]

    def start(self, name: str) -> None:
        """Start the node's process, unless one runs or there is nothing left to do."""
        before = self.nodes.get(name)
        if (before is not None and before.host.running) or (not self.faults.active and self.work_is_done):
            return
        host = Host(self.kernel, self.faults, f"{name}.{next(self._runs)}", self.knobs.ttl, self.new_id)
        host.on_crash = lambda: self._nemesis.restart_later(name)
        host.on_event = partial(self._events.heard, host.name)
        running = self.assemble(name, host)
        self.nodes[name] = running
        self._all.append(running)
        host.spawn(lambda: self._live(name, running))
        self.kernel.note(host.name, "start")

    def stop(self, host: Host) -> None:
        """Ask the process to stop, as a signal would."""
        for running in self.nodes.values():
            if running.host is host and not running.stopped:
                running.stopped = True
                running.node.stop()
                host.ask_to_stop(within=self.knobs.ttl * 3)
                self.kernel.note(host.name, "asked to stop")

    def _live(self, name: str, running: Running) -> None:
        try:
            running.node.run()
        except Interrupted:
            self.kernel.note(running.host.name, "interrupted")
        running.host.end()
        if running.stopped:
            self._nemesis.restart_later(name)

    def new_id(self) -> str:
        return f"i{next(self._ids)}"

    def connect(self, host: Host) -> StoreClient:
        """A connection to the store, of the kind that this world has."""
        if self.scenario.watching:
            return WatchingStoreClient(self.store, host, self.knobs.latency, self.knobs.ttl)
        if self.scenario.indexed:
            return IndexedStoreClient(self.store, host, self.knobs.latency, self.knobs.ttl)
        client = ClaimingStoreClient if self.knobs.claims_in_one else StoreClient
        return client(self.store, host, self.knobs.latency, self.knobs.ttl)

    def _works_on(self, host: Host, lease: Lease) -> bool:
        return any(running.host is host and running.engine.works_on(lease) for running in self.nodes.values())

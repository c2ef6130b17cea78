"""A world in which runs are promoted while rows change, drivers die, and one wakes up after another has taken over.

The driver and all steps of the promotion are the product's own; tables and the index server are models. What must hold:
searches through the alias never miss a document whose row is never deleted. What must come about: the run ends, and
index and table agree exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.errors import LeaseLost, Refused, SinkUnavailable
from holdfast.flow.run import GroupStats, Run, RunStatus
from holdfast.flow.run_driver import End, Extend, Wait
from holdfast.flow.search_index import AliasState, IndexPlan, SearchIndexes
from holdfast.flow.sink import StagesIndexes
from holdfast.leases.lease import Json, Partition
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex import ReindexDriver
from holdfast.runs.reindex_configuration import ReindexConfiguration
from tests.simulation.host import Host
from tests.simulation.index_server import IndexServer
from tests.simulation.kernel import Crash
from tests.simulation.live_tables import ModelTables, document
from tests.simulation.oracle import Oracle
from tests.simulation.site import Running, Site

STABLE = [f"stable{number}" for number in range(9)]


class Killed(BaseException):
    """The node is gone."""


class Violation(BaseException):
    """What must hold does not."""


class StagedSink(StagesIndexes):
    prefix = "staged_"
    keep_previous = 1

    def __init__(self, indexes: SearchIndexes, keep_previous: int = 1) -> None:
        self._indexes = indexes
        self.keep_previous = keep_previous

    def plan(self, mappings: Mapping[str, Any], settings: Mapping[str, Any]) -> IndexPlan:
        return IndexPlan(mappings, settings)

    def indexes(self) -> SearchIndexes:
        return self._indexes

    def use_aliases(self, aliases: Mapping[str, str]) -> None:
        pass


class Watched:
    """Passes calls on. Before and after each of them something happens, such as a death."""

    def __init__(self, target: object, happens: Callable[[], None]) -> None:
        self._target = target
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._happens()
            result = found(*args, **options)
            self._happens()
            return result

        return call


class Arena:
    """Tables, an index server, and a run that any number of drivers carry out one after the other."""

    def __init__(
        self,
        dice: random.Random,
        *,
        server: IndexServer | None = None,
        has_versions: bool = True,
        live: bool = False,
        **configuration: Any,
    ) -> None:
        self.dice = dice
        self.server, self.tables = server or IndexServer(), ModelTables(has_versions=has_versions)
        self.live = live
        """Whether the writer writes to the index, too."""
        self.writes = self.begins = True
        """Whether rows change, and whether transactions begin; those that are open are committed at any time."""
        self.steps = 0
        self.strike: Callable[[], None] = lambda: None
        """Called at every step; may raise."""
        self.late: list[Callable[[], object]] = []
        """Requests that nobody waits for any more, and that the server has not got yet."""
        self.token = 0
        self.keep_previous = 1
        self.runs: dict[str, Run] = {}
        self.failing: set[str] = set()
        self.open: list[Any] = []
        first = self.tables.begin()
        for key in [*STABLE, *(f"row{number}" for number in range(20))]:
            first.write(key)
        first.commit()
        for key, (version, text) in self.tables.documents().items():
            self.server.write("people_old", key, version, text)
        self.server.write("people_old", "gone", 1, "{}")
        self.server.swap("people", AliasState(), "people_old")
        self.new_run("r1", **configuration)

    def new_run(self, run_id: str, **configuration: Any) -> None:
        chosen = ReindexConfiguration(entities=("users",), **configuration)
        self.store(Run(run_id, RunStatus.RUNNING, chosen.encode(), created_at=float(len(self.runs))))

    @property
    def run(self) -> Run:
        """The latest run."""
        return next(reversed(self.runs.values()))

    def goes_on(self) -> bool:
        return self.run.status is RunStatus.RUNNING

    def store(self, run: Run) -> Run:
        self.runs[run.id] = run
        return run

    # --- what happens meanwhile --------------------------------------------------------------------------------

    def happens(self) -> None:
        self.steps += 1
        self.read()
        self.change()
        self.strike()

    def read(self) -> None:
        try:
            found = self.server.search("people")
        except KeyError:
            raise Violation("a search has failed") from None
        if not set(STABLE) <= set(found):
            raise Violation("a search has missed a document")

    def change(self) -> None:
        if not self.writes:
            return
        if self.open and self.dice.random() < 0.4:
            self.commit(self.open.pop(self.dice.randrange(len(self.open))))
        if self.begins and self.dice.random() < 0.5:
            transaction = self.tables.begin()
            for _ in range(self.dice.randint(1, 3)):
                key = f"row{self.dice.randrange(30)}"
                if any(key in other.changes for other in self.tables.open):
                    continue  # the row is locked
                (transaction.delete if self.dice.random() < 0.3 else transaction.write)(key)
            self.open.append(transaction)

    def commit(self, transaction: Any) -> None:
        changes = transaction.commit()
        if not self.live:
            return
        for key, version in changes.items():
            if version is None:
                self.server.write("people", key, transaction.began, None)
            else:
                self.server.write("people", key, version, document(key, version))

    def stop_writing(self) -> None:
        self.writes = False
        while self.open:
            self.commit(self.open.pop())

    # --- the run -----------------------------------------------------------------------------------------------

    def driver(self) -> ReindexDriver:
        indexes: Any = Watched(self.server, self.happens)
        tables: Any = Watched(self.tables, self.happens)
        promotion = Promotion("catalog", tables, StagedSink(indexes, self.keep_previous), indexes)
        return ReindexDriver(promotion, lambda: list(self.runs.values()))

    def keep(self, run_id: str, state: Json, token: int) -> Run:
        self.happens()
        self.check(token)
        if state["step"] == "swapped" and not self.live:
            # Later changes belong to the next run, or to whoever writes both the table and the index.
            self.begins = False
            for late in [each for each in self.open if each.began > state["swap_mark"]["at"]]:
                self.open.remove(late)
                self.tables.open.remove(late)
        kept = self.store(replace(self.runs[run_id], state=state))
        self.happens()
        return kept

    def check(self, token: int) -> None:
        """The fence of the run's row."""
        if token != self.token:
            raise LeaseLost("another node drives the run")

    def carry(self, run: Run, partitions: list[Partition]) -> Run:
        """What nodes do with the partitions of a phase."""
        group = run.groups.get("users", GroupStats())
        failed = [partition for partition in partitions if partition.key in self.failing]
        for partition in partitions:
            if partition in failed:
                continue
            rows = self.tables.read(partition.spec)
            self.read()
            self.change()
            for key, version in rows.items():
                stored = version if self.tables.has_versions else None
                self.server.write(partition.spec["index"], key, stored, document(key, version))
                self.written(partition.spec["index"], key, stored, document(key, version))
        number, failures = group.partitions + len(partitions), group.failed_partitions + len(failed)
        summed = replace(group, partitions=number, completed=number - failures, failed_partitions=failures)
        return self.store(replace(run, groups={"users": summed}))

    def written(self, index: str, key: str, version: int | None, text: str) -> None:
        """A node has written a document. A node that was paused may have sent the same."""

    def drive(self) -> None:
        """One node drives the run until it ends. Raises `Killed`, and `LeaseLost` if another one drives it since."""
        self.token = token = self.token + 1
        run = self.run
        try:
            self._drive(run, token)
        except Refused as refused:
            self.check(token)
            self.store(replace(self.runs[run.id], status=RunStatus.FAILED, error=str(refused)))

    def _drive(self, run: Run, token: int) -> None:
        driver = self.driver()
        if run.state is None:
            state = driver.prepare(run)
            self.check(token)
            run = self.store(replace(run, state=state))
        if not run.groups:
            partitions = list(driver.partitions(run))
            self.check(token)
            run = self.carry(run, partitions)
        while run.status is RunStatus.RUNNING:
            run = self.advance(driver, run, token)

    def advance(self, driver: ReindexDriver, run: Run, token: int) -> Run:
        step = driver.advance(run, lambda state: self.keep(run.id, state, token))
        self.check(token)
        run = self.runs[run.id]
        if isinstance(step, End):
            return self.store(replace(run, status=step.status, error=step.error))
        if isinstance(step, Wait):
            if self.open:
                self.commit(self.open.pop(0))
            return run
        assert isinstance(step, Extend)
        partitions = list(step.partitions)
        self.check(token)
        return self.carry(self.store(replace(run, phase=step.phase, state=step.state)), partitions)

    def found(self) -> dict[str, tuple[int, str]]:
        self.server.refresh("people")
        return {found.id: (found.version, found.text or "") for found in self.server.search("people").values()}

    def finish(self) -> Run:
        """Let as many nodes drive the run as it takes."""
        run_id = self.run.id
        while self.runs[run_id].status is RunStatus.RUNNING:
            with suppress(Killed, SinkUnavailable, LeaseLost):
                self.drive()
        return self.runs[run_id]

    def judge(self) -> None:
        """Compare index and table, now that the run has ended. Raises `Violation`."""
        self.stop_writing()
        if (self.run.status, self.run.error) != (RunStatus.COMPLETED, None):
            raise Violation(f"the run is {self.run.status.value}: {self.run.error}")
        found, wanted = self.found(), self.tables.documents()
        wrong = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
        if wrong:
            raise Violation(f"documents that differ from their rows: {wrong}")


RUNS = 3


class FaultyServer(IndexServer):
    """Requests and answers are lost, and some requests arrive late."""

    site: PromotionSite | None = None

    def swap(self, alias: str, former: AliasState, index: str) -> bool:
        swap = super().swap
        if self.site is not None and self.site.strikes("index_write_late", 0.5):
            self.site.arena.late.append(lambda: swap(alias, former, index))
            raise SinkUnavailable("no response")
        return swap(alias, former, index)


class PromotionSite(Site):
    """Some runs one after the other. Whoever drives one may die, lose answers, or pause until others have ended it."""

    arena: Arena

    def make_oracle(self) -> Oracle:
        return Oracle(self.kernel)

    def assemble(self, name: str, host: Host) -> Running:
        raise NotImplementedError

    @property
    def work_is_done(self) -> bool:
        return True

    @property
    def unfinished(self) -> object:
        return self.arena.run

    def run(self) -> str | None:
        with suppress(Crash):
            try:
                self._runs_one_after_the_other()
            except Violation as violation:
                self.oracle.fail(str(violation))
        return self.oracle.violation

    def _runs_one_after_the_other(self) -> None:
        dice = self.kernel.dice
        server = FaultyServer()
        self.arena = arena = Arena(dice, server=server, live=dice.random() < 0.5)
        arena.written = self._written  # type: ignore[method-assign]
        server.site = self
        arena.strike = self._strike
        while len(arena.runs) <= RUNS:
            self._one_run()
            self._new_run()

    def _new_run(self) -> None:
        arena = self.arena
        arena.writes = arena.begins = True
        arena.new_run(f"r{len(arena.runs) + 1}", recreate_index=self.kernel.random() < 0.5)

    def _one_run(self) -> None:
        arena, gives_up = self.arena, self.kernel.random() < 0.2
        self.kernel.note(arena.run.id, "begins", arena.run.configuration["recreateIndex"])
        while arena.goes_on():
            with suppress(Killed, SinkUnavailable, LeaseLost):
                arena.drive()
            if gives_up and arena.goes_on() and self.kernel.random() < 0.3:
                self._stop()
                return
        self.kernel.note(arena.run.id, "ended", arena.server.alias("people").indexes)
        while arena.late:
            self.kernel.note("server", "gets a late request", arena.late.pop(0)())
        if arena.run.status is not RunStatus.STOPPED:
            arena.judge()

    def _stop(self) -> None:
        """A person stops the run. Whatever its drivers have under way may still arrive."""
        run = self.arena.run
        self.arena.stop_writing()
        self.arena.store(replace(run, status=RunStatus.STOPPED))
        self.kernel.note(run.id, "was stopped", (run.state or {}).get("step"))

    def _strike(self) -> None:
        self.kernel.events += 1
        self.kernel.now += 0.1
        arena = self.arena
        if arena.late and self.kernel.random() < 0.1:
            self.kernel.note("server", "gets a late request", arena.late.pop(0)())
        if self.strikes("crash", 0.05):
            raise Killed
        if self.strikes("index_answer_lost", 0.05):
            raise SinkUnavailable("no response")
        if arena.token < MOST_DRIVERS and self.strikes("pause", 0.02):
            if self.kernel.random() < 0.3:
                self._stop()
                self._new_run()
            self._one_run()

    def _written(self, index: str, key: str, version: int | None, text: str) -> None:
        arena = self.arena
        if self.strikes("index_write_late", 0.1):
            arena.late.append(lambda: arena.server.write(index, key, version, text))

    def strikes(self, kind: str, likely: float) -> bool:
        """Whether a fault of that kind happens now."""
        happens = self.faults.happens(self.kernel.dice, kind, likely)
        if happens:
            self.kernel.note(self.arena.run.id, kind)
        return happens


MOST_DRIVERS = 40
"""Drivers that may pause, so that they do not nest too deeply."""

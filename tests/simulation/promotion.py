"""Tables that change, an index server, and reindex runs that one driver after the other carries out.

The driver and all steps of the promotion are the product's own; tables and the index server are models. What must hold:
searches through the alias never miss a document whose row is never deleted.
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
from tests.simulation.index_server import IndexServer
from tests.simulation.live_tables import ModelTables, document

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
        has_tombstones: bool = False,
        live: bool = False,
        **configuration: Any,
    ) -> None:
        self.dice = dice
        self.server = server or IndexServer()
        self.tables = ModelTables(has_versions=has_versions, has_tombstones=has_tombstones)
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
        self.current = ""
        """The run that goes on, or was the last to do so."""
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
        self.current = run_id
        self.store(Run(run_id, RunStatus.RUNNING, chosen.encode(), created_at=float(len(self.runs))))

    def resume_run(self, run_id: str) -> None:
        """Let a run that was stopped go on. Its next driver resumes it, and no former one writes its row."""
        self.current = run_id
        self.token += 1
        self.store(replace(self.runs[run_id], status=RunStatus.READY))

    @property
    def run(self) -> Run:
        """The run that goes on, or was the last to do so."""
        return self.runs[self.current]

    def goes_on(self) -> bool:
        return self.run.status in {RunStatus.READY, RunStatus.RUNNING}

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
        run = self.store(replace(self.run, driver_token=token))
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
        if run.status is RunStatus.READY:
            driver.resume(run)
            self.check(token)
            run = self.store(replace(run, status=RunStatus.RUNNING))
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
        while self.goes_on():
            with suppress(Killed, SinkUnavailable, LeaseLost):
                self.drive()
        return self.runs[run_id]

    def judge(self) -> None:
        """Compare index and table, now that the run has ended. Raises `Violation`."""
        self.stop_writing()
        if (self.run.status, self.run.error) != (RunStatus.COMPLETED, None):
            raise Violation(f"the run is {self.run.status.value}: {self.run.error}")
        found, wanted = self.found(), self.tables.documents()
        # A run that was stopped after its swap does not promise later changes, which the next run finds.
        promised = float("inf") if self.live else self.run.state["swap_mark"]["at"]
        later = {key for key, (version, _) in wanted.items() if version > promised}
        wrong = sorted(key for key in {*found, *wanted} - later if found.get(key) != wanted.get(key))
        if wrong:
            raise Violation(f"documents that differ from their rows: {wrong}")

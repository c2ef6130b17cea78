"""The driver of a reindex run dies at every step, while rows change: nothing is lost, and searches never fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.flow.run import GroupStats, Run, RunStatus
from holdfast.flow.run_driver import End, Extend, Wait
from holdfast.flow.search_index import AliasState, IndexPlan, SearchIndexes
from holdfast.flow.sink import StagesIndexes
from holdfast.leases.lease import Json, Partition
from holdfast.runs import reindex
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex import ReindexDriver
from holdfast.runs.reindex_configuration import ReindexConfiguration
from tests.index_server import IndexServer
from tests.unit.runs.live_tables import ModelTables, document

STABLE = [f"stable{number}" for number in range(9)]


class Killed(BaseException):
    """The node is gone."""


class StagedSink(StagesIndexes):
    prefix = "staged_"
    keep_previous = 1

    def __init__(self, indexes: SearchIndexes) -> None:
        self._indexes = indexes

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

    def __init__(self, seed: int = 0, *, has_versions: bool = True, live: bool = False, **configuration: Any) -> None:
        self.dice = random.Random(seed)
        self.server, self.tables = IndexServer(), ModelTables(has_versions=has_versions)
        self.live = live
        """Whether the writer writes to the index, too."""
        self.writes = True
        self.steps = 0
        self.dies_at: int | None = None
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
        self.run = Run(run_id, RunStatus.RUNNING, chosen.encode(), created_at=float(len(self.runs)))
        self.store(self.run)

    def store(self, run: Run) -> Run:
        self.run = self.runs[run.id] = run
        return run

    # --- what happens meanwhile --------------------------------------------------------------------------------

    def happens(self) -> None:
        self.steps += 1
        self.read()
        self.change()
        if self.steps == self.dies_at:
            raise Killed

    def read(self) -> None:
        found = self.server.search("people")
        assert set(STABLE) <= set(found), "a search has missed a document"

    def change(self) -> None:
        if not self.writes:
            return
        if self.open and self.dice.random() < 0.4:
            self.commit(self.open.pop(self.dice.randrange(len(self.open))))
        if self.dice.random() < 0.5:
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
        promotion = Promotion("catalog", tables, StagedSink(indexes), indexes)
        return ReindexDriver(promotion, lambda: list(self.runs.values()))

    def keep(self, state: Json) -> Run:
        self.happens()
        if state["step"] == "swapped" and not self.live:
            # Later changes belong to the next run, or to whoever writes both the table and the index.
            self.stop_writing()
        self.store(replace(self.run, state=state))
        self.happens()
        return self.run

    def carry(self, partitions: list[Partition]) -> None:
        """What nodes do with the partitions of a phase."""
        group = self.run.groups.get("users", GroupStats())
        failed = sum(partition.key in self.failing for partition in partitions)
        for partition in partitions:
            if partition.key in self.failing:
                continue
            rows = self.tables.read(partition.spec)
            self.read()
            self.change()
            for key, version in rows.items():
                stored = version if self.tables.has_versions else None
                self.server.write(partition.spec["index"], key, stored, document(key, version))
        later = replace(
            group, partitions=group.partitions + len(partitions), failed_partitions=group.failed_partitions + failed
        )
        self.store(replace(self.run, groups={"users": later}))

    def drive(self) -> Run:
        """One node drives the run until it ends. Raises `Killed`."""
        driver = self.driver()
        if self.run.state is None:
            state = driver.prepare(self.run)
            self.store(replace(self.run, state=state))
        if not self.run.groups:
            self.carry(list(driver.partitions(self.run)))
        while True:
            step = driver.advance(self.run, self.keep)
            if isinstance(step, End):
                return self.store(replace(self.run, status=step.status, error=step.error))
            if isinstance(step, Wait):
                if self.open:
                    self.commit(self.open.pop(0))
                continue
            assert isinstance(step, Extend)
            partitions = list(step.partitions)
            self.store(replace(self.run, phase=step.phase, state=step.state))
            self.carry(partitions)

    def found(self) -> dict[str, tuple[int, str]]:
        self.server.refresh("people")
        return {found.id: (found.version, found.text or "") for found in self.server.search("people").values()}


def finished(arena: Arena) -> Run:
    """The run's end, by as many nodes as it takes."""
    while True:
        try:
            return arena.drive()
        except Killed:
            arena.dies_at = None


def settled(arena: Arena) -> Run:
    """The run's end, after which index and table are compared."""
    run = finished(arena)
    arena.stop_writing()
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    assert arena.found() == arena.tables.documents()
    return run


@pytest.mark.parametrize("live", [False, True])
def test_the_driver_may_die_at_every_step_while_rows_change(live: bool) -> None:
    dies_at, steps = 0, 1
    while dies_at < steps:
        dies_at += 1
        arena = Arena(dies_at, live=live)
        arena.dies_at = dies_at
        settled(arena)
        assert arena.server.alias("people").indexes == ("staged_people_r1",)
        steps = arena.steps
    assert dies_at > 40


@pytest.mark.parametrize("seed", range(5))
def test_rows_without_versions_are_read_again_as_a_whole(seed: int) -> None:
    arena = Arena(seed, has_versions=False)
    run = finished(arena)
    arena.stop_writing()
    assert run.status is RunStatus.COMPLETED
    found = {key: text for key, (_, text) in arena.found().items()}
    assert found == {key: text for key, (_, text) in arena.tables.documents().items()}


@pytest.mark.parametrize("seed", range(5))
def test_in_place_the_live_index_is_written_and_documents_without_rows_are_deleted(seed: int) -> None:
    arena = Arena(seed, recreate_index=False)
    assert "gone" in arena.server.search("people")
    settled(arena)
    assert arena.server.alias("people").indexes == ("people_old",)
    assert list(arena.server.indexes) == ["people_old"]


def test_a_run_of_what_changed_copies_no_other_rows() -> None:
    arena = Arena()
    settled(arena)
    arena.writes, last = True, arena.run
    for _ in range(9):
        arena.change()
    since = last.state["mark"]
    arena.new_run("r2", recreate_index=False, changed_since=since)
    copied = list(arena.driver().partitions(replace(arena.run, state=arena.driver().prepare(arena.run))))
    assert {partition.spec["since"] for partition in copied} == {since["oldest"]}
    arena.new_run("r2", recreate_index=False, changed_since=since)
    settled(arena)
    assert arena.server.alias("people").indexes == ("staged_people_r1",)


def test_a_run_with_failed_partitions_is_not_promoted_until_a_person_says_so() -> None:
    arena = Arena()
    arena.failing = {"users|0|0"}
    run = finished(arena)
    assert run.status is RunStatus.COMPLETED_WITH_ERRORS
    assert "nothing was promoted" in str(run.error)
    assert arena.server.alias("people").indexes == ("people_old",)
    arena.failing = set()
    arena.new_run("r2", continues="r1", min_ratio=0.5)
    assert finished(arena).status is RunStatus.COMPLETED
    assert arena.server.alias("people").indexes == ("staged_people_r1",)


def test_a_run_with_failed_partitions_is_promoted_if_it_was_started_so() -> None:
    arena = Arena(promote_with_errors=True, min_ratio=0.0)
    arena.writes = False
    arena.failing = {"users|0|0"}
    assert finished(arena).status is RunStatus.COMPLETED_WITH_ERRORS
    assert arena.server.alias("people").indexes == ("staged_people_r1",)


def test_an_index_with_too_few_documents_is_not_promoted() -> None:
    arena = Arena()
    arena.writes = False
    arena.tables.read = lambda spec: {}  # type: ignore[method-assign]
    run = finished(arena)
    assert (run.status, run.error) == (
        RunStatus.FAILED,
        "too few documents, so that nothing was promoted: users: 0 documents in staged_people_r1, but 29 rows",
    )
    assert arena.server.alias("people").indexes == ("people_old",)


def test_an_alias_that_others_have_changed_is_left_alone() -> None:
    arena = Arena()
    state_of = arena.keep

    def keep(state: Json) -> Run:
        run = state_of(state)
        if state["step"] == "swapping":
            arena.server.write("people_other", "x", 1, "{}")
            for key in STABLE:
                arena.server.write("people_other", key, 1, "{}")
            arena.server.swap("people", arena.server.alias("people"), "people_other")
        return run

    arena.keep = keep  # type: ignore[method-assign]
    run = finished(arena)
    assert (run.status, run.error) == (
        RunStatus.FAILED,
        "the alias people was changed by others, it names people_other; staged_people_r1 is unused",
    )
    assert arena.server.alias("people").indexes == ("people_other",)


def test_the_swap_of_a_node_that_wakes_up_in_a_later_run_fails() -> None:
    arena = Arena()
    late: list[AliasState] = []
    swap = arena.server.swap

    def held_back(alias: str, former: AliasState, index: str) -> bool:
        late.append(former)
        raise Killed

    arena.server.swap = held_back  # type: ignore[method-assign]
    with pytest.raises(Killed):
        arena.drive()
    arena.server.swap = swap  # type: ignore[method-assign]
    arena.store(replace(arena.run, status=RunStatus.STOPPED))
    # In place, so that the alias is still what the late swap expects.
    arena.writes = True
    arena.new_run("r2", recreate_index=False)
    settled(arena)
    assert not swap("people", late[0], "staged_people_r1")
    assert arena.server.alias("people").indexes == ("people_old",)


def test_one_former_index_is_kept_and_older_ones_are_removed_but_never_those_of_others() -> None:
    arena = Arena()
    for number in (1, 2, 3):
        if number > 1:
            arena.writes = True
            arena.new_run(f"r{number}")
        settled(arena)
    assert sorted(arena.server.indexes) == ["people_old", "staged_people_r2", "staged_people_r3"]


def test_catching_up_goes_on_until_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reindex, "SHORT_PASS", 0)
    arena = Arena()
    settled(arena)
    assert arena.run.state["passes"] == reindex.MAX_PASSES + 1

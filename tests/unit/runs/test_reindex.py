"""The driver of a reindex run dies at every step, while rows change: nothing is lost, and searches never fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import SinkUnavailable
from holdfast.flow.run import GroupStats, NodeStats, Run, RunStatus
from holdfast.flow.run_driver import End, Extend
from holdfast.flow.search_index import AliasState
from holdfast.flow.tables import Entity, Sizing
from holdfast.leases.lease import Json, Partition
from holdfast.runs import reindex
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex import ReindexDriver
from holdfast.runs.reindex_configuration import ReindexConfiguration
from holdfast.runs.reindex_state import IndexHistory, decode_state
from tests.simulation import promotion
from tests.simulation.index_server import IndexServer
from tests.simulation.live_tables import ModelTables
from tests.simulation.promotion import STABLE, Killed, StagedSink


class Arena(promotion.Arena):
    """A world of a seed, in which something happens at one step."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(random.Random(seed), **options)
        self.at_step: dict[int, Callable[[], None]] = {}
        self.strike = self._strike

    def _strike(self) -> None:
        if (strike := self.at_step.pop(self.steps, None)) is not None:
            strike()


def dies() -> None:
    raise Killed


def loses_the_answer() -> None:
    raise SinkUnavailable("no response")


def settled(arena: Arena) -> Run:
    """The run's end, after which index and table are compared."""
    run = arena.finish()
    arena.stop_writing()
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    assert arena.found() == arena.tables.documents()
    return run


def at_every_step(strike: Callable[[Arena], Callable[[], None]], *, live: bool) -> int:
    """Let something happen at the first step of a run, in another run at the second, and so on. Returns the steps."""
    number, steps = 0, 1
    while number < steps:
        number += 1
        arena = Arena(number, live=live)
        arena.at_step[number] = strike(arena)
        settled(arena)
        assert arena.server.alias("people").indexes == ("staged_people_r1",)
        steps = arena.steps
    return number


@pytest.mark.parametrize("live", [False, True])
def test_the_driver_may_die_at_every_step_while_rows_change(live: bool) -> None:
    assert at_every_step(lambda _arena: dies, live=live) > 40


def test_the_answer_of_every_request_may_be_lost() -> None:
    assert at_every_step(lambda _arena: loses_the_answer, live=True) > 40


def test_a_driver_may_pause_at_every_step_while_another_one_finishes_the_run() -> None:
    def takes_over(arena: Arena) -> Callable[[], None]:
        def finish() -> None:
            arena.finish()

        return finish

    assert at_every_step(takes_over, live=True) > 40


@pytest.mark.parametrize("seed", range(5))
def test_rows_without_versions_are_read_again_as_a_whole(seed: int) -> None:
    arena = Arena(seed, has_versions=False)
    run = arena.finish()
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


def all_keys_are_compared(index: str) -> None:
    pytest.fail(f"all keys of {index} are compared")


@pytest.mark.parametrize("seed", range(5))
def test_with_tombstones_deleted_rows_are_found_without_comparing_all_keys(seed: int) -> None:
    arena = Arena(seed, has_tombstones=True)
    arena.server.pages = all_keys_are_compared  # type: ignore[assignment]
    settled(arena)
    assert arena.tables.tombstones
    # What changed since the last run is found by tombstones, too, in the live index.
    arena.writes = arena.begins = True
    mark = decode_state(arena.run.state).oldest_mark
    arena.new_run("r2", recreate_index=False, changed_since=mark)
    settled(arena)


def test_in_place_all_keys_are_compared_although_there_are_tombstones() -> None:
    arena = Arena(has_tombstones=True, recreate_index=False)
    assert "gone" in arena.server.search("people")
    settled(arena)


def test_a_run_of_what_changed_copies_no_other_rows() -> None:
    arena = Arena()
    settled(arena)
    arena.writes, arena.begins, last = True, True, arena.run
    for _ in range(9):
        arena.change()
    since = last.state["mark"]
    arena.new_run("r2", recreate_index=False, changed_since=since)
    copied = list(arena.driver().partitions(replace(arena.run, state=arena.driver().prepare(arena.run))))
    assert {partition.spec["since"] for partition in copied} == {since["oldest"]}
    arena.new_run("r2", recreate_index=False, changed_since=since)
    settled(arena)
    assert arena.server.alias("people").indexes == ("staged_people_r1",)


def test_the_speed_of_the_copy_is_kept_for_the_next_run() -> None:
    arena = Arena(has_versions=False)
    run = arena.run
    run = replace(run, state=arena.driver().prepare(run), started_at=100.0, updated_at=150.0)
    run = replace(run, groups={"users": GroupStats(3, 90_000, 3, processed=90_000)}, rate=1_000.0)
    run = replace(run, nodes={"a": NodeStats(completed=2), "b": NodeStats(completed=1), "c": NodeStats(held=1)})

    def rates(copied: Run) -> dict[str, float]:
        step = arena.driver().advance(arena.store(copied), lambda state: arena.store(replace(copied, state=state)))
        assert isinstance(step, Extend)
        return IndexHistory([replace(copied, state=step.state)]).rates()

    # 90,000 rows in 50 s by two nodes with four batches at a time each.
    assert rates(run) == {"users": 225.0}
    assert rates(replace(run, rate=4_000.0)) == {"users": 500.0}, "the run has paused in between"
    assert rates(replace(run, throttle=2_000.0)) == {}


def test_a_run_with_failed_partitions_is_not_promoted_until_a_person_says_so() -> None:
    arena = Arena()
    arena.failing = {"users|0|0"}
    run = arena.finish()
    assert run.status is RunStatus.COMPLETED_WITH_ERRORS
    assert "nothing was promoted" in str(run.error)
    assert arena.server.alias("people").indexes == ("people_old",)
    arena.failing = set()
    arena.new_run("r2", continues="r1", min_ratio=0.5)
    assert arena.finish().status is RunStatus.COMPLETED
    assert arena.server.alias("people").indexes == ("staged_people_r1",)


def test_a_run_with_failed_partitions_is_promoted_if_it_was_started_so() -> None:
    arena = Arena(promote_with_errors=True, min_ratio=0.0)
    arena.writes = False
    arena.failing = {"users|0|0"}
    assert arena.finish().status is RunStatus.COMPLETED_WITH_ERRORS
    assert arena.server.alias("people").indexes == ("staged_people_r1",)


def test_rows_of_failed_partitions_are_missing_until_a_run_copies_all_rows() -> None:
    arena = Arena(promote_with_errors=True, min_ratio=0.0)

    def incomplete() -> str | None:
        found = IndexHistory(arena.runs.values()).incomplete("users")
        return None if found is None else found.id

    arena.failing = {"users|0|0"}
    arena.finish()
    assert incomplete() == "r1"
    arena.new_run("r2", recreate_index=False, changed_since=arena.run.state["mark"])
    assert arena.finish().status is RunStatus.COMPLETED
    assert incomplete() == "r1"
    arena.new_run("r3", recreate_index=False)
    arena.failing = set()
    assert arena.finish().status is RunStatus.COMPLETED
    assert incomplete() is None


def test_a_run_that_is_promoted_later_misses_the_rows_of_its_failed_partitions() -> None:
    arena = Arena()
    arena.failing = {"users|0|0"}
    arena.finish()
    assert IndexHistory(arena.runs.values()).incomplete("users") is None  # it is not promoted
    arena.failing = set()
    arena.new_run("r2", continues="r1", min_ratio=0.5)
    assert arena.finish().status is RunStatus.COMPLETED
    assert IndexHistory(arena.runs.values()).incomplete("users") is arena.run
    arena.new_run("r3")
    assert arena.finish().status is RunStatus.COMPLETED
    assert IndexHistory(arena.runs.values()).incomplete("users") is None


@pytest.mark.parametrize("gone", ["run", "index"])
def test_a_run_whose_indexes_are_gone_cannot_be_promoted_later(gone: str) -> None:
    arena = Arena()
    arena.failing = {"users|0|0"}
    arena.finish()
    if gone == "run":
        del arena.runs["r1"]
    else:
        del arena.server.indexes["staged_people_r1"]
    arena.new_run("r2", continues="r1", min_ratio=0.5)
    run = arena.finish()
    assert (run.status, run.state) == (RunStatus.FAILED, None)
    assert "start a new run" in str(run.error)


def test_an_index_with_too_few_documents_is_not_promoted() -> None:
    arena = Arena()
    arena.writes = False
    arena.tables.read = lambda spec: {}  # type: ignore[method-assign]
    run = arena.finish()
    assert (run.status, run.error) == (
        RunStatus.FAILED,
        "too few documents, so that nothing was promoted: users: 0 documents in staged_people_r1, but 29 rows",
    )
    assert arena.server.alias("people").indexes == ("people_old",)


def test_documents_that_are_lost_are_noticed_however_many_rows_the_latest_pass_has_read() -> None:
    arena = Arena(has_tombstones=True)
    read = arena.tables.read

    def strike() -> None:
        if arena.writes and (arena.run.state or {}).get("passes"):
            arena.stop_writing()

    arena.strike = strike

    def losing(spec: Any) -> dict[str, int]:
        return {key: version for key, version in read(spec).items() if key not in STABLE}

    arena.tables.read = losing  # type: ignore[method-assign]
    run = arena.finish()
    assert run.status is RunStatus.FAILED
    assert "too few documents" in str(run.error)


def test_rows_that_are_added_after_the_last_pass_are_not_missed() -> None:
    arena = Arena()
    arena.writes = False
    counts = arena.tables.counts

    def counting(entities: Any, since: Json = None) -> Any:
        added = arena.tables.begin()
        for number in range(100):
            added.write(f"new{arena.tables.now}-{number}")
        added.commit()
        return counts(entities, since)

    arena.tables.counts = counting  # type: ignore[method-assign]
    run = settled(arena)
    assert decode_state(run.state).gate_failures == 0


def test_an_alias_that_others_have_changed_is_left_alone() -> None:
    arena = Arena()
    kept = arena.keep

    def keep(run_id: str, state: Json, token: int) -> Run:
        run = kept(run_id, state, token)
        if state["step"] == "swapping":
            arena.server.write("people_other", "x", 1, "{}")
            for key in STABLE:
                arena.server.write("people_other", key, 1, "{}")
            arena.server.swap("people", arena.server.alias("people"), "people_other")
        return run

    arena.keep = keep  # type: ignore[method-assign]
    run = arena.finish()
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
    arena.writes = arena.begins = True
    arena.new_run("r2", recreate_index=False)
    settled(arena)
    assert not swap("people", late[0], "staged_people_r1")
    assert arena.server.alias("people").indexes == ("people_old",)


def test_an_index_that_late_writes_have_created_anew_is_not_promoted() -> None:
    arena = Arena()
    arena.at_step[20] = dies
    with pytest.raises(Killed):
        arena.drive()
    # Stopped, removed by a later run, and resumed: servers create an index that is written and does not exist.
    del arena.server.indexes["staged_people_r1"]
    run = arena.finish()
    assert run.status is RunStatus.FAILED
    assert "was removed" in str(run.error)
    assert arena.server.alias("people").indexes == ("people_old",)


def test_one_former_index_is_kept_and_older_ones_are_removed_but_never_those_of_others() -> None:
    arena = Arena()
    for number in (1, 2, 3):
        if number > 1:
            arena.writes = arena.begins = True
            arena.new_run(f"r{number}")
        settled(arena)
    assert sorted(arena.server.indexes) == ["people_old", "staged_people_r2", "staged_people_r3"]


def test_a_former_index_that_was_deleted_by_a_rollback_does_not_count_as_kept() -> None:
    arena = Arena()
    arena.keep_previous = 2
    for number in (1, 2, 3, 4):
        if number > 1:
            arena.writes = arena.begins = True
            arena.new_run(f"r{number}")
        settled(arena)
        if number == 3:
            arena.server.swap("people", arena.server.alias("people"), "staged_people_r2")
            del arena.server.indexes["staged_people_r3"]
    assert sorted(arena.server.indexes) == ["people_old", "staged_people_r1", "staged_people_r2", "staged_people_r4"]


class TwoEntities(ModelTables):
    """One with versions, and one without whose changes since a mark are found all the same, as in PostgreSQL."""

    def __init__(self) -> None:
        super().__init__()
        self.read_since: dict[str, list[int]] = {"users": [], "items": []}

    def entities(self) -> Mapping[str, Entity]:
        return {"users": Entity("users", "people", has_versions=True), "items": Entity("items", "items")}

    def copy_partitions(self, entities: Sequence[str], sizing: Sizing) -> Iterator[Partition]:
        return iter(())

    def catch_up_partitions(self, entities: Sequence[str], since: Json, number: int) -> Iterator[Partition]:
        for entity in entities:
            self.read_since[entity].append(since["at"])
            yield Partition(f"{entity}|{number}", entity, {}, estimated_count=5000)


def test_changes_of_an_entity_are_read_since_the_last_pass_that_has_read_it() -> None:
    server, tables = IndexServer(), TwoEntities()
    driver = ReindexDriver(Promotion("catalog", tables, StagedSink(server), server), list)
    configuration = ReindexConfiguration(entities=("users", "items")).encode()
    run = Run("r1", RunStatus.RUNNING, configuration, state=driver.prepare(Run("r1", RunStatus.READY, configuration)))
    marks = [decode_state(run.state).mark["at"]]
    read: list[tuple[int, tuple[str, ...]]] = []
    while not isinstance(step := driver.advance(run, lambda _state: Run("r1", RunStatus.RUNNING)), End):
        assert isinstance(step, Extend)
        read.append((len(marks), tuple(partition.group for partition in step.partitions)))
        marks.append(step.state["mark"]["at"])
        run = replace(run, state=step.state)
    assert len(read) == reindex.MAX_PASSES + 1
    for entity, found in tables.read_since.items():
        passes = [number for number, entities in read if entity in entities]
        # Each pass reads from the mark that was taken when the one before it was made.
        assert found == [marks[number] for number in (0, *passes)[: len(found)]]
        assert passes[-1] == len(read)


def test_catching_up_goes_on_until_it_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reindex, "SHORT_PASS", 0)
    arena = Arena()
    settled(arena)
    assert arena.run.state["passes"] == reindex.MAX_PASSES + 1

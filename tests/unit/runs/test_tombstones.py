"""Tombstones that an entity gets between two runs, or while one goes on: deletes before that are found all the same."""

from __future__ import annotations

import pytest

from holdfast.flow.run import RunStatus
from holdfast.runs.reindex_state import ReindexState, decode_state
from tests.unit.runs.test_reindex import Arena, settled


def delete(arena: Arena, key: str) -> None:
    transaction = arena.tables.begin()
    transaction.delete(key)
    transaction.commit()


def test_a_delete_before_there_were_tombstones_is_found_by_the_next_run_of_what_changed() -> None:
    arena = Arena(1)
    settled(arena)
    delete(arena, "row0")
    arena.tables.has_tombstones = True
    for number in (2, 3):
        arena.read = arena.change = lambda: None  # type: ignore[method-assign]
        mark = decode_state(arena.run.state).oldest_mark
        arena.new_run(f"r{number}", recreate_index=False, changed_since=mark)
        settled(arena)
        delete(arena, f"row{number}")
    # The mark of the second run was taken when deletes were noted.
    assert [list(decode_state(arena.runs[run].state).deletes_noted) for run in ("r2", "r3")] == [[], ["users"]]


def test_a_run_that_began_without_tombstones_compares_all_keys_also_if_it_is_ended_with_them() -> None:
    arena = Arena(1)
    arena.change = lambda: None  # type: ignore[method-assign]
    arena.failing = {"users|0|0"}
    assert arena.finish().status is RunStatus.COMPLETED_WITH_ERRORS
    delete(arena, "row9")
    arena.tables.has_tombstones = True
    arena.failing = set()
    arena.new_run("r2", continues="r1", min_ratio=0.5)
    assert arena.finish().status is RunStatus.COMPLETED
    assert "row9" not in arena.found()


@pytest.mark.parametrize("number", [30, 60])
def test_a_run_whose_file_gets_tombstones_while_it_goes_on_compares_all_keys(number: int) -> None:
    arena = Arena(1)
    arena.change = lambda: None  # type: ignore[method-assign]

    def adopt() -> None:
        delete(arena, "row9")
        arena.tables.has_tombstones = True

    arena.at_step[number] = adopt
    settled(arena)
    assert arena.tables.has_tombstones


def test_a_stored_state_that_does_not_name_the_entities_with_tombstones_has_its_keys_compared() -> None:
    state = ReindexState({"at": 1}, {}, deletes_mark={"at": 1}, deletes_noted=["users"], noted=["users"])
    assert decode_state(state.encode()).deletes_since("users") == {"at": 1}
    former = {name: value for name, value in state.encode().items() if "noted" not in name}
    assert decode_state(former).deletes_since("users") is None

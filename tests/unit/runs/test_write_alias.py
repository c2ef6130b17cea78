"""Runs that were stopped or have failed: their late requests are refused, and they write no index that is not live."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from holdfast.errors import Refused
from holdfast.flow.run import RunStatus
from holdfast.runs.reindex_state import LAST_PASS, SWAPPED, SWAPPING, decode_state
from tests.simulation.promotion import Arena, Killed

STAGED = "staged_people_r1"


def arena_with_run(*, recreate_index: bool = True) -> Arena:
    return Arena(random.Random(0), recreate_index=recreate_index)


def prepare(arena: Arena, status: RunStatus = RunStatus.RUNNING) -> str:
    """Prepare the latest run. Returns its write alias."""
    run = replace(arena.run, driver_token=arena.token)
    arena.store(replace(run, state=arena.driver().prepare(run), status=status))
    return write_alias(arena)


def stop_after_the_swap(arena: Arena, step: str) -> str:
    """Drive the first run until its index is live and its row has this step, and stop it. Returns its write alias."""

    def strike() -> None:
        if (arena.run.state or {}).get("step") == step and arena.server.alias("people").indexes == (STAGED,):
            raise Killed

    arena.strike = strike
    with pytest.raises(Killed):
        arena.drive()
    arena.strike = lambda: None
    arena.store(replace(arena.run, status=RunStatus.STOPPED))
    return write_alias(arena)


def write_alias(arena: Arena) -> str:
    (target,) = decode_state(arena.run.state).indexes.values()
    return target.writes


def is_accepted(arena: Arena, alias: str) -> bool:
    """Whether a request that arrives now is accepted. It has no version, so that only its alias can refuse it."""
    return arena.server.write(alias, "gone", None, "{}")


def complete(arena: Arena) -> None:
    arena.writes = arena.begins = True
    assert arena.finish().status is RunStatus.COMPLETED


@pytest.mark.parametrize("recreate_index", [False, True])
def test_writes_of_a_stopped_run_in_place_are_closed_by_the_next_run(recreate_index: bool) -> None:
    arena = arena_with_run(recreate_index=False)
    alias = prepare(arena, RunStatus.STOPPED)
    assert is_accepted(arena, alias)
    arena.new_run("r2", recreate_index=recreate_index)
    complete(arena)
    assert not is_accepted(arena, alias)


@pytest.mark.parametrize("step", [SWAPPING, SWAPPED, LAST_PASS])
def test_writes_of_a_run_that_was_stopped_after_the_swap_are_closed_by_the_next_run(step: str) -> None:
    arena = arena_with_run()
    alias = stop_after_the_swap(arena, step)
    assert is_accepted(arena, alias)
    arena.new_run("r2", recreate_index=False)
    complete(arena)
    assert arena.server.alias("people").indexes == (STAGED,)
    assert not is_accepted(arena, alias)


def test_writes_of_a_run_that_is_promoted_later_are_closed_with_those_of_earlier_attempts() -> None:
    arena = arena_with_run()
    arena.failing = {"users|0|0"}
    arena.finish()
    aliases = [write_alias(arena)]
    arena.failing = set()
    arena.new_run("r2", continues="r1", min_ratio=0.5)
    aliases.append(prepare(arena, RunStatus.FAILED))
    arena.new_run("r3", continues="r1", min_ratio=0.5)
    complete(arena)
    assert arena.server.alias("people").indexes == (STAGED,)
    assert not [alias for alias in aliases if is_accepted(arena, alias)]


@pytest.mark.parametrize("recreate_index", [False, True])
def test_a_run_that_was_stopped_writes_again_after_another_run_has_suspended_its_writes(recreate_index: bool) -> None:
    arena = arena_with_run(recreate_index=recreate_index)
    alias = prepare(arena)
    arena.server.suspend_writes(alias)
    assert not is_accepted(arena, alias)
    arena.driver().resume(arena.run)
    assert is_accepted(arena, alias)


@pytest.mark.parametrize("recreate_index", [False, True])
def test_a_driver_that_wakes_up_after_its_run_has_ended_does_not_open_its_writes(recreate_index: bool) -> None:
    arena = arena_with_run(recreate_index=recreate_index)
    before = arena.run
    arena.token = 7
    alias = prepare(arena)
    ready = arena.run
    complete(arena)
    assert not is_accepted(arena, alias)
    # One was paused before it prepared the run, the other one before it resumed it.
    arena.driver().prepare(before)
    assert not is_accepted(arena, alias)
    with suppress(Refused):
        arena.driver().resume(ready)
    assert not is_accepted(arena, alias)


def test_a_staged_index_that_a_late_driver_has_created_anew_is_not_promoted() -> None:
    arena = arena_with_run()
    paused = arena.run
    arena.token = 7
    prepare(arena, RunStatus.STOPPED)
    arena.new_run("r2")
    complete(arena)
    assert STAGED not in arena.server.indexes
    arena.driver().prepare(paused)
    assert STAGED in arena.server.indexes
    with pytest.raises(Refused, match="was removed"):
        arena.driver().resume(arena.runs["r1"])


def test_a_run_that_was_stopped_after_the_swap_is_resumed_after_a_run_in_place() -> None:
    arena = arena_with_run()
    alias = stop_after_the_swap(arena, SWAPPED)
    arena.new_run("r2", recreate_index=False)
    complete(arena)
    arena.driver().resume(arena.runs["r1"])
    assert is_accepted(arena, alias)


def test_a_stopped_run_whose_index_was_removed_meanwhile_is_not_resumed() -> None:
    arena = arena_with_run()
    prepare(arena)
    arena.driver().resume(arena.run)
    del arena.server.indexes[STAGED]
    with pytest.raises(Refused, match="was removed"):
        arena.driver().resume(arena.run)


@pytest.mark.parametrize("step", [None, SWAPPED, LAST_PASS], ids=["in place", SWAPPED, LAST_PASS])
def test_a_stopped_run_whose_index_is_kept_by_a_later_promotion_is_not_resumed(step: str | None) -> None:
    arena = arena_with_run(recreate_index=step is not None)
    alias = prepare(arena, RunStatus.STOPPED) if step is None else stop_after_the_swap(arena, step)
    arena.new_run("r2")
    complete(arena)
    assert arena.server.alias("people").indexes == ("staged_people_r2",)
    with pytest.raises(Refused, match="not live any more"):
        arena.driver().resume(arena.runs["r1"])
    assert not is_accepted(arena, alias)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_stopped_run_whose_index_was_taken_back_is_not_resumed(in_place: bool) -> None:
    arena = arena_with_run()
    if in_place:
        complete(arena)
        arena.new_run("r2", recreate_index=False)
        prepare(arena, RunStatus.STOPPED)
    else:
        stop_after_the_swap(arena, SWAPPED)
    # `rollback --keep`
    arena.server.swap("people", arena.server.alias("people"), "people_old")
    with pytest.raises(Refused, match="not live any more"):
        arena.driver().resume(arena.run)

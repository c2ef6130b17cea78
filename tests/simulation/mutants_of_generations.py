"""Mutants of generations: which parsing is current, who may run it, and when a partition changes over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.flow.commit import Committer
from holdfast.flow.generations import CURRENT, FollowedGeneration, Generation, Generations
from holdfast.flow.holdings import Held
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.plan import Planner
from holdfast.leases import transitions
from holdfast.leases.lease import Json, Lease
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("generations")
def a_node_runs_the_current_generation_whatever_its_parsing(put: Put) -> None:
    put(FollowedGeneration, "current", lambda self: self._latest[0])


@mutant("generations")
def a_node_goes_on_under_the_generation_that_it_finds(put: Put) -> None:
    put(Planner, "is_at", lambda self, generation, held: True)


@mutant("generations")
def a_partition_changes_its_generation_in_the_middle_of_a_commit(put: Put) -> None:
    def switch_generation(lease: Lease, generation: int, _now: float) -> Lease:
        return replace(lease, commit=replace(lease.commit, generation=generation))

    def turn(self: PipelineLoop, *args: Any) -> None:
        current = self._permission.generation
        for held in self._holdings:
            if held.pending and current is not None and held.lease.commit.generation < current:
                self._planner.is_at(current, held)
        original(self, *args)

    original = PipelineLoop.turn
    put(transitions, "switch_generation", switch_generation)
    put(PipelineLoop, "turn", turn)


@mutant("generations", start=447)
def a_partition_goes_back_to_an_earlier_generation(put: Put) -> None:
    def is_at(self: Planner, wanted: int | None, held: Held) -> bool:
        if wanted is None or held.lease.commit.generation == wanted:
            return wanted is not None
        (result,) = self._coordinator.write(
            [held.lease], lambda row, _: replace(row, commit=replace(row.commit, generation=wanted))
        )
        if not isinstance(result, Lease):
            self._holdings.drop(held)
            return False
        held.lease = result
        return True

    put(Planner, "is_at", is_at)


@mutant("generations")
def a_node_that_starts_makes_its_own_generation_the_current_one(put: Put) -> None:
    original = Generations.register

    def register(self: Generations, mine: Generation, *, switch: bool) -> tuple[int, str]:
        original(self, mine, switch=switch)
        state = {"number": mine.number, "digest": mine.digest}
        self._switched(lambda _present: state)
        return mine.number, mine.digest

    put(Generations, "register", register)


@mutant("generations")
def the_way_back_has_the_number_that_the_parsing_had(put: Put) -> None:
    def back(self: Generations, created_by: str) -> Generation:
        number, digest = self.current()
        earlier = [each for each in self.list() if each.number < number and each.digest != digest]
        if not earlier:
            return self.show(number)
        state: dict[str, Json] = {"number": earlier[-1].number, "digest": earlier[-1].digest}
        self._switched(lambda _present: state)
        return replace(earlier[-1], created_by=created_by)

    put(Generations, "back", back)


@mutant("generations", start=392)
def a_node_ends_when_the_store_has_lost_the_current_generation(put: Put) -> None:
    def remember(self: Generations, _mine: Generation, _current: tuple[int, str]) -> None:
        self._rows.show(CURRENT)

    put(Generations, "remember", remember)


@mutant_of_test(
    killed_by="tests/unit/flow/test_generations.py::test_changed_parsing_under_an_old_number_is_refused",
    because="every version of the simulated parsing has a number of its own, as `holdfast generation` wants it",
)
def a_number_may_get_another_parsing(put: Put) -> None:
    original = Generations._added

    def added(self: Generations, key: str, state: dict[str, Json], position: Json = None) -> dict[str, Json]:
        return {**original(self, key, state, position), "digest": state["digest"]}

    put(Generations, "_added", added)


@mutant("edited")
def a_commit_does_not_seal_its_generation(put: Put) -> None:
    put(FollowedGeneration, "seal", lambda self, number: True)


@mutant("edited")
def a_generation_counts_as_sealed_whatever_its_parsing(put: Put) -> None:
    def seal(self: Generations, mine: Generation) -> bool:
        original(self, mine)
        return True

    original = Generations.seal
    put(Generations, "seal", seal)


@mutant("edited")
def a_seal_is_looked_for_and_not_written(put: Put) -> None:
    def seal(self: Generations, mine: Generation) -> bool:
        return self.show(mine.number).digest == mine.digest

    put(Generations, "seal", seal)


@mutant_of_test(
    killed_by="tests/unit/flow/test_generations.py::test_a_node_that_cannot_seal_among_many_others_waits_and_goes_on",
    because="its fleets are too small for twenty writes of others in a row",
)
def a_node_that_cannot_seal_in_time_ends(put: Put) -> None:
    put(Generations, "_changed", lambda self, key, change: self._rows.change(key, change))


@mutant("edited")
def the_parsing_of_a_sealed_generation_is_replaced(put: Put) -> None:
    def replaced(self: Generations, mine: Generation, wanted: dict[str, Json]) -> None:
        def change(row: Lease, _now: float) -> Lease:
            return replace(row, progress=replace(row.progress, state=wanted))

        self._changed(f"{mine.number:010d}", change)

    put(Generations, "_replace", replaced)


@mutant("edited")
def a_replaced_parsing_stays_current_for_nodes_that_look(put: Put) -> None:
    def current(self: Generations, _sealed: object = None) -> tuple[int, str]:
        state = self._rows.show(CURRENT).progress.state
        return state["number"], state["digest"]

    put(Generations, "current", current)


@mutant("edited", start=615)
def commits_of_nodes_of_the_version_before_are_not_looked_for(put: Put) -> None:
    put(Generations, "_has_commits", lambda self, number: False)


@mutant("edited")
def nodes_of_the_version_before_do_not_see_that_a_parsing_was_replaced(put: Put) -> None:
    put(Generations, "_name_current", lambda self, number, digest: number)


@mutant("edited", start=1858)
def commits_are_looked_for_before_nodes_of_the_version_before_have_let_go(put: Put) -> None:
    looked, named = Generations._has_commits, Generations._name_current

    def name_current(self: Generations, number: int, digest: str) -> int:
        self._found = looked(self, number)  # type: ignore[attr-defined]
        return named(self, number, digest)

    put(Generations, "_name_current", name_current)
    put(Generations, "_has_commits", lambda self, number: self._found)


@mutant("edited_function")
def a_refused_commit_leaves_a_functions_batch_running(put: Put) -> None:
    def hand_back_later(self: Committer, held: Held, seconds: float) -> None:
        self._coordinator.write([held.lease], lambda row, now: transitions.release(row, now, now + seconds))
        self._holdings.drop(held)

    put(Committer, "hand_back_later", hand_back_later)


# --- a rolling update of a function: shards are handed over between old and new code -------------------------------


@mutant("redeployed")
def old_code_handles_shards_of_the_new_generation(put: Put) -> None:
    put(FollowedGeneration, "current", lambda self: self._latest[0])


@mutant("redeployed")
def a_shard_is_handled_under_the_generation_that_its_row_has(put: Put) -> None:
    put(Planner, "is_at", lambda self, generation, held: True)


@mutant("redeployed")
def new_code_takes_a_shard_back_to_the_earlier_generation(put: Put) -> None:
    def switch_generation(lease: Lease, generation: int, _now: float) -> Lease:
        return replace(lease, commit=replace(lease.commit, generation=generation - 1))

    put(transitions, "switch_generation", switch_generation)

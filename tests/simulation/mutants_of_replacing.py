"""Mutants of rewind in place: what may not appear again, and when a range may begin anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.flow.generations import Generation, Generations
from holdfast.leases import transitions
from holdfast.leases.lease import Json, Lease
from holdfast.runs.replace import Replacement
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("replace")
def a_partition_is_set_aside_under_its_old_token(put: Put) -> None:
    original = transitions.set_aside

    def set_aside(lease: Lease, why: Json, reason: str, now: float) -> Lease:
        aside = original(lease, why, reason, now)
        return replace(aside, ownership=replace(aside.ownership, token=lease.token))

    put(transitions, "set_aside", set_aside)


@mutant("replace")
def a_partition_is_set_aside_while_a_commit_waits(put: Put) -> None:
    original = transitions.set_aside

    def set_aside(lease: Lease, why: Json, reason: str, now: float) -> Lease:
        aside = original(replace(lease, commit=replace(lease.commit, receipts=None)), why, reason, now)
        return replace(aside, commit=lease.commit)

    put(transitions, "set_aside", set_aside)


@mutant("replace")
def a_range_begins_in_the_middle_of_a_commit(put: Put) -> None:
    put(Replacement, "_rounded", lambda self, row, wanted: wanted)


@mutant("replace")
def the_old_files_stay(put: Put) -> None:
    def moved(_self: Replacement, _bucket: Any, _plan: Any) -> Iterator[str]:
        return iter(())

    put(Replacement, "_moved", moved)


@mutant("replace")
def a_range_is_written_again_under_the_generation_that_it_had(put: Put) -> None:
    def restart(lease: Lease, position: Json, _generation: int, now: float) -> Lease:
        return original(replace(lease, commit=replace(lease.commit, generation=0)), position, was(lease), now)

    def was(lease: Lease) -> int:
        return lease.commit.generation

    original = transitions.restart
    put(transitions, "restart", restart)


@mutant("replace")
def the_new_generation_is_never_made_current(put: Put) -> None:
    def switch(self: Generations, number: int) -> Generation:
        return self.show(number)

    put(Generations, "switch", switch)


@mutant("replace", start=608)
def a_replacement_that_was_interrupted_is_planned_anew(put: Put) -> None:
    def plans(self: Replacement, row: Lease) -> Any:
        start, number = transitions.set_aside_for(row)["from"], self._pipeline.next_generation()
        return {root: self._recorded(row, bucket, start, number) for root, bucket in self._roots.items()}

    put(Replacement, "_plans", plans)


@mutant("replace", start=4587)
def a_lost_answer_makes_a_replacement_that_is_done_a_refused_one(put: Put) -> None:
    def restart(self: Replacement, _why: Json, position: dict[str, int], generation: int) -> None:
        self._operator.change(self._request.key, lambda row, now: transitions.restart(row, position, generation, now))

    put(Replacement, "_begin_again", restart)


@mutant_of_test(
    killed_by="tests/unit/runs/test_replace.py::test_what_was_staged_before_can_never_appear_again",
    because="a leftover that a bucket did not delete, which a node publishes after its file was moved, is not met in "
    "six thousand seeds",
)
def what_was_staged_before_stays(put: Put) -> None:
    put(Replacement, "_sweep", lambda self, row: None)

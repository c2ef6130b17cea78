"""Mutants of reindex runs and their promotion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.flow.run import Run
from holdfast.flow.run_driver import End, Extend, Keep, Wait
from holdfast.runs import reindex
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex import ReindexDriver
from holdfast.runs.reindex_state import LAST_PASS, EntityIndex, IndexHistory, ReindexState, decode_state
from tests.simulation.index_server import IndexServer
from tests.simulation.live_tables import ModelTables
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("promotion")
def a_run_ends_with_the_swap(put: Put) -> None:
    put(ReindexDriver, "_last_pass", lambda self, run, state, keep: self._finished(run, replace(state, step=LAST_PASS)))


@mutant("promotion")
def the_last_pass_does_not_wait_for_open_transactions(put: Put) -> None:
    put(ModelTables, "settled", lambda self, mark: True)


@mutant("promotion")
def the_mark_is_taken_after_the_copy(put: Put) -> None:
    original = ReindexDriver.advance

    def advance(self: Any, run: Run, keep: Keep) -> Extend | Wait | End:
        state = decode_state(run.state)
        if not state.passes and state.step == "copying":
            run = keep(replace(state, mark=self._tables.watermark()).encode())
        return original(self, run, keep)

    put(ReindexDriver, "advance", advance)


@mutant("promotion")
def each_pass_begins_where_it_ends(put: Put) -> None:
    original = ReindexDriver._pass

    def later(self: Any, phase: str, entities: Sequence[str], state: ReindexState) -> Extend | None:
        return original(self, phase, entities, replace(state, mark=self._tables.watermark()))

    put(ReindexDriver, "_pass", later)


@mutant("promotion")
def documents_whose_rows_are_gone_stay(put: Put) -> None:
    put(Promotion, "reconcile", lambda self, entity, target, since=None: 0)


@mutant("promotion")
def tombstones_count_for_marks_that_are_older_than_they_are(put: Put) -> None:
    put(ReindexState, "deletes_since", lambda self, entity: self.deletes_mark)


@mutant("promotion")
def a_run_of_what_changed_trusts_tombstones_that_are_younger_than_its_mark(put: Put) -> None:
    put(IndexHistory, "noted_at", lambda self, mark, entities: tuple(entities))


@mutant("promotion", start=323)
def writes_of_a_run_are_never_closed(put: Put) -> None:
    put(Promotion, "close_writes", lambda self, targets: None)


LATE = "a late write must arrive after the next run has compared keys"
WRITE_ALIASES = "tests/unit/runs/test_write_alias.py"


@mutant_of_test(WRITE_ALIASES, LATE)
def writes_of_a_run_that_was_stopped_stay_open(put: Put) -> None:
    put(IndexHistory, "left_open", lambda self, entity: [])


@mutant_of_test(WRITE_ALIASES, LATE)
def writes_are_closed_only_if_they_were_in_place(put: Put) -> None:
    original = IndexHistory.left_open

    def left_open(self: Any, entity: str) -> list[str]:
        staged = {index.writes for _, _, index in self._of(entity)}
        return [alias for alias in original(self, entity) if alias not in staged]

    put(IndexHistory, "left_open", left_open)


ASLEEP = "a driver must sleep inside of a single call until its run has ended, and a late write must arrive after both"


@mutant_of_test(WRITE_ALIASES, ASLEEP)
def every_driver_opens_the_same_write_alias(put: Put) -> None:
    def open_writes(self: Any, run: Run, target: EntityIndex) -> EntityIndex:
        return original(self, replace(run, driver_token=0), target)

    original = Promotion.open_writes
    put(Promotion, "open_writes", open_writes)


@mutant_of_test(WRITE_ALIASES, ASLEEP)
def writes_that_were_closed_are_opened_by_whoever_resumes_the_run(put: Put) -> None:
    def reopen_writes(self: Any, targets: Mapping[str, EntityIndex]) -> None:
        for target in targets.values():
            self.indexes.open_writes(target.written[0], target.writes)

    put(Promotion, "reopen_writes", reopen_writes)


@mutant("promotion", start=272)
def a_staged_index_that_was_created_anew_is_promoted(put: Put) -> None:
    def check(self: Any, targets: Mapping[str, EntityIndex]) -> None:
        original(self, {entity: replace(target, writes="") for entity, target in targets.items()})

    original = Promotion.check
    put(Promotion, "check", check)
    put(Promotion, "reopen_writes", lambda self, targets: None)


@mutant_of_test(WRITE_ALIASES, "a run that was stopped is not resumed there")
def a_resumed_run_writes_an_index_that_is_not_live(put: Put) -> None:
    put(Promotion, "check_live", lambda self, targets: None)


@mutant("promotion")
def documents_are_deleted_though_they_have_changed_since(put: Put) -> None:
    def delete(self: Any, index: str, documents: Sequence[Any]) -> int:
        self.site and self.site.arena.change()
        return sum(self._index(index).write(document.id, None, None) for document in documents)

    put(IndexServer, "delete", delete)


@mutant("promotion")
def the_index_is_searched_before_its_documents_are_visible(put: Put) -> None:
    put(Promotion, "restore", lambda self, targets: None)
    put(Promotion, "shortfall", lambda self, targets, min_ratio, mark: None)


@mutant_of_test("tests/unit/runs/test_reindex.py", "a driver must sleep between two requests of the swap, in few seeds")
def the_swap_is_not_recorded_beforehand(put: Put) -> None:
    original = Promotion.swap

    def swap(self: Any, targets: Mapping[str, EntityIndex]) -> str | None:
        return original(self, {entity: self.seen(target) for entity, target in targets.items()})

    put(Promotion, "swap", swap)


@mutant("promotion", start=151)
def indexes_of_runs_that_were_given_up_stay(put: Put) -> None:
    put(Promotion, "remove_abandoned", lambda self, entity, history: None)


@mutant("promotion", start=151)
def an_index_is_removed_that_was_promoted_since_it_was_found_unused(put: Put) -> None:
    put(IndexServer, "_retired", lambda self, index: True)


@mutant("promotion")
def the_former_index_is_removed_with_the_swap(put: Put) -> None:
    original = Promotion.swap

    def swap(self: Any, targets: Mapping[str, EntityIndex]) -> str | None:
        for target in targets.values():
            for name in () if target.former is None else target.former.indexes:
                self.indexes._target.indexes.pop(name, None)
        return original(self, targets)

    put(Promotion, "swap", swap)


@mutant("promotion")
def a_catch_up_is_never_made(put: Put) -> None:
    put(ReindexDriver, "_pass", lambda self, phase, entities, state: None)


@mutant("promotion")
def the_gate_lets_nothing_through(put: Put) -> None:
    put(reindex, "GATE_TRIES", 1)
    put(Promotion, "shortfall", lambda self, targets, min_ratio, mark: "too few")

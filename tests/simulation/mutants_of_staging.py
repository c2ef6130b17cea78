"""Mutants of what a commit may hold, and of what belongs to whom below a root."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from holdfast.buckets.sink_root import SinkRoot
from holdfast.config import sinks as sink_settings
from holdfast.flow import batch
from holdfast.flow.batch import TaskEnd
from holdfast.flow.pipeline import Pipeline
from holdfast.leases import transitions
from holdfast.runs import letter_selection, replace, replace_plan
from holdfast.runs.replace_plan import Redriven
from holdfast.sinks.files.output_files import ReceiptBudget
from holdfast.sinks.opensearch import sink as opensearch_sink
from holdfast.spark import batch_limits, report
from holdfast.spark.batch_limits import CommitLimit
from tests.simulation.mutation import Put, mutant, mutant_of_test

BATCH_LIMITS = "tests/unit/spark/test_batch_limits.py"
OPENSEARCH = "tests/unit/sinks/opensearch/test_sink.py"
ONE_TASK = "its engine stages a batch in one task, without rows"
NO_ROWS = "its engine stages items and knows neither rows nor records"
NO_ROOTS = "it begins after settings are read and sinks are opened"


@mutant()
def the_last_of_several_ends_is_taken(put: Put) -> None:
    def last(tasks: Sequence[TaskEnd]) -> int | None:
        return next((task.end for task in reversed(tasks) if task.end is not None), None)

    put(batch, "common_end", last)


@mutant_of_test(f"{BATCH_LIMITS}::test_a_batch_in_several_tasks_is_not_cut", ONE_TASK)
def a_batch_in_several_tasks_is_cut(put: Put) -> None:
    def least(tasks: Sequence[TaskEnd]) -> int | None:
        return min((task.end for task in tasks if task.end is not None), default=None)

    put(report, "common_end", least)


@mutant_of_test(f"{BATCH_LIMITS}::test_a_cut_falls_on_the_border_of_a_record", NO_ROWS)
def a_record_may_be_cut_in_two(put: Put) -> None:
    def at_once(_self: CommitLimit, _batch: str, rows: Any) -> Any:
        yield from (rows.slice(at, 1) for at in range(rows.num_rows))

    put(CommitLimit, "_whole_records", at_once)


@mutant_of_test(f"{BATCH_LIMITS}::test_rows_that_are_not_in_order_are_refused_where_there_is_no_place_to_cut", NO_ROWS)
def rows_that_are_not_in_order_are_cut(put: Put) -> None:
    put(batch_limits, "_check_order", lambda _items, _end: None)


@mutant_of_test(f"{BATCH_LIMITS}::test_files_that_were_closed_to_make_room_count", NO_ROWS)
def places_are_counted_and_not_their_files(put: Put) -> None:
    original = ReceiptBudget.reserve_file

    def reserve(self: ReceiptBudget, output_folder: str) -> None:
        if not any(entry.get("place") == output_folder for entry in self.entries):
            original(self, output_folder)

    put(ReceiptBudget, "reserve_file", reserve)


@mutant_of_test(f"{BATCH_LIMITS}::test_a_receipt_fits_into_its_row_however_long_names_are", NO_ROWS)
def the_row_does_not_bound_its_receipt(put: Put) -> None:
    put(Pipeline, "receipt_bytes", lambda _self, _batch: 1 << 40)


@mutant("redriven")
def what_was_redriven_is_not_replaced(put: Put) -> None:
    put(Redriven, "files", lambda _self: [])


@mutant("redriven")
def a_redrive_goes_on_while_its_partition_is_replaced(put: Put) -> None:
    put(replace_plan, "fence_redrives", lambda *_: None)


@mutant("redriven")
def a_redriven_file_may_lie_across_the_start_of_what_is_replaced(put: Put) -> None:
    put(replace, "lowest_straddling", lambda _files, _start: None)


@mutant("redriven", start=1624)
def what_a_redrive_has_staged_stays_while_its_files_are_moved(put: Put) -> None:
    put(Redriven, "discard_staged", lambda _self: None)


@mutant("redriven")
def letters_of_a_partition_that_is_replaced_are_sent(put: Put) -> None:
    put(letter_selection, "transitions", SimpleNamespace(**{**vars(transitions), "set_aside_for": lambda _row: None}))


@mutant_of_test(f"{OPENSEARCH}::test_two_tasks_whose_files_of_letters_would_have_one_key_fail_the_batch", ONE_TASK)
def files_of_two_tasks_may_have_one_key(put: Put) -> None:
    put(opensearch_sink, "receipt_files", lambda parts: [file for part in parts for file in part["files"]])


@mutant_of_test(f"{OPENSEARCH}::test_a_root_of_dead_letters_belongs_to_one_sink", NO_ROOTS)
def a_root_has_no_owner(put: Put) -> None:
    put(SinkRoot, "claim", lambda _self, _pipeline, *, alone: None)


@mutant_of_test("tests/unit/config/test_roots.py::test_two_pipelines_never_share_a_root", NO_ROOTS)
def settings_may_give_one_root_to_two_sinks(put: Put) -> None:
    put(sink_settings, "_roots", lambda _sinks: iter(()))

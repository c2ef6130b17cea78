"""Mutants of redrives: which letters wait, and what earlier runs may still do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.deadletters import source
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import LetterReader
from holdfast.flow import letter
from holdfast.flow.fault import COLUMNS
from holdfast.flow.letter import Letter, LetterBox, SourceRecord
from holdfast.leases.lease import FINISHED, Lease, Partition
from holdfast.leases.operator import Operator
from holdfast.runs import letter_selection as letters
from holdfast.runs.letter_selection import Waiting
from holdfast.runs.lock import RunLock
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("redrive", start=254)
def a_redrive_does_not_end_the_ones_before(put: Put) -> None:
    put(Waiting, "_fence", lambda self, run: None)


@mutant("redrive")
def letters_that_were_sent_and_not_marked_are_taken_again(put: Put) -> None:
    put(letters, "sent_ids", lambda row: [])


@mutant("redrive", start=2309)
def letters_are_chosen_before_the_runs_before_are_ended(put: Put) -> None:
    def chosen_first(self: Waiting) -> Iterator[Partition]:
        partitions = self.look().partitions
        for run in self._former():
            self._fence(run)
        return iter([chosen.partition() for chosen in partitions])

    put(Waiting, "__iter__", chosen_first)


@mutant("redrive", start=544)
def what_a_redrive_had_committed_is_not_published(put: Put) -> None:
    def fence(rows: Operator, row: Lease, _sinks: Any, why: str) -> None:
        if row.status not in FINISHED:
            rows.fail(row.key, why)

    put(letters, "fence", fence)


@mutant("redrive")
def a_redrive_needs_no_lock(put: Put) -> None:
    put(RunLock, "acquire", lambda self, run_id, names=(), *, instead=False: 1)


@mutant("redrive", start=128)
def a_redrive_publishes_without_ending_the_run_before(put: Put) -> None:
    original = letters.fence

    def fence(rows: Operator, row: Lease, sinks: Any, why: str) -> None:
        if row.commit.receipts is not None:
            original(rows, row, sinks, why)

    put(letters, "fence", fence)


@mutant_of_test(
    killed_by="tests/unit/runs/test_redrive.py"
    "::test_a_partition_that_its_node_completes_while_it_is_fenced_stays_completed",
    because="its node would have to write in the moment between two reads, which ten thousand seeds did not meet",
)
def a_partition_that_completes_while_it_is_fenced_ends_the_redrive(put: Put) -> None:
    put(letters, "_failed", lambda rows, row, why: rows.fail(row.key, why))


WHOLE = "tests/unit/deadletters/test_whole_records.py"
NO_RECORDS = "its letters hold no records, and its engine stages items instead"


@mutant_of_test(f"{WHOLE}::test_a_letter_holds_the_message_and_gives_it_back", NO_RECORDS)
def null_comes_back_as_an_empty_message(put: Put) -> None:
    put(Letter, "is_null", property(lambda _self: False))


@mutant_of_test(f"{WHOLE}::test_a_spilled_record_that_is_gone_or_altered_is_not_sent", NO_RECORDS)
def a_large_record_is_sent_whatever_became_of_it(put: Put) -> None:
    def whole(self: FileLetters, kept: Letter) -> Letter:
        return replace(kept, raw=str(self.read_spilled(kept)), size=None, spilled=None)

    put(LetterBox, "whole", whole)


@mutant_of_test(f"{WHOLE}::test_a_row_among_several_of_its_record_holds_the_record_and_is_not_sent", NO_RECORDS)
def a_record_is_sent_although_other_rows_of_it_were_written(put: Put) -> None:
    put(letter, "ROW", COLUMNS)


@mutant_of_test(f"{WHOLE}::test_a_record_that_fails_once_more_is_kept_whole_once_more", NO_RECORDS)
def a_record_that_fails_once_more_is_what_the_pipeline_had_of_it(put: Put) -> None:
    def missing(_self: LetterReader, _batch: Any, faults: Any) -> Iterator[SourceRecord]:
        return (SourceRecord({}, missing="not looked for") for _ in faults)

    put(LetterReader, "records", missing)


@mutant_of_test(f"{WHOLE}::test_a_batch_of_a_redrive_has_as_many_large_records_as_fit_into_memory", NO_RECORDS)
def a_batch_of_a_redrive_has_any_number_of_large_records(put: Put) -> None:
    put(source, "_within_bytes", lambda _spilled, _start, end: end)

"""Mutants of redrives: which letters wait, and what earlier runs may still do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.leases.lease import FINISHED, Lease, Partition
from holdfast.leases.operator import Operator
from holdfast.runs import letter_selection as letters
from holdfast.runs.execution import _Driver
from holdfast.runs.letter_selection import Waiting
from holdfast.runs.lock import RunLock
from tests.simulation.mutation import Put, mutant


@mutant("redrive", start=145)
def a_redrive_does_not_end_the_ones_before(put: Put) -> None:
    put(Waiting, "_fence", lambda self, run: None)


@mutant("redrive")
def letters_that_were_sent_and_not_marked_are_taken_again(put: Put) -> None:
    put(letters, "sent_ids", lambda row: [])


@mutant("redrive")
def letters_are_chosen_before_the_runs_before_are_ended(put: Put) -> None:
    def chosen_first(self: Waiting) -> Iterator[Partition]:
        partitions = self.look().partitions
        for run in self._former():
            self._fence(run)
        return iter([chosen.partition() for chosen in partitions])

    put(Waiting, "__iter__", chosen_first)


@mutant("redrive")
def what_a_redrive_had_committed_is_not_published(put: Put) -> None:
    def fence(rows: Operator, row: Lease, _sink: Any, _name: str, why: str) -> None:
        if row.status not in FINISHED:
            rows.fail(row.key, why)

    put(letters, "fence", fence)


@mutant("redrive")
def a_redrive_needs_no_lock(put: Put) -> None:
    put(RunLock, "acquire", lambda self, run_id: None)


@mutant("redrive")
def a_redrive_publishes_without_ending_the_run_before(put: Put) -> None:
    original = letters.fence

    def fence(rows: Operator, row: Lease, sink: Any, name: str, why: str) -> None:
        if row.commit.receipts is not None:
            original(rows, row, sink, name, why)

    put(letters, "fence", fence)


@mutant("redrive", start=164)
def a_run_that_was_left_half_made_is_looked_at_once(put: Put) -> None:
    def keep(self: _Driver) -> None:
        try:
            self._lock.refresh()
        except LeaseLost:
            self._drives = False

    put(_Driver, "_keep", keep)


@mutant("redrive", start=405)
def a_partition_that_completes_while_it_is_fenced_ends_the_redrive(put: Put) -> None:
    put(letters, "_failed", lambda rows, row, why: rows.fail(row.key, why))

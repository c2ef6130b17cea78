"""Mutants of the finalizer: what may not be passed over before a place is final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.finalize import finalizer
from holdfast.finalize.finalizer import FinalizerPass
from holdfast.finalize.rules import FolderView, PartitionView, Rules, TopicView
from holdfast.flow.batch import Batch
from holdfast.leases.lease import Lease, Status
from holdfast.sources.kafka.planning import topic_partition_of
from holdfast.sources.kafka.source import KafkaSource
from tests.simulation.mutation import Put, mutant, mutant_of_test


@mutant("finalizer", start=13)
def what_an_open_transaction_keeps_back_is_passed_over(put: Put) -> None:
    def extents(self: KafkaSource, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        extents = original(self, leases)
        ends = self._cluster.ends([topic_partition_of(lease) for lease in leases])
        return [
            extent and (extent[0], ends[topic_partition_of(lease)].stable)
            for extent, lease in zip(extents, leases, strict=True)
        ]

    original = KafkaSource.extents
    put(KafkaSource, "extents", extents)


@mutant("finalizer")
def a_partition_that_nobody_reads_is_taken_for_idle(put: Put) -> None:
    put(finalizer, "_is_idle", lambda row, extent: True)


@mutant("finalizer")
def the_first_partition_to_pass_decides(put: Put) -> None:
    def reached(self: TopicView, standing: list[str], rules: Rules, now: float) -> float | None:
        views = [self.partitions.get(label, PartitionView()) for label in standing]
        times = [time for view in views if (time := view.passed(rules, now)) is not None]
        return max(times, default=None)

    put(TopicView, "_reached", reached)


@mutant("finalizer")
def a_partition_of_which_nothing_is_known_blocks_nobody(put: Put) -> None:
    def reached(self: TopicView, standing: list[str], rules: Rules, now: float) -> float | None:
        views = [self.partitions.get(label, PartitionView()) for label in standing]
        times = [time for view in views if (time := view.passed(rules, now)) is not None]
        return min(times, default=None)

    put(TopicView, "_reached", reached)


@mutant("finalizer")
def a_partition_that_has_failed_blocks_nobody(put: Put) -> None:
    original = FinalizerPass._rows

    def rows(self: FinalizerPass) -> Any:
        return (row for row in original(self) if row.status is not Status.FAILED)

    put(FinalizerPass, "_rows", rows)


@mutant("finalizer")
def a_commit_counts_before_it_is_published(put: Put) -> None:
    original = FinalizerPass._read

    def read(self: FinalizerPass, view: TopicView, partition: PartitionView, row: Lease, now: float) -> None:
        original(self, view, partition, replace(row, commit=replace(row.commit, receipts=None)), now)

    put(FinalizerPass, "_read", read)


@mutant("finalizer", start=13)
def nothing_is_ever_late(put: Put) -> None:
    original = TopicView.advance

    def advance(self: TopicView, standing: Any, period_of: Any, rules: Rules, now: float) -> list[str]:
        return original(self, standing, period_of, Rules(0.0, rules.idle_after), now)

    put(TopicView, "advance", advance)


@mutant("finalizer")
def a_partition_goes_on_with_the_clock_whatever_is_unread(put: Put) -> None:
    def passed(self: PartitionView, rules: Rules, now: float) -> float | None:
        return now if self.latest is not None else original(self, rules, now)

    original = PartitionView.passed
    put(PartitionView, "passed", passed)


@mutant("finalizer")
def files_are_counted_only_by_the_node_that_tells(put: Put) -> None:
    put(FolderView, "add", lambda self, file, *, late: None)


@mutant_of_test(
    killed_by="tests/unit/finalize/test_finalizer.py"
    "::test_more_manifests_than_one_look_reads_are_read_before_anything_is_decided",
    because="a look reads five thousand commits, which is more than a simulated world makes",
)
def a_look_that_has_not_read_everything_decides(put: Put) -> None:
    original = FinalizerPass._read

    def read(self: FinalizerPass, *args: Any) -> None:
        original(self, *args)
        self._unread = max(self._unread, 1)

    put(FinalizerPass, "_read", read)


@mutant_of_test(
    killed_by="tests/unit/finalize/test_finalizer.py::test_how_far_ahead_is_too_far_is_decided_once_for_a_batch",
    because="simulated executors put no record aside: they do not run the stager that does",
)
def a_batch_that_is_staged_again_is_judged_by_the_present_time(put: Put) -> None:
    original = Batch.until
    put(Batch, "until", lambda self, *args: original(replace(self, restages=None), *args))


@mutant_of_test(
    killed_by="tests/unit/finalize/test_finalizer.py"
    "::test_the_row_never_outgrows_the_store_whatever_folders_records_name",
    because="a row has room for ten thousand folders, which is more than a simulated world makes",
)
def the_row_keeps_every_folder_that_records_name(put: Put) -> None:
    put(FinalizerPass, "_keep_bounds", lambda self: None)

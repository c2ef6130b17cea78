"""Progress of many shards becomes one set of reports per interval; ends are reported at once, counts add up."""

from __future__ import annotations

from holdfast.flow.engine import Advanced, Failed, Staged
from holdfast.functions.shard_reports import CoalescedReports
from holdfast.leases.lease import Counts


def advanced(batch: str, position: int) -> Advanced:
    return Advanced(batch, position, (), Counts(1, 1))


def test_progress_is_taken_once_per_interval_with_the_last_position_and_all_counts() -> None:
    reports = CoalescedReports(1.0)
    reports.add(advanced("a", 1))
    assert reports.take(10.0) == [advanced("a", 1)]
    for position in (2, 3):
        reports.add(advanced("a", position))
    reports.add(advanced("b", 7))
    assert reports.due_at == 11.0
    assert reports.take(10.9) == []
    assert reports.take(11.0) == [Advanced("a", 3, (), Counts(2, 2)), advanced("b", 7)]
    assert reports.due_at == float("inf")


def test_the_end_of_a_batch_is_reported_at_once_and_has_the_counts_that_were_not_taken() -> None:
    reports = CoalescedReports(1.0)
    reports.take(10.0)
    reports._next = 11.0
    reports.add(advanced("a", 1))
    reports.add(Staged("a", 2, False, {}, Counts(1, 1)))
    reports.add(advanced("b", 5))
    reports.add(Failed("b", "it failed"))
    assert reports.take(10.1) == [Staged("a", 2, False, {}, Counts(2, 2)), advanced("b", 5), Failed("b", "it failed")]


def test_nothing_is_reported_about_batches_that_were_cancelled() -> None:
    reports = CoalescedReports(1.0)
    reports.add(advanced("a", 1))
    reports.add(Staged("b", 2, False, {}))
    reports.forget(["a", "b"])
    assert reports.take(10.0) == []


def test_reports_with_receipts_stay_apart_and_in_order() -> None:
    reports = CoalescedReports(1.0)
    first = Advanced("a", 1, (), Counts(1, 1), receipts={"files": 1})
    second = Advanced("a", 2, (), Counts(1, 1), receipts={"files": 2})
    reports.add(first)
    reports.add(Advanced("a", 1))
    assert reports.take(10.0) == [first]
    reports.add(first)
    reports.add(second)
    reports.add(advanced("a", 3))
    assert reports.take(10.1) == [first, second]
    assert reports.take(11.0) == [advanced("a", 3)]
    reports.add(first)
    reports.add(Staged("a", 2, False, {"files": 2}))
    assert reports.take(11.1) == [first, Staged("a", 2, False, {"files": 2})]

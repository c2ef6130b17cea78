"""Reports of tasks on their way to the node."""

from __future__ import annotations

from holdfast.spark.report import TaskReport


def test_a_batch_that_ends_before_its_first_item_is_reported_so() -> None:
    report = TaskReport(rows_in=1, end=0, source_end=0, parts={"files": {}})
    assert TaskReport.decode(report.encode()) == report


def test_fields_of_an_empty_report_are_not_sent() -> None:
    assert TaskReport().encode() == "{}"

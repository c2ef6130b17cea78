"""What `verify` says of a sink that is given a part of the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.audit.locate import locate_offset
from holdfast.cli.audit import Report
from holdfast.leases.lease import Counts
from tests.unit.audit.archive import Archive


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Ten offsets: four in this sink, one dead letter, five routed to other sinks."""
    made = Archive(tmp_path)
    files = [made.data_file([0, 3, 4, 9]), made.dead_letters([2])]
    made.commit(0, 10, files=files, routed={"rows": 5, "of": 10})
    counted(made, 10)
    return made


def counted(archive: Archive, number: int) -> None:
    row = archive.row()
    archive.put(replace(row, progress=replace(row.progress, counts=Counts(processed=number))))


@pytest.mark.parametrize("deep", [False, True])
def test_rows_that_were_for_another_sink_are_neither_lost_nor_absent(archive: Archive, deep: bool) -> None:
    proof = archive.proof(deep=deep)
    assert (proof.verdict, proof.rows, proof.dead_letters, proof.elsewhere, proof.absent) == ("proven", 4, 1, 5, 0)


def test_a_row_that_was_given_and_is_in_no_file_is_a_doubt(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[archive.data_file([0, 3, 4])], routed={"rows": 4, "of": 10})
    counted(archive, 10)
    assert archive.doubts() == ["commit 1 has 3 rows, but 4 of 10 were routed to this sink"]


def test_a_share_that_is_larger_than_the_whole_is_a_doubt(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[archive.data_file([0, 3])], routed={"rows": 2, "of": 1})
    counted(archive, 1)
    assert archive.doubts() == ["commit 1 has 2 rows, but 2 of 1 were routed to this sink"]


def test_shares_that_do_not_add_up_to_what_the_store_has_counted_are_a_doubt(archive: Archive) -> None:
    counted(archive, 11)
    assert archive.doubts() == ["the store has counted 11 rows, and the manifests have 10"]


def test_a_commit_that_waits_counts_with_all_its_rows(archive: Archive) -> None:
    archive.pend(10, 14)
    row = archive.row()
    assert row.commit.receipts is not None
    receipts = {
        name: {**receipt, "files": [{"rows": 1}], "routed": {"rows": 1, "of": 4}}
        for name, receipt in row.commit.receipts.items()
    }
    archive.put(replace(row, commit=replace(row.commit, receipts=receipts)))
    assert archive.doubts() == []


def test_the_conclusion_says_what_is_proven_of_routes(archive: Archive) -> None:
    report = Report(deep=False, offsets=True)
    list(report.collect(iter(archive.proofs())))
    assert "holds every row that was routed to it, and 5 rows were routed elsewhere" in report.conclusion()


def test_a_message_that_is_in_no_file_may_have_been_for_another_sink(archive: Archive) -> None:
    (found,) = locate_offset(archive.audited(), archive.store, "orders", "0", 5)
    assert (found.file, found.by_route) == (None, True)
    assert "routed to other sinks only" in found.found_in

"""What `verify` proves without reading files: the store, the manifests and the listing agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.audit.proof import MOST_KEPT, Findings, PartitionProof
from holdfast.cli.audit import Report
from holdfast.errors import Unavailable
from holdfast.leases import transitions
from holdfast.leases.lease import Counts, Lease, Status
from tests.unit.audit.archive import PIPELINE, SINK, Archive


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    made = Archive(tmp_path)
    made.commit(0, 10)
    made.commit(10, 20)
    made.commit(20, 30)
    return made


def test_a_whole_archive_is_proven(archive: Archive) -> None:
    archive.commit(0, 5, label="1")
    first, second, root = archive.proofs()
    assert isinstance(first, PartitionProof)
    assert isinstance(second, PartitionProof)
    assert (first.start, first.end) == ({"offset": 0}, {"offset": 30})
    assert (first.commits, first.files, first.rows, first.gaps, first.dead_letters, first.absent) == (3, 3, 30, 0, 0, 0)
    assert (second.key, second.rows) == ("orders|1", 5)
    assert [proof.verdict for proof in (first, second, root)] == ["proven"] * 3
    assert root.files == 4


def test_a_missing_manifest_is_a_doubt_that_names_the_offsets(archive: Archive) -> None:
    archive.manifest_path(2).unlink()
    doubts = archive.doubts()
    assert doubts[:2] == ["manifest 2 is missing", "offsets 10 to 19 are in no manifest, between manifests 1 and 3"]
    assert doubts[2].endswith("1_0_00000000000000000010.parquet is named by no manifest")


def test_the_last_manifest_is_missed_because_the_store_knows_of_it(archive: Archive) -> None:
    archive.manifest_path(3).unlink()
    assert "manifest 3 is missing" in archive.doubts()


def test_without_any_manifest_nothing_is_proven(archive: Archive) -> None:
    for sequence in (1, 2, 3):
        archive.manifest_path(sequence).unlink()
    assert archive.doubts()[:3] == ["manifest 1 is missing", "manifest 2 is missing", "manifest 3 is missing"]


def test_a_missing_file_is_a_doubt(archive: Archive) -> None:
    archive.path("orders/1_0_00000000000000000010.parquet").unlink()
    assert archive.doubts() == ["orders/1_0_00000000000000000010.parquet is missing; manifest 2 names it"]


def test_a_file_of_another_size_is_a_doubt(archive: Archive) -> None:
    path = archive.path("orders/1_0_00000000000000000010.parquet")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"!")
    assert archive.doubts() == [f"{path.relative_to(archive.root)} has {size + 1} bytes; manifest 2 says {size}"]


def test_a_file_that_no_manifest_names_is_a_doubt(archive: Archive) -> None:
    archive.write("orders/1_0_00000000000000000005.parquet", b"stray")
    assert archive.doubts() == ["orders/1_0_00000000000000000005.parquet is named by no manifest"]


def test_hidden_files_are_passed_over_and_what_is_staged_is_not_looked_at(archive: Archive) -> None:
    archive.write("orders/_SUCCESS", b"")
    archive.write("_holdfast/staging/orders/0/00000000000000000001/b/x", b"staged")
    root = archive.root_proof()
    assert root.verdict == "proven"
    assert root.notes.sentences() == ["1 hidden objects, which readers ignore, were not checked"]


@pytest.mark.parametrize("key", ["_holdfast/deadletters/orders/1_0_5.jsonl", "_holdfast/commits/stray.json"])
def test_what_only_commits_may_write_is_a_doubt_even_though_it_is_hidden(archive: Archive, key: str) -> None:
    archive.write(key, b"{}")
    assert archive.doubts() == [f"{key} belongs to no commit"]


def test_a_stray_object_among_the_manifests_hides_none_of_them(archive: Archive) -> None:
    archive.write("_holdfast/commits/orders/.x", b"")
    assert archive.proof().files == 3


def test_a_file_under_two_manifests_is_a_doubt(archive: Archive) -> None:
    shared = archive.manifests["0"][2]["files"]
    archive.commit(30, 40, files=shared)
    assert any("is named twice, the second time by manifest 4" in doubt for doubt in archive.doubts())


def test_offsets_in_two_commits_are_a_doubt(archive: Archive) -> None:
    archive.commit(25, 40)
    assert archive.doubts() == ["offsets 25 to 29 are in two commits, between manifests 3 and 4"]


def test_offsets_in_no_commit_are_a_doubt(archive: Archive) -> None:
    archive.commit(33, 40)
    assert archive.doubts() == ["offsets 30 to 32 are in no manifest, between manifests 3 and 4"]


def test_more_rows_than_offsets_are_a_doubt_unless_a_processor_multiplies(tmp_path: Path) -> None:
    archive = Archive(tmp_path, raw=False)
    archive.commit(0, 10, files=[archive.data_file(range(10)), archive.data_file([5, 6], output_folder="dt=1")])
    assert archive.doubts() == ["commit 1 has 12 rows for 10 offsets: some are duplicates"]
    assert archive.doubts(multiplies=True) == []


def test_offsets_without_a_record_are_counted_and_told(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[archive.data_file([0, 2, 9])])
    proof = archive.proof()
    assert (proof.verdict, proof.rows, proof.absent) == ("proven", 3, 7)


def test_recorded_gaps_and_dead_letters_complete_the_proof(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    files = [archive.data_file([4, 5, 8, 9]), archive.dead_letters([6, 7])]
    archive.commit(0, 10, files=files, gaps=[[0, 4]])
    archive.commit(10, 15, files=[], gaps=[[10, 15]])
    proof = archive.proof()
    assert (proof.verdict, proof.rows, proof.gaps, proof.dead_letters, proof.absent) == ("proven", 4, 9, 2, 0)


@pytest.mark.parametrize("deep", [False, True])
def test_records_that_a_setting_skips_are_counted_and_complete_the_proof(tmp_path: Path, *, deep: bool) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[archive.data_file([0, 1, 2, 3, 4]), archive.dead_letters([5])], skipped=3)
    archive.commit(10, 12, files=[], skipped=2)
    proof = archive.proof(deep=deep)
    assert (proof.verdict, proof.rows, proof.dead_letters, proof.skipped, proof.absent) == ("proven", 5, 1, 5, 1)
    report = Report(deep=deep, offsets=True)
    list(report.collect(iter(archive.proofs(deep=deep))))
    assert "a dead letter (1), is skipped by a setting (5) or has no record (1)" in report.conclusion()
    row = archive.row()
    counts = replace(row.progress.counts, processed=12)
    archive.put(replace(row, progress=replace(row.progress, counts=counts)))
    assert archive.doubts() == ["the store has counted 12 rows, and the manifests have 11"]


def test_a_gap_outside_of_its_commit_is_a_doubt(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[], gaps=[[5, 12]])
    assert archive.doubts() == ["manifest 1 records an impossible gap, 5 to 11"]


def test_items_outside_of_the_commit_are_a_doubt(archive: Archive) -> None:
    archive.commit(30, 40, files=[archive.data_file(range(35, 42))])
    assert archive.doubts() == ["orders/1_0_00000000000000000035.parquet holds offsets 35 to 41, outside of commit 4"]


def test_a_generation_that_goes_back_and_another_incarnation_are_doubts(archive: Archive) -> None:
    archive.commit(30, 40, generation=2)
    archive.commit(40, 50, generation=1, incarnation="other")
    assert archive.doubts() == [
        "manifest 5 has generation 1, after generation 2",
        "manifest 5 has another incarnation of the source: 'other'",
        "the store is at another incarnation of the source: 'topic-id'",
    ]


@pytest.mark.parametrize(("position", "where"), [(25, "behind"), (35, "ahead of")])
def test_a_position_that_is_not_the_end_of_the_last_manifest_is_a_doubt(
    archive: Archive, position: int, where: str
) -> None:
    archive.set_row(position=position)
    assert archive.doubts() == [f"the store is at offset {position}, {where} the end of the last manifest, offset 30"]


def test_a_store_that_has_forgotten_commits_is_a_doubt(archive: Archive) -> None:
    before = archive.row()
    archive.commit(30, 40)
    archive.put(before)
    assert archive.doubts(deep=True) == ["the store is behind: it has 3 commits, and there is manifest 4"]


def test_files_of_a_forgotten_commit_that_are_missing_or_changed_are_still_told(archive: Archive) -> None:
    archive.commit(30, 40)
    archive.set_row(position=20, sequence=2)
    archive.path("orders/1_0_00000000000000000020.parquet").unlink()
    archive.write("orders/1_0_00000000000000000030.parquet", b"short")
    archive.write("orders/1_0_00000000000000000099.parquet", b"foreign")
    doubts = archive.doubts()
    assert "orders/1_0_00000000000000000020.parquet is missing; manifest 3 names it" in doubts
    assert any(doubt.startswith("orders/1_0_00000000000000000030.parquet has 5 bytes") for doubt in doubts)
    assert [doubt for doubt in doubts if "named by no manifest" in doubt] == [
        "orders/1_0_00000000000000000099.parquet is named by no manifest"
    ]


def test_a_commit_of_another_id_is_a_doubt(archive: Archive) -> None:
    row = archive.row()
    archive.put(replace(row, commit=replace(row.commit, commit_id="other")))
    assert archive.doubts() == ["manifest 3 belongs to another commit than the store's: commit-0-3"]


def test_a_store_without_the_row_is_a_doubt(archive: Archive) -> None:
    archive.store = Archive(archive.root).store
    assert archive.doubts() == ["the store has no row for this partition"]


def test_rows_that_were_counted_and_are_in_no_file_are_a_doubt(archive: Archive) -> None:
    row = archive.row()
    archive.put(replace(row, progress=replace(row.progress, counts=Counts(processed=31))))
    assert archive.doubts() == ["the store has counted 31 rows, and the manifests have 30"]


# --- pending commits -------------------------------------------------------------------------------------------------


def test_a_commit_that_waits_for_its_manifest_is_told_and_no_doubt(archive: Archive) -> None:
    archive.pend(30, 40)
    proof = archive.proof()
    assert (proof.verdict, proof.end) == ("proven", {"offset": 30})
    assert proof.notes.sentences() == ["commit 4 is being published"]


def test_a_first_commit_that_waits_is_told_and_no_doubt(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.set_row()
    archive.pend(0, 10)
    proof = archive.proof()
    assert (proof.verdict, proof.start, proof.end) == ("proven", {"offset": 0}, {"offset": 0})


def test_files_of_a_commit_that_is_being_published_may_be_missing(archive: Archive) -> None:
    manifest = archive.commit(30, 40)
    row = archive.row()
    receipt = {"from": {"offset": 30}, "to": {"offset": 40}, "files": manifest["files"]}
    archive.put(replace(row, commit=replace(row.commit, receipts={SINK: receipt})))
    archive.path(manifest["files"][0]["key"]).unlink()
    proof = archive.proof()
    assert proof.verdict == "proven"
    assert proof.notes.sentences()[0] == "orders/1_0_00000000000000000030.parquet is being published"


@pytest.mark.parametrize(
    ("start", "end", "doubt"),
    [
        (31, 40, "the receipt begins at offset 31, and the last manifest ends at offset 30"),
        (30, 39, "the store is at offset 40, and its receipt ends at offset 39"),
    ],
)
def test_a_pending_commit_that_its_receipt_does_not_explain_is_a_doubt(
    archive: Archive, start: int, end: int, doubt: str
) -> None:
    receipt = archive.pend(30, 40)
    row = archive.row()
    wrong = {**receipt, "from": {"offset": start}, "to": {"offset": end}}
    archive.put(replace(row, commit=replace(row.commit, receipts={SINK: wrong})))
    assert archive.doubts() == [doubt]


def test_a_pending_commit_without_a_receipt_of_this_sink_is_a_doubt(archive: Archive) -> None:
    archive.pend(30, 40)
    row = archive.row()
    archive.put(replace(row, commit=replace(row.commit, receipts={"other": {}})))
    assert archive.doubts() == ["commit 4 is not published, and has no receipt of this sink"]


def test_a_halted_partition_is_told_and_doubtful_only_while_a_commit_waits(archive: Archive) -> None:
    row = archive.row()
    halted = replace(
        row,
        ownership=replace(row.ownership, status=Status.FAILED),
        history=replace(row.history, halt_reason="two topics"),
    )
    archive.put(halted)
    assert archive.proof().notes.sentences() == ["the partition is halted: two topics"]
    archive.pend(30, 40)
    assert archive.doubts() == ["the partition is halted: two topics; its last commit waits to be published"]


def test_a_partition_that_is_halted_because_its_source_lost_records_is_doubted(archive: Archive) -> None:
    row = archive.row()
    halted = transitions.halt(row, "offsets 30 to 39 were deleted", 0.0, lost=(30, 40))
    archive.put(halted)
    assert archive.doubts() == ["the partition is halted: offsets 30 to 39 were deleted"]
    archive.put(transitions.reopen(halted, 0.0))
    assert archive.doubts() == []


# --- while the pipeline goes on --------------------------------------------------------------------------------------


def test_commits_that_come_while_it_looks_are_no_doubt(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    audited = archive.audited()
    listing = list(audited.root.listing())
    archive.commit(30, 40)
    archive.commit(0, 5, label="1")
    monkeypatch.setattr("holdfast.audit.roots.FolderRoot.listing", lambda _: iter(listing))
    first, second, root = archive.proofs()
    assert [proof.doubts.sentences() for proof in (first, second, root)] == [[], [], []]
    assert isinstance(first, PartitionProof)
    assert isinstance(second, PartitionProof)
    assert (first.end, second.end) == ({"offset": 40}, {"offset": 5})


# --- the root --------------------------------------------------------------------------------------------------------


def test_a_root_of_another_pipeline_is_a_doubt(archive: Archive) -> None:
    archive.write("_holdfast/owner.json", json.dumps({"pipeline": "other", "sink": SINK}).encode())
    assert archive.doubts() == ["the root belongs to {'pipeline': 'other', 'sink': 'files'}"]


def test_a_root_without_owner_is_a_doubt(archive: Archive) -> None:
    archive.path("_holdfast/owner.json").unlink()
    assert archive.doubts() == ["_holdfast/owner.json is missing: the owner of this root is unknown"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sequence": 7}, "manifest 7 of orders 0, partition 'orders|0' of pipeline 'prod|archive'"),
        ({"key": "orders|5"}, "manifest 2 of orders 0, partition 'orders|5' of pipeline 'prod|archive'"),
        ({"pipeline": "x"}, "manifest 2 of orders 0, partition 'orders|0' of pipeline 'x'"),
    ],
)
def test_a_manifest_of_something_else_is_a_doubt(archive: Archive, change: dict[str, Any], said: str) -> None:
    archive.manifest_path(2).write_text(json.dumps({**archive.manifests["0"][1], **change}))
    assert archive.doubts() == [f"manifest 2 says that it is {said}"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"files": 3}', b"\xff"])
def test_a_manifest_that_cannot_be_read_is_a_doubt(archive: Archive, data: bytes) -> None:
    archive.manifest_path(2).write_bytes(data)
    assert archive.doubts()[0].startswith("manifest 2 cannot be read: ")


def test_a_manifest_that_points_out_of_the_root_is_a_doubt(archive: Archive) -> None:
    manifest = archive.manifests["0"][1]
    file = {**manifest["files"][0], "key": "../secret"}
    archive.rewrite({**manifest, "files": [file]})
    assert archive.doubts()[0] == "manifest 2 cannot be read: ValueError: '../secret' is not a key"


def test_a_root_that_is_not_there_cannot_be_reached(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "a")
    archive.root = tmp_path / "b"
    with pytest.raises(Unavailable, match="does not exist"):
        archive.proofs()


def test_a_partition_without_commits_has_nothing_to_prove(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.set_row()
    proof = archive.proof()
    assert (proof.verdict, proof.notes.sentences()) == ("proven", ["nothing is committed"])


def test_a_position_without_a_commit_is_a_doubt(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.set_row(position=7)
    assert archive.doubts() == ["the store is at {'offset': 7} without a commit"]


def test_a_row_that_cannot_be_read_is_a_doubt(archive: Archive) -> None:
    row = archive.row()
    archive.put(Lease(PIPELINE, row.key, unreadable="{"))
    assert "the row in the store cannot be read" in archive.doubts()


# --- sources whose items are no offsets ------------------------------------------------------------------------------


def test_of_other_sources_chain_and_files_are_proven(tmp_path: Path) -> None:
    archive = Archive(tmp_path, raw=False)
    archive.commit(0, 100, files=[archive.data_file([0, 700])])  # items of a compressed object exceed its size
    archive.commit(100, 200, files=[archive.data_file([900])])
    proof = archive.proof(deep=True, offsets=False)
    assert (proof.verdict, proof.files, proof.absent, proof.exact) == ("proven", 2, None, False)
    archive.set_row(position=150)
    assert archive.doubts(offsets=False) == [
        "the store is at offset 150, behind the end of the last manifest, offset 200"
    ]


def test_a_purged_row_has_no_position_to_compare(archive: Archive) -> None:
    row = archive.row()
    done = Lease(row.pipeline, row.key, ownership=replace(row.ownership, status=Status.COMPLETED), commit=row.commit)
    archive.put(done)
    proof = archive.proof()
    assert proof.verdict == "proven"
    assert proof.notes.sentences() == ["its row was purged: the position is no longer known"]


def test_of_many_doubts_the_first_are_told_and_all_are_counted() -> None:
    found = Findings()
    for number in range(MOST_KEPT + 5):
        found.add(f"doubt {number}")
    assert found.number == MOST_KEPT + 5
    assert found.sentences()[-1] == "and 5 more"

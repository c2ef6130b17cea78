"""Where a message is, and which backup files hold the raw records of an output file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.audit.locate import BY_OFFSET, BY_RANGE, Found, locate_files, locate_offset
from holdfast.errors import UsageError
from tests.unit.audit.archive import Archive


def where(archive: Archive, offset: int, partition: str = "0") -> list[Found]:
    return locate_offset(archive.audited(), archive.store, "orders", partition, offset)


def found_in(archive: Archive, offset: int) -> str:
    """Why a message is in no file."""
    (found,) = where(archive, offset)
    assert found.file is None
    return found.found_in


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    made = Archive(tmp_path / "archive")
    for start in range(5, 75, 10):
        made.commit(start, start + 10)
    return made


@pytest.mark.parametrize(("offset", "first"), [(5, 5), (14, 5), (15, 15), (44, 35), (74, 65)])
def test_the_file_of_an_offset_is_found_in_any_commit(archive: Archive, offset: int, first: int) -> None:
    (found,) = where(archive, offset)
    assert (found.found_in, found.evidence) == ("file", BY_OFFSET)
    assert found.file == f"orders/1_0_{first:020d}.parquet"


def test_few_manifests_are_read(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in range(75, 2075, 10):
        archive.commit(start, start + 10)
    read: list[str] = []
    audited = archive.audited()
    plain = audited.root.read

    def counted(key: str) -> bytes | None:
        read.append(key)
        return plain(key)

    monkeypatch.setattr(audited.root, "read", counted)
    locate_offset(audited, archive.store, "orders", "0", 1234)
    assert len(read) <= 15


def test_what_lies_before_or_behind_is_told(archive: Archive) -> None:
    assert found_in(archive, 4) == "before the first offset that was read, 5"
    assert found_in(archive, 75) == "not yet committed"
    archive.pend(75, 80)
    assert found_in(archive, 76) == "being published"
    assert found_in(archive, 80) == "not yet committed"


def test_gaps_dead_letters_and_holes_are_told(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[archive.data_file([4, 6, 9]), archive.dead_letters([5])], gaps=[[0, 4]])
    assert found_in(archive, 2) == "gap: lost by the source, recorded in commit 1"
    assert found_in(archive, 7).startswith("no record at this offset in commit 1: compacted")
    (found,) = where(archive, 5)
    assert (found.found_in, found.evidence) == ("dead letter", BY_OFFSET)


@pytest.mark.parametrize("raw", [True, False])
def test_of_several_places_the_right_one_is_found_by_reading(tmp_path: Path, raw: bool) -> None:
    archive = Archive(tmp_path, raw=raw)
    archive.commit(
        0,
        8,
        files=[archive.data_file([0, 2, 7], output_folder="dt=1"), archive.data_file([1, 5, 6], output_folder="dt=2")],
    )
    results = where(archive, 5)
    if raw:
        assert [found.file for found in results] == ["orders/dt=2/1_0_00000000000000000001.parquet"]
    else:
        assert [(found.found_in, found.evidence) for found in results] == [("one of 2 files", BY_RANGE)] * 2


def test_after_a_replacement_the_new_file_is_named(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    (old,) = archive.commit(0, 10)["files"]
    moved = f"_holdfast/replaced/p/{old['key']}"
    plan = {"topic": "orders", "partition": 0, "from": 0, "to": 10}
    moves = [{"from": old["key"], "to": moved}]
    archive.write("_holdfast/replaced/p/plan.json", json.dumps({**plan, "moves": moves}).encode())
    archive.move(old["key"], moved)
    (found,) = where(archive, 3)
    assert (found.found_in, found.file) == ("file, replaced", moved)
    archive.commit(0, 5, generation=2)
    (found,) = where(archive, 3)
    assert (found.found_in, found.file) == ("file", "orders/2_0_00000000000000000000.parquet")


def test_a_partition_that_is_not_known_is_an_error(archive: Archive) -> None:
    with pytest.raises(UsageError, match="no readable row for partition 7 of 'orders'"):
        where(archive, 5, "7")


def test_a_broken_chain_is_an_error_that_points_to_verify(archive: Archive) -> None:
    archive.manifest_path(4).unlink()
    with pytest.raises(UsageError, match="run `holdfast verify`"):
        where(archive, 44)


# --- backup files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def backup(tmp_path: Path, archive: Archive) -> Archive:
    made = Archive(tmp_path / "backup", pipeline="prod|backup")
    made.store = archive.store
    made.commit(10, 30)
    made.commit(30, 50)
    return made


def in_backup(archive: Archive, backup: Archive, *files: str) -> list[tuple[str, str | None]]:
    results = locate_files([archive.audited()], backup.audited(), archive.store, files)
    return [(found.offsets, found.file or found.found_in) for found in results]


FIRST, SECOND = "orders/1_0_00000000000000000010.parquet", "orders/1_0_00000000000000000030.parquet"


def test_backup_files_are_found_by_the_offsets_of_an_output_file(archive: Archive, backup: Archive) -> None:
    assert in_backup(archive, backup, "orders/1_0_00000000000000000025.parquet") == [
        ("25-29", FIRST),
        ("30-34", SECOND),
    ]


def test_several_files_may_be_named_with_their_root(archive: Archive, backup: Archive) -> None:
    files = [str(archive.path(f"orders/1_0_{first:020d}.parquet")) for first in (15, 35)]
    assert in_backup(archive, backup, *files) == [("15-24", FIRST), ("35-44", SECOND)]


def test_what_the_backup_has_not_is_told(archive: Archive, backup: Archive) -> None:
    assert in_backup(archive, backup, "orders/1_0_00000000000000000005.parquet") == [
        ("10-14", FIRST),
        ("5-9", "not in the backup: before its first offset"),
    ]
    assert in_backup(archive, backup, "orders/1_0_00000000000000000045.parquet") == [
        ("45-49", SECOND),
        ("50-54", "not in the backup: not yet committed there"),
    ]


def test_a_backup_file_without_any_of_the_offsets_is_left_out_only_if_offsets_tell(tmp_path: Path) -> None:
    archive, backup = Archive(tmp_path / "a"), Archive(tmp_path / "b", pipeline="prod|backup")
    backup.store = archive.store
    archive.commit(0, 40, files=[archive.data_file([0, 35], output_folder="dt=1")])
    for start in (0, 10, 20, 30):
        backup.commit(start, start + 10)
    name = "orders/dt=1/1_0_00000000000000000000.parquet"
    assert [offsets for offsets, _ in in_backup(archive, backup, name)] == ["0-9", "30-35"]
    archive.raw = False
    assert [offsets for offsets, _ in in_backup(archive, backup, name)] == ["0-9", "10-19", "20-29", "30-35"]


def test_a_file_of_another_layout_is_found_by_looking_through_all_manifests(archive: Archive, backup: Archive) -> None:
    file = archive.data_file(range(75, 80))
    archive.write("elsewhere/x-75", archive.path(file["key"]).read_bytes())
    archive.commit(75, 80, files=[{**file, "key": "elsewhere/x-75"}])
    backup.commit(50, 90)
    assert [offsets for offsets, _ in in_backup(archive, backup, "elsewhere/x-75")] == ["75-79"]


def test_a_file_that_no_manifest_names_is_an_error(archive: Archive, backup: Archive) -> None:
    with pytest.raises(UsageError, match="no manifest of this pipeline names orders/nothing"):
        in_backup(archive, backup, "orders/nothing")

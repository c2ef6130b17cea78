"""What `verify --deep` finds by reading the files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.audit.proof import PartitionProof
from holdfast.audit.verify import verify
from holdfast.formats.avro import Avro
from holdfast.formats.parquet import Parquet
from holdfast.formats.raw import Raw
from holdfast.formats.text import Text
from holdfast.testing.formats import kafka_extremes
from tests.unit.audit.archive import Archive


def changed(manifest: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The manifest with other words about its first file."""
    first, *others = manifest["files"]
    return {**manifest, "files": [{**first, **fields}, *others]}


@pytest.mark.parametrize("raw", [True, False])
def test_a_whole_archive_is_proven_by_offsets_where_they_are_kept(tmp_path: Path, raw: bool) -> None:
    archive = Archive(tmp_path, raw=raw)
    files = [archive.data_file([0, 3, 4], output_folder="dt=1"), archive.data_file([1, 5], output_folder="dt=2")]
    archive.commit(0, 8, files=[*files, archive.dead_letters([2])])
    proof = archive.proof(deep=True)
    assert (proof.verdict, proof.exact) == ("proven", raw)
    assert (proof.files, proof.rows, proof.dead_letters, proof.absent) == (3, 5, 1, 2)


def test_a_changed_byte_is_found_by_reading_only(tmp_path: Path) -> None:
    archive = Archive(tmp_path, raw=False)
    (file,) = archive.commit(0, 10)["files"]
    path = archive.path(file["key"])
    path.write_bytes(path.read_bytes().replace(b"message 3", b"massage 3"))
    assert archive.doubts() == []
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert archive.doubts(deep=True) == [
        f"{file['key']} has other bytes than the committed ones: its SHA-256 is {digest}"
    ]


def test_a_changed_file_is_not_decoded_since_that_may_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path, raw=True)
    (file,) = archive.commit(0, 10)["files"]
    archive.path(file["key"]).write_bytes(b"damaged")
    read: list[BinaryIO] = []

    def decode(_: Raw, data: BinaryIO) -> Iterator[Any]:
        read.append(data)
        yield from ()

    monkeypatch.setattr(Raw, "read", decode)
    doubts = archive.doubts(deep=True)
    assert any("has other bytes than the committed ones" in doubt for doubt in doubts)
    assert read == []


def test_a_manifest_that_counts_wrong_is_found(tmp_path: Path) -> None:
    archive = Archive(tmp_path, raw=False)
    manifest = archive.commit(0, 10)
    archive.rewrite(changed(manifest, rows=9))
    assert f"{manifest['files'][0]['key']} has 10 rows; its manifest says 9" in archive.doubts(deep=True)


def test_an_offset_in_two_files_is_found_although_the_counts_fit(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 6, files=[archive.data_file([0, 1, 2]), archive.data_file([2, 4, 5], output_folder="dt=2")])
    assert archive.doubts() == []
    assert archive.doubts(deep=True) == ["offset 2 occurs twice in commit 1"]
    assert archive.doubts(deep=True, multiplies=True) == []


def test_an_offset_in_a_file_and_in_the_dead_letters_is_found(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 6, files=[archive.data_file([0, 1, 2]), archive.dead_letters([2])])
    assert archive.doubts(deep=True) == ["offset 2 occurs twice in commit 1"]


def test_an_offset_that_is_recorded_as_lost_is_found(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.commit(0, 10, files=[archive.data_file([0, 6, 7])], gaps=[[0, 5]])
    assert archive.doubts(deep=True) == ["1 offsets exist that manifest 1 records as lost"]


def test_a_manifest_that_tells_other_offsets_is_found(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    manifest = archive.commit(0, 10, files=[archive.data_file([1, 2, 8])])
    archive.rewrite(changed(manifest, first=0))
    assert archive.doubts(deep=True) == [
        "orders/1_0_00000000000000000001.parquet holds offsets 1 to 8; its manifest says 0 to 8"
    ]


def test_bytes_that_are_no_file_of_the_format_are_found_although_their_digest_fits(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    manifest = archive.commit(0, 10)
    data = b"PAR1 and nothing else"
    archive.write(manifest["files"][0]["key"], data)
    archive.rewrite(changed(manifest, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    (doubt,) = archive.doubts(deep=True)
    assert doubt.startswith(f"{manifest['files'][0]['key']} cannot be read: ")


def test_a_file_that_could_not_be_read_is_not_proven(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    manifest = archive.commit(0, 10)
    key, data = manifest["files"][0]["key"], b"PAR1 and nothing else"
    archive.write(key, data)
    archive.rewrite(changed(manifest, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    # The settings are of another generation: perhaps the format was another one then.
    proof = archive.proof(deep=True, generation=2)
    assert (proof.verdict, proof.unread, proof.doubts.number) == ("not read", 1, 0)
    (note,) = proof.notes.sentences()
    assert note.startswith(f"{key} cannot be read with the current settings")
    assert note.endswith("; its digest is correct")
    assert archive.proof(generation=2).verdict == "proven"


def test_rows_of_another_generation_that_do_not_fit_are_not_proven(tmp_path: Path) -> None:
    archive = Archive(tmp_path, raw=False)
    archive.commit(0, 10)
    audited = replace(archive.audited(generation=2), format_of=lambda _: Text(delimiter=b"ssage"))
    proof, _ = verify(audited, archive.store, deep=True)
    assert isinstance(proof, PartitionProof)
    assert (proof.verdict, proof.doubts.number) == ("not read", 0)


@pytest.mark.parametrize("trouble", [OverflowError("date value out of range"), KeyError("avro.schema"), EOFError()])
def test_a_reader_that_fails_in_any_way_gives_a_doubt(tmp_path: Path, trouble: Exception) -> None:
    class Failing(Raw):
        def read(self, data: BinaryIO) -> Iterator[Any]:
            raise trouble

    archive = Archive(tmp_path)
    key = archive.commit(0, 10)["files"][0]["key"]
    proof, _ = verify(replace(archive.audited(), format_of=lambda _: Failing()), archive.store, deep=True)
    assert proof.doubts.sentences() == [f"{key} cannot be read: {trouble!r}"]


def test_a_file_of_another_format_than_todays_is_read_by_the_format_of_its_name(tmp_path: Path) -> None:
    archive = Archive(tmp_path, raw=False)
    (file,) = archive.commit(0, 10)["files"]
    archive.raw = True
    archive.commit(10, 20)
    proof = archive.proof(deep=True)
    assert (proof.verdict, proof.exact, proof.unread) == ("not read", False, 1)
    assert proof.notes.sentences() == [
        f"{file['key']} is not in the format of the current settings; its digest is correct"
    ]
    by_name = replace(archive.audited(), other_formats=lambda _: [Text()])
    proven, _ = verify(by_name, archive.store, deep=True)
    assert isinstance(proven, PartitionProof)
    assert (proven.verdict, proven.exact, proven.notes.number) == ("proven", False, 0)


def test_avro_with_a_time_beyond_pythons_is_read(tmp_path: Path) -> None:
    rows, data = kafka_extremes(), io.BytesIO()
    writer = Avro().open(data, rows.schema)
    writer.write(rows)
    writer.close()
    archive = Archive(tmp_path)
    offsets = rows.column("offset").to_pylist()
    file = archive.raw_file(f"orders/1_0_{offsets[0]:020d}.avro", data.getvalue(), offsets)
    archive.commit(offsets[0], offsets[-1] + 1, files=[file])
    proof, _ = verify(replace(archive.audited(), format_of=lambda _: Avro()), archive.store, deep=True)
    assert isinstance(proof, PartitionProof)
    assert (proof.verdict, proof.exact) == ("proven", True)


def test_a_dead_letter_without_origin_is_found(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    letters = archive.dead_letters([2])
    data = b'{"reason": "?"}\n'
    archive.write(letters["key"], data)
    changed_letters = {**letters, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    archive.commit(0, 3, files=[archive.data_file([0, 1]), changed_letters])
    (doubt,) = archive.doubts(deep=True)
    assert doubt == f"{letters['key']} cannot be read: a dead letter has no origin: KeyError('origin')"


def test_a_parsed_column_that_is_called_offset_is_not_taken_for_kafkas(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset": [70, 70], "note": ["a", "b"]}), sink)
    data = bytes(sink.getvalue())
    file = archive.data_file([0, 1])
    archive.write(file["key"], data)
    archive.commit(0, 2, files=[{**file, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}])
    audited = replace(archive.audited(), format_of=lambda _: Parquet())
    proof, _ = verify(audited, archive.store, deep=True)
    assert isinstance(proof, PartitionProof)
    assert (proof.doubts.sentences(), proof.exact, proof.absent) == ([], False, 0)

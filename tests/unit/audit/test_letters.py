"""A dead letter is proven when its bytes can be read back: it may be all that is left of a record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.audit.archive import Archive

Damage = Callable[[Path], None]


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _missing(path: Path) -> None:
    path.unlink()


def _altered(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"no time", b"no tame"))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    archive = Archive(tmp_path)
    archive.commit(0, 3, files=[archive.data_file([0, 1]), archive.dead_letters([2])])
    archive.commit(3, 6, files=[archive.data_file([3]), archive.dead_letters([4, 5])])
    return archive


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("damage", "doubt"),
    [
        (_truncated, "bytes; manifest 2 says"),
        (_missing, "is missing; manifest 2 names it"),
        (_altered, "has other bytes than the committed ones"),
    ],
)
def test_a_letter_that_cannot_be_read_back_is_doubted_and_not_counted(
    archive: Archive, damage: Damage, doubt: str, deep: bool
) -> None:
    assert archive.proof(deep=deep).dead_letters == 3
    letters = archive.manifests["0"][1]["files"][1]["key"]
    damage(archive.path(letters))
    proof = archive.proof(deep=deep)
    assert (proof.verdict, proof.dead_letters) == ("doubt", 1)
    assert letters in proof.doubts.kept[0]
    assert doubt in proof.doubts.kept[0]


@pytest.mark.parametrize(
    "line",
    [
        b'{"reason": "?"}\n',
        b"{\n",
        b'{"origin": {"item": 2}, "raw": "%", "encoding": "base64"}\n',
        b'{"origin": {"item": 2}, "encoding": "base64"}\n',
    ],
)
@pytest.mark.parametrize("generation", [1, 2])
def test_a_line_that_is_not_a_letter_with_its_record_is_doubted_whatever_generation_wrote_it(
    tmp_path: Path, line: bytes, generation: int
) -> None:
    archive = Archive(tmp_path)
    letters = archive.dead_letters([2])
    archive.write(letters["key"], line)
    letters |= {"size": len(line), "sha256": hashlib.sha256(line).hexdigest()}
    archive.commit(0, 3, files=[archive.data_file([0, 1]), letters])
    proof = archive.proof(generation=generation)
    assert (proof.verdict, proof.dead_letters) == ("doubt", 0)
    assert f"{letters['key']} cannot be read" in proof.doubts.kept[0]


def test_files_of_records_are_still_compared_by_size_alone(archive: Archive) -> None:
    data = archive.path(archive.manifests["0"][0]["files"][0]["key"])
    data.write_bytes(b"?" * data.stat().st_size)
    assert archive.proof().verdict == "proven"
    assert archive.proof(deep=True).verdict == "doubt"


@pytest.mark.parametrize("deep", [False, True])
def test_a_letter_is_not_proven_without_its_large_record(tmp_path: Path, deep: bool) -> None:
    archive, data = Archive(tmp_path), b'{"raw": "large"}\n'
    letters, records = archive.dead_letters([2]), archive.dead_letters([2])
    records |= {"key": letters["key"].replace("deadletters", "deadletter-records"), "rows": 0}
    archive.write(records["key"], data)
    records |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    archive.commit(0, 3, files=[archive.data_file([0, 1]), letters, records])
    proof = archive.proof(deep=deep)
    assert (proof.verdict, proof.rows, proof.dead_letters) == ("proven", 2, 1), proof.doubts.kept
    archive.path(records["key"]).write_bytes(data.replace(b"l", b"L"))
    proof = archive.proof(deep=deep)
    assert (proof.verdict, proof.dead_letters) == ("doubt", 0)
    assert records["key"] in proof.doubts.kept[0]

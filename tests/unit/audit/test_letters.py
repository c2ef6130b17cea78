"""A dead letter is proven when its bytes can be read back: it may be all that is left of a record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.audit.letters import AuditedLetters, verify_letters
from holdfast.audit.proof import LettersProof
from holdfast.errors import BatchError, SinkUnavailable
from holdfast.flow.letter import Letter, LetterBox, LetterId, read_back
from holdfast.leases.lease import Commit, Counts
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import make_row
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


# --- sinks without manifests ----------------------------------------------------------------------------------------


class Box(LetterBox):
    """Letters in memory, as an index has them."""

    def __init__(self, *letters: Letter | Exception) -> None:
        self._letters = letters

    def letters(self) -> Iterator[Letter]:
        for letter in self._letters:
            if isinstance(letter, Exception):
                raise letter
            yield letter

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        raise NotImplementedError

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        raise NotImplementedError


def _letter(item: int, key: str = "k", raw: str = "oops", encoding: str | None = None) -> Letter:
    return Letter(LetterId("search.x", item), key, item, "400 no number", raw, encoding)


def _proof(*letters: Letter | Exception, counted: int = 2, countable: bool = True, **row: Any) -> LettersProof:
    store = MemoryStore()
    store.open()
    store.add([make_row("k", pipeline="p", counts=Counts(10, 10 - counted, 0, counted), **row)])
    store.add([make_row("other", pipeline="p")])
    return verify_letters(AuditedLetters("p", "search", partial(read_back, Box(*letters)), countable), store)


def test_letters_of_an_index_are_proven_when_as_many_can_be_read_as_were_counted() -> None:
    proof = _proof(_letter(1), _letter(5), _letter(1, key="gone"))
    assert (proof.verdict, proof.letters) == ("proven", 3)


def test_a_letter_that_is_not_in_the_index_any_more_is_missed() -> None:
    proof = _proof(_letter(1))
    assert proof.doubts.kept == ["partition 'k': the store has counted 2 dead letters, and 1 can be read back"]


@pytest.mark.parametrize(
    "broken", [_letter(5, raw="%", encoding="base64"), ValueError("it is not a dead letter"), BatchError("altered")]
)
def test_a_letter_of_an_index_that_cannot_be_decoded_is_doubted(broken: Letter | Exception) -> None:
    (doubt,) = _proof(_letter(1), broken).doubts.kept
    assert "a dead letter cannot be read back" in doubt


def test_letters_of_a_commit_that_is_not_published_yet_may_be_missing() -> None:
    assert _proof(_letter(1), commit=Commit(1, receipts={"search": {}})).verdict == "proven"


def test_where_other_sinks_have_letters_too_their_number_is_not_compared() -> None:
    proof = _proof(_letter(1), countable=False)
    assert (proof.verdict, proof.notes.number) == ("proven", 1)


def test_a_server_that_does_not_respond_proves_and_doubts_nothing() -> None:
    with pytest.raises(SinkUnavailable):
        _proof(_letter(1), SinkUnavailable("away"))


@pytest.mark.parametrize(
    ("kept", "verdict"), [(b'{"raw": "large"}', "proven"), (b'{"raw": "other"}', "doubt"), (None, "doubt")]
)
def test_a_letter_of_an_index_is_not_proven_without_its_large_record(kept: bytes | None, verdict: str) -> None:
    class Spilled(Box):
        def read_spilled(self, letter: Letter) -> bytes | None:
            return kept

    spilled = replace(_letter(1), spilled={"sha256": hashlib.sha256(b'{"raw": "large"}').hexdigest()})
    store = MemoryStore()
    store.open()
    assert verify_letters(AuditedLetters("p", "search", partial(read_back, Spilled(spilled))), store).verdict == verdict

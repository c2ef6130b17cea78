"""Dead letters in files: found, fetched and marked, and never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.buckets.local import LocalBucket
from holdfast.deadletters.letter_files import FileLetters
from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault, dead_letter, record_fault
from holdfast.flow.letter import LetterId
from holdfast.flow.names import dead_letter_key

FIRST = dead_letter_key(Name("in", "a"), 1, 5)
OTHER = dead_letter_key(Name("in", "b"), 1, 0)


@pytest.fixture
def bucket(tmp_path: Path) -> LocalBucket:
    made = LocalBucket(tmp_path)
    faults = [record_fault("too long", b"x" * 70_000), record_fault("odd", b"a\x0bb\xe2\x80\xa8c")]
    made.create(FIRST, b"".join(dead_letter("p", "in|a", 5 + at, fault) for at, fault in enumerate(faults)))
    made.create(OTHER, dead_letter("p", "in|b", 0, record_fault("no UTF-8", b"\xff")))
    return made


def test_letters_tell_their_origin_and_their_record(bucket: LocalBucket) -> None:
    cut, odd, binary = FileLetters(bucket).letters()
    assert [(letter.id, letter.key, letter.item, letter.reason) for letter in (cut, odd, binary)] == [
        (LetterId(FIRST, 0), "in|a", 5, "too long"),
        (LetterId(FIRST, 1), "in|a", 6, "odd"),
        (LetterId(OTHER, 0), "in|b", 0, "no UTF-8"),
    ]
    assert odd.record() == b"a\x0bb\xe2\x80\xa8c"
    assert binary.record() == b"\xff"
    assert odd.at is not None


def test_a_letter_that_does_not_hold_its_record_says_so(bucket: LocalBucket) -> None:
    cut, odd, _ = FileLetters(bucket).letters()
    assert cut.refusal == "only the beginning of its 70000 bytes is kept"
    assert odd.refusal is None
    bucket.create(dead_letter_key(Name("in", "c"), 1, 0), dead_letter("p", "in|c", 0, Fault("damage", "broken")))
    bucket.create(
        dead_letter_key(Name("in", "d"), 1, 0), dead_letter("p", "in|d", 0, Fault("record", "x", "{}", form="row"))
    )
    assert [letter.refusal for letter in FileLetters(bucket).letters()][-2:] == [
        "no record is kept in it",
        "what is kept is not the record as it was read",
    ]


def test_letters_are_fetched_in_the_order_in_which_they_are_asked_for(bucket: LocalBucket) -> None:
    ids = [LetterId(OTHER, 0), LetterId(FIRST, 1)]
    assert [letter.id for letter in FileLetters(bucket).fetch(ids)] == ids
    with pytest.raises(BatchError, match="line 3 of"):
        FileLetters(bucket).fetch([LetterId(FIRST, 2)])


def test_marks_add_up_and_may_be_repeated(bucket: LocalBucket) -> None:
    box = FileLetters(bucket)
    before = bucket.read(FIRST)
    for _ in range(2):
        box.mark([LetterId(FIRST, 1)], "redrive-1")
    box.mark([LetterId(OTHER, 0)], "redrive-2")
    assert [letter.redriven for letter in box.letters()] == [None, "redrive-1", "redrive-2"]
    assert bucket.read(FIRST) == before, "letters stay as they are"

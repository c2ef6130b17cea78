"""Dead letters in a task: lines of files that are named by their first item."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.buckets.bucket import StagingAttempt
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.fault import record_fault
from holdfast.flow.staging import StagedBatch
from holdfast.testing.flows import MemoryBucket

BATCH = StagedBatch("b1", "orders", "in|a", Name("in", "a"), token=3, generation=2)
OTHER = StagedBatch("b2", "orders", "in|b", Name("in", "b"), token=3, generation=2)


def write(letters: LetterFiles, *items: int, batch: StagedBatch = BATCH) -> None:
    letters.write(batch, [(item, record_fault("why", b"x" * 100)) for item in items])
    letters.flush_if_many(batch)


def items_in(bucket: MemoryBucket, entry: dict[str, Any]) -> list[int]:
    lines = bucket.staged[entry["staged"]].splitlines()
    return [json.loads(line)["origin"]["item"] for line in lines]


def test_letters_that_wait_become_one_file_in_the_order_of_their_items() -> None:
    bucket = MemoryBucket()
    letters = LetterFiles(StagingAttempt(bucket), 1 << 20)
    write(letters, 40, 7)
    write(letters, 9)
    (entry,) = letters.finish(BATCH)
    assert items_in(bucket, entry) == [7, 9, 40]
    assert (entry["first"], entry["last"], entry["rows"]) == (7, 40, 3)
    assert letters.finish(BATCH) == []


def test_many_letters_do_not_wait_and_a_lower_item_begins_another_file() -> None:
    bucket = MemoryBucket()
    letters = LetterFiles(StagingAttempt(bucket), 100)
    write(letters, 20, 21)
    write(letters, 30)
    write(letters, 5)
    entries = letters.finish(BATCH)
    assert [items_in(bucket, entry) for entry in entries] == [[20, 21, 30], [5]]
    assert len({entry["key"] for entry in entries}) == 2


def test_an_abandoned_batch_leaves_nothing_and_the_others_stay() -> None:
    bucket = MemoryBucket()
    letters = LetterFiles(StagingAttempt(bucket), 100)
    write(letters, 20)
    write(letters, 5)
    write(letters, 1, batch=OTHER)
    letters.abandon(BATCH)
    letters.abandon(BATCH)
    (entry,) = letters.finish(OTHER)
    assert list(bucket.staged) == [entry["staged"]]


def test_what_was_staged_is_deleted_when_there_is_no_room_for_a_further_file() -> None:
    bucket, files = MemoryBucket(), 0

    def opening(_batch: StagedBatch) -> None:
        nonlocal files
        files += 1
        if files > 1:
            raise BatchError("full")

    letters = LetterFiles(StagingAttempt(bucket), 100, opening)
    write(letters, 20)
    with pytest.raises(BatchError, match="full"):
        write(letters, 5)
    letters.abandon(BATCH)
    assert not bucket.staged

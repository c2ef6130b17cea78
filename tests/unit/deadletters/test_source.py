"""The source of a redrive: which letters a batch has, and which rows they become."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.deadletters.source import (
    LettersSource,
    PartitionLetters,
    decode_ids,
    encode_ids,
    letter_ids,
    letter_rows,
    sent_ids,
)
from holdfast.errors import BatchError
from holdfast.flow.batch import Cut, Done, Limits, Name
from holdfast.flow.letter import Letter, LetterId
from holdfast.leases.lease import Commit, Lease, Partition, new_lease
from holdfast.sources.kafka.reading import MessageRebuilder

IDS = [LetterId("a", 0), LetterId("a", 1), LetterId("a", 4), LetterId("b", 0), LetterId("a", 7)]


def lease(partition: Partition, position: int | None = None) -> Lease:
    row = new_lease("p", partition, "w", now=0.0, run="redrive-1")
    return replace(row, progress=replace(row.progress, position=None if position is None else {"offset": position}))


def chosen_letters() -> PartitionLetters:
    live = Lease("p", "in|a", group="in", commit=Commit(incarnation="etag"))
    return PartitionLetters(live, Name("in", "0abc"), IDS)


@given(st.lists(st.builds(LetterId, st.sampled_from("abc"), st.integers(0, 6))))
def test_ids_are_encoded_and_decoded_in_the_same_order(ids: list[LetterId]) -> None:
    assert list(decode_ids(json.loads(json.dumps(encode_ids(ids))))) == ids


def test_a_partition_has_the_key_and_incarnation_of_the_records_and_a_name_of_its_own() -> None:
    partition = chosen_letters().partition()
    assert (partition.key, partition.group, partition.incarnation) == ("in|a", "in", "etag")
    row = lease(partition)
    assert LettersSource(None, None).name(row) == Name("in", "0abc-redrive-1")  # type: ignore[arg-type]
    assert (letter_ids(row), sent_ids(row), sent_ids(lease(partition, 2))) == (IDS, [], IDS[:2])


def test_the_position_counts_letters() -> None:
    source, partition = LettersSource(None, None), chosen_letters().partition()  # type: ignore[arg-type]
    plans = source.plan([lease(partition), lease(partition, 4), lease(partition, 5)], Limits(max_records=3))
    assert plans == [Cut({"offset": 0}, {"offset": 3}), Cut({"offset": 4}, {"offset": 5}, last=True), Done()]


class Doubled:
    """A source whose records are numbers, of which it gives the double."""

    keeps = None

    def fields(self) -> Any:
        from pyspark.sql import types as kinds

        return kinds.StructType([kinds.StructField("n", kinds.LongType())])

    def refusal(self, letter: Letter) -> str | None:
        return None

    def row(self, letter: Letter) -> Any:
        return pa.RecordBatch.from_pydict({"n": pa.array([int(letter.record()) * 2], pa.int64())})


def test_a_record_that_is_still_none_has_a_fault_with_all_that_its_letter_had() -> None:
    letters = [Letter(IDS[0], "in|a", 3, "old", "21"), Letter(IDS[1], "in|a", 9, "old", "eDw=", "base64")]
    table = letter_rows("batch", letters, Doubled(), Doubled().fields())
    good, bad = table.to_pylist()
    assert good == {"_batch": "batch", "_item": 3, "_fault": None, "n": 42}
    assert (bad["_item"], bad["n"]) == (9, None)
    fault = json.loads(bad["_fault"])
    assert (fault["kind"], fault["raw"], fault["encoding"]) == ("record", "eDw=", "base64")
    assert "invalid literal" in fault["reason"]


def test_letters_that_are_gone_fail_the_batch() -> None:
    (row,) = letter_rows("batch", BatchError("gone"), Doubled(), Doubled().fields()).to_pylist()
    assert json.loads(row["_fault"]) == {"kind": "batch", "reason": "gone"}


def test_a_message_has_its_origin_and_its_value_and_nothing_else() -> None:
    messages = MessageRebuilder()
    (row,) = messages.row(Letter(IDS[0], "my|topic|3", 17, "bad", "/w==", "base64")).to_pylist()
    columns = {name: value for name, value in row.items() if value is not None}
    assert columns == {"topic": "my|topic", "partition": 3, "offset": 17, "value": b"\xff"}
    assert messages.refusal(Letter(IDS[0], "topic|3", 1, "")) is None
    assert messages.refusal(Letter(IDS[0], "no-topic", 1, "")) == "'no-topic' is not a partition of a topic"


@pytest.mark.parametrize("name", ["topic", "partition", "offset", "value"])
def test_what_a_letter_keeps_of_a_message_is_among_the_columns(name: str) -> None:
    assert name in MessageRebuilder.keeps
    assert name in MessageRebuilder().fields().names

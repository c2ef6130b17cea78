"""From rows of live tables to lines of a bulk request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.flow.batch import Name
from holdfast.flow.fault import COLUMNS, Fault
from holdfast.flow.staging import StagedBatch
from holdfast.sinks.opensearch.bulk_body import Body, Entries, RecordNumbers
from holdfast.sinks.opensearch.staged_entries import StagedEntryBuilder

BATCH = StagedBatch("b1", "catalog", "users|0", Name("users", "0"), 3, 1)
STAGED = StagedEntryBuilder({"b1": "staged_users_r1"})


def rows(*given: tuple[str | None, int | None, bool, str | None], entity: str = "users") -> Any:
    ids, versions, deleted, documents = zip(*given, strict=True)
    columns = {
        "entity": pa.array([entity] * len(given)),
        "document_id": pa.array(ids, pa.string()),
        "document_version": pa.array(versions, pa.int64()),
        "deleted": pa.array(deleted),
        "document": pa.array(documents, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def made(found: Any, builder: StagedEntryBuilder = STAGED) -> tuple[Entries, list[bytes], dict[int, Fault]]:
    ((entries, faults),) = builder.entries(BATCH, RecordNumbers(), pa.array(range(found.num_rows), pa.int64()), found)
    return entries, bytes(entries.bytes()).splitlines(), dict(faults)


def test_the_text_of_a_document_is_sent_as_it_is_under_its_id_and_version() -> None:
    text = '{"b": 1.10, "a": "ü\\n", "a": 2}'
    _, lines, faults = made(rows(('x"1', 7, False, text), ("y", None, False, '{"two":\n"lines"}')))
    target = {"_index": "staged_users_r1", "_id": 'x"1', "version": 7, "version_type": "external_gte"}
    assert json.loads(lines[0]) == {"index": target}
    assert lines[1] == text.encode()
    assert json.loads(lines[2]) == {"index": {"_index": "staged_users_r1", "_id": "y"}}
    assert lines[3] == b'{"two": "lines"}'
    assert not faults


def test_a_deleted_row_deletes_its_document_at_its_version() -> None:
    _, lines, _ = made(rows(("a", 1, False, "{}"), ("b", 2, True, None), ("c", 3, False, "{}")))
    assert [list(json.loads(line)) for line in lines] == [["index"], [], ["delete"], ["index"], []]
    assert json.loads(lines[2])["delete"]["version"] == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("", 1, False, "{}"), "its document id is empty or longer than 512 bytes"),
        ((None, 1, False, "{}"), "its document id is empty or longer than 512 bytes"),
        (("é" * 257, 1, False, "{}"), "its document id is empty or longer than 512 bytes"),
        (("a", -1, False, "{}"), "its version is negative"),
        (("a", 1, False, None), "it is not a JSON object"),
        (("a", 1, False, "[1]"), "it is not a JSON object"),
    ],
)
def test_a_row_that_cannot_be_a_document_is_a_dead_letter_as_a_whole(row: Any, reason: str) -> None:
    entries, lines, faults = made(rows(("good", 1, False, ' {"n":1}'), row))
    assert (len(entries), len(lines)) == (1, 2)
    fault = faults[1]
    assert (fault.reason, fault.form) == (reason, COLUMNS)
    named = dict(zip(("document_id", "document_version", "deleted", "document"), row, strict=True))
    assert json.loads(fault.raw or "") == {"entity": "users"} | {k: v for k, v in named.items() if v is not None}


def test_a_row_that_the_index_refuses_is_a_dead_letter_as_a_whole() -> None:
    entries, _, _ = made(rows(("a", 1, False, "{}"), ("b", 2, False, '{"n":"x"}'), ("c", 3, True, None)))
    body = Body([entries]).chosen([1, 2]).chosen(np.array([0]))
    assert body.bytes().splitlines()[1] == b'{"n":"x"}'
    fault = body.parts[0].fault(0, "mapper_parsing_exception")
    assert json.loads(fault.raw or "") == {
        "entity": "users",
        "document_id": "b",
        "document_version": 2,
        "deleted": False,
        "document": '{"n":"x"}',
    }


def test_rows_without_a_staged_index_go_to_the_index_of_their_entity() -> None:
    again = StagedEntryBuilder(aliases={"users": "people"})
    _, lines, _ = made(rows(("a", 1, False, "{}")), again)
    assert json.loads(lines[0])["index"]["_index"] == "people"
    _, lines, faults = made(rows(("a", 1, False, "{}"), entity="teams"), again)
    assert not lines
    assert faults[0].reason == "no index is known for its entity"

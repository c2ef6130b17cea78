"""From rows to lines of a bulk request."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault
from holdfast.flow.staging import StagedBatch
from holdfast.sinks.opensearch import documents
from holdfast.sinks.opensearch.bulk_body import RecordNumbers, origin_prefix
from holdfast.sinks.opensearch.documents import EntryBuilder
from holdfast.sinks.opensearch.templates import IndexName, Template

BATCH = StagedBatch("b1", "orders", "in|a", Name("in", "a"), 3, 1)
ORDERS = IndexName(Template("orders"))
ORIGIN = origin_prefix(BATCH)


def made(builder: EntryBuilder, rows: Any, items: list[int] | None = None) -> tuple[list[Any], dict[int, Fault]]:
    """The lines as JSON, and the faults by item."""
    columns = {"value": pa.array(rows)} if isinstance(rows, list) else rows
    batch = pa.RecordBatch.from_pydict(columns)
    numbers = pa.array(items or range(batch.num_rows), pa.int64())
    lines, faults = b"", dict[int, Fault]()
    for entries, some in builder.entries(BATCH, RecordNumbers(), numbers, batch):
        assert len(entries) == len(entries.items) == len(entries.documents)
        lines += bytes(entries.bytes())
        faults |= dict(some)
    assert not lines or lines.endswith(b"\n")
    return [json.loads(line) for line in lines.split(b"\n") if line], faults


def test_a_text_that_is_json_is_passed_through_under_an_id_by_origin() -> None:
    lines, faults = made(EntryBuilder(ORDERS), ['{"a": 1}', ' {"b":"ü"}'], [0, 9])
    assert lines == [
        {"index": {"_id": f"{ORIGIN}0"}},
        {"a": 1},
        {"index": {"_id": f"{ORIGIN}9"}},
        {"b": "ü"},
    ]
    assert not faults


def test_bytes_are_the_document_whatever_other_columns_there_are() -> None:
    rows = {"topic": ["t", "t"], "value": pa.array([b'{"a":1}', b'{"a":2}']), "offset": [4, 5]}
    lines, _ = made(EntryBuilder(ORDERS, document_id=Template("{topic}-{offset}-{a}")), rows)
    assert [line["index"]["_id"] for line in lines[::2]] == ["t-4-1", "t-5-2"]
    assert lines[1::2] == [{"a": 1}, {"a": 2}]


def test_columns_are_the_document_and_their_fields_can_be_named() -> None:
    rows = {"id": [1], "user": [{"name": 'O"Hara'}], "price": [2.0]}
    builder = EntryBuilder(ORDERS, document_id=Template("{user.name}"), routing=Template("{id}"))
    lines, _ = made(builder, rows)
    assert lines == [
        {"index": {"_id": 'O"Hara', "routing": "1"}},
        {"id": 1, "user": {"name": 'O"Hara'}, "price": 2.0},
    ]


def test_a_document_that_spark_made_is_not_looked_into() -> None:
    rows = {"_document": ['{"id":1,"more":2}'], "id": [1]}
    lines, _ = made(EntryBuilder(ORDERS, document_id=Template("{id}")), rows)
    assert lines == [{"index": {"_id": "1"}}, {"id": 1, "more": 2}]
    _, faults = made(EntryBuilder(ORDERS, document_id=Template("{more}")), rows)
    assert list(faults) == [0]


def test_line_breaks_within_a_document_do_not_end_it() -> None:
    lines, _ = made(EntryBuilder(ORDERS), ['{"a":\n1}', '{"b":\r\n2}'])
    assert lines[1::2] == [{"a": 1}, {"b": 2}]


def test_what_is_no_object_is_a_dead_letter_or_becomes_a_field() -> None:
    values = ["text", "", None, "[1]", '{"a":1}', "  "]
    lines, faults = made(EntryBuilder(ORDERS), values)
    assert (lines[1::2], sorted(faults)) == ([{"a": 1}], [0, 1, 2, 3, 5])
    assert (faults[0].reason, faults[0].raw) == ("it is not a JSON object", "text")
    lines, faults = made(EntryBuilder(ORDERS, text_field="message"), values)
    assert lines[1::2] == [{"message": "text"}, {"message": "[1]"}, {"a": 1}]
    assert sorted(faults) == [1, 2, 5]


def test_the_index_of_each_record_is_named_if_they_differ() -> None:
    builder = EntryBuilder(IndexName(Template("logs-{kind}-{time:%Y.%m.%d}")))
    values = ['{"kind":"A","time":"2026-01-02"}', '{"kind":"a/b","time":"2026-01-02"}', '{"kind":"c","time":"x"}']
    lines, faults = made(builder, values)
    assert lines[0] == {"index": {"_index": "logs-a-2026.01.02", "_id": f"{ORIGIN}0"}}
    assert faults[1].reason == "the index that its fields name is not allowed"
    assert "lacks a field of the index template" in faults[2].reason


@pytest.mark.parametrize(
    ("action", "line"),
    [("create", {"create": {}}), ("delete", {"delete": {}}), ("update", {"update": {"retry_on_conflict": 3}})],
)
def test_actions(action: str, line: dict[str, Any]) -> None:
    ((word, facts),) = line.items()
    bodies = {"create": [{"id": "x"}], "delete": [], "update": [{"doc": {"id": "x"}}]}
    for builder in (
        EntryBuilder(ORDERS, Template(action)),
        EntryBuilder(ORDERS, Template(action), document_id=Template("{id}")),
    ):
        lines, _ = made(builder, ['{"id":"x"}'])
        assert set(lines[0][word]) - {"_id"} == set(facts)
        assert lines[1:] == bodies[action]


def test_an_upsert_is_an_update_that_may_create() -> None:
    lines, _ = made(EntryBuilder(ORDERS, Template("upsert")), ['{"a":1}'])
    assert lines[0]["update"]["_id"] == f"{ORIGIN}0"
    assert lines[1] == {"doc": {"a": 1}, "doc_as_upsert": True}


@pytest.mark.parametrize("action", ["update", "upsert"])
@pytest.mark.parametrize(
    "text",
    [
        '{"a":1},"upsert":{"owned":true}',
        '{"a":1},"script":{"source":"ctx._source.role=1"},"z":{}',
        '{"a":1}{"b":2}',
        '{"a":NaN}',
        '{"a":1',
        '{"x":' + "[" * 3000 + "]" * 3000 + "}",
    ],
)
def test_the_body_of_an_update_holds_what_is_one_object_and_nothing_else(action: str, text: str) -> None:
    lines, faults = made(EntryBuilder(ORDERS, action=Template(action)), ['{"a":1}', text, '{"b": 2} '])
    assert [line["doc"] for line in lines[1::2]] == [{"a": 1}, {"b": 2}]
    assert all(line.keys() <= {"doc", "doc_as_upsert"} for line in lines[1::2])
    assert [(item, fault.reason, fault.raw) for item, fault in faults.items()] == [(1, documents.NOT_AN_OBJECT, text)]


def test_only_rows_that_are_updates_must_be_one_object() -> None:
    rows = {"op": ["index", "update"], "value": pa.array([b'{"a":1}}', b'{"a":1}}'])}
    batch = pa.RecordBatch.from_pydict(rows)
    builder = EntryBuilder(ORDERS, action=Template("{op}"))
    ((entries, faults),) = builder.entries(BATCH, RecordNumbers(), pa.array([0, 1], pa.int64()), batch)
    assert (entries.items.tolist(), [item for item, _ in faults]) == ([0], [1])


def test_a_text_that_is_nested_too_deep_has_no_fields_and_fails_nothing_else() -> None:
    deep = '{"id":1,"x":' + "[" * 3000 + "]" * 3000 + "}"
    lines, faults = made(EntryBuilder(ORDERS, document_id=Template("{id}")), [deep, '{"id":2}'])
    assert [line["index"]["_id"] for line in lines[::2]] == ["2"]
    assert "lacks a field" in faults[0].reason


def test_ids_by_the_server_are_left_out() -> None:
    assert made(EntryBuilder(ORDERS, document_id="server"), ['{"a":1}'])[0] == [{"index": {}}, {"a": 1}]
    assert (
        made(EntryBuilder(ORDERS, Template("delete"), document_id="server"), ['{"a":1}'] * 2)[0] == [{"delete": {}}] * 2
    )


def test_versions_are_whole_numbers_and_may_be_the_records_own() -> None:
    builder = EntryBuilder(ORDERS, document_id=Template("{_key}"), version=Template("{v}"), version_type="external_gte")
    lines, faults = made(builder, ['{"v":7}', '{"v":"7a"}', '{"v":-1}', "{}"])
    assert lines[0] == {"index": {"_id": "in|a", "version": 7, "version_type": "external_gte"}}
    assert [faults[item].reason for item in (1, 2)] == ["its version is not a whole number"] * 2
    assert "lacks a field" in faults[3].reason
    lines, _ = made(EntryBuilder(ORDERS, version=Template("{_item}")), ["{}"], [42])
    assert lines[0]["index"]["version"] == 42


def test_ids_that_no_index_takes_are_refused() -> None:
    long = "x" * 513
    _, faults = made(
        EntryBuilder(ORDERS, document_id=Template("{id}")), [f'{{"id":"{long}"}}', '{"id":""}', '{"id":"ok"}']
    )
    assert sorted(faults) == [0, 1]


def test_index_names_and_routings_beyond_their_bounds_are_refused() -> None:
    long = "x" * 513
    builder = EntryBuilder(IndexName(Template("logs-{kind}")), routing=Template("{kind}"))
    lines, faults = made(builder, [f'{{"kind":"{long}"}}', '{"kind":"ok"}'])
    assert len(lines) == 2
    assert faults[0].reason == "the index that its fields name has more than 255 bytes"
    _, faults = made(EntryBuilder(ORDERS, routing=Template("{kind}")), [f'{{"kind":"{long}"}}', '{"kind":"ok"}'])
    assert {item: fault.reason for item, fault in faults.items()} == {0: "its routing is longer than 512 bytes"}


def test_no_index_is_named_after_a_time_too_far_ahead() -> None:
    builder = EntryBuilder(IndexName(Template("logs-{time:%Y.%m}")))
    times = ['"2026-01-02"', '"2190-01-01"', "1767400000", "6942000000000", '"2026-01-02T12:00:00Z"', '"x"', "null"]
    rows = pa.RecordBatch.from_pydict({"value": [f'{{"time":{time}}}' for time in times]})
    until = datetime(2026, 1, 4, tzinfo=UTC).timestamp()
    ((entries, found),) = builder.entries(BATCH, RecordNumbers(), pa.array(range(len(times))), rows, until)
    faults = dict(found)
    assert list(entries.items) == [0, 2, 4]
    said = "its time is too far ahead: time is more than max_ahead in the future"
    assert [faults[item].reason for item in (1, 3)] == [said] * 2
    assert "lacks a field" in faults[5].reason
    ((entries, found),) = builder.entries(BATCH, RecordNumbers(), pa.array(range(len(times))), rows)
    assert list(entries.items) == [0, 1, 2, 3, 4]


def test_large_portions_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(EntryBuilder(ORDERS), [f'{{"a":{number}}}' for number in range(100)])
    monkeypatch.setattr(documents, "LARGEST_PORTION", 100)
    assert made(EntryBuilder(ORDERS), [f'{{"a":{number}}}' for number in range(100)]) == whole


def entries_of(builder: EntryBuilder, rows: list[Any], items: list[int]) -> list[tuple[Any, ...]]:
    """All that is known of the entries."""
    batch = pa.RecordBatch.from_pydict({"value": pa.array(rows, None if rows else pa.string())})
    numbers = pa.array(items, pa.int64())
    portions = builder.entries(BATCH, RecordNumbers(), numbers, batch)
    return [
        (
            bytes(portion.bytes()),
            portion.borders.tolist(),
            portion.items.tolist(),
            portion.documents.to_pylist(),
            portion.form,
            faults,
        )
        for portion, faults in portions
    ]


@given(
    st.lists(st.binary(max_size=6) | st.just(b"{}") | st.just(b'{"a":\n1}'), max_size=10)
    | st.lists(st.text(max_size=6) | st.just("{}") | st.just('{"a":"ü"}'), max_size=10),
    st.sampled_from(["index", "create", "update"]),
    st.data(),
)
def test_a_handful_of_rows_becomes_what_many_rows_would(rows: list[Any], action: str, data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, 20), min_size=len(rows), max_size=len(rows))
    items, builder = data.draw(numbers), EntryBuilder(ORDERS, action=Template(action))
    with mock.patch.object(documents, "_small_entries", return_value=None):
        expected = entries_of(builder, rows, items)
    assert entries_of(builder, rows, items) == expected


def test_one_plain_row_takes_the_short_way() -> None:
    with mock.patch.object(documents, "_Portion", side_effect=AssertionError("the long way")):
        for row in ('{"a":1}', b'{"a":1}'):
            assert entries_of(EntryBuilder(ORDERS), [row], [0])[0][2:4] == ([0], [b'{"a":1}'])

"""Columns from messages: what fits is typed, what does not is a dead letter, and only that."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Refused
from holdfast.processors.parse.columns import JsonMessages, TypeCheck
from tests.unit.processors.rig import as_json, folders_of, message_rows, parsed

BY_SCHEMA = {"json": {"schema": "id BIGINT, note STRING"}}
GOOD = b'{"id": 1, "note": "a", "other": [1]}'


def good_rows(rows: Any) -> list[dict[str, Any]]:
    data = [name for name in rows.schema.names if not name.startswith("_")]
    return list(rows.filter(rows.column("_fault").is_null()).select(data).to_pylist())


def test_fields_become_columns_and_nothing_else_stays() -> None:
    result = parsed(message_rows([GOOD, b'{"note": null}', b"{}"]), columns=BY_SCHEMA, time="kafka")
    assert result.schema.names == ["_batch", "_item", "_fault", "_place", "id", "note"]
    assert good_rows(result) == [{"id": 1, "note": "a"}, *[{"id": None, "note": None}] * 2]


def test_columns_of_the_source_can_be_kept() -> None:
    result = parsed(message_rows([GOOD]), columns=BY_SCHEMA, keep=["key", "partition"])
    assert good_rows(result) == [{"key": b"k", "partition": 3, "id": 1, "note": "a"}]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "the message is not a JSON object"),
        (None, "the message has no value"),
        (b"null", "the message is not a JSON object"),
        (b'{"id": "1"}', "the message does not fit the columns: Expected `int | null`, got `str` - at `$.id`"),
        (b'{"id": 1.5}', "the message does not fit the columns"),
        (b'{"id": 1e30}', "the message does not fit the columns"),
        (b'{"id": 9223372036854775808}', "Failed to convert JSON to int64"),
        (b'{"id": 1, "id": 2}', "JSON parse error: Column(/id) was specified twice"),
        (b'{"note": "\\ud800"}', "JSON parse error: The surrogate pair in string is invalid"),
        (b'{"id": {}}', "the message does not fit the columns"),
        (b'{"id": 1', "the message is not a JSON object"),
        (b'{"id": 1}{"id": 2}', "the message has more than one JSON object"),
        (b'{"note": "\xff"}', "the message is not UTF-8"),
        (b'{"note": "a\nb"}', "JSON parse error"),
        (b'{"id": 1 "note": 2}', "JSON parse error"),
    ],
)
def test_a_message_that_does_not_fit_is_a_dead_letter_and_its_neighbours_are_not(
    message: bytes | None, reason: str
) -> None:
    messages = [GOOD] * 5
    messages.insert(3, message)  # type: ignore[arg-type]
    result = parsed(message_rows(messages), columns=BY_SCHEMA)
    assert good_rows(result) == [{"id": 1, "note": "a"}] * 5
    found = folders_of(result)
    assert found[3].startswith(f"<{reason}")
    letter = json.loads(result.column("_fault").to_pylist()[3])
    assert letter["raw"] == ("" if message is None else letter["raw"])
    assert result.column("_item").to_pylist() == list(range(6))


def test_a_line_break_between_the_parts_of_a_message_is_no_fault() -> None:
    result = parsed(message_rows([b'{\n  "id": 1,\r\n  "note": "a"\n}\n', GOOD]), columns=BY_SCHEMA)
    assert good_rows(result) == [{"id": 1, "note": "a"}] * 2


def test_a_message_cannot_hide_in_its_neighbour() -> None:
    messages = [b'{"note": "}', b'{"}', b'{"id": 1}{"id": 2}', GOOD]
    assert good_rows(parsed(message_rows(messages), columns=BY_SCHEMA)) == [{"id": 1, "note": "a"}]


def test_a_column_that_must_not_be_null_makes_a_dead_letter_of_what_lacks_it() -> None:
    made = JsonMessages(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    columns, bad = made.read(pa.array([b'{"id": 1}', b"{}", b'{"id": 3}'], pa.binary()))
    assert list(bad) == [1]
    assert columns[0].to_pylist() == [1, None, 3]


def test_types_beyond_text_and_numbers() -> None:
    schema = {
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(10, 2),
        "tags": pa.list_(pa.string()),
        "who": pa.struct([("name", pa.string())]),
        "ok": pa.bool_(),
    }
    message = as_json(
        {
            "at": "2026-01-01T05:00:00Z",
            "day": "2026-01-01",
            "price": "1.50",
            "tags": ["a"],
            "who": {"name": "x", "age": 3},
            "ok": True,
        }
    )
    (row,) = good_rows(parsed(message_rows(message), schema=schema, columns=BY_SCHEMA))
    assert row["at"] == datetime(2026, 1, 1, 5, tzinfo=UTC)
    assert [str(row[name]) for name in ("day", "price", "tags", "who", "ok")] == [
        "2026-01-01",
        "1.50",
        "['a']",
        "{'name': 'x'}",
        "True",
    ]
    with pytest.raises(Refused, match="column raw cannot be read from JSON"):
        JsonMessages(pa.schema([("raw", pa.binary())]))


def test_time_and_columns_can_both_be_bad_and_the_first_reason_is_told() -> None:
    time = {"json": {"field": "t", "unit": "seconds"}}
    messages = as_json({"t": 1767268800, "id": "x"}, {"id": 1}, {"t": 1767268800, "id": 1})
    found = folders_of(parsed(message_rows(messages), columns=BY_SCHEMA, time=time))
    assert found[0].startswith("<the message does not fit the columns")
    assert found[1:] == ["<the field t is missing>", "dt=2026-01-01"]


values = st.one_of(st.integers(-10, 10), st.text(max_size=3), st.none(), st.floats(allow_nan=False))


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["id", "note", "x"]), values, max_size=3), max_size=8))
def test_a_message_gives_the_same_row_in_any_company(objects: list[dict[str, Any]]) -> None:
    messages = as_json(*objects)
    at_once = parsed(message_rows(messages), columns=BY_SCHEMA)
    for row, message in enumerate(messages):
        alone = parsed(message_rows([message]), columns=BY_SCHEMA)
        assert at_once.slice(row, 1).select(["id", "note", "_fault"]).to_pylist() == (
            alone.select(["id", "note", "_fault"]).to_pylist()
        )


KINDS = {
    "id": pa.int64(),
    "small": pa.int8(),
    "ratio": pa.float32(),
    "note": pa.string(),
    "ok": pa.bool_(),
    "tags": pa.list_(pa.int32()),
    "who": pa.struct([("id", pa.int16()), ("note", pa.string())]),
}
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-200, 200), st.integers(), st.floats(), st.text(max_size=3)),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(["id", "note"]), below, max_size=2),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), anything), max_size=4))
def test_what_is_screened_out_is_refused_by_the_parser_too(members: list[tuple[str, Any]]) -> None:
    # Members and not a mapping: a name may stand there twice.
    message = "{" + ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in members) + "}"
    schema = pa.schema(KINDS)
    if TypeCheck(schema).reason(message.encode()) is not None:
        with pytest.raises(ValueError, match=r"."):
            JsonMessages(schema)._columns(pa.array([message.encode()], pa.binary()))

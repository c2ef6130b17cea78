"""JSON documents and CSV: records are the same as those of Python's parsers, in whatever portions the bytes come."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import tracemalloc
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import BatchError, Refused
from holdfast.sources.objects.codecs.codec import StreamCodec
from holdfast.sources.objects.codecs.csv import Csv
from holdfast.sources.objects.codecs.json_list import JsonList
from holdfast.sources.objects.codecs.lines import END_OF_STREAM, Lines, split_quoted_lines
from holdfast.sources.objects.object_ref import Damaged

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


def read(codec: StreamCodec, data: bytes) -> tuple[list[Any], list[Any], str | None]:
    """Rows with their items, faults with theirs, and what is said of damage."""
    rows: list[Any] = []
    faults: list[Any] = []
    try:
        for portion in codec.read(io.BytesIO(data), 0, END_OF_STREAM):
            columns = pa.RecordBatch.from_arrays(list(portion.columns), schema=codec.schema)
            columns.validate(full=True)
            rows += zip([int(item) for item in portion.items], columns.to_pylist(), strict=True)
            faults += portion.faults
    except Damaged as damage:
        return rows, faults, str(damage)
    return rows, faults, None


def values(data: bytes, chunk: int = 1 << 20, longest: int = 1 << 20) -> list[Any]:
    rows, faults, damage = read(JsonList(None, longest, chunk), data)
    assert (faults, damage) == ([], None)
    return [json.loads(row["value"]) for _, row in rows]


# --- JSON --------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
objects = st.lists(st.dictionaries(st.text('ab"\\[]{},\n', max_size=4), anything, max_size=3), max_size=8)
layouts = st.sampled_from([None, 0, 2, "\t"])


def _distinct(record: dict[str, Any]) -> Any:
    return json.loads(json.dumps(record))


@settings(deadline=None, max_examples=200)
@given(records=objects, indent=layouts, ascii_only=st.booleans(), chunk=st.integers(1, 60))
@example(records=[{"a": '\\"'}, {"a": "\\\\"}, {"}": "]"}], indent=None, ascii_only=False, chunk=1)
def test_the_elements_of_a_list(records: list[Any], indent: Any, ascii_only: bool, chunk: int) -> None:
    text = json.dumps(records, indent=indent, ensure_ascii=ascii_only)
    assert values(text.encode(), chunk) == [_distinct(record) for record in records]


@settings(deadline=None, max_examples=100)
@given(
    records=objects,
    before=st.dictionaries(
        st.text(max_size=3), st.integers() | st.dictionaries(st.text(max_size=2), st.lists(anything))
    ),
    behind=st.dictionaries(st.text(min_size=4, max_size=5), anything, max_size=3),
    indent=layouts,
    chunk=st.integers(1, 60),
)
def test_the_first_list_of_an_object_has_the_records(
    records: list[Any], before: dict[str, Any], behind: dict[str, Any], indent: Any, chunk: int
) -> None:
    text = json.dumps({**before, "Records": records, **behind}, indent=indent)
    assert values(text.encode(), chunk) == [_distinct(record) for record in records]


def test_elements_have_types_and_items_of_where_they_begin() -> None:
    data = b'\xef\xbb\xbf [\n {"id": 1,\n  "note": "a"}, {"id": 2} ]\n'
    rows, faults, damage = read(JsonList(SCHEMA), data)
    assert (faults, damage) == ([], None)
    assert [row for _, row in rows] == [{"id": 1, "note": "a"}, {"id": 2, "note": None}]
    assert [data[item : item + 7] for item, _ in rows] == [b'{"id": ', b'{"id": ']


def test_an_element_without_a_schema_is_one_line() -> None:
    rows = read(JsonList(None), b'[{"a":\r\n 1},\n{}]')[0]
    assert [row["value"] for _, row in rows] == ['{"a":   1}', "{}"]


def test_what_is_no_object_is_a_dead_letter_and_the_others_are_not() -> None:
    rows, faults, damage = read(JsonList(SCHEMA), b'[{"id":1}, 7, {"id":"x"}, null, , {"id":{"}":1}}, {"id":2}]')
    assert [row["id"] for _, row in rows] == [1, 2]
    assert damage is None
    assert sorted(str(fault.raw) for _, fault in faults) == ["", "7", "null", '{"id":"x"}', '{"id":{"}":1}}']


@pytest.mark.parametrize("empty", [b"[]", b" [ \n ] ", b'{"a": []}', b'{"a":[], "b":[{}]}'])
def test_an_empty_list_has_no_elements(empty: bytes) -> None:
    assert values(empty, 1) == []


@settings(deadline=None, max_examples=100)
@given(records=objects.filter(bool), keep=st.floats(0, 0.999), chunk=st.integers(1, 60), wrapped=st.booleans())
def test_half_a_document_gives_its_whole_elements_and_is_reported(
    records: list[Any], keep: float, chunk: int, wrapped: bool
) -> None:
    text = json.dumps({"r": records} if wrapped else records).encode()
    rows, _, damage = read(JsonList(None, 1 << 20, chunk), text[: int(len(text) * keep)])
    assert "ends too early" in str(damage)
    assert [json.loads(row["value"]) for _, row in rows] == [_distinct(record) for record in records][: len(rows)]


@pytest.mark.parametrize(
    ("text", "reason", "kept"),
    [
        (b"", "too early", 0),
        (b'"text"', "neither a list nor an object", 0),
        (b"garbage", "neither a list nor an object", 0),
        (b'{"id":1}', "no list", 0),
        (b'{"a":{"b":[{}]}}', "no list", 0),
        (b"[{},{}] [{}]", "more text after the end", 2),
        (b'[{}]{"a":1}', "more text after the end", 1),
        (b'{"a":[{},{}],"b":1} x', "more text after the end", 2),
        (b"[{},{}}", "brackets", 2),
        (b"[{},", "too early", 1),
        (b'{"a":[{}]', "too early", 1),
    ],
)
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_an_invalid_document_is_reported_after_its_good_elements(
    text: bytes, reason: str, kept: int, chunk: int
) -> None:
    rows, _, damage = read(JsonList(None, 1 << 20, chunk), text)
    assert reason in str(damage)
    assert len(rows) == kept


@pytest.mark.parametrize("chunk", [1, 7, 50, 1 << 20])
def test_an_element_that_is_too_long_is_a_dead_letter(chunk: int) -> None:
    long = json.dumps({"id": 1, "note": 'x"],[' * 100})
    rows, faults, damage = read(JsonList(SCHEMA, 60, chunk), f'[{{"id":0}},{long},{{"id":2}}]'.encode())
    assert [row["id"] for _, row in rows] == [0, 2]
    ((item, fault),) = faults
    assert item == 10
    assert "longer than 60" in fault.reason
    assert damage is None


class Endless:
    """A list that is far larger than memory should be."""

    def __init__(self, elements: int) -> None:
        self._left = elements
        self._begun = False

    def read(self, size: int, /) -> bytes:
        if not self._begun:
            self._begun = True
            return b'[{"id":0}'
        some = max(min(self._left, size // 20), 0)
        self._left -= some
        return b',{"id":1,"n":"ab"}  ' * some or (b"]" if self._close() else b"")

    def _close(self) -> bool:
        self._left, closing = -1, self._left == 0
        return closing


def test_memory_is_bounded_by_the_portion_and_not_by_the_document() -> None:
    codec, number = JsonList(None, chunk=1 << 18), 0
    tracemalloc.start()
    try:
        for portion in codec.read(Endless(1_000_000), 0, END_OF_STREAM):
            number += len(portion.items)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert number == 1_000_001
    assert peak < 12 << 20


# --- CSV -----------------------------------------------------------------------------------------------------------

fields = st.text('ab",\n\r é', max_size=6)
TEXTS = pa.schema([("a", pa.string()), ("b", pa.string())])


def written(rows: list[list[str]], ending: str, quoting: Any = csv.QUOTE_MINIMAL) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=ending, quoting=quoting).writerows(rows)
    return text.getvalue().encode()


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(st.tuples(fields, fields).map(list), max_size=10),
    ending=st.sampled_from(["\n", "\r\n"]),
    all_quoted=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_rows_are_those_that_were_written(rows: list[list[str]], ending: str, all_quoted: bool, chunk: int) -> None:
    if not all_quoted:
        # Python's writer leaves a lone carriage return without quotes, and for Arrow's parser it is a line break.
        rows = [[text.replace("\r", "") for text in row] for row in rows]
    data = written([["b", "a"], *rows], ending, csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL)
    found, faults, damage = read(Csv(TEXTS, 1 << 20, chunk), data)
    assert (faults, damage) == ([], None)
    empty = "" if all_quoted else None
    assert [(row["b"], row["a"]) for _, row in found] == [(first or empty, second or empty) for first, second in rows]
    items = [item for item, _ in found]
    assert items == sorted(set(items))


def test_types_nulls_and_columns_by_name() -> None:
    schema = pa.schema(
        [
            ("when", pa.timestamp("us", "UTC")),
            ("id", pa.int64()),
            ("price", pa.decimal128(9, 2)),
            ("day", pa.date32()),
            ("ok", pa.bool_()),
            ("none", pa.string()),
        ]
    )
    data = (
        b"\xef\xbb\xbfid,price,when,day,ok,more\n"
        b"1,1.25,2024-02-29T01:02:03+01:00,2024-02-29,true,x\n"
        b"\n"
        b"2,,2024-02-29 01:02:03.5,,,x\n"
        b"3,,2024-02-29,,false,x"
    )
    rows, faults, damage = read(Csv(schema), data)
    assert (faults, damage) == ([], None)
    whens = [dt.datetime(2024, 2, 29, 0, 2, 3), dt.datetime(2024, 2, 29, 1, 2, 3, 500_000), dt.datetime(2024, 2, 29)]  # noqa: DTZ001
    assert [row["when"].replace(tzinfo=None) for _, row in rows] == whens
    assert [row["id"] for _, row in rows] == [1, 2, 3]
    assert rows[0][1]["price"] == Decimal("1.25")
    assert [row["ok"] for _, row in rows] == [True, None, False]
    assert {row["none"] for _, row in rows} == {None}


def test_bad_rows_are_dead_letters_one_by_one() -> None:
    data = b'id,note\n1,a\nx,b\n2\n3,c,d\n4,\xff\n5,"e\nf"\n6,g\n'
    rows, faults, damage = read(Csv(SCHEMA), data)
    assert [row for _, row in rows] == [{"id": 1, "note": "a"}, {"id": 5, "note": "e\nf"}, {"id": 6, "note": "g"}]
    assert [data[item:].split(b"\n")[0] for item, _ in faults] == [b"x,b", b"2", b"3,c,d", b"4,\xff"]
    assert damage is None


def test_a_quote_in_the_midst_of_a_plain_field_is_a_letter() -> None:
    rows, faults, damage = read(Csv(TEXTS), b'a,b\n5" disk,x\nthe "best" one,y\n')
    assert [row["a"] for _, row in rows] == ['5" disk', 'the "best" one']
    assert (faults, damage) == ([], None)


def test_a_file_that_ends_within_quotes_is_cut_off() -> None:
    rows, _, damage = read(Csv(TEXTS), b'a,b\n1,x\n2,"y\n')
    assert "ends within quotes" in str(damage)
    assert [row["a"] for _, row in rows] == ["1"]


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_a_record_that_is_too_long_is_a_dead_letter(chunk: int) -> None:
    data = b'a,b\n1,x\n2,"' + b"y\n" * 100 + b'"\n3,z\n'
    rows, faults, damage = read(Csv(TEXTS, 30, chunk), data)
    assert [row["a"] for _, row in rows] == ["1", "3"]
    ((item, fault),) = faults
    assert item == 8
    assert "longer than 30" in fault.reason
    assert damage is None


@pytest.mark.parametrize(
    ("header", "reason"), [(b"a,a,b", "column a more than once"), (b"x,y", "none of the columns"), (b"\xff", "header")]
)
def test_a_header_that_does_not_fit_is_an_error_of_the_object(header: bytes, reason: str) -> None:
    with pytest.raises(BatchError, match=reason):
        list(Csv(TEXTS).read(io.BytesIO(header + b"\n1,2,3\n"), 0, END_OF_STREAM))


def test_an_empty_file_and_a_header_alone_have_no_rows() -> None:
    assert read(Csv(TEXTS), b"") == ([], [], None)
    assert read(Csv(TEXTS), b"a,b") == ([], [], None)
    assert read(Csv(TEXTS), b"a,b\n") == ([], [], None)


def test_a_type_that_csv_cannot_have_is_refused_before_anything_is_read() -> None:
    with pytest.raises(Refused, match="column a"):
        Csv(pa.schema([("a", pa.list_(pa.int64()))]))


@given(data=st.text('a",\n', max_size=30).map(str.encode), chunk=st.integers(1, 9))
@settings(deadline=None)
def test_portions_do_not_change_where_lines_end(data: bytes, chunk: int) -> None:
    def found(size: int) -> list[tuple[int, bytes]]:
        lines: list[tuple[int, bytes]] = []
        try:
            for part in split_quoted_lines(io.BytesIO(data), chunk=size):
                assert isinstance(part, Lines)
                lines += [(int(item), part.line(number)) for number, item in enumerate(part.items)]
        except Damaged:
            lines.append((-1, b""))
        return lines

    assert found(chunk) == found(1000)

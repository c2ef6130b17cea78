"""Good lines are kept beside bad ones, and each bad line is a fault with its reason."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import Refused
from holdfast.flow.fault import MAX_RAW_BYTES, Fault
from holdfast.sources.objects.codecs.lines import Jsonl, LineCodec, Lines, Text, concatenated, sift, split_lines

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


def decode(codec: LineCodec, data: bytes) -> tuple[list[Any], list[tuple[int, Fault]]]:
    rows: list[Any] = []
    faults: list[tuple[int, Fault]] = []
    for lines in split_lines(io.BytesIO(data)):
        assert isinstance(lines, Lines)
        good, bad = sift(codec, lines)
        faults += bad
        if good:
            items, columns = concatenated(good)
            table = pa.RecordBatch.from_arrays(columns, schema=codec.schema)
            table.validate(full=True)
            rows += list(zip(items.tolist(), *(column.to_pylist() for column in columns), strict=True))
    return rows, faults


def judged(data: bytes) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Rows and bad items as Python's own parser sees them, line by line."""
    rows, bad, at = [], [], 0
    for line in data.split(b"\n"):
        if line.strip(b" \t\r"):
            try:
                record = json.loads(line.decode())
                rows.append((at, _typed(record, "id", int), _typed(record, "note", str)))
            except ValueError:
                bad.append(at)
        at += len(line) + 1
    return rows, bad


def _typed(record: Any, name: str, kind: type) -> Any:
    value = record.get(name) if isinstance(record, dict) else object()
    fits = value is None or type(value) is kind
    if not fits or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        raise ValueError(name)
    if isinstance(value, str):
        value.encode()  # half a pair of surrogates is no text
    return value


values = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.booleans(), st.lists(st.integers(), max_size=2))
objects = st.dictionaries(st.sampled_from(["id", "note", "other"]), values, max_size=3)
texts = st.builds(lambda record, plain: json.dumps(record, ensure_ascii=plain).encode(), objects, st.booleans())
whole = st.builds(
    lambda number, note: json.dumps({"id": number, "note": note}).encode(), st.integers(0, 9), st.text(max_size=3)
)
blank = [b"", b" ", b"\r"]
no_object = [b"null", b"[1]", b"5", b"{", b"}", b'{"id":', b"1}", b"\xc3", b"\xa9", b"\x0c", b'{"a":{}', b'{"b":1}}']
several = [b'{"id":1}{"id":2}', b'{"id":1} null {"id":2}', b'{"id":1},']
wrong = [b'{"note":"\xff"}', b'{"id":1.5}', b'{"note":"a\x00b"}', b'{"note":"\\ud800"}', b'{"id":tru}']
odd_but_right = [b'{"other":[[[[{}]]]]}', b'  {"id":3}\t', b'{"id":1}\r']
garbage = st.sampled_from(blank + no_object + several + wrong + odd_but_right)
bodies = st.lists(st.one_of(whole, whole, texts, garbage), max_size=20).map(b"\n".join)


@settings(max_examples=300, deadline=None)
@given(data=bodies)
@example(data=b'{"id":1}{"id":2}\n{"id":\n3}')
@example(data=b"null\n")
@example(data=b'{"other":"\xc3\n\xa9"}')
def test_json_lines_are_judged_one_by_one(data: bytes) -> None:
    rows, faults = decode(Jsonl(SCHEMA), data)
    expected_rows, expected_bad = judged(data)
    assert rows == expected_rows
    assert [item for item, _ in faults] == expected_bad


@settings(deadline=None)
@given(data=bodies)
@example(data=b' \n  {"id":3}\t\n{"id": 0, "note": ""}')
def test_without_a_schema_a_json_line_stays_as_it_is(data: bytes) -> None:
    rows, faults = decode(Jsonl(None), data)
    lines: dict[int, Any] = dict(rows)
    assert all(data[item:].split(b"\n")[0].removesuffix(b"\r") == str(text).encode() for item, text in lines.items())
    ends = {item for item, _ in faults} | lines.keys()
    begins, at = set(), 0
    for line in data.split(b"\n"):
        if line.strip(b" \t\r"):
            begins.add(at)
        at += len(line) + 1
    assert ends == begins


@settings(deadline=None)
@given(data=st.lists(st.binary(max_size=6) | st.text(max_size=6).map(str.encode), max_size=12).map(b"\n".join))
@example(data=b"\xc3\n\xa9")
@example(data=b"a\r\nb\r")
def test_text_lines_that_are_utf8_are_kept_as_they_are(data: bytes) -> None:
    rows, faults = decode(Text(), data)
    found: dict[int, Any] = {**dict(rows), **{item: fault.raw for item, fault in faults}}
    parts = data.split(b"\n")
    lines = parts if parts[-1] else parts[:-1]
    at = 0
    for line in lines:
        text = line.removesuffix(b"\r").removeprefix(b"\xef\xbb\xbf" if at == 0 else b"")
        try:
            assert found.pop(at) == text.decode()
        except UnicodeDecodeError:
            assert dict(faults)[at].base64
        at += len(line) + 1
    assert not found


def test_one_bad_line_among_many_costs_a_few_parses_and_not_one_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    parse = Jsonl._parse

    def counted(codec: Jsonl, lines: Lines) -> Any:
        calls.append(len(lines))
        return parse(codec, lines)

    monkeypatch.setattr(Jsonl, "_parse", counted)
    good = b'{"id":1,"note":"fine"}\n'
    rows, faults = decode(Jsonl(SCHEMA), good * 20_000 + b'{"id":"bad"}\n' + good * 20_000)
    assert (len(rows), len(faults)) == (40_000, 1)
    assert len(calls) < 40


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id":"x"}', "Column(/id) changed from number to string"),
        (b'{"id":1', "not a JSON object"),
        (b'{"id":1,}', "Missing a name for object member"),
        (b"null", "not a JSON object"),
        (b'{"id":1}{"id":2}', "more than one JSON object"),
        (b'{"note":"\xff"}', "not valid UTF-8"),
        (b'{"id":1.5}', "couldn't parse:1.5"),
    ],
)
def test_the_reason_says_what_is_wrong(line: bytes, reason: str) -> None:
    ((item, fault),) = decode(Jsonl(SCHEMA), b'{"id":1}\n' + line + b'\n{"id":3}\n')[1]
    assert item == 9
    assert reason in fault.reason
    assert (base64.b64decode(fault.raw or "") if fault.base64 else str(fault.raw).encode()) == line


def test_of_a_long_record_the_beginning_is_kept_with_its_size() -> None:
    line = b'{"id":"' + "é".encode() * MAX_RAW_BYTES + b'"}'
    ((_, fault),) = decode(Jsonl(SCHEMA), line)[1]
    assert not fault.base64
    assert fault.size == len(line)
    assert MAX_RAW_BYTES - 4 < len(str(fault.raw).encode()) <= MAX_RAW_BYTES


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "-5", -5),
        (pa.float64(), "1e3", 1000.0),
        (pa.bool_(), "true", True),
        (pa.decimal128(10, 2), "1.25", Decimal("1.25")),
        (pa.date32(), '"2024-02-29"', dt.date(2024, 2, 29)),
        (pa.timestamp("us"), '"2024-02-29 01:02:03.5"', dt.datetime(2024, 2, 29, 1, 2, 3, 500_000)),  # noqa: DTZ001
        (
            pa.timestamp("us", "UTC"),
            '"2024-02-29T01:02:03+01:00"',
            dt.datetime(2024, 2, 29, 0, 2, 3, tzinfo=dt.UTC),
        ),
        (
            pa.list_(pa.struct([("d", pa.date32())])),
            '[{"d":"2024-01-01"},null]',
            [{"d": dt.date(2024, 1, 1)}, None],
        ),
        (pa.struct([("x", pa.int32())]), '{"x":1,"y":2}', {"x": 1}),
    ],
)
def test_types_of_the_schema(kind: pa.DataType, text: str, value: object) -> None:
    rows, faults = decode(Jsonl(pa.schema([("a", kind)])), f'{{"a":{text}}}\n{{}}\n'.encode())
    assert not faults
    assert [row[1] for row in rows] == [value, None]


def test_a_date_that_is_none_goes_to_the_dead_letters_alone() -> None:
    rows, faults = decode(Jsonl(pa.schema([("a", pa.date32())])), b'{"a":"2024-01-01"}\n{"a":"soon"}\n{"a":null}\n')
    assert [row[1] for row in rows] == [dt.date(2024, 1, 1), None]
    assert [item for item, _ in faults] == [19]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.binary(), pa.list_(pa.binary())])
def test_a_type_that_json_lines_cannot_have_is_refused_before_anything_is_read(kind: pa.DataType) -> None:
    with pytest.raises(Refused, match="column a"):
        Jsonl(pa.schema([("a", kind)]))

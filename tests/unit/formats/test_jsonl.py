"""JSON lines never alter a message: each line is the message, or a JSON string that stands for it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import BatchError
from holdfast.formats._json import not_json
from holdfast.formats.jsonl import IS_NOT_JSON, IS_NOT_TEXT, Jsonl, JsonlConfig
from holdfast.testing.formats import kafka_rows
from tests.unit.formats.test_formats import written

JSON = (
    b'{"a":1}',
    b"{}",
    b"[1,2]",
    b'"text"',
    b"-1.5e3",
    b"true",
    b"null",
    b' {"a":1}\t',
    b'{"a":"NaN and Infinity"}',
    b'{"a":"\\ud800"}',
    b'{"a":1e999999}',
    b"1" * 10_000,
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    '{"é":"\u2028"}'.encode(),
)
NOT_JSON = (
    b"",
    b" ",
    b"two\nlines",
    b"{}{}",
    b"{}\n{}",
    b'{"a":1}}',
    b'{"a":1,}',
    b'{"a":01}',
    b'{"a":NaN}',
    b"Infinity",
    b'{"a":"a\nb"}',
    b'{"a":"\t"}',
    b"{'a':1}",
    b'{"a":"\\x"}',
    b'{"a":1}\0{"b":2}',
    b"{}\0}",
    b'\xef\xbb\xbf{"a":1}',
)
NO_TEXT = (b"\xff", b'{"a":"\xff"}', b'"\xed\xa0\x80"')


def lines(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def refused(form: Jsonl, rows: pa.RecordBatch) -> list[Any]:
    reasons = form.faults(rows)
    return [None] * rows.num_rows if reasons is None else reasons.to_pylist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_string()])
def test_what_is_not_json_is_a_dead_letter_and_what_is_json_is_written_as_it_is(kind: Any) -> None:
    values = JSON + NOT_JSON + (NO_TEXT if kind == pa.binary() else ())
    rows = pa.record_batch([pa.array(values, pa.binary()).cast(kind)], names=["value"])
    found = dict(zip(values, refused(Jsonl(), rows), strict=True))
    assert found == {value: None if value in JSON else IS_NOT_JSON for value in values}
    assert written(Jsonl(), lines(*JSON)) == b"".join(value + b"\n" for value in JSON)


def test_a_message_is_judged_the_same_in_any_company() -> None:
    values = (JSON + NOT_JSON + NO_TEXT) * 40
    whole = not_json(pa.array(values, pa.binary())).tolist()
    assert whole == [index for index, value in enumerate(values) if value not in JSON]
    good = pa.array([b'{"a":1}'] * 1000, pa.binary())
    for value in JSON + NOT_JSON + NO_TEXT:
        alone = pa.array([value], pa.binary())
        many = pa.concat_arrays([good, alone, good])
        assert not_json(alone).tolist() == ([] if value in JSON else [0])
        assert not_json(many).tolist() == ([] if value in JSON else [1000])


@given(st.lists(st.text('{}[]",:\\ \n\r01-.eNaIfntu\0é', max_size=12), max_size=6))
@example(["{}{}", "{}\0}", "{}"])
@example(['{"a":"}', '{"}'])
def test_arrow_and_python_agree_on_what_is_json(texts: list[str]) -> None:
    # Braces around it, so that most of it goes to Arrow's parser, many at once.
    values = [text.encode() for text in texts] + [f'{{"a":{text}}}'.encode() for text in texts]
    found = not_json(pa.array([b"{}"] * 40 + values, pa.binary()))
    assert (found - 40).tolist() == [index for index, value in enumerate(values) if not is_json(value)]


def is_json(value: bytes) -> bool:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(value.decode(), parse_constant=refuse)
    except ValueError:
        return False
    return True


def test_line_breaks_between_tokens_become_spaces_and_null_is_null() -> None:
    rows = lines(None, b'{"a":\n1\r\n}', b"{}")
    assert refused(Jsonl(), rows) == [None, None, None]
    assert written(Jsonl(), rows) == b'null\n{"a": 1  }\n{}\n'


def test_if_set_what_is_not_json_is_a_json_string_of_its_text() -> None:
    form, rows = Jsonl(not_json="string"), lines(*JSON, *NOT_JSON, *NO_TEXT, None)
    assert refused(form, rows) == [IS_NOT_TEXT if value in NO_TEXT else None for value in rows.column(0).to_pylist()]
    found = written(form, lines(*JSON, *NOT_JSON, None)).split(b"\n")
    assert found[: len(JSON)] == list(JSON)
    assert [json.loads(line).encode() for line in found[len(JSON) : -2]] == list(NOT_JSON)
    assert found[-2:] == [b"null", b""]


def test_if_set_what_is_not_json_is_its_bytes_in_base64() -> None:
    form, others = Jsonl(not_json="base64"), NOT_JSON + NO_TEXT
    rows = lines(*JSON, *others)
    assert form.faults(rows) is None
    found = written(form, rows).splitlines()
    assert found[: len(JSON)] == list(JSON)
    assert [base64.b64decode(json.loads(line), validate=True) for line in found[len(JSON) :]] == list(others)


def test_the_setting_is_a_dead_letter_unless_given() -> None:
    assert JsonlConfig().not_json == "dead_letter"
    with pytest.raises(BatchError, match="not taken out"):
        written(Jsonl(), lines(b""))


def test_keys_and_values_of_bytes_are_both_kept() -> None:
    rows = pa.record_batch({"key": [b"k", b"\xff", None], "value": pa.array([b'{"a":1}', None, b""], pa.binary())})
    assert refused(Jsonl(), rows) == [None, None, None]
    assert [json.loads(line) for line in written(Jsonl(), rows).splitlines()] == [
        {"key": "aw==", "value": "eyJhIjoxfQ=="},
        {"key": "/w=="},
        {"value": ""},
    ]


def test_a_message_is_its_value_whatever_other_formats_want_of_it() -> None:
    for names in (["value"], ["offset", "value"], kafka_rows([]).schema.names):
        rows = kafka_rows([b'{"a":1}', b"text"]).select(names)
        assert refused(Jsonl(), rows) == [None, IS_NOT_JSON]
        assert written(Jsonl(), rows.slice(0, 1)) == b'{"a":1}\n'


def test_text_beside_other_columns_is_a_member() -> None:
    rows = pa.RecordBatch.from_pydict({"day": ["2026"], "value": ["text"]})
    assert written(Jsonl(), rows) == b'{"day":"2026","value":"text"}\n'


def test_rows_that_have_no_json_are_faults_with_the_reason() -> None:
    text = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    times = pa.array([0, 0, (1 << 63) - 1], pa.timestamp("us", "UTC"))
    reasons = refused(Jsonl(), pa.record_batch({"text": text, "at": times}))
    assert reasons == [None, "a text is not UTF-8", "the time in column at is not within the years 1 to 9999"]

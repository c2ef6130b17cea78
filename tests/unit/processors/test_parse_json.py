"""Fields of JSON messages: found wherever they are nested, and a bad message never harms another."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.processors.parse.json_fields import AT_A_TIME, JsonFields
from tests.unit.processors.rig import as_json, folders

MILLIS = {"json": {"field": "ts", "unit": "millis"}}
GOOD = b'{"ts": 1767268800000}'
DAY = "dt=2026-01-01"

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(
    scalars, lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abx"), below, max_size=3)
)


def test_a_nested_field_gives_the_day() -> None:
    messages = as_json({"a": {"b": {"c": 1767268800}}}, {"a": {"b": {"c": 1767355200}, "x": [1, {}]}, "z": "}{"})
    assert folders(messages, time={"json": {"field": "a.b.c", "unit": "seconds"}}) == [DAY, "dt=2026-01-02"]


def test_a_field_whose_name_has_a_dot_is_written_as_a_list() -> None:
    assert folders(as_json({"a.b": 1767268800}), time={"json": {"field": ["a.b"], "unit": "seconds"}}) == [DAY]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"nonsense", "the message is not JSON: JSON is malformed"),
        (b"", "the message is not JSON: Input data was truncated"),
        (None, "the message has no value"),
        (b"[1]", "the message is not a JSON object"),
        (b"null", "the message is not a JSON object"),
        (b'{"ts":1}{"ts":1}', "the message is not JSON: JSON is malformed: trailing characters"),
        (b"{}", "the field ts is missing"),
        (b'{"ts": null}', "the field ts is missing"),
        (b'{"ts": {}}', "the field ts is neither text nor number"),
        (b'{"ts": true}', "the time 'true' is not a number"),
        (b'{"ts": "soon"}', "the time 'soon' is not a number"),
        (b'{"ts": 0}', "the time is outside the years 1980 to 2200"),
        (b'{"ts": -1}', "the time is outside the years 1980 to 2200"),
        (b'{"ts": 1767268800000000}', "the time is outside the years 1980 to 2200"),
        (b'{"ts": 9223372036854775808}', "the time 9223372036854775808 is out of range"),
        (b'{"ts": 1e300}', "the time 1e+300 is out of range"),
    ],
)
def test_a_message_without_a_time_is_told_apart_and_its_neighbours_are_not_touched(
    message: bytes | None, reason: str
) -> None:
    before, found, behind = folders([GOOD, message, GOOD], time=MILLIS)
    assert (before, behind) == (DAY, DAY)
    assert found.startswith(f"<{reason}")


def test_white_space_and_line_breaks_in_a_message_are_no_fault() -> None:
    messages = [b' {"ts": 1767268800000}\r\n', b'{\n"ts":\n1767268800000}', b"\t" * 40 + GOOD]
    assert folders(messages, time=MILLIS) == [DAY] * 3


def test_a_message_cannot_hide_in_its_neighbour() -> None:
    # Joined, these would be three objects; taken one by one only the last is one.
    messages = [b'{"x": "}', b'{"}', b'{"ts":1767268800000}{"ts":1767355200000}', GOOD]
    assert [folder == DAY for folder in folders(messages, time=MILLIS)] == [False, False, False, True]


def test_strings_and_fractions_of_an_epoch_are_numbers_too() -> None:
    messages = [b'{"ts": "1767268800"}', b'{"ts": 1767268800.75}', b'{"ts": "1767268800.9"}', b'{"ts": 1.7672688e9}']
    seconds = {"json": {"field": "ts", "unit": "seconds"}}
    assert folders(messages, time=seconds) == [DAY] * 4
    # A fraction of a second before midnight is before midnight.
    assert folders([b'{"ts": 1767311999.9}', b'{"ts": "1767311999.9"}'], time=seconds) == [DAY] * 2


def test_more_messages_than_are_decoded_at_a_time_keep_their_order() -> None:
    messages = as_json(*({"ts": 1767268800000 + number * 86_400_000} for number in range(9)))
    found = folders([*[GOOD] * AT_A_TIME, b"bad", *messages, *[GOOD] * AT_A_TIME, b"bad"], time=MILLIS)
    assert found[:AT_A_TIME] == [DAY] * AT_A_TIME
    assert found[AT_A_TIME + 1 : AT_A_TIME + 10] == [f"dt=2026-01-0{number}" for number in range(1, 10)]
    assert [row for row, folder in enumerate(found) if folder[0] == "<"] == [AT_A_TIME, 2 * AT_A_TIME + 10]


def test_two_fields_are_read_from_one_message() -> None:
    messages = as_json(
        {"ts": 1767268800000, "who": {"id": "acme"}}, {"ts": 1767268800000, "who": {"id": 7}}, {"ts": 1767268800000}
    )
    found = folders(messages, time=MILLIS, names={"customer": {"json": {"field": "who.id"}}})
    assert found == [f"{DAY}/customer=acme", f"{DAY}/customer=7", "<the field who.id is missing>"]


def test_one_bad_field_leaves_the_others_alone() -> None:
    names = {"who": {"json": {"field": "who"}}}
    messages = as_json({"ts": True, "who": "a"}, {"ts": 1767268800000, "who": []}, {"ts": 1767268800000, "who": True})
    found = folders(messages, time=MILLIS, names=names, on_error="invalid")
    assert found == ["dt=__invalid__/who=a", f"{DAY}/who=__invalid__", f"{DAY}/who=true"]


def test_a_field_and_one_below_it_cannot_both_be_asked_for() -> None:
    with pytest.raises(UsageError, match="a field that contains it"):
        JsonFields([("a",), ("a", "b")])
    with pytest.raises(UsageError, match="a field inside it"):
        JsonFields([("a", "b"), ("a",)])


@settings(deadline=None)
@given(st.lists(documents.map(lambda document: json.dumps(document).encode()) | st.binary(max_size=30), max_size=6))
def test_a_message_gives_the_same_in_any_company(messages: list[bytes]) -> None:
    fields = JsonFields([("a",), ("b", "a")])
    at_once = fields.read(pa.array(messages, pa.binary()))
    for row, message in enumerate(messages):
        alone = fields.read(pa.array([message], pa.binary()))
        for path, cells in at_once.items():
            assert cells.values[row] == alone[path].values[0]
            assert cells.bad.get(row) == alone[path].bad.get(0)


@settings(deadline=None)
@given(st.lists(documents, min_size=1, max_size=5))
def test_what_is_found_is_what_json_has_there(objects: list[Any]) -> None:
    cells = JsonFields([("a", "b")]).read(pa.array(as_json(*objects), pa.binary()))[("a", "b")]
    for row, document in enumerate(objects):
        below = document.get("a") if isinstance(document, dict) else None
        expected = below.get("b") if isinstance(below, dict) else None
        scalar = not isinstance(expected, dict | list | None)
        assert (row in cells.bad) != scalar
        if scalar:
            assert cells.values[row] == (str(expected).lower() if isinstance(expected, bool) else expected)

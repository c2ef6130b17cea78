"""Output folders of several names, of offsets and constants; what has none; and which columns are read for it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.processors.rig import as_json, folders, folders_of, message_rows, parsed, step

DAY = "dt=2026-01-01"
CUSTOMER = {"customer": {"json": {"field": "c"}}}


def test_offsets_have_names_by_ranges() -> None:
    rows = message_rows([b"x"] * 4, first=99_998)
    assert folders_of(parsed(rows, offsets={"every": 100_000})) == [
        *["offset=00000000000000000000"] * 2,
        *["offset=00000000000000100000"] * 2,
    ]


def test_names_are_joined_in_their_order() -> None:
    settings: dict[str, Any] = {"time": "kafka", "names": CUSTOMER, "constant": "eu", "offsets": {"every": 10}}
    message = as_json({"c": "acme"})
    assert folders(message, **settings) == [f"eu/{DAY}/customer=acme/offset=00000000000000000000"]
    found = folders(message, **settings, order=["customer", "offsets", "time", "constant"], style="plain")
    assert found == ["acme/00000000000000000000/2026-01-01/eu"]


def test_places_are_encoded_and_none_stands_there_that_no_row_has() -> None:
    messages = as_json(*({"c": f"c{number % 3}"} for number in range(30)))
    column = parsed(message_rows(messages), names=CUSTOMER).column("_place")
    assert pa.types.is_dictionary(column.type)
    assert column.dictionary.to_pylist() == ["customer=c0", "customer=c1", "customer=c2"]
    mixed = [*messages[:1], b"bad", *messages[1:2]]
    column = parsed(message_rows(mixed), names=CUSTOMER).column("_place")
    assert column.null_count == 0
    assert column.dictionary.to_pylist() == ["customer=c0", "customer=c1"]


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("a/%25F ä=."), min_size=1), min_size=2, max_size=6))
def test_different_texts_give_different_places_of_one_segment_each(texts: list[str]) -> None:
    found = folders(as_json(*({"c": text} for text in texts)), names=CUSTOMER)
    assert all("/" not in folder for folder in found)
    assert len(set(found)) == len(set(texts))


def test_a_slash_is_escaped_and_what_looks_like_an_escaped_one_too() -> None:
    found = folders(as_json({"c": "a/b"}, {"c": "a%2Fb"}, {"c": "a%252Fb"}, {"c": "100%"}), names=CUSTOMER)
    assert found == ["customer=a%2Fb", "customer=a%252Fb", "customer=a%25252Fb", "customer=100%"]


def test_a_text_that_is_empty_or_a_fraction_is_no_name() -> None:
    assert folders(as_json({"c": ""}, {"c": 1.5}, {"c": 0}), names=CUSTOMER) == [
        "<the text for a partition name is empty>",
        "<a partition name is made of text or a whole number, not of float>",
        "customer=0",
    ]


def test_what_has_no_time_can_go_to_a_place_of_as_many_names() -> None:
    messages = as_json({"t": "2026-01-01T05:00:00Z"}, {"t": "never"}, {})
    time = {"json": {"field": "t", "unit": "iso8601"}}
    hive = folders(messages, time=time, granularity="hour", on_error="invalid")
    assert hive == [f"{DAY}/hr=05", *["dt=__invalid__/hr=__invalid__"] * 2]
    assert folders(messages[1:2], time=time, style="plain", on_error="invalid") == ["__invalid__"]
    in_pattern = folders(messages[1:2], time=time, template="y=%Y/x/%m", on_error="invalid")
    assert in_pattern == ["y=__invalid__/x/__invalid__"]
    assert folders([b"no json"], time=time, prefix="p", on_error="invalid") == ["p/dt=__invalid__"]


def test_a_fault_keeps_the_message() -> None:
    rows = parsed(message_rows([b"\xff\x00", b'{"t": "x"}']), time={"json": {"field": "t", "unit": "seconds"}})
    binary, text = (json.loads(fault) for fault in rows.column("_fault").to_pylist())
    assert (binary["kind"], binary["raw"], binary["encoding"]) == ("record", "/wA=", "base64")
    assert text["raw"] == '{"t": "x"}'


def test_a_fault_that_was_there_before_stays_and_has_no_place_of_its_own() -> None:
    rows = message_rows([*as_json({"c": "new"}), *as_json({"c": "other"})])
    rows = rows.set_column(2, "_fault", pa.array(['{"kind": "record", "reason": "before"}', None], pa.string()))
    result = parsed(rows, names=CUSTOMER)
    assert folders_of(result) == ["<before>", "customer=other"]
    assert result.column("_place").dictionary.to_pylist() == ["customer=other"]


def test_topics_are_parsed_by_the_first_rule_that_matches_the_whole_name() -> None:
    settings: dict[str, Any] = {
        "time": "kafka",
        "zone": "Pacific/Kiritimati",
        "topics": [
            {"match": r"orders\..*", "granularity": "hour"},
            {"match": "orders.*", "constant": "all"},
            {"match": "raw", "names": {}},
        ],
    }
    found = {topic: folders([b"x"], topic, **settings) for topic in ("orders.eu", "orders", "my-orders", "raw")}
    assert found == {
        "orders.eu": ["dt=2026-01-02/hr=02"],
        "orders": ["all"],
        "my-orders": ["dt=2026-01-02"],
        "raw": [""],
    }


def test_no_rows_are_no_trouble() -> None:
    for rule in ({"time": "kafka"}, {"names": CUSTOMER}, {"columns": {"json": {"schema": "id BIGINT"}}}):
        assert parsed(message_rows([]), **rule).num_rows == 0
    assert folders([b"", b""], names=CUSTOMER, on_error="invalid") == ["customer=__invalid__"] * 2


@pytest.mark.parametrize(
    ("settings", "wanted", "inputs"),
    [
        ({"time": "kafka"}, {"value"}, {"value", "timestamp"}),
        ({"time": "kafka"}, {"offset"}, {"offset", "timestamp"}),
        ({"constant": "x"}, {"value"}, {"value"}),
        ({"offsets": {"every": 5}}, {"key"}, {"key"}),
        ({"names": CUSTOMER}, {"key"}, {"key", "value"}),
        ({"time": "kafka"}, None, None),
        ({"columns": {"json": {"schema": "id BIGINT"}}}, None, {"value"}),
        ({"columns": {"json": {"schema": "id BIGINT"}}, "keep": ["offset"]}, {"key"}, {"value", "offset"}),
        ({"topics": [{"match": "a", "time": "kafka"}]}, {"value"}, {"value", "timestamp"}),
        ({"arrow": "json:loads"}, {"value"}, None),
    ],
)
def test_only_the_columns_that_are_needed_are_read(
    settings: dict[str, Any], wanted: set[str] | None, inputs: set[str] | None
) -> None:
    needed = step(**settings).inputs(None if wanted is None else frozenset(wanted))
    assert needed == (None if inputs is None else frozenset(inputs))

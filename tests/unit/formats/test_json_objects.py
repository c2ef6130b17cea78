"""Rows as JSON objects."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.formats._json_objects import json_objects


def objects(**columns: Any) -> list[Any]:
    return [json.loads(text) for text in json_objects(pa.RecordBatch.from_pydict(columns)).to_pylist()]


def test_a_row_of_which_everything_is_null_is_an_empty_object_and_not_nothing() -> None:
    nulls, some = pa.array([None, None, None], pa.string()), pa.array([None, 1, None])
    assert objects(a=nulls) == [{}, {}, {}]
    assert objects(a=nulls, b=some) == [{}, {"b": 1}, {}]


def test_a_fraction_that_is_whole_looks_like_a_fraction() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1.0, -2.5, None, 1e300, -0.0]})
    texts = ['{"a":1.0}', '{"a":-2.5}', "{}", '{"a":1e+300}', '{"a":-0.0}']
    assert json_objects(rows).to_pylist() == texts


def test_numbers_that_json_lacks_are_text() -> None:
    assert objects(a=[math.nan, math.inf, 1.5]) == [{"a": "NaN"}, {"a": "Infinity"}, {"a": 1.5}]


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_fractions_are_read_back_as_they_were(values: list[float | None]) -> None:
    assert [row.get("a") for row in objects(a=pa.array(values, pa.float64()))] == values

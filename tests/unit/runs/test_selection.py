"""Which records of the past are meant: by offsets, by time, by the names that they get."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import UsageError
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.runs.selection import Between, OnlyNames, TimeSpan, parse_between

BATCH = StagedBatch("b", "daily", "orders|0", Name("orders", "0"), 1, 1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("..", Between()),
        ("100..200", Between((100, 200))),
        ("100..", Between((100, None))),
        ("..200", Between((0, 200))),
        ("2026-01-01..", Between(times=(NEW_YEAR, None))),
        ("2026-01-01T01:00+01:00..2026-01-01T00:00Z", Between(times=(NEW_YEAR, NEW_YEAR))),
    ],
)
def test_a_span_is_two_offsets_or_two_times(text: str, meant: Between) -> None:
    assert parse_between(text) == meant


@pytest.mark.parametrize("text", ["", "5", "yesterday..", "5..2026-01-01"])
def test_anything_else_is_told(text: str) -> None:
    with pytest.raises(UsageError):
        parse_between(text)


def rows(**columns: list[Any]) -> Any:
    kinds = {"timestamp": pa.timestamp("us", tz="UTC"), "_fault": pa.string()}
    return pa.record_batch({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})


def test_records_outside_of_the_span_are_left_out_and_faults_stay() -> None:
    times = [datetime(2025, 12, 31, 23, 59, tzinfo=UTC), NEW_YEAR, datetime(2026, 1, 2, tzinfo=UTC), None, None]
    given = rows(_item=[0, 1, 2, 3, 4], timestamp=times, _fault=[None, None, None, None, "{}"])

    def chosen(between: Between) -> Any:
        return TimeSpan(between).in_task().apply(BATCH, given).column("_item").to_pylist()

    assert chosen(parse_between("2026-01-01..2026-01-02")) == [1, 4]
    assert chosen(parse_between("2026-01-01..")) == [1, 2, 4]
    assert chosen(parse_between("..2026-01-01")) == [0, 4]


def test_names_choose_a_place_and_what_is_below_it_but_no_longer_name() -> None:
    folders = pa.array(["dt=1", "dt=1/hr=2", "dt=10", "dt=2", None, None]).dictionary_encode()
    faults = pa.array([None, None, None, None, None, "{}"], pa.string())
    given = pa.record_batch({"_item": pa.array(range(6)), "_place": folders, "_fault": faults})
    assert OnlyNames("dt=1/").in_task().apply(BATCH, given).column("_item").to_pylist() == [0, 1, 5]

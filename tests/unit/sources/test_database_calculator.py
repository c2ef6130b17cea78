"""Sizes and order of the partitions of tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import Refused
from holdfast.flow.partition_list import PartitionLimits
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import Partition
from holdfast.sources.database.calculator import in_claim_order, partition_rows
from holdfast.sources.database.keys import document_id, from_json, key_of, to_json


def rows(sizing: Sizing, **totals: int) -> dict[str, int]:
    return partition_rows(totals, dict.fromkeys(totals, 1.0), sizing)


def test_partitions_have_five_to_ten_thousand_units() -> None:
    assert rows(Sizing(slots=8), small=100) == {"small": 5_000}
    assert rows(Sizing(slots=8), large=2_000_000) == {"large": 7_812}
    assert rows(Sizing(slots=1), large=2_000_000) == {"large": 10_000}
    assert partition_rows({"joined": 100}, {"joined": 5.0}, Sizing()) == {"joined": 1_000}


def test_partitions_grow_before_they_become_too_many() -> None:
    assert rows(Sizing(), huge=10**9) == {"huge": 125_000}
    many = rows(Sizing(), **{f"e{n}": 79_000_000 for n in range(10)})
    assert sum(79_000_000 / each for each in many.values()) <= 40_001


def test_a_size_that_is_given_is_kept_or_refused() -> None:
    assert rows(Sizing(rows=7), few=70) == {"few": 7}
    with pytest.raises(Refused, match="make them of 100 rows or more"):
        rows(Sizing(rows=99), many=1_000_000)
    with pytest.raises(Refused, match="a run may have 50000"):
        rows(Sizing(rows=100), **{f"e{n}": 900_000 for n in range(6)})


def test_the_speed_of_an_earlier_run_decides_the_next_sizes() -> None:
    sizing = Sizing(slots=4, rates={"slow": 30.0, "quick": 450.0})
    assert rows(sizing, slow=100_000, quick=100_000, new=100_000) == {"slow": 1_000, "quick": 2_344, "new": 5_000}
    assert rows(replace(sizing, slots=1), quick=900_000) == {"quick": 4_500}, "10 s"
    assert rows(replace(sizing, slots=99), quick=900_000) == {"quick": 1_000}
    assert rows(Sizing(slots=99, rates={"quick": 2_000.0}), quick=900_000) == {"quick": 4_000}, "2 s"


def test_limits_that_the_file_sets_hold() -> None:
    assert rows(Sizing(limits=PartitionLimits(100, 1000)), huge=8_000_000) == {"huge": 100_000}
    assert rows(Sizing(limits=PartitionLimits(1000, 100)), huge=8_000_000) == {"huge": 100_000}
    with pytest.raises(Refused, match="make them of 5000 rows or more"):
        rows(Sizing(rows=10, limits=PartitionLimits(20, 50)), many=100_000)
    with pytest.raises(Refused, match="a run may have 15"):
        rows(Sizing(rows=10, limits=PartitionLimits(20, 15)), many=160)


def test_the_highest_priority_and_then_the_largest_are_claimed_first() -> None:
    made = [
        Partition("b/0", "b", work_units=5, index=0),
        Partition("a/1", "a", work_units=9, index=1),
        Partition("a/0", "a", work_units=9, index=0),
        Partition("z/0", "z", work_units=1, priority=1, index=0),
    ]
    assert [partition.key for partition in in_claim_order(made)] == ["z/0", "a/0", "a/1", "b/0"]


@pytest.mark.parametrize("key", [[1, "a"], ["a:b", "c"], ["a", "b:c"], ["a%3Ab", "c"], ["", ":"], ["%", "%25"]])
def test_ids_of_several_columns_are_different_and_can_be_read_back(key: list[object]) -> None:
    texts = [str(value) for value in key]
    assert key_of(document_id(texts), 2) == texts
    assert from_json(to_json([*key, b"\x00\xff"])) == [*key, b"\x00\xff"]

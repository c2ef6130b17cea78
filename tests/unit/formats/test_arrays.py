"""Bytes of many records at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.formats._arrays import begins_with, binary, has_byte


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["a b", "c"], False),
        (["a\tb", "c"], False),
        (["a\tb", "c\n"], True),
        (["\n"], True),
        ([""], False),
        ([], False),
    ],
)
def test_a_byte_is_found_also_beside_smaller_ones(texts: list[str], found: bool) -> None:
    assert has_byte(binary(pa.array(texts, pa.string())), b"\n") is found


def test_only_the_records_of_a_slice_are_looked_at() -> None:
    array = pa.array(["{a", "", None, "b{", "{\n"], pa.string())
    assert begins_with(array, b"{").tolist() == [True, False, False, False, True]
    assert begins_with(array.slice(1, 3), b"{").tolist() == [False, False, False]
    assert not has_byte(array.slice(1, 3), b"\n")
    assert begins_with(pa.array([""], pa.string()), b"{").tolist() == [False]

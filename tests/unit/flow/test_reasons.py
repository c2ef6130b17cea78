"""Reasons of dead letters without the values of their records, by which letters are grouped."""

from __future__ import annotations

import pytest

from holdfast.flow.letter import general_reason


@pytest.mark.parametrize(
    ("reason", "general"),
    [
        ("date: at is not a time: yesterday", "date: at is not a time: …"),
        ("date: at is not a time: it's 5 o'clock,\nor so", "date: at is not a time: …"),
        ("date: at is not a time: ", "date: at is not a time: …"),
        ("grok: size is not of type bigint: many bytes", "grok: size is not of type bigint: …"),
        ("the time 'yesterday' is not in ISO 8601", "the time … is not in ISO …"),
        (r"""the time 'it\'s "noon"' is not a number""", "the time … is not a number"),
        ("the time 'a long text that is cu… is not in ISO 8601", "the time … is not in ISO …"),
        ("the schema registry's response to /x has no schema", "the schema registry's response to /x has no schema"),
        ('400 mapper_exception: failed to parse "x y" of [abc7]', "400 mapper_exception: failed to parse … of …"),
    ],
)
def test_values_of_records_do_not_count(reason: str, general: str) -> None:
    assert general_reason(reason) == general

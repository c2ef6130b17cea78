"""Ids of letters in few words, for the row of a partition: places, and ranges of numbers in each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from holdfast.flow.letter import LetterId


def written(ids: Iterable[LetterId]) -> list[Any]:
    """As JSON, in the same order."""
    told: list[Any] = []
    for place, some in groupby(ids, key=lambda one: one.place):
        spans: list[list[int]] = []
        for number in (one.number for one in some):
            if spans and spans[-1][1] + 1 == number:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        told.append([place, spans])
    return told


def read(told: Any) -> Iterator[LetterId]:
    """The ids that `written` was given."""
    for place, spans in told:
        for first, last in spans:
            yield from (LetterId(place, number) for number in range(first, last + 1))

"""What was read from each message of a portion, before it is understood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Bad: TypeAlias = dict[int, str]
"""Why there is nothing for a row, by the row's number in its portion."""
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Unreadable(ValueError):
    """One message has not what is asked for; the text says why."""


@dataclass
class Cells:
    """One value per row: plain Python values in a list, or texts in an Arrow array. What is bad is None."""

    values: Any
    bad: Bad = field(default_factory=dict)


@dataclass
class Ticks:
    """One time per row, counted from 1970 in UTC; what is bad has any number."""

    values: Numbers
    per_second: int
    bad: Bad = field(default_factory=dict)


@dataclass
class Coded:
    """One text per row, as its number among the few that there are; what is bad has any number."""

    codes: Numbers
    texts: Sequence[str]
    bad: Bad = field(default_factory=dict)


def distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """The distinct numbers in order, and for each row which of them it has."""
    if not len(numbers):
        return numbers, numbers
    low, high = int(numbers.min()), int(numbers.max())
    if high - low > 4 * len(numbers) + 1000:
        found, which = np.unique(numbers, return_inverse=True)
        return found, which
    # Numbers that lie close together need no sorting.
    places = numbers - low
    table = np.zeros(high - low + 1, np.int64)
    table[places] = 1
    present = np.flatnonzero(table)
    table[present] = np.arange(len(present))
    return present + low, table[places]


def without(bad: Bad, count: int) -> Any:
    """A mask of the rows that are good."""
    good = np.ones(count, np.bool_)
    good[list(bad)] = False
    return good

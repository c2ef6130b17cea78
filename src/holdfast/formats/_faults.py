"""Finds rows with values that a format or its readers cannot represent: times and text, also in nested columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DAY = 86_400 * 1_000_000
FIRST_YEAR = -719_162 * DAY
"""The beginning of the year 1, in microseconds since 1970."""
LAST_YEAR = 2_932_897 * DAY - 1
"""The end of the year 9999."""
NOT_UTF8 = "a text is not UTF-8"


@dataclass(frozen=True)
class Times:
    """The times that a format can hold: first and last instant and day, in microseconds since 1970."""

    instants: tuple[int, int]
    days: tuple[int, int]
    reason: str
    """Why a row is refused; `{}` stands for the column's name."""
    whole_before_1970: bool = False
    """Whether an instant before 1970 must be a whole second."""

    def faults(self, rows: Any) -> Any | None:
        """Like `Format.faults`."""
        import numpy as np
        import pyarrow as pa

        reasons: Any = None
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            odd = _rows_with(column, self._odd) if _has_times(column.type) else None
            if odd is not None:
                reasons = np.full(rows.num_rows, None, object) if reasons is None else reasons
                reasons[odd] = self.reason.format(name)
        return None if reasons is None else pa.array(reasons, pa.string())

    def _odd(self, column: Any) -> Any | None:
        """A mask of the times that cannot be held; None if all can."""
        import numpy as np
        import pyarrow as pa

        if pa.types.is_date(column.type):
            numbers, (first, last) = column.cast(pa.date32()).cast(pa.int32()), self.days
            first, last = first // DAY, last // DAY
        else:
            numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            first, last = self.instants
        values = np.asarray(numbers.fill_null(0))
        odd = (values < first) | (values > last)
        if self.whole_before_1970 and pa.types.is_timestamp(column.type):
            odd |= (values < 0) & (values % 1_000_000 != 0)
        return odd if odd.any() else None


YEARS = Times(
    (FIRST_YEAR, LAST_YEAR), (FIRST_YEAR, LAST_YEAR), "the time in column {} is not within the years 1 to 9999"
)


def _has_times(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    return any(_has_times(kind.field(index).type) for index in range(kind.num_fields))


def _rows_with(column: Any, odd: Callable[[Any], Any | None]) -> Any | None:
    """A mask of the rows that have an odd value at any depth; None if there is none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from holdfast.formats._arrays import entries_of

    types, kind = pa.types, column.type
    if not _has_times(kind):
        return None
    if types.is_struct(kind):
        parts = [found for part in column.flatten() if (found := _rows_with(part, odd)) is not None]
        return np.logical_or.reduce(parts) if parts else None
    if types.is_map(kind):
        return _rows_with(entries_of(column), odd)
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _rows_with(column.flatten(), odd)
        if inner is None:
            return None
        rows = np.zeros(len(column), bool)
        rows[np.asarray(pc.list_parent_indices(column))[inner]] = True
        return rows
    return odd(column)


def text_faults(rows: Any) -> Any | None:
    """Like `Format.faults`: rows with text that is not UTF-8, which Spark does not reject."""
    return reasons_at(not_utf8(rows), rows.num_rows, NOT_UTF8)


def not_utf8(rows: Any) -> Any:
    """Indices of the rows of a record batch, or values of an array, with text that is not UTF-8; found by halving."""
    import numpy as np
    import pyarrow as pa

    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        if len(rows) == 1:
            return np.array([0])
        half = len(rows) // 2
        return np.concatenate([not_utf8(rows.slice(0, half)), half + not_utf8(rows.slice(half))])
    return np.array([], np.int64)


def reasons_at(indices: Any, count: int, reason: str) -> Any | None:
    """Like `Format.faults`: the same reason at all of these indices."""
    import numpy as np
    import pyarrow as pa

    if not len(indices):
        return None
    reasons = np.full(count, None, object)
    reasons[indices] = reason
    return pa.array(reasons, pa.string())


def either(first: Any | None, second: Any | None) -> Any | None:
    """The faults of both; a row with two reasons keeps the first."""
    import pyarrow.compute as pc

    if first is None or second is None:
        return second if first is None else first
    return pc.coalesce(first, second)

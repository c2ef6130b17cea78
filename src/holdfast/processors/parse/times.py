"""Times from values of messages: epochs, ISO 8601, patterns. Each time depends on its value alone."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.processors.parse.portion import Bad, Cells, Ticks, Unreadable
from holdfast.processors.parse.time_patterns import TimePattern

PER_SECOND = {"seconds": 1, "millis": 10**3, "micros": 10**6, "nanos": 10**9}
_MICROS = 10**6
_NANOS = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 60
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True)
class TimeReader:
    """Reads times: epochs in a unit, or text in ISO 8601 or by a pattern."""

    unit: str | None
    pattern: TimePattern | None
    zone: ZoneInfo
    """Time zone of texts that do not name one."""

    def read(self, cells: Cells) -> Ticks:
        """The times of all rows. Dates and times that a decoder has made are taken as they are."""
        per_second = PER_SECOND.get(self.unit or "")
        if per_second is not None:
            return _epochs(cells, per_second)
        texts, bad = _texts(cells)
        if texts is None:
            return _each(cells, _MICROS, self._moment)
        ticks = self._iso(texts) if self.pattern is None else self._by_pattern(texts, self.pattern)
        ticks.bad |= bad
        return ticks

    def _moment(self, value: Any) -> int:
        if isinstance(value, date | datetime):
            return _micros(value, self.zone)
        if isinstance(value, str):
            ticks = self.read(Cells(pa.array([value], pa.string())))
            if ticks.bad:
                raise Unreadable(ticks.bad[0])
            return int(ticks.values[0]) * _MICROS // ticks.per_second
        raise Unreadable(f"the time {_shown(value)} is not text")

    def _iso(self, texts: Any) -> Ticks:
        for convert in (_with_zone, self._without_zone):
            try:
                return Ticks(_plain(convert(texts)), _NANOS)
            except pa.ArrowInvalid:
                continue
        return self._iso_by_distinct_text(texts)

    def _iso_by_distinct_text(self, texts: Any) -> Ticks:
        """The times of texts of which some have a time zone and some do not, or some are not times."""

        def nanos(text: str) -> int:
            single = pa.array([text], pa.string())
            for convert in (_with_zone, self._without_zone):
                try:
                    return int(_plain(convert(single))[0])
                except pa.ArrowInvalid:
                    continue
            raise Unreadable(f"the time {_shown(text)} is not in ISO 8601")

        return _each_distinct(texts, _NANOS, nanos)

    def _without_zone(self, texts: Any) -> Any:
        local = texts.cast(pa.timestamp("ns"))
        if self.zone.key == "UTC":
            return local
        return pc.assume_timezone(local, self.zone.key, ambiguous="earliest", nonexistent="earliest")

    def _by_pattern(self, texts: Any, pattern: TimePattern) -> Ticks:
        return _each_distinct(texts, _MICROS, lambda text: _micros(pattern.moment(text), self.zone))


def within_years(ticks: Ticks, first: int, last: int) -> Ticks:
    """The same times; times outside these years are bad."""
    low, high = (_seconds_of(year) * ticks.per_second for year in (first, last + 1))
    outside = (ticks.values < low) | (ticks.values >= high)
    if outside.any():
        for row in np.flatnonzero(outside).tolist():
            ticks.bad.setdefault(row, f"the time is outside the years {first} to {last}")
    return ticks


def _seconds_of(year: int) -> int:
    return int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())


def _epochs(cells: Cells, per_second: int) -> Ticks:
    values = cells.values
    if isinstance(values, pa.Array):
        try:
            # Arrow would accept 0x1F as a number.
            if not pc.any(pc.match_substring(values, "x", ignore_case=True)).as_py():
                return Ticks(_plain(values.cast(pa.int64())), per_second, cells.bad)
        except pa.ArrowInvalid:
            pass
        return _each(Cells(values.to_pylist(), cells.bad), per_second, lambda value: _epoch(value, per_second))
    try:
        # Accepts whole numbers only, and is twice as fast as numpy.
        return Ticks(np.frombuffer(array("q", values), np.int64), per_second, cells.bad)
    except (TypeError, OverflowError):
        return _each(cells, per_second, lambda value: _epoch(value, per_second))


def _epoch(value: Any, per_second: int) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return math.floor(value)
    if isinstance(value, date | datetime):
        return _micros(value, ZoneInfo("UTC")) * per_second // _MICROS
    if isinstance(value, str) and len(value) <= _SHOWN and _NUMBER.fullmatch(value):
        return math.floor(Decimal(value))
    raise Unreadable(f"the time {_shown(value)} is not a number")


def _each(cells: Cells, per_second: int, convert: Callable[[Any], int]) -> Ticks:
    numbers, bad = [0] * len(cells.values), cells.bad
    for row, value in enumerate(cells.values):
        if row in bad:
            continue
        try:
            numbers[row] = _fitting(convert(value), value)
        except ValueError as wrong:
            bad[row] = str(wrong)
    return Ticks(np.array(numbers, np.int64), per_second, bad)


def _each_distinct(texts: Any, per_second: int, convert: Callable[[str], int]) -> Ticks:
    encoded = texts.dictionary_encode()
    ticks = _each(Cells(encoded.dictionary.to_pylist()), per_second, convert)
    which = _plain(encoded.indices.fill_null(0))
    if not len(ticks.values):
        return Ticks(np.zeros(len(texts), np.int64), per_second)
    bad: Bad = {}
    for number, reason in ticks.bad.items():
        bad |= dict.fromkeys(np.flatnonzero(which == number).tolist(), reason)
    return Ticks(ticks.values[which], per_second, bad)


def _fitting(number: int, value: Any) -> int:
    if not -(2**63) <= number < 2**63:
        raise Unreadable(f"the time {_shown(value)} is out of range")
    return number


def _texts(cells: Cells) -> tuple[Any, Bad]:
    """The values as an Arrow array of texts; None if some are not texts."""
    if isinstance(cells.values, pa.Array):
        return cells.values, cells.bad
    try:
        return pa.array(cells.values, pa.string()), cells.bad
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        return None, cells.bad


def _with_zone(texts: Any) -> Any:
    return texts.cast(pa.timestamp("ns", "UTC"))


def _micros(value: date | datetime, zone: ZoneInfo) -> int:
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    passed = moment - _EPOCH
    return (passed.days * 86400 + passed.seconds) * _MICROS + passed.microseconds


def _plain(numbers: Any) -> Any:
    if pa.types.is_timestamp(numbers.type):
        numbers = numbers.cast(pa.int64())
    return numbers.fill_null(0).to_numpy(zero_copy_only=False)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

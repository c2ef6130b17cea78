"""One rule at work: rows in, rows with a place out, and with columns if it says so. Made where it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from holdfast.flow.kafka_columns import TIMESTAMP, VALUE
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN
from holdfast.processors.parse.cells import Bad, Cells, Coded, Ticks
from holdfast.processors.parse.config import CONSTANT, OFFSETS, TIME, NameFrom, ParseRule, TimeFrom
from holdfast.processors.parse.finding import Materials, Origins, message_columns
from holdfast.processors.parse.naming import TimeNames, joined, named, numbered, placed, with_invalid
from holdfast.processors.parse.own import MESSAGE_COLUMNS, OnBatches, OnMessages
from holdfast.processors.parse.patterns import INVALID, NamePattern, TimePattern
from holdfast.processors.parse.reading import Portion
from holdfast.processors.parse.rows import faulty, with_data, with_place
from holdfast.processors.parse.times import TimeReader, within_years


@dataclass(frozen=True)
class Part:
    """One of the things of which a place is made."""

    coded: Callable[[Portion], Coded]
    invalid: str = ""
    """What stands there when a message has none of it."""


class Rule:
    """What one rule of the settings does. Raises `UsageError` when made of settings that cannot be."""

    def __init__(self, rule: ParseRule, materials: Materials) -> None:
        self._rule = rule
        self._origins = Origins(materials)
        self._parts = [self._part(name) for name in (rule.order or rule.parts())]
        if rule.prefix is not None:
            self._parts.insert(0, Part(_constant(rule.prefix)))
        self._fields = self._origins.json_fields()
        self._columns = message_columns(rule, materials)
        self._own: OnMessages | OnBatches | None = None
        if rule.python is not None:
            self._own = OnMessages(rule.python, dead_letters=rule.on_error == "dead_letter")
        elif rule.arrow is not None:
            self._own = OnBatches(rule.arrow)

    def apply(self, topic: str, rows: Any) -> Any:
        """The rows with their places, and with columns. A row that came with a fault keeps it."""
        if self._own is not None:
            return self._own.apply(topic, rows)
        portion, bad = Portion(rows, self._fields), Bad()
        columns: list[Any] | None = None
        if self._parts and rows.num_rows:
            place = self._place(portion)
            rows = with_place(rows, placed(place, rows.num_rows))
            bad = place.bad
        if self._columns is not None:
            columns, refused = self._columns.read(portion.values)
            bad = bad | refused
        if bad:
            rows = faulty(rows, bad)
        if self._columns is not None and columns is not None:
            rows = with_data(rows, self._columns.schema, columns, self._rule.keep)
        return rows

    def _place(self, portion: Portion) -> Coded:
        found = [part.coded(portion) for part in self._parts]
        if self._rule.on_error == "invalid":
            found = [with_invalid(one, part.invalid) for one, part in zip(found, self._parts, strict=True)]
        whole = joined(found)
        faults = portion.rows.column(FAULT_COLUMN)
        if faults.null_count < len(faults):
            # Their places do not count either.
            known = np.flatnonzero(faults.is_valid().to_numpy(zero_copy_only=False))
            whole.bad |= dict.fromkeys(known.tolist(), "it has a fault already")
        return whole

    def _part(self, name: str) -> Part:
        rule = self._rule
        if name == TIME and rule.time is not None:
            return self._time_part(rule.time)
        if name == CONSTANT and rule.constant is not None:
            return Part(_constant(rule.constant))
        if name == OFFSETS and rule.offsets is not None:
            key, every = "offset=" if rule.style == "hive" else "", rule.offsets.every
            return Part(lambda portion: numbered(_items(portion), every, key))
        return self._name_part(name, rule.names[name])

    def _time_part(self, time: TimeFrom) -> Part:
        rule, chosen = self._rule, time.chosen
        written = getattr(chosen, "format", None)
        reader = TimeReader(
            getattr(chosen, "unit", None), TimePattern(written) if written else None, ZoneInfo(rule.text_zone)
        )
        origin, pattern = self._origins.of(chosen), NamePattern(rule.time_pattern())
        names = TimeNames(pattern, ZoneInfo(rule.zone))

        def coded(portion: Portion) -> Coded:
            found = origin.read(portion)
            ticks = found if isinstance(found, Ticks) else reader.read(found)
            return names.coded(within_years(ticks, rule.min_year, rule.max_year))

        return Part(coded, pattern.invalid())

    def _name_part(self, name: str, source: NameFrom) -> Part:
        origin, key = self._origins.of(source.chosen), f"{name}=" if self._rule.style == "hive" else ""

        def coded(portion: Portion) -> Coded:
            found = origin.read(portion)
            assert isinstance(found, Cells)
            return named(found, key)

        return Part(coded, key + INVALID)


def inputs_of(rule: ParseRule, wanted: frozenset[str] | None) -> frozenset[str] | None:
    """The columns that the rule must be given so that the wanted ones come out; None: all."""
    if rule.arrow is not None:
        return None
    reads: set[str] = set()
    if rule.python is not None:
        reads |= MESSAGE_COLUMNS
    if rule.names or rule.columns is not None or (rule.time is not None and rule.time.kafka is None):
        reads.add(VALUE)
    if rule.time is not None and rule.time.kafka is not None:
        reads.add(TIMESTAMP)
    if rule.columns is not None:
        return frozenset(reads | set(rule.keep))
    return None if wanted is None else frozenset(reads | wanted)


def _constant(text: str) -> Callable[[Portion], Coded]:
    return lambda portion: Coded(np.zeros(portion.rows.num_rows, np.int64), [text])


def _items(portion: Portion) -> Any:
    return portion.rows.column(ITEM_COLUMN).fill_null(0).to_numpy(zero_copy_only=False)

"""The behaviour that every format must show. Subclass it to test your own.

class TestMyFormat(FormatBehaviour):
    def make_format(self) -> Format:
        return MyFormat(...)
"""

from __future__ import annotations

import io
import math
import pickle
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.flow.format import Format
from holdfast.flow.kafka_columns import kafka_schema

FIRST_OFFSET = 1 << 40
BIG = 300_000
MANY = 12_000
VALUES = (
    b'{"a":1}',
    b"",
    "é 漢 🙂".encode(),
    b"\x00\xff\x80 no text",
    b"x" * 127,
    b"y" * 128,
    b"\\n and \\\\ and \\",
    None,
    bytes(range(256)) * (BIG // 256),
    b"two\nlines\r\n",
    b"the end",
)
KEYS = (None, b"", b"key", b"k" * 255, b"k" * 70_000, b"\xff")
_BORN = datetime(2026, 1, 1, tzinfo=UTC)

KAFKA_SCHEMA = kafka_schema()


def kafka_rows(values: Sequence[bytes | None], first: int = FIRST_OFFSET) -> pa.RecordBatch:
    """Rows as Kafka's source gives them, with keys and headers of every kind."""
    headers: tuple[Any, ...] = (None, [], [{"key": "é", "value": b""}, {"key": "", "value": None}])
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": "orders",
                "partition": 3,
                "offset": first + number,
                "timestamp": _BORN + timedelta(microseconds=number),
                "timestamp_type": number % 2,
                "key": KEYS[number] if number < len(KEYS) else b"key%d" % (number % 9),
                "value": value,
                "headers": headers[number % len(headers)],
            }
            for number, value in enumerate(values)
        ],
        KAFKA_SCHEMA,
    )


MICROSECONDS = (
    -(1 << 63),
    -62_135_596_800_000_001,
    -62_135_596_800_000_000,
    -12_219_292_800_000_000,
    -2_208_988_800_000_001,
    -1_500_000,
    -1_000_000,
    -1,
    0,
    1,
    9_223_372_036_854_775,
    9_223_372_036_854_776,
    253_402_300_799_999_999,
    253_402_300_800_000_000,
    (1 << 63) - 1,
)
"""Times at which programs differ: the years 1, 1582, 1900, 1970, 2262, 10000, and the ends of 64 bits."""
DAYS = (-(1 << 31), -719_163, -719_162, -141_428, -141_427, -1, 0, 2_932_896, 2_932_897, (1 << 31) - 1)
_NESTED = pa.list_(pa.struct([("at", pa.timestamp("us", "UTC")), ("data", pa.binary())]))
_EXTREMES: dict[Any, Sequence[Any]] = {
    pa.bool_(): (True, False),
    pa.int8(): (-(1 << 7), (1 << 7) - 1),
    pa.int16(): (-(1 << 15), (1 << 15) - 1),
    pa.int32(): (-(1 << 31), (1 << 31) - 1),
    pa.int64(): (-(1 << 63), (1 << 63) - 1, 0),
    pa.float32(): (math.nan, math.inf, -math.inf, 2.0**-149, (2 - 2.0**-23) * 2.0**127, 0.0),
    pa.float64(): (math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, -1e-5, 1e16),
    pa.decimal128(38, 0): (Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)),
    pa.decimal128(38, 38): (Decimal("0." + 38 * "9"), Decimal("-0." + 37 * "0" + "1")),
    pa.string(): ("", "\0", '\r\n\t"\\ \u2028', "\U0010ffff", "x" * 70_000),
    pa.binary(): (b"", b"\0", bytes(range(256)), b"\xff" * 70_000),
    pa.date32(): DAYS,
    pa.timestamp("us", "UTC"): MICROSECONDS,
    pa.timestamp("us"): MICROSECONDS,
    _NESTED: ([], [None], [{"at": None, "data": None}], *([{"at": 0}, {"at": at}] for at in MICROSECONDS)),
    pa.map_(pa.string(), pa.timestamp("us", "UTC")): ([], [("", None)], *([("k", at)] for at in MICROSECONDS)),
}


def extremes() -> pa.RecordBatch:
    """Columns `a`, `b` and so on, one of every type; each row has one extreme value, and null in all other columns."""
    names = [chr(ord("a") + number) for number in range(len(_EXTREMES))]
    schema = pa.schema(list(zip(names, _EXTREMES, strict=True)))
    rows = [{name: value} for name, values in zip(names, _EXTREMES.values(), strict=True) for value in values]
    return pa.RecordBatch.from_pylist([{}, *rows], schema)


def kafka_extremes() -> pa.RecordBatch:
    """Messages of every time that Kafka can carry, with offsets and partitions as large as they can be."""
    rows = kafka_rows([b'{"number":%d}' % number for number in range(len(MICROSECONDS))])
    largest = (1 << 63) - 1 - len(MICROSECONDS)
    columns = {
        "offset": pa.array(range(largest, largest + len(MICROSECONDS)), pa.int64()),
        "partition": pa.array([(1 << 31) - 1] * len(MICROSECONDS), pa.int32()),
        "timestamp": pa.array(MICROSECONDS, pa.timestamp("us", "UTC")),
    }
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def comparable(value: Any) -> Any:
    """Rows or values in a form that can be compared between readers: times are numbers, and NaN equals itself."""
    if isinstance(value, pa.RecordBatch | pa.Table):
        numbers = [value.column(index).cast(_timeless(field.type)) for index, field in enumerate(value.schema)]
        return comparable(pa.table(numbers, names=value.schema.names).to_pylist())
    if isinstance(value, dict):
        return {name: comparable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _timeless(kind: Any) -> Any:
    types = pa.types
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_date(kind):
        return pa.int32()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_timeless(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_timeless(kind.value_type))
    return pa.map_(kind.key_type, _timeless(kind.item_type)) if types.is_map(kind) else kind


class FormatBehaviour:
    """The guarantees of a format for sinks and readers of files."""

    unfit = 3
    """How many of `VALUES` the format may refuse."""
    only_messages = False
    """Whether the format accepts only Kafka's columns."""

    @abstractmethod
    def make_format(self) -> Format: ...

    @pytest.fixture
    def form(self) -> Format:
        return self.make_format()

    def rows(self, form: Format, values: Sequence[bytes | None] = VALUES) -> pa.RecordBatch:
        """Rows with the columns that the format keeps, without rows that it cannot hold."""
        every = kafka_rows(values)
        return _sound(form, every.select([name for name in every.schema.names if name in form.keeps]))

    def written(self, form: Format, *portions: pa.RecordBatch) -> bytes:
        """The bytes of a file, written by a pickled copy of the format, as in a task."""
        raw = io.BytesIO()
        writer = pickle.loads(pickle.dumps(form)).open(raw, portions[0].schema)  # noqa: S301 - our own bytes
        for rows in portions:
            writer.write(rows)
            assert writer.buffered >= 0
        writer.close()
        assert not raw.closed
        return raw.getvalue()

    def read(self, form: Format, data: bytes) -> list[dict[str, Any]]:
        """All rows of a file."""
        file, found = io.BytesIO(data), []
        for batch in form.read(file):
            assert batch.num_rows
            found += batch.to_pylist()
        assert not file.closed
        return found

    def read_elsewhere(self, form: Format, data: bytes, schema: pa.Schema) -> list[Any]:
        """All rows of a file with this schema, read by a program other than holdfast, in the form of `comparable`."""
        return [row for batch in form.read(io.BytesIO(data)) for row in comparable(batch)]

    # --- there and back --------------------------------------------------------------------------------------------

    def test_rows_come_back_as_they_were(self, form: Format) -> None:
        rows = self.rows(form)
        assert rows.num_rows >= len(VALUES) - self.unfit
        assert self.read(form, self.written(form, rows)) == rows.to_pylist()

    def test_many_rows_come_back_in_order(self, form: Format) -> None:
        rows = self.rows(form, [b'{"number":%d,"text":"some of it repeats"}' % n for n in range(MANY)])
        assert self.read(form, self.written(form, rows.slice(0, 8192), rows.slice(8192))) == rows.to_pylist()

    def test_a_file_without_rows_is_a_file(self, form: Format) -> None:
        assert self.read(form, self.written(form, self.rows(form).slice(0, 0))) == []

    def test_a_row_alone_comes_back(self, form: Format) -> None:
        for value in (b"", b"one"):
            rows = self.rows(form, [value])
            assert self.read(form, self.written(form, rows)) == rows.to_pylist()

    # --- the same rows, the same bytes -----------------------------------------------------------------------------

    def test_portions_do_not_matter(self, form: Format) -> None:
        rows = pa.concat_batches([self.rows(form)] * 3 + [self.rows(form, [b"%d" % n for n in range(300)])])
        whole = self.written(form, rows)
        assert self.written(form, *(rows.slice(start, 1) for start in range(rows.num_rows))) == whole
        assert self.written(form, *(rows.slice(start, 77) for start in range(0, rows.num_rows, 77))) == whole
        assert self.written(form, rows.slice(0, 0), rows, rows.slice(0, 0)) == whole

    def test_how_rows_lie_in_memory_does_not_matter(self, form: Format) -> None:
        rows = self.rows(form)
        between = pa.concat_batches([rows, rows, rows]).slice(rows.num_rows, rows.num_rows)
        assert self.written(form, between) == self.written(form, rows)
        held = rows.filter(rows.column("value").is_valid())
        no_bitmap = pa.RecordBatch.from_pylist(held.to_pylist(), rows.schema)
        assert self.written(form, no_bitmap) == self.written(form, held)

    # --- what cannot be held ---------------------------------------------------------------------------------------

    def test_nothing_is_held_that_does_not_come_back(self, form: Format) -> None:
        every = kafka_rows(VALUES)
        every = every.select([name for name in every.schema.names if name in form.keeps])
        reasons = form.faults(every)
        if reasons is not None:
            assert len(reasons) == every.num_rows
            assert all(reason is None or len(reason) > 10 for reason in reasons.to_pylist())
            assert 0 < len(reasons) - reasons.null_count <= self.unfit
            assert form.faults(_sound(form, every)) is None

    def test_what_is_skipped_is_what_the_format_cannot_hold(self, form: Format) -> None:
        """Only rows that would be dead letters may be left out, and by a setting that people can see."""
        every = kafka_rows(VALUES)
        reasons = form.faults(every.select([name for name in every.schema.names if name in form.keeps]))
        assert form.skips <= set(() if reasons is None else reasons.to_pylist())
        assert len([limit for limit in form.limits() if "(" in limit and "skip" in limit]) >= len(form.skips)

    def test_what_is_held_of_every_types_extremes_is_read_by_other_programs(self, form: Format) -> None:
        messages = kafka_extremes()
        held = [messages.select([name for name in messages.schema.names if name in form.keeps])]
        for every in held if self.only_messages else [*held, extremes()]:
            rows = _sound(form, every)
            # A format may refuse odd times, and nothing else of these.
            refused = every.num_rows - rows.num_rows
            assert refused <= 2 * len(DAYS) + 4 * len(MICROSECONDS)
            data = self.written(form, rows)
            assert self.read_elsewhere(form, data, rows.schema) == comparable(rows)
            assert sum(batch.num_rows for batch in form.read(io.BytesIO(data))) == rows.num_rows

    # --- files that are not whole ----------------------------------------------------------------------------------

    def test_a_file_that_is_cut_off_is_refused(self, form: Format) -> None:
        data = self.written(form, self.rows(form))
        for size in (len(data) - 1, len(data) * 2 // 3):
            with pytest.raises(ValueError, match=r"."):
                self.read(form, data[:size])

    def test_a_file_of_another_kind_is_refused(self, form: Format) -> None:
        with pytest.raises(ValueError, match=r"."):
            self.read(form, b"\x01 this is not such a file")


def _sound(form: Format, rows: pa.RecordBatch) -> pa.RecordBatch:
    reasons = form.faults(rows)
    return rows if reasons is None else rows.filter(reasons.is_null())

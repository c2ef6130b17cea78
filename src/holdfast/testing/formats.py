"""The behaviour that every format must show. Subclass to prove one.

class TestMyFormat(FormatBehaviour):
    def make_format(self) -> Format:
        return MyFormat(...)
"""

from __future__ import annotations

import io
import pickle
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from holdfast.flow.format import Format

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

KAFKA_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


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


class FormatBehaviour:
    """What a format promises to sinks and to those who read files back."""

    @abstractmethod
    def make_format(self) -> Format: ...

    @pytest.fixture
    def form(self) -> Format:
        return self.make_format()

    def rows(self, form: Format, values: Sequence[bytes | None] = VALUES) -> pa.RecordBatch:
        """Rows with the columns that the format keeps, without those that it cannot hold."""
        every = kafka_rows(values)
        return _sound(form, every.select([name for name in every.schema.names if name in form.keeps]))

    def written(self, form: Format, *portions: pa.RecordBatch) -> bytes:
        """The bytes of a file, written by a copy of the format as it is in a task."""
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

    # --- there and back --------------------------------------------------------------------------------------------

    def test_rows_come_back_as_they_were(self, form: Format) -> None:
        rows = self.rows(form)
        assert rows.num_rows >= len(VALUES) - 3
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
            assert 0 < len(reasons) - reasons.null_count <= 3
            assert form.faults(_sound(form, every)) is None

    # --- files that are not whole ----------------------------------------------------------------------------------

    def test_a_file_that_is_cut_off_is_refused(self, form: Format) -> None:
        data = self.written(form, self.rows(form))
        for size in (len(data) - 1, len(data) * 2 // 3):
            with pytest.raises(ValueError, match=r"."):
                self.read(form, data[:size])

    def test_a_file_of_another_kind_is_refused(self, form: Format) -> None:
        with pytest.raises(ValueError, match=r"."):
            self.read(form, b"\x01 this is no such file")


def _sound(form: Format, rows: pa.RecordBatch) -> pa.RecordBatch:
    reasons = form.faults(rows)
    return rows if reasons is None else rows.filter(reasons.is_null())

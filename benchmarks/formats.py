"""Rows per second of CPU of the formats' writers, beside what one would write first: Python for each record, or zlib.

Rows are Kafka's, with messages of about 150 bytes, in the portions in which the files sink gives them. What is written
is counted and thrown away.
"""

from __future__ import annotations

import io
import json
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.format import Format
from holdfast.formats.avro import Avro
from holdfast.formats.avro.schemas import avro_schema
from holdfast.formats.jsonl import Jsonl
from holdfast.formats.orc import Orc
from holdfast.formats.parquet import Parquet
from holdfast.formats.raw import Raw
from holdfast.formats.sequencefile import SequenceFile
from holdfast.formats.sequencefile.layout import BLOCK_BYTES, vint
from holdfast.formats.text import Text
from holdfast.testing.formats import kafka_rows

ROWS = 65_536
BLOCK = 8192
REPETITIONS = 9
SYNC = b"\xff\xff\xff\xff" + bytes(16)

Write = Callable[[Sequence[Any]], None]


class Counted(io.RawIOBase):
    """A file that keeps nothing."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B"))


def run() -> list[Comparison]:
    every = kafka_rows([_message(number) for number in range(ROWS)])
    messages = every.select(["offset", "key", "value"])
    columns = every.drop_columns(["value", "key", "headers"])
    return [
        _compared(f"{name} against {peer_name}", rows, partial(_write, form), peer, bar)
        for name, form, rows, peer_name, peer, bar in (
            ("sequencefile", SequenceFile(), messages, "Python for each record", _sequence_records, 5.0),
            ("sequencefile messagepack", SequenceFile("messagepack"), messages, "the same", _packed_records, 3.0),
            ("sequencefile block", SequenceFile("legacy", "block"), messages, "the same and zlib 1", _blocks, 3.0),
            ("sequencefile record", SequenceFile("legacy", "record"), messages, "zlib 1", _zlib_records, 1.0),
            ("text", Text(), messages, "Python for each line", _lines, 2.0),
            ("text gzip", Text(compression="gzip"), messages, "lines joined by Python and zlib 1", _zlib_lines, 3.0),
            ("text escaped", Text(containing="escape"), messages, "Python for each line", _escaped_lines, 1.5),
            ("jsonl of columns", Jsonl(), columns, "json.dumps", _json_lines, 3.0),
            ("avro", Avro("none"), every, "fastavro", partial(_fastavro, "null"), 3.0),
            ("avro gzip", Avro("gzip"), every, "fastavro deflate", partial(_fastavro, "deflate"), 3.0),
            # Arrow does all of the work here; the bar says that collecting rows costs little.
            ("parquet", Parquet(), every, "pyarrow alone", _pyarrow_parquet, 0.8),
            ("raw", Raw(), every, "pyarrow alone", _pyarrow_parquet, 0.8),
            ("orc", Orc(), every, "pyarrow alone", _pyarrow_orc, 0.8),
        )
    ]


def _compared(case: str, rows: pa.RecordBatch, ours: Write, peer: Write, bar: float) -> Comparison:
    blocks = [rows.slice(start, BLOCK) for start in range(0, ROWS, BLOCK)]
    our_rate, others = interleaved([partial(_rate, ours, blocks), partial(_rate, peer, blocks)], REPETITIONS)
    return compare("formats", case, our_rate, others, "rows/CPU s", bar)


def _rate(write: Write, blocks: Sequence[pa.RecordBatch]) -> float:
    started = time.process_time()
    write(blocks)
    return ROWS / (time.process_time() - started)


def _write(form: Format, blocks: Sequence[pa.RecordBatch]) -> None:
    writer = form.open(Counted(), blocks[0].schema)
    for rows in blocks:
        assert form.faults(rows) is None
        writer.write(rows)
    writer.close()


def _message(number: int) -> bytes:
    record = {"id": number, "user": f"user-{number % 977}", "at": 1_760_000_000 + number, "path": f"/a/{number * 7919}"}
    return json.dumps(record | {"agent": "Mozilla/5.0 (X11; Linux x86_64)", "ms": number % 331}).encode()


# --- what one would write first ------------------------------------------------------------------------------------


def _columns(blocks: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, bytes | None, bytes]]:
    for rows in blocks:
        yield from zip(*(rows.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)


def _sequence_records(blocks: Sequence[pa.RecordBatch]) -> None:
    file, since, pack = io.BufferedWriter(Counted()), 0, struct.Struct(">iiqi").pack
    for offset, _, value in _columns(blocks):
        since += file.write(pack(12 + len(value), 8, offset, len(value)) + value)
        if since >= 100 << 10:
            since = 0
            file.write(SYNC)
    file.flush()


def _packed_records(blocks: Sequence[pa.RecordBatch]) -> None:
    file, pack = io.BufferedWriter(Counted()), struct.Struct(">iii").pack
    for offset, key, value in _columns(blocks):
        packed = b"\x81\x01\xd3" + offset.to_bytes(8, "big")
        if key is not None:
            packed = b"\x82" + packed[1:] + b"\x02\xc6" + len(key).to_bytes(4, "big") + key
        record = pack(len(packed) + len(value) + 8, len(packed) + 4, len(packed)) + packed
        file.write(record + len(value).to_bytes(4, "big") + value)
    file.flush()


def _zlib_records(blocks: Sequence[pa.RecordBatch]) -> None:
    file, pack = io.BufferedWriter(Counted()), struct.Struct(">iiq").pack
    for offset, _, value in _columns(blocks):
        packed = zlib.compress(len(value).to_bytes(4, "big") + value, 1)
        file.write(pack(8 + len(packed), 8, offset) + packed)
    file.flush()


def _blocks(blocks: Sequence[pa.RecordBatch]) -> None:
    file, parts, size = Counted(), [bytearray() for _ in range(4)], 0
    for offset, _, value in _columns(blocks):
        parts[0] += b"\x08"
        parts[1] += offset.to_bytes(8, "big")
        parts[2] += vint(len(value) + 4)
        parts[3] += len(value).to_bytes(4, "big") + value
        size += len(value) + 12
        if size >= BLOCK_BYTES:
            size = 0
            for part in parts:
                file.write(zlib.compress(part, 1))
            parts = [bytearray() for _ in range(4)]


def _lines(blocks: Sequence[pa.RecordBatch]) -> None:
    file = io.BufferedWriter(Counted())
    for rows in blocks:
        for value in rows.column("value").to_pylist():
            file.write(value + b"\n")
    file.flush()


def _escaped_lines(blocks: Sequence[pa.RecordBatch]) -> None:
    file = io.BufferedWriter(Counted())
    for rows in blocks:
        for value in rows.column("value").to_pylist():
            file.write(value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\n")
    file.flush()


def _zlib_lines(blocks: Sequence[pa.RecordBatch]) -> None:
    file, deflate = Counted(), zlib.compressobj(1, zlib.DEFLATED, 31)
    for rows in blocks:
        file.write(deflate.compress(b"\n".join(rows.column("value").to_pylist()) + b"\n"))
    file.write(deflate.flush())


def _json_lines(blocks: Sequence[pa.RecordBatch]) -> None:
    file = io.BufferedWriter(Counted())
    for rows in blocks:
        for row in rows.to_pylist():
            file.write(json.dumps(row, default=str).encode() + b"\n")
    file.flush()


def _fastavro(codec: str, blocks: Sequence[pa.RecordBatch]) -> None:
    schema = fastavro.parse_schema(avro_schema(blocks[0].schema))
    records = (row for rows in blocks for row in rows.to_pylist())
    fastavro.writer(io.BytesIO(), schema, records, codec=codec, codec_compression_level=1 if codec != "null" else None)


def _pyarrow_parquet(blocks: Sequence[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(blocks)
    pq.write_table(table, pa.PythonFile(Counted(), mode="w"), compression="zstd", compression_level=1)


def _pyarrow_orc(blocks: Sequence[pa.RecordBatch]) -> None:
    pyarrow.orc.write_table(pa.Table.from_batches(blocks), pa.PythonFile(Counted(), mode="w"), compression="zstd")

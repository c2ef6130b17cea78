"""Codecs of objects, and compressions.

ORC is not among them: only files of an archive are read in it, after their checksum was compared, because damaged bytes
end the process in Arrow's reader.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BatchError
from holdfast.flow.format import Format
from holdfast.formats._compression import compressed
from holdfast.formats._decompression import FileCompression
from holdfast.formats.avro import Avro as AvroFormat
from holdfast.formats.sequencefile import SequenceFile as SequenceFormat
from holdfast.sources.objects.codecs.avro import Avro
from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range, StreamCodec
from holdfast.sources.objects.codecs.csv import Csv
from holdfast.sources.objects.codecs.json_list import JsonList
from holdfast.sources.objects.codecs.lines import Jsonl, Text
from holdfast.sources.objects.codecs.parquet import Parquet
from holdfast.sources.objects.codecs.sequencefile import SequenceFile
from holdfast.sources.objects.compression import decompressed
from tests.fuzz.target import Target, check_text

LONGEST_LINE = 1 << 20
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
    ]
)
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("numbers", pa.list_(pa.list_(pa.int32()))),
        ("meta", pa.struct([("a", pa.string()), ("b", pa.list_(pa.int64()))])),
    ]
)
ROWS = [
    {
        "id": n,
        "note": f"näme {n % 7}",
        "price": f"{n}.25",
        "at": f"2026-01-01T00:00:{n % 60:02d}Z",
        "flag": n % 2 == 0,
        "ratio": n / 3,
    }
    for n in range(30)
]
NESTED_ROWS = [
    {"id": n, "tags": ["x"] * (n % 4), "numbers": [[n], [], None], "meta": {"a": "y", "b": [n, None]}}
    for n in range(30)
]
JSON_TOKENS = [b"{", b"[", b"]", b"}", b'"', b"\\ud800", b"\\u0000", b"null", b"true", b",", b":", b"\xff", b"\r\n"]


def _consume(schema: pa.Schema, portions: Iterable[Portion]) -> None:
    """All rows as a task uses them."""
    for portion in portions:
        rows = pa.RecordBatch.from_arrays(list(portion.columns), schema=schema)
        rows.validate(full=True)
        assert rows.num_rows == len(portion.items)
        for _, fault in portion.faults:
            check_text(fault.encode())


def _stream_reader(*codecs: StreamCodec) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        for codec in codecs:
            _consume(codec.schema, codec.read(io.BytesIO(data), 0, len(data)))

    return read


def _block_reader(codec: BlockCodec) -> Callable[[bytes], None]:
    """Reads the whole, and then each half: a range begins anywhere."""

    def read(data: bytes) -> None:
        half, size = len(data) // 2, len(data)
        refused: BatchError | None = None
        for start, end in ((0, size), (0, half), (half, size)):
            try:
                _consume(codec.schema, codec.read(io.BytesIO(data), Range(start, end, size)))
            except BatchError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    return read


def _typed() -> pa.Table:
    text = pa.Table.from_pylist(
        ROWS, pa.schema([(f.name, pa.string() if f.name in {"price", "at"} else f.type) for f in COLUMNS])
    )
    return text.cast(COLUMNS)


# --- seeds -----------------------------------------------------------------------------------------------------------


def _lines() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def _csv() -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS.names, quoting=csv.QUOTE_MINIMAL)
    writer.writeheader()
    writer.writerows([*ROWS, {"id": 5, "note": 'two\nlines, and "quotes"'}])
    return text.getvalue().encode()


def _parquet(table: pa.Table, **options: Any) -> bytes:
    raw = io.BytesIO()
    pq.write_table(table, raw, row_group_size=10, **options)
    return raw.getvalue()


def _parquets(table: pa.Table) -> list[bytes]:
    return [
        _parquet(table, compression="none"),
        _parquet(table, compression="none", use_dictionary=False, write_statistics=False),
        _parquet(table, compression="zstd", data_page_version="2.0"),
        _parquet(table, compression="snappy", write_page_index=True, write_page_checksum=True),
        _parquet(table, compression="gzip", data_page_size=40, write_batch_size=4),
    ]


def _written(made: Format, schema: pa.Schema, rows: Sequence[Any]) -> bytes:
    raw = io.BytesIO()
    writer = made.open(raw, schema)
    writer.write(pa.RecordBatch.from_pylist(list(rows), schema))
    writer.close()
    return raw.getvalue()


SMALL = pa.schema([("id", pa.int64()), ("note", pa.string())])
SMALL_ROWS = [{"id": n, "note": "n" * n} for n in range(20)]
TREE: dict[str, Any] = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "below", "type": {"type": "array", "items": "Tree"}},
        {"name": "map", "type": {"type": "map", "values": "double"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 4}},
    ],
}
AVRO_TOKENS = [b'"array"', b'"map"', b'"null"', b'"Tree"', b'"fixed"', b'"items"', b'"record"', b'"int"', b"[", b"{"]


def tree(depth: int = 0) -> dict[str, Any]:
    """A row of the schema `TREE`."""
    below = [tree(depth + 1)] if depth < 2 else []
    return {
        "id": depth,
        "note": "n",
        "nothing": [None] * 3,
        "below": below,
        "map": {"a": 0.5},
        "price": Decimal("1.25"),
        "at": 5,
        "kind": "B",
        "raw": b"1234",
    }


def _avro_trees(codec: str) -> bytes:
    raw = io.BytesIO()
    fastavro.writer(
        raw, fastavro.parse_schema(TREE), [tree()] * 5, codec=codec, sync_interval=200, sync_marker=b"m" * 16
    )
    return raw.getvalue()


def _sequencefiles() -> list[bytes]:
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    rows = [{"offset": n, "value": b"v" * n} for n in range(20)]
    kinds: Any = [("none", "zlib"), ("record", "zlib"), ("block", "zlib"), ("block", "snappy"), ("block", "lz4")]
    return [
        _written(SequenceFormat("legacy", kind, codec, block_bytes=60, tombstones="empty"), schema, rows)
        for kind, codec in kinds
    ]


def _packed(data: bytes, kind: FileCompression) -> bytes:
    if kind in {"gzip", "bzip2"}:
        return gzip.compress(data, mtime=0) if kind == "gzip" else bz2.compress(data)
    raw = io.BytesIO()
    stream = compressed(raw, kind)  # type: ignore[arg-type]
    stream.write(data)
    stream.close()
    return raw.getvalue()


def _decompressing(kind: FileCompression) -> Target:
    def read(data: bytes) -> None:
        stream = decompressed(io.BytesIO(data), kind)
        while stream.read(1 << 20):
            pass

    seeds = [_packed(data, kind) for data in (b"", _lines(), bytes(200_000))]
    return Target(kind, [*seeds, seeds[1] * 2], read, (BatchError,))


def codec_targets() -> list[Target]:
    """One for each codec and each compression."""
    avros = [_written(AvroFormat(kind, 60), SMALL, SMALL_ROWS) for kind in ("none", "gzip", "zstd", "snappy")]
    document = json.dumps({"of": 30, "records": ROWS}).encode()
    texts = _stream_reader(Text(LONGEST_LINE), Jsonl(None, LONGEST_LINE), Jsonl(COLUMNS, LONGEST_LINE))
    nested = pa.Table.from_pylist(NESTED_ROWS, NESTED)
    return [
        Target("lines", [_lines()], texts, (BatchError,), JSON_TOKENS),
        Target(
            "json",
            [document, json.dumps(ROWS).encode()],
            _stream_reader(JsonList(None, LONGEST_LINE), JsonList(COLUMNS, LONGEST_LINE, chunk=300)),
            (BatchError,),
            JSON_TOKENS,
        ),
        Target(
            "csv",
            [_csv()],
            _stream_reader(Csv(COLUMNS, LONGEST_LINE)),
            (BatchError,),
            [b'"', b",", b"\n", b"\r", b"\0"],
        ),
        Target("parquet", _parquets(_typed()), _block_reader(Parquet(COLUMNS)), (BatchError,)),
        Target("parquet_nested", _parquets(nested), _block_reader(Parquet(NESTED)), (BatchError,)),
        Target(
            "avro",
            [*avros, _avro_trees("null"), _avro_trees("deflate")],
            _block_reader(Avro(COLUMNS)),
            (BatchError,),
            AVRO_TOKENS,
        ),
        Target("sequencefile", _sequencefiles(), _block_reader(SequenceFile()), (BatchError,)),
        *(_decompressing(kind) for kind in ("gzip", "zstd", "snappy", "bzip2")),
    ]

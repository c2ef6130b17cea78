"""Objects that are small and declare gigabytes: they are damaged, and their readers need little memory.

Each is read in a process of its own, whose peak of memory is measured.
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib
from bz2 import compress as bzip2
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.formats._forward import MAX_BLOCK
from holdfast.formats.avro.writer import number
from holdfast.formats.sequencefile.layout import READ_CODECS, vint
from holdfast.sources.objects.codecs.avro import Avro
from holdfast.sources.objects.codecs.avro_bounds import MAX_DEPTH, MAX_MEMORY
from holdfast.sources.objects.codecs.codec import Range
from holdfast.sources.objects.codecs.parquet import PORTION_ROWS, Parquet

MOST_MEGABYTES = 400
"""What reading may add to a process that has loaded everything."""

CHILD = """
import io, json, resource, sys
import pyarrow as pa, pyarrow.parquet, fastavro
from holdfast.sources.objects.codecs.avro import Avro
from holdfast.sources.objects.codecs.codec import Range
from holdfast.sources.objects.codecs.parquet import Parquet
from holdfast.sources.objects.codecs.sequencefile import SequenceFile
from holdfast.sources.objects.object_ref import Damaged

def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) >> 10

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
kind, path = sys.argv[1:]
data = open(path, "rb").read()
columns = pa.schema([("x", pa.string())])
codec = {"avro": Avro, "parquet": Parquet}[kind](columns) if kind != "sequencefile" else SequenceFile()
before, rows, faults, damage = peak(), 0, 0, None
try:
    for portion in codec.read(io.BytesIO(data), Range(0, len(data), len(data))):
        rows, faults = rows + len(portion.items), faults + len(portion.faults)
except Damaged as error:
    damage = str(error)
print(json.dumps({"rows": rows, "faults": faults, "damage": damage, "megabytes": peak() - before}))
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc")


def read(kind: str, data: bytes, folder: Path) -> dict[str, Any]:
    """What a process that reads the object found, and the megabytes that it needed for it."""
    file = folder / "object"
    file.write_bytes(data)
    done = subprocess.run([sys.executable, "-c", CHILD, kind, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["megabytes"] < MOST_MEGABYTES, found
    return found


def deflated(size: int, window: int = 15) -> bytes:
    """Zeros. What follows a full flush does not refer to what is before it, so one part can be repeated."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, window)
    first, more = (squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + more * ((size >> 20) - 1) + squeeze.flush()


# --- SequenceFile --------------------------------------------------------------------------------------------------

SYNC = b"S" * 16
GOOD = struct.pack(">i", 4) + b"good"
"""A `BytesWritable`."""


def sequencefile(codec: str, body: bytes, *, in_blocks: bool) -> bytes:
    def text(words: str) -> bytes:
        return vint(len(words)) + words.encode()

    name = next(name for name, known in READ_CODECS.items() if known == codec)
    kinds = text("org.apache.hadoop.io.BytesWritable") * 2
    head = [b"SEQ\x06", kinds, b"\x01", bytes([in_blocks]), text(name), struct.pack(">i", 0), SYNC]
    return b"".join([*head, body])


def block(count: int, *parts: bytes) -> bytes:
    return b"".join([b"\xff\xff\xff\xff", SYNC, vint(count), *(vint(len(part)) + part for part in parts)])


def record(value: bytes) -> bytes:
    return struct.pack(">ii", len(GOOD) + len(value), len(GOOD)) + GOOD + value


@linux
@pytest.mark.parametrize("place", range(4))
def test_a_block_of_a_sequencefile_is_inflated_no_further_than_its_bound(place: int, tmp_path: Path) -> None:
    sizes, values = zlib.compress(vint(len(GOOD)) * 3), zlib.compress(GOOD * 3)
    good = [sizes, values, sizes, values]
    hostile = [deflated(2 << 30) if number == place else part for number, part in enumerate(good)]
    found = read("sequencefile", sequencefile("zlib", block(3, *good) + block(3, *hostile), in_blocks=True), tmp_path)
    assert found["rows"] == 3
    assert f"more than {MAX_BLOCK if place % 2 else 15} bytes" in found["damage"]


@linux
def test_a_value_of_a_sequencefile_is_decompressed_no_further_than_its_bound(tmp_path: Path) -> None:
    good = record(zlib.compress(GOOD))
    hostile = sequencefile("zlib", good * 3 + record(deflated(2 << 30)) + good, in_blocks=False)
    found = read("sequencefile", hostile, tmp_path)
    assert found["rows"] == 3
    assert f"more than {MAX_BLOCK} bytes" in found["damage"]


@linux
def test_bzip2_in_a_sequencefile_has_the_same_bound(tmp_path: Path) -> None:
    found = read("sequencefile", sequencefile("bzip2", record(bzip2(bytes(1 << 20)) * 500), in_blocks=False), tmp_path)
    assert f"more than {MAX_BLOCK} bytes" in found["damage"]


@linux
def test_values_that_are_large_but_within_the_bound_are_held_a_few_at_a_time(tmp_path: Path) -> None:
    size = 32 << 20
    value = zlib.compress(struct.pack(">i", size) + bytes(size))
    found = read("sequencefile", sequencefile("zlib", record(value) * 30, in_blocks=False), tmp_path)
    assert (found["rows"], found["damage"]) == (30, None)


@linux
def test_a_record_of_a_sequencefile_that_declares_more_than_the_bound_is_damage(tmp_path: Path) -> None:
    size = MAX_BLOCK + (1 << 20)
    data = sequencefile("zlib", record(zlib.compress(GOOD)) + record(bytes(size)), in_blocks=False)
    found = read("sequencefile", data, tmp_path)
    assert found["rows"] == 1
    assert f"more than {MAX_BLOCK} bytes" in found["damage"]


# --- Avro ----------------------------------------------------------------------------------------------------------

MARK = b"M" * 16


def avro(schema: Any, *blocks: tuple[int, bytes], codec: str = "null") -> bytes:
    def text(data: bytes) -> bytes:
        return number(len(data)) + data

    entries = [text(b"avro.schema"), text(json.dumps(schema).encode()), text(b"avro.codec"), text(codec.encode())]
    parts = [b"Obj\x01", number(2), *entries, number(0), MARK]
    for count, data in blocks:
        parts += [number(count), text(data), MARK]
    return b"".join(parts)


def records(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}], **more}


PACKED = {"deflate": lambda: deflated(2 << 30, -15), "zstandard": lambda: zstd(2 << 30)}


def zstd(size: int) -> bytes:
    return bytes(pa.Codec("zstd").compress(bytes(1 << 20), asbytes=True)) * (size >> 20)


@linux
@pytest.mark.parametrize("codec", PACKED)
def test_a_block_of_avro_is_decompressed_no_further_than_its_bound(codec: str, tmp_path: Path) -> None:
    found = read("avro", avro("bytes", (1, PACKED[codec]()), codec=codec), tmp_path)
    assert f"more than {MAX_BLOCK} bytes" in found["damage"]


NULLS = number(1 << 40) + number(0)
EMPTY = {"type": "record", "name": "e", "fields": []}
WIDE = {"type": "record", "name": "w", "fields": [{"name": f"f{index}", "type": "null"} for index in range(500)]}
MANY = number(30 << 20) + bytes(30 << 20) + number(0)
HOSTILE: dict[str, tuple[Any, bytes]] = {
    "nulls": (records({"type": "array", "items": "null"}), NULLS),
    "records without fields": (records({"type": "array", "items": EMPTY}), NULLS),
    "values without bytes": (records({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}), NULLS),
    "lists": (records({"type": "array", "items": {"type": "array", "items": "int"}}), MANY),
    "wide records": (records({"type": "array", "items": ["null", WIDE]}), number(1 << 20) + b"\x02" * (1 << 20)),
    "maps": (records({"type": "array", "items": {"type": "map", "values": "int"}}), MANY),
}


@linux
@pytest.mark.parametrize("kind", HOSTILE)
def test_an_array_of_avro_that_would_take_gigabytes_is_damage(kind: str, tmp_path: Path) -> None:
    schema, data = HOSTILE[kind]
    found = read("avro", avro(schema, (1, data)), tmp_path)
    assert f"more than {MAX_MEMORY} bytes of memory" in found["damage"]


@linux
def test_many_rows_without_bytes_are_held_a_few_at_a_time(tmp_path: Path) -> None:
    found = read("avro", avro(WIDE, (30_000, b"")), tmp_path)
    assert (found["rows"], found["damage"]) == (30_000, None)


@linux
@pytest.mark.parametrize("kind", [["null", "r"], "r", {"type": "array", "items": "r"}, {"type": "map", "values": "r"}])
def test_rows_that_are_nested_without_end_are_damage_and_do_not_end_the_worker(kind: Any, tmp_path: Path) -> None:
    levels = b"\x02\x00" if isinstance(kind, dict) and kind["type"] == "map" else b"\x02"
    found = read("avro", avro(records(kind), (1, levels * 100_000 + b"\0")), tmp_path)
    assert f"more than {MAX_DEPTH} levels deep" in found["damage"]


@linux
@pytest.mark.parametrize("levels", [200, 50_000])
def test_a_schema_that_is_nested_too_deeply_is_damage(levels: int, tmp_path: Path) -> None:
    schema: Any = "int"
    if levels < 1000:
        for _ in range(levels):
            schema = {"type": "array", "items": schema}
    else:
        fields = [[], *([{"name": "x", "type": f"r{level}"}] for level in range(levels - 1))]
        schema = [{"type": "record", "name": f"r{level}", "fields": some} for level, some in enumerate(fields)]
    found = read("avro", avro(schema, (1, number(levels - 1))), tmp_path)
    assert f"more than {MAX_DEPTH} levels deep" in found["damage"]


@linux
def test_a_schema_whose_rows_have_more_and_more_fields_is_damage(tmp_path: Path) -> None:
    kind: Any = EMPTY
    for level in range(40):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": kind if isinstance(kind, str) else kind["name"]}]
        kind = {"type": "record", "name": f"d{level}", "fields": fields}
    found = read("avro", avro(kind, (1, b"")), tmp_path)
    assert f"more than {MAX_MEMORY} bytes of memory" in found["damage"]


def test_rows_of_a_recursive_schema_are_read_as_they_are() -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "x", "type": ["null", "r"], "default": None},
            {"name": "nothing", "type": {"type": "array", "items": "null"}},
        ],
    }
    row = {"x": {"x": {"x": None, "nothing": []}, "nothing": [None]}, "nothing": []}
    raw = io.BytesIO()
    fastavro.writer(raw, fastavro.parse_schema(schema), [row] * 3)
    data = raw.getvalue()
    codec = Avro(pa.schema([("x", pa.string())]))
    (portion,) = codec.read(io.BytesIO(data), Range(0, len(data), len(data)))
    assert [json.loads(text) for text in portion.columns[0].to_pylist()] == [row["x"]] * 3


def test_large_blocks_of_arrays_are_read() -> None:
    rows = [{"x": [f"{number}-{item}" for item in range(40)]} for number in range(12_000)]
    raw = io.BytesIO()
    schema: Any = records({"type": "array", "items": "string"})
    fastavro.writer(raw, fastavro.parse_schema(schema), rows, sync_interval=1 << 30)
    data = raw.getvalue()
    codec = Avro(pa.schema([("x", pa.list_(pa.string()))]))
    portions = list(codec.read(io.BytesIO(data), Range(0, len(data), len(data))))
    found = pa.chunked_array([portion.columns[0] for portion in portions])
    assert found.to_pylist() == [row["x"] for row in rows]
    items = [int(item) for portion in portions for item in portion.items]
    assert items == list(range(items[0], items[0] + len(rows)))


# --- Parquet -------------------------------------------------------------------------------------------------------


def parquet(values: Any, **options: Any) -> bytes:
    raw = io.BytesIO()
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False, **options}
    pq.write_table(pa.table({"x": values}), raw, **options)
    return raw.getvalue()


@linux
def test_a_dictionary_of_parquet_with_a_long_value_is_read_in_small_batches(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), pa.array(["a" * (1 << 20)]))
    data = parquet(values, dictionary_pagesize_limit=1 << 30)
    assert len(data) < 2000
    found = read("parquet", data, tmp_path)
    assert (found["rows"], found["faults"], found["damage"]) == (4096, 0, None)


@linux
def test_a_page_of_parquet_that_becomes_more_than_the_bound_is_damage(tmp_path: Path) -> None:
    found = read("parquet", parquet(["a" * (MAX_BLOCK + (1 << 20))], use_dictionary=False), tmp_path)
    assert found["rows"] == 0
    assert f"at most {MAX_BLOCK} are read" in found["damage"]


@linux
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY"])
def test_long_values_of_parquet_are_read_in_small_batches(encoding: str, tmp_path: Path) -> None:
    values = pa.array(["a" * (4 << 20)]).take(pa.array([0] * 200))
    data = parquet(values, use_dictionary=False, column_encoding=encoding, data_page_size=1 << 20, write_batch_size=1)
    found = read("parquet", data, tmp_path)
    assert (found["rows"], found["faults"], found["damage"]) == (200, 0, None)


def test_batches_of_usual_pages_are_as_large_as_ever() -> None:
    values = pa.array([f"{number % 30_000} of many" for number in range(100_000)])
    data = parquet(values)
    codec = Parquet(pa.schema([("x", pa.string())]))
    portions = list(codec.read(io.BytesIO(data), Range(0, len(data), len(data))))
    assert {len(portion.items) for portion in portions[:-1]} == {PORTION_ROWS}

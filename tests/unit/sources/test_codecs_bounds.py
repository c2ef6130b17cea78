"""Objects that are small and declare gigabytes: they are damaged, and their readers need little memory.

Each is read in a process of its own, whose peak of memory is measured.
"""

from __future__ import annotations

import io
import itertools
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
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.formats._forward import MAX_BLOCK
from holdfast.formats.avro.writer import number
from holdfast.formats.sequencefile.layout import READ_CODECS, vint
from holdfast.sources.objects.codecs.avro import Avro
from holdfast.sources.objects.codecs.avro_bounds import MAX_DEPTH, MAX_MEMORY
from holdfast.sources.objects.codecs.codec import Range
from holdfast.sources.objects.codecs.parquet import PORTION_ROWS, Parquet
from holdfast.sources.objects.codecs.parquet_pages import Chunk, PageBounds
from holdfast.sources.objects.object_ref import Damaged

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
columns = pa.schema([("x", pa.list_(pa.string()) if kind == "lists" else pa.string())])
kind = "parquet" if kind == "lists" else kind
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


VERSIONS = {
    "version 1": {"compression": "none"},
    "version 1, packed": {"compression": "zstd"},
    "version 2, packed": {"compression": "snappy", "data_page_version": "2.0"},
}


def lists(lengths: list[int], value: str, **options: Any) -> bytes:
    """Rows with lists of so many values, all the same."""
    offsets = pa.array([0, *itertools.accumulate(lengths)], pa.int32())
    values = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), sum(lengths)), [value])
    return parquet(pa.ListArray.from_arrays(offsets, values), **options)


@linux
@pytest.mark.parametrize("version", VERSIONS)
def test_a_list_of_parquet_that_becomes_more_than_the_bound_is_damage(version: str, tmp_path: Path) -> None:
    data = lists([40_000], "a" * 40_000, **VERSIONS[version])
    assert len(data) < 100_000
    found = read("lists", data, tmp_path)
    assert "a row takes more than 268435456 bytes" in found["damage"]
    assert found["rows"] == 0


@linux
def test_a_list_of_nulls_in_parquet_that_becomes_more_than_the_bound_is_damage(tmp_path: Path) -> None:
    data = parquet(pa.ListArray.from_arrays([0, 40_000_000], pa.nulls(40_000_000, pa.int8())))
    assert len(data) < 100_000
    assert "a row takes more than" in read("lists", data, tmp_path)["damage"]


@linux
@pytest.mark.parametrize("version", VERSIONS)
def test_lists_of_parquet_with_long_values_are_read_in_small_batches(version: str, tmp_path: Path) -> None:
    data = lists([7, 0, 90] * 300, "a" * 20_000, write_batch_size=50, data_page_size=40, **VERSIONS[version])
    found = read("lists", data, tmp_path)
    assert (found["rows"], found["damage"]) == (900, None)


def test_lists_of_parquet_by_differences_are_read_however_many_values_a_row_has() -> None:
    values = [[f"https://example.com/{row}/{number}" for number in range(row % 700)] for row in range(2000)]
    data = parquet(pa.array(values), use_dictionary=False, column_encoding={"x.list.element": "DELTA_BYTE_ARRAY"})
    codec = Parquet(pa.schema([("x", pa.list_(pa.string()))]))
    found = [portion.columns[0].to_pylist() for portion in codec.read(io.BytesIO(data), Range(0, len(data), len(data)))]
    assert len(found) == 1, "what values repeat is counted and not estimated, so that batches stay large"
    assert list(itertools.chain(*found)) == values


@linux
@pytest.mark.parametrize("version", VERSIONS)
def test_a_list_of_parquet_by_differences_that_becomes_more_than_the_bound_is_damage(
    version: str, tmp_path: Path
) -> None:
    values = pa.repeat(pa.scalar("a" * 20_000), 5_000)
    encoding = {"use_dictionary": False, "column_encoding": {"x.list.element": "DELTA_BYTE_ARRAY"}}
    data = parquet(pa.ListArray.from_arrays([0, 5_000], values), **encoding, **VERSIONS[version])
    assert len(data) < 200_000
    found = read("lists", data, tmp_path)
    assert "a row takes more than 268435456 bytes" in found["damage"]
    assert found["rows"] == 0


@given(st.lists(st.lists(st.text("ab", max_size=90), max_size=300), max_size=4), st.sampled_from(["1.0", "2.0"]))
@settings(deadline=None, max_examples=60)
def test_what_values_of_lists_repeat_from_those_before_them_is_counted(rows: list[list[str]], version: str) -> None:
    data = parquet(
        pa.array(rows, pa.list_(pa.string())),
        use_dictionary=False,
        column_encoding={"x.list.element": "DELTA_BYTE_ARRAY"},
        compression="none",
        data_page_version=version,
    )
    shared = [
        len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))))
        for texts in itertools.pairwise(itertools.chain(*rows))
    ]
    for column in measured(data, 1):
        assert sum(page.repeated for page in column.pages) == sum(shared)
        assert column.longest_repeated == max(shared, default=0)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.none() | st.lists(st.none() | st.lists(st.integers(0, 3), max_size=6), max_size=6), max_size=40),
    version=st.sampled_from(["1.0", "2.0"]),
    compression=st.sampled_from(["none", "gzip"]),
    page=st.integers(1, 30),
)
def test_the_rows_that_begin_in_pages_of_lists_are_counted(
    rows: list[Any], version: str, compression: str, page: int
) -> None:
    kind = pa.list_(pa.list_(pa.int64()))
    data = parquet(
        pa.array(rows, kind),
        use_dictionary=False,
        data_page_version=version,
        compression=compression,
        data_page_size=page,
        write_batch_size=1,
    )
    longest = max((max(sum(max(len(inner or []), 1) for inner in row or [None]), 1) for row in rows), default=1)
    for seen in measured(data, 2):
        assert sum(page.rows for page in seen.pages) == len(rows)
        assert seen.longest_row == longest


def measured(data: bytes, repetition: int) -> list[Any]:
    """What the pages of the first column say, if there are any."""
    bounds = PageBounds([], 8192)
    bounds._small_list = 0
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    if metadata.num_row_groups:
        column = metadata.row_group(0).column(0)
        codec = {"UNCOMPRESSED": 0, "GZIP": 2}[column.compression]
        start, size = column.data_page_offset, column.total_compressed_size
        chunk = Chunk(start, size, column.num_values, 2, codec, repetition)
        bounds._measure(chunk, memoryview(data)[start : start + size])
    return bounds._columns


def test_a_parquet_schema_that_is_nested_too_deep_is_damage() -> None:
    kind = pa.int64()
    for _ in range(120):
        kind = pa.struct([("a", kind)])
    codec, data = Parquet(pa.schema([("x", pa.string())])), parquet(pa.nulls(1, kind))
    with pytest.raises(Damaged, match="its schema is nested more than 100 levels deep"):
        list(codec.read(io.BytesIO(data), Range(0, len(data), len(data))))


def test_a_chunk_of_parquet_is_bounded_whatever_path_it_claims(tmp_path: Path) -> None:
    data = lists([40_000], "a" * 40_000)
    renamed = data.replace(b"\x01x\x04list\x07element", b"\x01y\x04list\x07element")
    assert renamed != data
    assert "a row takes more than" in read("lists", renamed, tmp_path)["damage"]


@pytest.mark.parametrize("kind", ["avro", "parquet"])
def test_memory_that_is_too_small_is_no_damage(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_small(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc failed") if kind == "parquet" else MemoryError

    columns = pa.schema([("x", pa.string())])
    monkeypatch.setattr(pq, "ParquetFile", too_small)
    monkeypatch.setattr(fastavro, "schemaless_reader", too_small)
    raw = io.BytesIO()
    fastavro.writer(raw, {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}, [{"x": "a"}])
    codec, data = (Parquet(columns), parquet(["a"])) if kind == "parquet" else (Avro(columns), raw.getvalue())
    with pytest.raises(MemoryError):
        list(codec.read(io.BytesIO(data), Range(0, len(data), len(data))))

"""Objects that are small and declare gigabytes: they are damaged, and their readers need little memory.

Each is read in a process of its own, whose peak of memory is measured.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from bz2 import compress as bzip2
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.formats._forward import MAX_BLOCK
from holdfast.formats.avro.writer import number
from holdfast.formats.sequencefile.layout import READ_CODECS, vint

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

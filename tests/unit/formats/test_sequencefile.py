"""SequenceFiles byte by byte; tests/spark shows that Hadoop and Spark agree."""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable
from typing import Any, get_args

import pyarrow as pa
import pytest
from pydantic import ValidationError

from holdfast.errors import BatchError
from holdfast.flow.format import Format
from holdfast.formats.sequencefile import PLUGIN, SequenceFile, SequenceFileConfig
from holdfast.formats.sequencefile.keys import messagepack_fields
from holdfast.formats.sequencefile.layout import (
    Codec,
    Compression,
    KeyKind,
    decode_header,
    taken_vint,
    taken_vints,
    vint,
    vints,
)
from holdfast.testing.formats import FormatBehaviour, kafka_rows


@pytest.mark.parametrize(
    ("key", "compression", "codec"),
    [
        *((key, "none", "zlib") for key in get_args(KeyKind)),
        ("legacy", "record", "lz4"),
        ("messagepack", "record", "zlib"),
        *(("legacy", "block", codec) for codec in get_args(Codec)),
    ],
)
class TestSequenceFile(FormatBehaviour):
    only_messages = True

    @pytest.fixture
    def form(self, key: KeyKind, compression: Compression, codec: Codec) -> Format:
        return SequenceFile(key, compression, codec)


class TestSmallBlocks(FormatBehaviour):
    only_messages = True

    def make_format(self) -> Format:
        return SequenceFile("messagepack", "block", block_bytes=1000, tombstones="skip")


def rows(*values: bytes | None, keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "offset": pa.array(range(7, 7 + len(values)), pa.int64()),
            "key": pa.array(keys or [None] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def written(form: SequenceFile, batch: pa.RecordBatch) -> bytes:
    raw = io.BytesIO()
    writer = form.open(raw, batch.schema)
    writer.write(batch)
    writer.close()
    return raw.getvalue()


def body(data: bytes) -> tuple[bytes, bytes]:
    file = io.BytesIO(data)
    _, header = decode_header(file.read)
    return header.sync, file.read()


def test_a_legacy_record_is_offset_and_message() -> None:
    data = written(SequenceFile(), rows(b"ab"))
    assert data.startswith(
        b"SEQ\x06\x21org.apache.hadoop.io.LongWritable\x22org.apache.hadoop.io.BytesWritable\0\0\0\0\0\0"
    )
    assert body(data)[1] == b"\0\0\0\x0e\0\0\0\x08\0\0\0\0\0\0\0\x07\0\0\0\x02ab"


def test_a_messagepack_key_is_a_map_of_offset_and_key_if_there_is_one() -> None:
    _, data = body(written(SequenceFile("messagepack"), rows(b"", b"", keys=[None, b"k"])))
    first = b"\0\0\0\x0b\x81\x01\xd3\0\0\0\0\0\0\0\x07"
    second = b"\0\0\0\x0f\x82\x01\xd3\0\0\0\0\0\0\0\x08\x02\xc4\x01k"
    empty = bytes(4)
    assert data == b"\0\0\0\x13\0\0\0\x0f" + first + empty + b"\0\0\0\x17\0\0\0\x13" + second + empty


def test_maps_of_other_programs_are_read_too() -> None:
    maps = [
        b"\x81\x01\x05",
        b"\x83\x01\xcd\x01\x00\x03\xcf\0\0\0\0\0\0\0\x01\x02\xa1k",
        b"\x82\x02\xc4\x00\x01\xd3" + bytes(8),
    ]
    offsets, keys = messagepack_fields(pa.array(maps, pa.binary()))
    assert offsets.to_pylist() == [5, 256, 0]
    assert keys.to_pylist() == [None, b"k", b""]
    for wrong in (b"\x90", b"\x81\x02\xc4\x00", b"\x81\x01\xd3\x00", b"\x81\x01\xc0"):
        with pytest.raises(ValueError, match="key"):
            messagepack_fields(pa.array([wrong], pa.binary()))


def test_marks_follow_the_first_record_and_stand_between_records_now_and_then() -> None:
    long = [b"%06d" % number * 50 for number in range(2000)]
    sync, data = body(written(SequenceFile(), rows(*long)))
    parts = data.split(b"\xff\xff\xff\xff" + sync)
    assert len(parts) == 7
    assert all(100 << 10 <= len(part) < (100 << 10) + 400 for part in parts[:-1])
    assert body(written(SequenceFile(), rows(*long)))[0] == sync
    assert body(written(SequenceFile(), rows(b"other")))[0] != sync


def test_a_mark_that_is_damaged_is_refused() -> None:
    data = written(SequenceFile(), rows(*[b"x" * 1000] * 300))
    index = data.index(b"\xff\xff\xff\xff") + 4
    damaged = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
    with pytest.raises(ValueError, match="disagree"):
        list(SequenceFile().read(io.BytesIO(damaged)))


def test_a_message_that_looks_like_a_sequencefile_does_no_harm() -> None:
    inner = written(SequenceFile(), rows(*[b"x" * 1000] * 300))
    outer = written(SequenceFile(), rows(inner, inner))
    assert [row["value"] for batch in SequenceFile().read(io.BytesIO(outer)) for row in batch.to_pylist()] == [
        inner
    ] * 2
    assert body(outer)[0] != body(inner)[0]


def test_blocks_end_when_they_are_large_enough() -> None:
    sync, data = body(written(SequenceFile("legacy", "block", block_bytes=10_000), rows(*[b"x" * 988] * 25)))
    assert [part[0] for part in data.split(b"\xff\xff\xff\xff" + sync)[1:]] == [10, 10, 5]


def test_waiting_bytes_are_counted() -> None:
    writer = SequenceFile("legacy", "block").open(io.BytesIO(), rows(b"").schema)
    writer.write(rows(b"x" * 100))
    assert writer.buffered == 112
    writer.close()


def test_a_tombstone_is_a_dead_letter_or_empty_but_never_dropped() -> None:
    batch = rows(b"a", None)
    reasons = SequenceFile().faults(batch)
    assert reasons is not None
    assert [reason is None for reason in reasons.to_pylist()] == [True, False]
    with pytest.raises(BatchError, match="not taken out"):
        written(SequenceFile(), batch)
    form = SequenceFile(tombstones="empty")
    assert form.faults(batch) is None
    assert [row["value"] for found in form.read(io.BytesIO(written(form, batch))) for row in found.to_pylist()] == [
        b"a",
        b"",
    ]


LENGTHS = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 1 << 24, (1 << 31) - 1]


def test_lengths_are_written_as_hadoop_does() -> None:
    assert [vint(number).hex() for number in LENGTHS[:6]] == ["00", "01", "7f", "8f80", "8fff", "8e0100"]
    assert vints(LENGTHS) == b"".join(map(vint, LENGTHS))
    assert [taken_vint(io.BytesIO(vint(number)).read) for number in LENGTHS] == LENGTHS
    for some in (LENGTHS, LENGTHS[:3], LENGTHS[3:4]):
        assert taken_vints(vints(some), len(some)).tolist() == some
    for wrong in (b"\x80", b"\x8f", b"\xff", b"\x01\x01"):
        with pytest.raises(ValueError, match="length"):
            taken_vints(wrong, 1)


def packed_file(codec: str, pack: Callable[[bytes], bytes], value: bytes) -> bytes:
    """One record of a compressed value, as Hadoop's codec of that name packs it."""
    header = written(SequenceFile("legacy", "record"), rows(b"")).partition(b"org.apache.hadoop.io.compress")[0][:-1]
    name = f"org.apache.hadoop.io.compress.{codec}".encode()
    inner = pack(len(value).to_bytes(4, "big") + value)
    sizes = (8 + len(inner)).to_bytes(4, "big") + (8).to_bytes(4, "big")
    return b"".join([header, vint(len(name)), name, bytes(4), bytes(16), sizes, (7).to_bytes(8, "big"), inner])


@pytest.mark.parametrize(("codec", "pack"), [("DeflateCodec", zlib.compress), ("BZip2Codec", bz2.compress)])
def test_files_of_codecs_that_only_hadoop_writes_are_read(codec: str, pack: Callable[[bytes], bytes]) -> None:
    (batch,) = SequenceFile().read(io.BytesIO(packed_file(codec, pack, b"abc" * 1000)))
    assert batch.to_pylist() == [{"offset": 7, "value": b"abc" * 1000}]
    for damaged in (lambda data: pack(data)[:-1], lambda data: pack(data) + b"rest", lambda data: b"x" + pack(data)):
        with pytest.raises(ValueError, match=r"too early|decompressed"):
            list(SequenceFile().read(io.BytesIO(packed_file(codec, damaged, b"abc"))))


def test_files_of_other_classes_are_refused() -> None:
    data = written(SequenceFile(), rows(b"a"))
    for wrong in (
        data.replace(b"SEQ\x06", b"SEQ\x04"),
        data.replace(b"LongWritable", b"TextWritable"),
        written(SequenceFile("legacy", "block"), rows(b"a")).replace(b"DefaultCodec", b"AnotherCodec"),
    ):
        with pytest.raises(ValueError, match=r"SequenceFile|codec"):
            list(SequenceFile().read(io.BytesIO(wrong)))


def test_what_is_kept_follows_from_the_key() -> None:
    assert SequenceFile().keeps == {"offset", "value"}
    assert SequenceFile("messagepack").keeps == {"offset", "key", "value"}


def test_settings() -> None:
    form: Any = PLUGIN.build(
        SequenceFileConfig(key="messagepack", compression="block", codec="snappy", block_bytes=1000)
    )
    assert form.extension == "seq"
    assert b"SnappyCodec" in written(form, kafka_rows([b"a"]))
    for wrong in ({"key": "long"}, {"codec": "zstd"}, {"compression": "gzip"}, {"block_bytes": 0}):
        with pytest.raises(ValidationError):
            SequenceFileConfig(**wrong)

"""Decoders of messages: between two good messages stands any other, which is good or a dead letter by itself."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol

from holdfast.errors import UsageError
from holdfast.flow.batch import Name
from holdfast.flow.names import file_key
from holdfast.flow.staging import StagedBatch
from holdfast.processors.parse.avro_messages import AvroType
from holdfast.processors.parse.binary_fields import ProtobufDecoder
from holdfast.processors.parse.portion import Unreadable
from holdfast.processors.parse.step import ParseStep
from tests.fuzz.codec_targets import AVRO_TOKENS, JSON_TOKENS, TREE, tree
from tests.fuzz.target import Target, check_text
from tests.unit.processors.rig import message_rows, step
from tests.unit.processors.test_parse_encodings import AVRO, avro, described, protobuf, thrift

BATCH = StagedBatch("b", "p", "k", Name("orders", "3"), 1, 1)
LONGEST_NAME = 255
"""Of a file or folder, in bytes."""
JSON_MESSAGE = {
    "at": "2026-01-01T12:00:00+01:00",
    "ms": 1767268800000,
    "seconds": 1767268800.5,
    "who": "näme/with%2Fslash",
    "id": 5,
    "tags": ["x", None],
    "meta": {"a": {"b": "c"}},
}
COLUMNS = {"id": pa.int64(), "who": pa.string(), "tags": pa.list_(pa.string()), "at": pa.timestamp("us", "UTC")}
TIME_TOKENS = [b"Z", b"+25:00", b"T24:60:60", b"9999-12-31", b"0000-00-00", b"29/Feb/2023", b"\xd9\xa1", b".", b"1e18"]


def _between(steps: Sequence[ParseStep], good: bytes) -> Callable[[bytes], None]:
    """Reads an input as the second of three messages."""
    expected = [_cells(made.apply(BATCH, message_rows([good])), 0) for made in steps]
    assert all(cells["_fault"] is None for cells in expected), expected

    def read(data: bytes) -> None:
        is_good = True
        for made, cells in zip(steps, expected, strict=True):
            rows = made.apply(BATCH, message_rows([good, data, good]))
            rows.validate(full=True)
            assert _cells(rows, 0) == _cells(rows, 2) == cells, "a message has changed others"
            fault = rows.column("_fault")[1].as_py()
            if fault is None:
                _check_folder(_cells(rows, 1).get("_place") or "")
            else:
                is_good = False
                check_text(json.loads(fault)["reason"])
        if not is_good:
            raise Unreadable("it is a dead letter")

    return read


def _cells(rows: Any, number: int) -> dict[str, Any]:
    return {name: rows.column(name)[number].as_py() for name in rows.schema.names if name not in {"_item", "value"}}


def _check_folder(folder: str) -> None:
    key = file_key(BATCH.name, 1, 0, "jsonl", tuple(folder.split("/")) if folder else ())
    parts = key.split("/")
    assert parts[0] == "orders"
    assert all(part not in {"", ".", ".."} and len(part.encode()) <= LONGEST_NAME for part in parts), "not a path"
    assert key.isascii(), "not a plain path"
    assert key.isprintable(), "not a plain path"


def _in_file(content: bytes, make: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        return make(path)


def _avro_steps(path: Path) -> list[ParseStep]:
    field = {"schema_file": path}
    columns = {"id": pa.int64(), "note": pa.string(), "at": pa.timestamp("us", "UTC"), "day": pa.date32()}
    return [
        step(time={"avro": {**field, "field": "at"}}, names={"note": {"avro": {**field, "field": "note"}}}),
        step(columns, columns={"avro": {**field, "schema": "id BIGINT"}}),
    ]


def _protobuf_steps(path: Path) -> list[ParseStep]:
    kind = {"descriptor_file": path, "message": "shop.Order"}
    columns = {"id": pa.int64(), "tags": pa.list_(pa.string()), "at": pa.timestamp("us", "UTC")}
    return [
        step(time={"protobuf": {**kind, "field": "at"}}, names={"note": {"protobuf": {**kind, "field": "note"}}}),
        step(columns, columns={"protobuf": {**kind, "schema": "id BIGINT"}}),
    ]


def _thrift_target(protocol: str, kind: Any) -> Target:
    time = {"thrift": {"field": [7, 1], "protocol": protocol, "unit": "seconds"}}
    names = {"note": {"thrift": {"field": [1], "protocol": protocol}}}
    made = [step(time=time, names=names)]
    return Target(
        f"thrift_{protocol}",
        [thrift(kind), thrift(kind, None)],
        _between(made, thrift(kind)),
        (Unreadable,),
    )


def _json_target() -> Target:
    good = json.dumps(JSON_MESSAGE, ensure_ascii=False).encode()
    made = [
        step(
            time={"json": {"field": "at", "unit": "iso8601"}},
            names={"who": {"json": {"field": "who"}}, "b": {"json": {"field": "meta.a.b"}}},
        ),
        step(time={"json": {"field": "ms", "unit": "millis"}}, names={"id": {"json": {"field": "id"}}}),
        step(COLUMNS, columns={"json": {"schema": "id BIGINT"}}),
        step(names={"word": {"regex": {"pattern": '"who": "(?P<word>[^"]*)"', "group": "word"}}}),
    ]
    return Target("json_messages", [good], _between(made, good), (Unreadable,), JSON_TOKENS)


def _times_target() -> Target:
    """Texts of times, in every notation."""
    formats = ["%d/%b/%Y:%H:%M:%S %z", "%Y-%m-%d %H:%M:%S.%f"]
    texts = [b"2026-01-01T12:00:00.123456Z", b"01/Jan/2026:12:00:00 +0100", b"2026-01-01 12:00:00.5", b"1767268800123"]
    steps = [step(time={"json": {"field": "t", "format": pattern}}, zone="Europe/Berlin") for pattern in formats]
    steps += [step(time={"json": {"field": "t", "unit": unit}}) for unit in ("iso8601", "seconds", "millis", "nanos")]

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        values = [json.dumps({"t": text}).encode(), b'{"t": ' + data + b"}", b'{"t": 1767268800}', None]
        for made in steps:
            rows = made.apply(BATCH, message_rows(values))
            rows.validate(full=True)
            for number, fault in enumerate(rows.column("_fault").to_pylist()):
                if fault is None:
                    _check_folder(rows.column("_place")[number].as_py())

    return Target("times", texts, read, (), TIME_TOKENS)


def _tree_target() -> Target:
    kind = AvroType(json.dumps(TREE), "the schema")
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(TREE), tree())

    def read(data: bytes) -> None:
        kind.decode(data)

    return Target("avro_trees", [stream.getvalue()], read, (Unreadable,))


def _avro_schema_target() -> Target:
    seeds = [json.dumps(schema).encode() for schema in (TREE, AVRO, ["null", "string"], "long")]
    messages = [b"", bytes(20), bytes([2] * 200), bytes(range(256))]

    def read(data: bytes) -> None:
        kind = AvroType(data, "the schema")
        for message in messages:
            try:
                kind.decode(message)
            except Unreadable:
                continue

    return Target("avro_schemas", seeds, read, (UsageError,), AVRO_TOKENS)


def _descriptor_target() -> Target:
    files = descriptor_pb2.FileDescriptorSet.FromString(described())

    def read(data: bytes) -> None:
        decoder = ProtobufDecoder(data, "shop.Order", "the file")
        try:
            decoder.decode(protobuf())
        except Unreadable:
            return

    return Target("protobuf_descriptors", [files.SerializeToString()], read, (UsageError,))


def message_targets() -> list[Target]:
    """One for each encoding, and for the schemas of those that have them."""
    avro_steps = _in_file(json.dumps(AVRO).encode(), _avro_steps)
    protobuf_steps = _in_file(described(), _protobuf_steps)
    return [
        _json_target(),
        _times_target(),
        Target("avro_messages", [avro(), avro(note=None)], _between(avro_steps, avro()), (Unreadable,)),
        _tree_target(),
        _avro_schema_target(),
        Target(
            "protobuf_messages",
            [protobuf(), protobuf(tags=["a"] * 50)],
            _between(protobuf_steps, protobuf()),
            (Unreadable,),
        ),
        _descriptor_target(),
        _thrift_target("binary", TBinaryProtocol),
        _thrift_target("compact", TCompactProtocol),
    ]

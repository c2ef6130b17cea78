"""Avro, Protobuf and Thrift: times, names and columns; broken bytes are dead letters and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from holdfast.errors import UsageError
from holdfast.processors.parse import PLUGIN
from tests.unit.processors.rig import folders, message_rows, parsed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = int(NOON.timestamp())
DAY = "dt=2026-01-01"
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "meta", "type": {"type": "record", "name": "Meta", "fields": [{"name": "secs", "type": "long"}]}},
    ],
}


def avro(**fields: Any) -> bytes:
    stream = io.BytesIO()
    order = {"id": 1, "note": "a", "at": NOON, "day": date(2026, 1, 1), "meta": {"secs": SECONDS}} | fields
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), order)
    return stream.getvalue()


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(AVRO))
    return path


@pytest.mark.parametrize(
    "where",
    [{"field": "at"}, {"field": "day"}, {"field": "meta.secs", "unit": "seconds"}],
    ids=lambda settings: settings["field"],
)
def test_a_time_of_avro(schema_file: Path, where: dict[str, str]) -> None:
    time = {"avro": {"schema_file": schema_file, **where}}
    found = folders([avro(), avro()[:-1], avro() + b"x", b"", None, avro()], time=time)
    assert found[0] == found[-1] == DAY
    assert all(folder.startswith("<the message ") for folder in found[1:-1])


def test_names_and_columns_of_avro(schema_file: Path) -> None:
    where = {"schema_file": schema_file}
    names = {"note": {"avro": {**where, "field": "note"}}}
    columns = {"avro": {**where, "schema": "id BIGINT, note STRING"}}
    result = parsed(message_rows([avro(), avro(note=None), b"\x01"]), names=names, columns=columns, on_error="invalid")
    assert result.select(["_place", "id", "note"]).to_pylist()[:2] == [
        {"_place": "note=a", "id": 1, "note": "a"},
        {"_place": "note=__invalid__", "id": 1, "note": None},
    ]
    assert "not Avro of this schema" in json.loads(result.column("_fault").to_pylist()[2])["reason"]


def test_a_value_that_does_not_fit_the_columns_is_a_dead_letter(schema_file: Path) -> None:
    columns = {"avro": {"schema_file": schema_file, "schema": "id TINYINT"}}
    result = parsed(message_rows([avro(id=5), avro(id=500)]), schema={"id": pa.int8()}, columns=columns)
    assert result.column("id").to_pylist() == [5, None]
    assert result.column("_fault").is_valid().to_pylist() == [False, True]


def test_files_that_are_no_schema_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    for time, error in (
        ({"avro": {"schema_file": tmp_path / "x", "field": "a"}}, "is not an Avro schema"),
        ({"avro": {"schema_file": tmp_path / "none", "field": "a"}}, "cannot read"),
        ({"protobuf": {"descriptor_file": tmp_path / "x", "message": "A", "field": "a"}}, "has no message type A"),
    ):
        with pytest.raises(UsageError, match=error):
            PLUGIN.build(PLUGIN.config(time=time))


def described() -> bytes:
    """What protoc would write for a message with a Timestamp, a number, and a message inside."""
    shop = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    shop.dependency.append("google/protobuf/timestamp.proto")
    meta = shop.message_type.add(name="Meta")
    meta.field.add(name="secs", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    order = shop.message_type.add(name="Order")
    order.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    order.field.add(name="note", number=2, type="TYPE_STRING", label="LABEL_OPTIONAL")
    for name, number, kind in (("at", 3, ".google.protobuf.Timestamp"), ("meta", 4, ".shop.Meta")):
        order.field.add(name=name, number=number, type="TYPE_MESSAGE", type_name=kind, label="LABEL_OPTIONAL")
    order.field.add(name="tags", number=5, type="TYPE_STRING", label="LABEL_REPEATED")
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return descriptor_pb2.FileDescriptorSet(file=[timestamp, shop]).SerializeToString()


def protobuf(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described()).file:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    given = {"id": 1, "note": "a", "at": {"seconds": SECONDS}, "meta": {"secs": SECONDS}, "tags": ["x"]} | fields
    return bytes(order(**given).SerializeToString())


@pytest.fixture
def order_type(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "shop.desc"
    path.write_bytes(described())
    return {"descriptor_file": path, "message": "shop.Order"}


@pytest.mark.parametrize("where", [{"field": "at"}, {"field": "meta.secs", "unit": "seconds"}], ids=str)
def test_a_time_of_protobuf(order_type: dict[str, Any], where: dict[str, str]) -> None:
    messages = [protobuf(), b"\xff\xff", protobuf(at=None, meta=None), None, protobuf()]
    found = folders(messages, time={"protobuf": {**order_type, **where}})
    assert found[0] == found[4] == DAY
    assert found[1].startswith("<the message is not Protobuf of this type")
    assert found[2:4] == [f"<the field {where['field']} is missing>", "<the message has no value>"]


def test_columns_of_protobuf(order_type: dict[str, Any]) -> None:
    schema = {"id": pa.int64(), "tags": pa.list_(pa.string()), "at": pa.timestamp("us", "UTC"), "meta": pa.struct([("secs", pa.int64())])}  # fmt: skip  # noqa: E501
    columns = {"protobuf": {**order_type, "schema": "id BIGINT"}}
    result = parsed(message_rows([protobuf(), protobuf(at=None)]), schema=schema, columns=columns)
    assert result.select(["id", "tags", "at", "meta"]).to_pylist() == [
        {"id": 1, "tags": ["x"], "at": NOON, "meta": {"secs": SECONDS}},
        {"id": 1, "tags": ["x"], "at": None, "meta": {"secs": SECONDS}},
    ]


def thrift(kind: Any, seconds: int | None = SECONDS) -> bytes:
    """A struct with a text, a list, and the time in field 3 and again inside the struct of field 7."""
    buffer = TMemoryBuffer()
    out = kind(buffer)
    out.writeStructBegin("Order")
    _write(out, TType.STRING, 1, lambda: out.writeString("note"))
    _write(out, TType.LIST, 2, lambda: (out.writeListBegin(TType.I64, 1), out.writeI64(5), out.writeListEnd()))
    if seconds is not None:
        _write(out, TType.I64, 3, lambda: out.writeI64(seconds))
        _write(out, TType.STRUCT, 7, lambda: _inner(out, seconds))
    out.writeFieldStop()
    out.writeStructEnd()
    return bytes(buffer.getvalue())


def _inner(out: Any, seconds: int) -> None:
    out.writeStructBegin("Meta")
    _write(out, TType.I64, 1, lambda: out.writeI64(seconds))
    out.writeFieldStop()
    out.writeStructEnd()


def _write(out: Any, kind: int, number: int, content: Callable[[], Any]) -> None:
    out.writeFieldBegin("", kind, number)
    content()
    out.writeFieldEnd()


@pytest.mark.parametrize(("protocol", "kind"), [("binary", TBinaryProtocol), ("compact", TCompactProtocol)])
@pytest.mark.parametrize("path", [[3], [7, 1]])
def test_a_time_of_thrift(protocol: str, kind: Any, path: list[int]) -> None:
    time = {"thrift": {"field": path, "protocol": protocol, "unit": "seconds"}}
    found = folders([thrift(kind), thrift(kind, None), thrift(kind)[:-4], b"", None, thrift(kind)], time=time)
    assert found[0] == found[-1] == DAY
    assert found[1] == f"<the field {'.'.join(map(str, path))} is missing>"
    assert all(folder.startswith("<the message ") for folder in found[2:-1])


def test_a_name_of_thrift_and_a_field_of_another_kind() -> None:
    messages = [thrift(TBinaryProtocol)]
    assert folders(messages, names={"note": {"thrift": {"field": [1]}}}) == ["note=note"]
    assert folders(messages, names={"note": {"thrift": {"field": [2]}}}) == ["<the field 2 is not a number or text>"]
    assert folders(messages, names={"note": {"thrift": {"field": [3, 1]}}}) == ["<the field 3 is not a struct>"]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_dead_letter_or_a_place_and_never_an_error(message: bytes) -> None:
    for protocol in ("binary", "compact"):
        time = {"thrift": {"field": [1], "protocol": protocol, "unit": "seconds"}}
        (folder,) = folders([message], time=time)
        assert folder.startswith(("<", "dt="))

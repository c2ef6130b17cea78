"""Messages that would end the process or fill its memory: dead letters, like all others that cannot be read.

Each case runs in a process of its own with little memory, since the failure would be the end of the process.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.processors.parse.avro_messages import AvroType
from holdfast.processors.parse.portion import Unreadable
from tests.unit.processors.rig import folders

MEMORY = 2 << 30
CPU_SECONDS = 60
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["fastavro", "tests.unit.processors.rig", "holdfast.processors.parse.binary_fields"])


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def doubling(levels: int) -> Any:
    """A record of two records of two records…, all without bytes."""
    inner: Any = record("L0", field("x", "null"))
    for level in range(1, levels):
        inner = record(f"L{level}", field("a", inner), field("b", f"L{level - 1}"))
    return inner


def chain(length: int) -> Any:
    """A field for each type; the type of the last one has all others inside each other, though none contains itself."""
    first = field("a0", record("T0", field("x", "null")))
    return record("Chain", first, *(field(f"a{n}", record(f"T{n}", field("x", f"T{n - 1}"))) for n in range(1, length)))


MANY = b"\xfe\xff\xff\xff\xff\xff\x01"
NODE = record("Node", field("next", ["null", "Node"]))
HOSTILE = {
    "list that is too deep": (NODE, b"\2" * 20_000 + b"\0", "more than 100 records"),
    "record in itself": (record("Node", field("next", "Node")), b"", "more than 100 records"),
    "tree that is too deep": (
        record("T", field("t", {"type": "array", "items": "T"})),
        b"\2" * 50_000,
        "more than 100",
    ),
    "maps that are too deep": (
        record("T", field("t", {"type": "map", "values": "T"})),
        b"\2\0" * 50_000,
        "more than 100",
    ),
    "chain of names": (chain(30_000), b"", "values"),
    "array of nulls": ({"type": "array", "items": "null"}, MANY + b"\0", "too many values for its 9 bytes"),
    "array of empty records": ({"type": "array", "items": record("E")}, MANY, "too many values"),
    "array of empty bytes": (
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        MANY,
        "too many values",
    ),
    "negative size": ({"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}}, MANY, "too many values"),
    "array of wide records": (
        {"type": "array", "items": record("W", field("b", "boolean"), *(field(f"n{n}", "null") for n in range(5000)))},
        b"\x80\x80\x08" + b"\0" * 100_000,
        "too many values",
    ),
    "doubling": (doubling(40), b"", "too many values"),
    "doubling, then bytes": (
        record("R", field("d", doubling(40)), field("f", {"type": "fixed", "name": "F", "size": 1 << 40})),
        b"",
        "too many values",
    ),
    "blocks of a negative count": (
        {"type": "array", "items": "null"},
        b"\xfd\xff\xff\xff\xff\xff\x01\0\0",
        "too many values",
    ),
}


def _in_child(report: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    report.send(work(*arguments))


def in_child(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a process with limits; fails if that process ends without one."""
    receiver, sender = CHILDREN.Pipe(duplex=False)
    process = CHILDREN.Process(target=_in_child, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        pytest.fail(f"the process ended with {process.exitcode}")
    finally:
        process.join()


def _folders(path: Path, messages: list[bytes]) -> list[str]:
    return folders(messages, names={"x": {"avro": {"schema_file": path, "field": "x"}}})


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_message_in_avro_is_a_dead_letter(case: str, tmp_path: Path) -> None:
    schema, message, reason = HOSTILE[case]
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(record("Root", field("x", ["string", schema]))))
    found = in_child(_folders, path, [b"\0\2a", b"\2" + message, b"\0\2b"])
    assert [found[0], found[2]] == ["x=a", "x=b"]
    assert reason in found[1]


def test_types_that_contain_themselves_are_read(tmp_path: Path) -> None:
    tree = record("Tree", field("x", "string"), field("t", {"type": "array", "items": "Tree"}))
    value: dict[str, Any] = {"x": "leaf", "t": []}
    for _ in range(40):
        value = {"x": "a", "t": [value, {"x": "b", "t": []}]}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(tree), value)
    message = stream.getvalue()
    assert AvroType(json.dumps(tree), "tree").decode(message) == value
    path = tmp_path / "tree.avsc"
    path.write_text(json.dumps(tree))
    found = folders(
        [message, message[:-1], message + b"\0"], names={"x": {"avro": {"schema_file": path, "field": "x"}}}
    )
    assert found[0] == "x=a"
    assert all(folder.startswith("<the message is not Avro of this schema") for folder in found[1:])


TYPES: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "fixed", "name": "F", "size": 3},
    {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    {"type": "int", "logicalType": "date"},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    {"type": "map", "values": ["null", "long"]},
    {"type": "array", "items": ["int", {"type": "array", "items": "string"}]},
]


@settings(max_examples=300)
@given(st.sampled_from(TYPES), st.binary(max_size=30))
def test_what_is_measured_first_is_decoded_as_without(kind: Any, drawn: bytes) -> None:
    """The field `next` makes the type one that contains itself, so that its messages are measured."""
    plain = AvroType(json.dumps(record("R", field("x", kind), field("next", ["null", "null"]))), "plain")
    measured = AvroType(json.dumps(record("R", field("x", kind), field("next", ["null", "R"]))), "measured")
    for schema in (plain, measured):
        _decoded(schema, drawn)  # no error but `Unreadable`
    message = _as_encoders_write(kind, drawn)
    assume(message is not None)
    found = [_decoded(schema, message + b"\0") for schema in (plain, measured)]
    assert found[0] is not None
    assert repr(found[0]) == repr(found[1])


def _as_encoders_write(kind: Any, drawn: bytes) -> Any:
    """The value that the bytes begin with, encoded: a decoder alone also reads what no encoder writes."""
    schema = fastavro.parse_schema(kind)
    stream = io.BytesIO()
    try:
        value = fastavro.schemaless_reader(io.BytesIO(drawn + bytes(64)), schema, None)
        fastavro.schemaless_writer(stream, schema, value)
    except Exception:  # noqa: BLE001 - whatever the bytes make it raise
        return None
    return stream.getvalue()


def _decoded(schema: AvroType, message: bytes) -> Any:
    try:
        return schema.decode(message)
    except Unreadable:
        return None


def _wide_protobuf() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", syntax="proto3")
    row = file.message_type.add(name="Row")
    for number in range(1, 2001):
        row.field.add(name=f"f{number}", number=number, type="TYPE_INT64", label="LABEL_OPTIONAL")
    rows = file.message_type.add(name="Rows")
    rows.field.add(name="x", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    rows.field.add(name="rows", number=2, type="TYPE_MESSAGE", type_name=".Row", label="LABEL_REPEATED")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def _protobuf_folders(path: Path, messages: list[bytes]) -> list[str]:
    return folders(messages, names={"x": {"protobuf": {"descriptor_file": path, "message": "Rows", "field": "x"}}})


def test_many_empty_messages_inside_one_in_protobuf_are_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "wide.desc"
    path.write_bytes(_wide_protobuf())
    text = b"\x0a\1a"
    found = in_child(_protobuf_folders, path, [text, text + b"\x12\0" * 10_000, text + b"\x12\0" * 3])
    assert found == ["x=a", "<the message has too many values for its 20003 bytes>", "x=a"]


def test_a_schema_that_claims_to_be_parsed_is_parsed() -> None:
    with pytest.raises(UsageError, match="is not an Avro schema"):
        AvroType(
            json.dumps(record("R", field("x", "Unknown")) | {"__fastavro_parsed": True, "__named_schemas": {}}), "x"
        )


def test_a_schema_may_be_of_any_type_and_have_any_name() -> None:
    assert AvroType('["null", "string"]', "x").decode(b"\2\2a") == "a"
    assert AvroType('"long"', "x").decode(b"\2") == 1
    assert AvroType(json.dumps(record("HoldfastMessage", field("x", "long"))), "x").decode(b"\2") == {"x": 1}


def test_memory_that_is_too_small_is_no_fault_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_small(*_: Any) -> None:
        raise MemoryError

    text = AvroType('"string"', "text")
    monkeypatch.setattr(fastavro, "schemaless_reader", too_small)
    with pytest.raises(MemoryError):
        text.decode(b"\2a")

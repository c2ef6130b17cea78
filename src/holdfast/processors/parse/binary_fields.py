"""Fields of messages in Avro, Protobuf and Thrift.

Messages in Avro and Protobuf are decoded one by one. In Thrift a field is found by its number and everything else is
skipped, so that no generated code is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.errors import UsageError
from holdfast.processors.parse.avro_messages import AvroType
from holdfast.processors.parse.portion import NO_VALUE, Cells, FieldReader, Portion, Unreadable
from holdfast.processors.parse.schema_registry import RecentSchemas, SchemaRegistry

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP = "google.protobuf.Timestamp"
CONFLUENT_HEADER = 5
VALUES_PER_BYTE = 32
FREE_VALUES = 10_000
"""A message in Protobuf may have as many values, and `VALUES_PER_BYTE` more for each of its bytes."""


class Decoder(ABC):
    """Decodes a message into a mapping of its fields. Not picklable."""

    @abstractmethod
    def decode(self, message: bytes) -> Any:
        """The fields. Raises `Unreadable`, and `Unavailable` if the schema registry cannot be reached."""


class AvroDecoder(Decoder):
    """Avro without a header, of one schema. The constructor raises `UsageError` for an invalid schema."""

    def __init__(self, schema: bytes, origin: str) -> None:
        self._type = AvroType(schema, origin)

    def decode(self, message: bytes) -> Any:
        return self._type.decode(message)


class ConfluentDecoder(Decoder):
    """Avro with Confluent's header, which contains the id of the schema in a registry."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._types = RecentSchemas[AvroType | str]()

    def decode(self, message: bytes) -> Any:
        if len(message) < CONFLUENT_HEADER or message[0] != 0:
            raise Unreadable("the message does not begin with byte 0 and the id of a schema")
        number = int.from_bytes(message[1:CONFLUENT_HEADER], "big")
        found = self._types.get(number) or self._fetched(number)
        if isinstance(found, str):
            raise Unreadable(found)
        return found.decode(message[CONFLUENT_HEADER:])

    def _fetched(self, number: int) -> AvroType | str:
        """The type, or why there is none. An invalid schema is remembered too, as it never changes."""
        schema = self._registry.schema(number)
        found: AvroType | str
        try:
            found = AvroType(schema.text, f"schema {number} of the registry", schema.references)
        except UsageError as wrong:
            found = str(wrong)
        self._types.put(number, found, schema.size)
        return found


class ProtobufDecoder(Decoder):
    """Protobuf, of one message type. The constructor raises `UsageError` if the descriptors do not have it."""

    def __init__(self, descriptors: bytes, type_name: str, origin: str) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
                pool.Add(file)
            self._made = message_factory.GetMessageClass(pool.FindMessageTypeByName(type_name))
        except Exception as error:
            raise UsageError(f"parse: {origin} has no message type {type_name}: {error}") from error

    def decode(self, message: bytes) -> Any:
        try:
            return _ProtobufValues(len(message)).fields(self._made.FromString(message))
        except (Unreadable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the bytes make it raise
            raise Unreadable(f"the message is not Protobuf of this type: {error}") from None


class DecodedFieldReader(FieldReader):
    """Reads a field of messages that a decoder decodes. Readers with the same `key` share the decoded messages."""

    def __init__(self, key: Any, decode: Callable[[bytes], Any], path: tuple[str, ...]) -> None:
        self._key, self._decode, self._path = key, decode, path

    def read(self, portion: Portion) -> Cells:
        cells = Cells([None] * portion.rows.num_rows)
        for row, found in enumerate(portion.decoded(self._key, self._decode)):
            try:
                cells.values[row] = _walked(found, self._path)
            except Unreadable as wrong:
                cells.bad[row] = str(wrong)
        return cells


def _walked(found: Any, path: tuple[str, ...]) -> Any:
    name = ".".join(path)
    for step in path:
        if isinstance(found, Unreadable):
            raise Unreadable(str(found))
        if not isinstance(found, dict) or found.get(step) is None:
            raise Unreadable(f"the field {name} is missing")
        found = found[step]
    if isinstance(found, dict | list | tuple | bytes):
        raise Unreadable(f"the field {name} is neither text, number nor time")
    return found


class _ProtobufValues:
    """The fields of one message, without those that are absent. Raises `Unreadable` for a message with too many values.

    A nested message takes two bytes but has all its fields that cannot be absent, so a few bytes can hold many values.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = FREE_VALUES + VALUES_PER_BYTE * size

    def fields(self, message: Any) -> Any:
        if message.DESCRIPTOR.full_name == _TIMESTAMP:
            return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
        present = [
            field for field in message.DESCRIPTOR.fields if not field.has_presence or message.HasField(field.name)
        ]
        self._left -= len(present)
        if self._left < 0:
            raise Unreadable(f"the message has too many values for its {self._size} bytes")
        return {field.name: self._field(message, field) for field in present}

    def _field(self, message: Any, field: Any) -> Any:
        value, of_messages = getattr(message, field.name), field.message_type is not None
        if of_messages and field.message_type.GetOptions().map_entry:
            below = field.message_type.fields_by_name["value"].message_type is not None
            return [(key, self.fields(value[key]) if below else value[key]) for key in value]
        if field.is_repeated:
            return [self.fields(element) if of_messages else element for element in value]
        return self.fields(value) if of_messages else value


class ThriftFieldReader(FieldReader):
    """Reads a field by its path of field numbers."""

    def __init__(self, path: tuple[int, ...], protocol: str) -> None:
        self._path, self._protocol = path, protocol

    def read(self, portion: Portion) -> Cells:
        cells = Cells([None] * portion.rows.num_rows)
        for row, message in enumerate(portion.values.to_pylist()):
            try:
                cells.values[row] = self._found(message)
            except Unreadable as wrong:
                cells.bad[row] = str(wrong)
        return cells

    def _found(self, message: bytes | None) -> Any:
        if message is None:
            raise Unreadable(NO_VALUE)
        try:
            found = _in_struct(self._reader(message), self._path)
        except (Unreadable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the bytes make it raise
            raise Unreadable(f"the message is not Thrift of this protocol: {type(error).__name__}: {error}") from None
        if found is None:
            raise Unreadable(f"the field {'.'.join(map(str, self._path))} is missing")
        return found

    def _reader(self, message: bytes) -> Any:
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.protocol.TCompactProtocol import TCompactProtocol
        from thrift.transport.TTransport import TMemoryBuffer

        # No text or list of a message can be longer than the message itself.
        limits = {"string_length_limit": len(message), "container_length_limit": len(message)}
        kind = TBinaryProtocol if self._protocol == "binary" else TCompactProtocol
        return kind(TMemoryBuffer(message), **limits)


def _in_struct(reader: Any, path: tuple[int, ...]) -> Any:
    """The field of the struct that begins here; None if the struct does not have it. Reads to the end of the struct."""
    from thrift.Thrift import TType

    found = None
    reader.readStructBegin()
    while True:
        _, kind, number = reader.readFieldBegin()
        if kind == TType.STOP:
            break
        if number != path[0]:
            reader.skip(kind)
        elif len(path) > 1:
            found = _in_struct(reader, path[1:]) if kind == TType.STRUCT else _not_a("struct", number)
        else:
            found = _scalar(reader, kind, number)
        reader.readFieldEnd()
    reader.readStructEnd()
    return found


def _scalar(reader: Any, kind: int, number: int) -> Any:
    from thrift.Thrift import TType

    readers = {
        TType.I64: reader.readI64,
        TType.I32: reader.readI32,
        TType.I16: reader.readI16,
        TType.BYTE: reader.readByte,
        TType.DOUBLE: reader.readDouble,
        TType.STRING: reader.readString,
    }
    return readers[kind]() if kind in readers else _not_a("number or text", number)


def _not_a(what: str, number: int) -> Any:
    raise Unreadable(f"the field {number} is not a {what}")

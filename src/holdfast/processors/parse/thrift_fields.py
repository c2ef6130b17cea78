"""One field of messages in Thrift, found by its number; everything else is skipped. No generated code is needed."""

from __future__ import annotations

from typing import Any

from holdfast.processors.parse.cells import Cells, Unreadable
from holdfast.processors.parse.reading import NO_VALUE, Origin, Portion


class ThriftOrigin(Origin):
    """A field by the numbers on the way to it."""

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
        except Unreadable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the bytes make it raise
            raise Unreadable(f"the message is no such Thrift: {type(error).__name__}: {error}") from None
        if found is None:
            raise Unreadable(f"the field {'.'.join(map(str, self._path))} is missing")
        return found

    def _reader(self, message: bytes) -> Any:
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.protocol.TCompactProtocol import TCompactProtocol
        from thrift.transport.TTransport import TMemoryBuffer

        # No text or list of a message can be longer than the message; a larger number is a lie.
        limits = {"string_length_limit": len(message), "container_length_limit": len(message)}
        kind = TBinaryProtocol if self._protocol == "binary" else TCompactProtocol
        return kind(TMemoryBuffer(message), **limits)


def _in_struct(reader: Any, path: tuple[int, ...]) -> Any:
    """The field of the struct that begins here; None if it has none. Reads to the end of the struct."""
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
    raise Unreadable(f"the field {number} is no {what}")

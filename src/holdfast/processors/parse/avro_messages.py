"""Messages in Avro: a schema with the schemas that it refers to, and a decoder that is safe for any bytes.

fastavro calls itself for every nested value, without a limit, and a value may take no bytes at all. So a few bytes
could end the process, or fill its memory. Most schemas cannot do that; messages of the others are measured first.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.processors.parse.portion import Unreadable

MAX_DEPTH = 100
"""Records, arrays and maps inside each other, as in Protobuf."""
VALUES_PER_BYTE = 4
FREE_VALUES = 1000
"""A message may have as many values, and `VALUES_PER_BYTE` more for each of its bytes."""

_LONGEST_NUMBER = 10
_LONGEST_REASON = 500
_VALUE = "value"
_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LENGTH_FIRST = ("bytes", "string")
_NUMBERS = ("int", "long", "enum")
_RECORDS = ("record", "error")
_REPEATED = {"array": "items", "map": "values"}
_PRIMITIVES = {kind: {"type": kind} for kind in (*_FIXED_BYTES, *_LENGTH_FIRST, "int", "long")}


class AvroType:
    """A schema. The constructor raises `UsageError` for an invalid one."""

    def __init__(self, schema: bytes | str, origin: str, references: Sequence[str] = ()) -> None:
        """`references` are the schemas that it refers to, each after those that it refers to itself."""
        import fastavro  # noqa: F401 - its absence is not an error of the schema

        self._named: dict[str, Any] = {}
        try:
            for reference in references:
                self._parsed(json.loads(reference))
            definition = json.loads(schema)
            self._wrapped = not _is_record(definition)
            self._schema = self._parsed(definition)
            self._harmless = _is_harmless(self._schema, self._named)
        except Exception as error:  # fastavro raises errors of many types
            reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            raise UsageError(f"parse: {origin} is not an Avro schema: {reason}") from error

    def _parsed(self, schema: Any) -> Any:
        """A record; a schema of another type is wrapped, so that it too may use the named types of others.

        A record has no bytes but those of its fields, so the wrapper reads the same messages.
        """
        import fastavro

        if not _is_record(schema):
            schema = {"type": "record", "name": "HoldfastMessage", "fields": [{"name": _VALUE, "type": schema}]}
        # fastavro marks what it has parsed by names with underscores, and would believe such marks.
        return fastavro.parse_schema({name: schema[name] for name in schema if name[:2] != "__"}, self._named)

    def decode(self, message: bytes) -> Any:
        """The value. Raises `Unreadable`."""
        import fastavro

        stream = io.BytesIO(message)
        try:
            if not self._harmless:
                _Measurement(message, self._named).check(self._schema)
            found: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except (Unreadable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the bytes make it raise
            raise Unreadable(f"the message is not Avro of this schema: {type(error).__name__}: {error}") from None
        if stream.tell() != len(message):
            raise Unreadable("the message is not Avro of this schema: bytes are left over")
        return found[_VALUE] if self._wrapped else found


def _is_harmless(schema: Any, named: dict[str, Any]) -> bool:
    """Whether every message of the schema is within the limits."""
    try:
        bounds = _SchemaBounds(named).of(schema)
    except RecursionError:
        return False
    return bounds.peak <= FREE_VALUES and bounds.depth <= MAX_DEPTH


class _Bounds(NamedTuple):
    """Upper bounds for all messages of a type; infinite for a type that contains itself."""

    excess: float
    """The number of values, minus `VALUES_PER_BYTE` for each byte."""
    peak: float
    """The excess of any beginning of a message, since the decoder has made those values when it finds the end."""
    depth: float


class _SchemaBounds:
    """Computes the bounds of types."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._computed: dict[int, _Bounds] = {}

    def of(self, schema: Any) -> _Bounds:
        if isinstance(schema, list):
            branches = [self.of(branch) for branch in schema] or [_Bounds(0.0, 0.0, 0.0)]
            excess, peak, depth = (max(bounds) for bounds in zip(*branches, strict=True))
            return _Bounds(excess - VALUES_PER_BYTE, peak, depth)
        schema = _resolved(schema, self._named)
        if id(schema) not in self._computed:
            self._computed[id(schema)] = _Bounds(math.inf, math.inf, math.inf)
            self._computed[id(schema)] = self._of_type(schema)
        return self._computed[id(schema)]

    def _of_type(self, schema: Any) -> _Bounds:
        kind = schema["type"]
        if kind in _RECORDS:
            excess, peak, depth = 1.0, 1.0, 0.0
            for field in schema["fields"]:
                of_field = self.of(field["type"])
                peak = max(peak, excess + of_field.peak)
                excess, depth = excess + of_field.excess, max(depth, of_field.depth)
            return _Bounds(excess, peak, 1 + depth)
        if kind in _REPEATED:
            item = self.of(schema[_REPEATED[kind]])
            of_key = 1 - VALUES_PER_BYTE if kind == "map" else 0
            peak = math.inf if item.excess + of_key > 0 else 2 + item.peak
            return _Bounds(1.0 - VALUES_PER_BYTE, peak, 1 + item.depth)
        return _Bounds(1.0 - VALUES_PER_BYTE * _least_bytes(schema), 1.0, 0.0)


class _Measurement:
    """Walks through a message without keeping anything. Raises `Unreadable` for one that is beyond the limits."""

    def __init__(self, message: bytes, named: dict[str, Any]) -> None:
        self._message, self._named = message, named
        self._position = 0
        self._values_left = FREE_VALUES + VALUES_PER_BYTE * len(message)

    def check(self, schema: Any, depth: int = 0) -> None:
        """Measure one value of this schema."""
        if isinstance(schema, list):
            self.check(schema[self._length(len(schema) - 1)], depth)
            return
        schema = _resolved(schema, self._named)
        kind = schema["type"]
        self._count_value()
        if depth >= MAX_DEPTH and (kind in _RECORDS or kind in _REPEATED):
            raise Unreadable(f"the message has more than {MAX_DEPTH} records, arrays and maps inside each other")
        if kind in _RECORDS:
            for field in schema["fields"]:
                self.check(field["type"], depth + 1)
        elif kind in _REPEATED:
            self._check_blocks(kind, schema[_REPEATED[kind]], depth + 1)
        elif kind in _NUMBERS:
            self._number()
        elif kind in _LENGTH_FIRST:
            self._skip(self._length())
        else:
            self._skip(_least_bytes(schema))

    def _check_blocks(self, kind: str, item: Any, depth: int) -> None:
        while count := self._number():
            if count < 0:
                self._number()
            for _ in range(abs(count)):
                if kind == "map":
                    self._count_value()
                    self._skip(self._length())
                self.check(item, depth)

    def _count_value(self) -> None:
        self._values_left -= 1
        if self._values_left < 0:
            raise Unreadable(f"the message has too many values for its {len(self._message)} bytes")

    def _length(self, most: int | None = None) -> int:
        length = self._number()
        if length < 0 or (most is not None and length > most):
            raise ValueError(f"{length} is not a valid length or index")
        return length

    def _number(self) -> int:
        """A number in zigzag, seven bits to a byte, the lowest first."""
        value = 0
        for shift in range(0, 7 * _LONGEST_NUMBER, 7):
            self._skip(1)
            byte = self._message[self._position - 1]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 1 << 64:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number has more than 64 bits")

    def _skip(self, count: int) -> None:
        self._position += count
        if self._position > len(self._message):
            raise ValueError("the message ends too early")


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") in _RECORDS


def _resolved(schema: Any, named: dict[str, Any]) -> Any:
    """The definition of a type that may be given by its name."""
    if isinstance(schema, dict):
        return schema
    if schema in _PRIMITIVES:
        return _PRIMITIVES[schema]
    if schema in _RECORDS or schema in _REPEATED or schema in ("enum", "fixed", "union"):
        raise ValueError(f"a type must not have the name {schema}")
    return named[schema]


def _least_bytes(schema: Any) -> int:
    kind = schema["type"]
    if kind == "fixed":
        return min(max(int(schema["size"]), 0), 1 << 32)
    return 1 if kind in _NUMBERS or kind in _LENGTH_FIRST else _FIXED_BYTES[kind]

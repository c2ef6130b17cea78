"""How much memory the rows of an Avro schema can take, and a decoder that stops when one row takes too much.

A block of a few bytes can declare arrays of any length, and data of a recursive schema can be nested without end, which
would overflow the stack of fastavro's decoder. Where the schema and the size of a block exclude both, rows are decoded
without any check. Elsewhere every read of the decoder is counted.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, NamedTuple

MAX_MEMORY = 256 << 20
"""The most that one row, or the arrays and maps of one block, may take in memory; an estimate in bytes."""
MAX_DEPTH = 100
"""How deeply a schema, and the rows of a recursive schema, may be nested."""
_COUNTED, _RECURSIVE = "holdfast-counted", "holdfast-recursive"
_METER, _MARKER = "holdfast-meter", "holdfast_marker"
_PRIMITIVES = {
    "null": (0, 0),
    "boolean": (0, 1),
    "int": (32, 1),
    "long": (32, 1),
    "float": (24, 1),
    "double": (24, 1),
    "bytes": (40, 1),
    "string": (56, 1),
}
"""Memory and the least number of reads; an item of an array takes a pointer besides."""
_LOGICAL, _SLOT, _LIST, _DICT = 256, 100, 96, 256


class Cost(NamedTuple):
    """The memory, reads and depth of one value, without the items of arrays and maps in it."""

    memory: int
    reads: int
    """How often the decoder reads at least."""
    height: int = 1
    """How deeply the type is nested."""


class SchemaCost:
    """The cost of the rows of a parsed schema. Raises `ValueError` if a row can never be within the bounds."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Cost | None] = {}
        self._items: list[Cost] = []
        self._recursive: set[str] = set()
        self.row = self._cost(schema, 0)
        if self.row.memory > MAX_MEMORY:
            raise ValueError(f"a row of its schema takes more than {MAX_MEMORY} bytes of memory")
        self.per_read = max((-(-item.memory // max(item.reads, 1)) for item in self._items), default=0)
        """The most memory that items of arrays and maps take for each read of the decoder."""
        self.is_unbounded = bool(self._recursive) or any(not item.reads for item in self._items)
        """Whether rows may be nested without end, or have items that take no bytes."""

    def _cost(self, schema: Any, depth: int) -> Cost:
        if depth > MAX_DEPTH:
            raise ValueError(f"its schema is nested more than {MAX_DEPTH} levels deep")
        found = self._cost_of(schema, depth + 1)
        if found.height > MAX_DEPTH:
            raise ValueError(f"its schema is nested more than {MAX_DEPTH} levels deep")
        return found

    def _cost_of(self, schema: Any, depth: int) -> Cost:
        if isinstance(schema, list):
            parts = [self._cost(part, depth) for part in schema]
            memory, height = (max((part[index] for part in parts), default=0) for index in (0, 2))
            return Cost(memory, 1 + min((part.reads for part in parts), default=0), height + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self._cost(kind, depth)
        if kind == "array":
            return self._repeated(self._cost(schema["items"], depth), Cost(8, 0), _LIST)
        if kind == "map":
            return self._repeated(self._cost(schema["values"], depth), Cost(_SLOT + 56, 1), _DICT)
        if kind in {"record", "error"}:
            return self._record(schema, depth)
        if isinstance(schema, str):
            return Cost(*_PRIMITIVES[kind]) if kind in _PRIMITIVES else self._reference(kind)
        memory, reads = _PRIMITIVES.get(kind, (40, int(kind == "enum" or schema.get("size", 1) > 0)))
        return Cost(memory + (_LOGICAL if "logicalType" in schema else 0), reads)

    def _repeated(self, item: Cost, beside: Cost, container: int) -> Cost:
        self._items.append(Cost(item.memory + beside.memory, item.reads + beside.reads))
        return Cost(container, 1, item.height + 1)

    def _record(self, schema: Any, depth: int) -> Cost:
        name = schema["name"]
        self._named[name] = None
        fields = [self._cost(field["type"], depth) for field in schema["fields"]]
        height = 1 + max((field.height for field in fields), default=0)
        found = Cost(
            _DICT + sum(_SLOT + field.memory for field in fields), sum(field.reads for field in fields), height
        )
        self._named[name] = found
        if name in self._recursive:
            self._items.append(found)
        return found

    def _reference(self, name: str) -> Cost:
        if name not in self._named:
            return Cost(40, 0)  # an enum or a fixed
        found = self._named[name]
        if found is None:
            self._recursive.add(name)
            return Cost(0, 0)
        return found

    def metered(self, schema: Any, meter: Meter) -> Any:
        """The schema with types that report to the meter: items without bytes, and recursive records."""
        if isinstance(schema, list):
            return [self.metered(part, meter) for part in schema]
        if isinstance(schema, str):
            return schema
        kept = {key: value for key, value in schema.items() if not key.startswith("__") and key != "default"}
        for key in kept.keys() & {"items", "values"}:
            kept[key] = self.metered({"type": "null"} if kept[key] == "null" else kept[key], meter)
        if not isinstance(kept["type"], str):
            kept["type"] = self.metered(kept["type"], meter)
        if "fields" in kept:
            kept["fields"] = [
                {"name": field["name"], "type": self.metered(field["type"], meter)} for field in kept["fields"]
            ]
            if kept["name"] in self._recursive:
                marker = {"type": "null", "logicalType": _RECURSIVE, _METER: meter}
                kept["fields"].insert(0, {"name": _MARKER, "type": marker})
                return {**kept, "logicalType": _RECURSIVE, _METER: meter}
        if self._has_no_bytes(kept):
            return {**kept, "logicalType": _COUNTED, _METER: meter}
        return kept

    def _has_no_bytes(self, schema: Any) -> bool:
        kind = schema["type"]
        if kind in {"record", "error"}:
            found = self._named[schema["name"]]
            return found is not None and not found.reads
        return kind == "null" or (kind == "fixed" and not schema["size"])


class Meter:
    """Counts how much one row takes."""

    def __init__(self) -> None:
        self.spent = self._depth = 0

    def begin(self, memory: int) -> None:
        """Begin a row whose values outside of arrays and maps take that much memory."""
        self.spent, self._depth = memory, 0

    def spend(self, memory: int) -> None:
        self.spent += memory
        if self.spent > MAX_MEMORY:
            raise ValueError(f"a row takes more than {MAX_MEMORY} bytes of memory; at most that many are read")

    def descend(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"a row is nested more than {MAX_DEPTH} levels deep")

    def ascend(self) -> None:
        self._depth -= 1


class MeteredBytes(BytesIO):
    """The bytes of a block. Each read counts as the maximum that an item of an array or map can take."""

    def __init__(self, data: bytes, meter: Meter, per_read: int) -> None:
        super().__init__(data)
        self._meter = meter
        self._per_read = per_read

    def read(self, size: int | None = -1, /) -> bytes:
        self._meter.spend(self._per_read)
        return super().read(size)


def install_meters() -> None:
    """Let fastavro call the meters of schemas that `SchemaCost.metered` made."""
    from fastavro.read import LOGICAL_READERS

    readers: Any = LOGICAL_READERS
    for kind in ("null", "fixed", "record", "error"):
        readers[f"{kind}-{_COUNTED}"] = _count
    readers[f"null-{_RECURSIVE}"] = _descend
    for kind in ("record", "error"):
        readers[f"{kind}-{_RECURSIVE}"] = _ascend


def _count(value: Any, schema: Any, _: Any) -> Any:
    schema[_METER].spend(_DICT)
    return value


def _descend(_value: Any, schema: Any, _: Any) -> None:
    schema[_METER].descend()


def _ascend(value: Any, schema: Any, _: Any) -> Any:
    schema[_METER].ascend()
    del value[_MARKER]
    return value

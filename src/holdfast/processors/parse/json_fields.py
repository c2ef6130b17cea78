"""Fields of JSON messages, by msgspec: only the wanted fields become Python values.

A portion of messages is decoded in one call. If that is refused, each message is decoded by itself, so that a message
gives the same result whatever other messages come with it.

For this call the messages are joined as lines. A message that begins and ends with a brace, and is followed by a line
break, cannot run on into the next: in JSON `}` and `{` follow each other only between two objects, and no line break is
in a string. So there are as many objects as messages exactly if each message is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import UsageError
from holdfast.processors.parse.portion import Cells, Unreadable

Path: TypeAlias = tuple[str, ...]

AT_A_TIME = 4096
"""Messages that are decoded in one call: not more, so that they stay in the CPU's cache and a bad one costs little."""

TRIMMED = 16
"""White space that may surround an object; a message with more is decoded by itself, or refused."""
LARGEST = 1 << 30
"""Arrow's offsets into a column have 32 bits."""
_OPEN, _CLOSE = ord("{"), ord("}")
_LEAF = int | float | str | None
_ONLY = "it"
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JsonFields:
    """Reads some fields of every message. Not picklable; built where it is used."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        tree: dict[str, Any] = {}
        for path in self._paths:
            _plant(tree, path)
        # With one field at every level its attribute has a fixed name, which makes access three times as fast.
        self._only = len(self._paths) == 1
        self._decoder = msgspec.json.Decoder(_struct(tree, only=self._only))
        self._getters = {path: attrgetter(".".join(_attributes(tree, path))) for path in self._paths}

    def read(self, values: Any) -> dict[Path, Cells]:
        """The fields of all messages of a binary array, by path. A message that lacks a field is bad for that field."""
        columns = {path: Cells([]) for path in self._paths}
        for start in range(0, len(values), AT_A_TIME):
            for path, cells in self._portion(values.slice(start, AT_A_TIME)).items():
                columns[path].values += cells.values
                columns[path].bad |= {start + row: reason for row, reason in cells.bad.items()}
        return columns

    def _portion(self, values: Any) -> dict[Path, Cells]:
        if look_like_objects(values).all():
            try:
                objects = self._decoder.decode_lines(joined_lines(values))
            except (*_REFUSED, Unreadable):
                objects = []
            # Every message begins and ends with a brace, and no object crosses a line break: so each is one object.
            if len(objects) == len(values):
                return {path: _present(self._field_of_all(objects, path), path) for path in self._paths}
        return self._decoded_separately(values.to_pylist())

    def _field_of_all(self, objects: list[Any], path: Path) -> list[Any]:
        if not self._only:
            return list(map(self._getters[path], objects))
        for _ in path:
            objects = [found.it for found in objects]
        return objects

    def _decoded_separately(self, messages: Sequence[bytes | None]) -> dict[Path, Cells]:
        columns = {path: Cells([None] * len(messages)) for path in self._paths}
        decode, getters = self._decoder.decode, self._getters
        field_getters = [self._only_field if self._only else getters[path] for path in self._paths]
        for row, message in enumerate(messages):
            try:
                found = decode(message or b"")
            except _REFUSED:
                self._explain(row, message, columns)
                continue
            for field_of, cells, path in zip(field_getters, columns.values(), self._paths, strict=True):
                cells.values[row] = value = field_of(found)
                if value is None:
                    cells.bad[row] = _missing(path)
        return columns

    def _only_field(self, found: Any) -> Any:
        for _ in self._paths[0]:
            found = found.it
        return found

    def _explain(self, row: int, message: bytes | None, columns: dict[Path, Cells]) -> None:
        """Record what is wrong with a message that msgspec refused; some of its fields may be right."""
        try:
            whole = _object(message)
        except Unreadable as wrong:
            for cells in columns.values():
                cells.bad[row] = str(wrong)
            return
        for path, cells in columns.items():
            try:
                cells.values[row] = _walked(whole, path)
            except Unreadable as wrong:
                cells.bad[row] = str(wrong)


def _plant(tree: dict[str, Any], path: Path) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
        if tree is None:
            raise UsageError(f"the field {'.'.join(path)} and a field that contains it cannot both be used")
    if tree.setdefault(path[-1], None) is not None:
        raise UsageError(f"the field {'.'.join(path)} and a field inside it cannot both be used")


def _struct(tree: dict[str, Any], *, only: bool) -> Any:
    fields: list[Any] = []
    names = {_ONLY if only else f"f{number}": key for number, key in enumerate(tree)}
    for name, key in names.items():
        if tree[key] is None:
            fields.append((name, _LEAF, None))
        else:
            below = _struct(tree[key], only=only)
            fields.append((name, below, msgspec.field(default_factory=below)))
    return msgspec.defstruct("Message", fields, rename=names, gc=False)


def _attributes(tree: dict[str, Any], path: Path) -> list[str]:
    attributes = []
    for step in path:
        attributes.append(f"f{list(tree).index(step)}")
        tree = tree[step]
    return attributes


def _present(values: list[Any], path: Path) -> Cells:
    if None not in values:
        return Cells(values)
    return Cells(values, {row: _missing(path) for row, value in enumerate(values) if value is None})


def _object(message: bytes | None) -> dict[str, Any]:
    if message is None:
        raise Unreadable("the message has no value")
    try:
        whole = msgspec.json.decode(message)
    except _REFUSED as error:
        raise Unreadable(f"the message is not JSON: {error}") from None
    if not isinstance(whole, dict):
        raise Unreadable("the message is not a JSON object")
    return whole


def _walked(found: Any, path: Path) -> Any:
    for step in path:
        if found is not None and not isinstance(found, dict):
            raise Unreadable(f"the field {'.'.join(path)} is missing: what should contain it is not an object")
        found = None if found is None else found.get(step)
    if found is None:
        raise Unreadable(_missing(path))
    if isinstance(found, dict | list):
        raise Unreadable(f"the field {'.'.join(path)} is neither text nor number")
    # A bool is an int in Python.
    return str(found).lower() if isinstance(found, bool) else found


def _missing(path: Path) -> str:
    return f"the field {'.'.join(path)} is missing"


def look_like_objects(values: Any) -> Any:
    """For each message of a binary array, whether it begins and ends with a brace."""
    if not len(values):
        return np.zeros(0, np.bool_)
    borders = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    starts, ends = borders[:-1], borders[1:] - 1
    if borders[-1] == borders[0]:
        return np.zeros(len(values), np.bool_)
    data = np.frombuffer(values.buffers()[2], np.uint8)
    last = len(data) - 1
    for _ in range(TRIMMED):
        before, after = _is_space(data[np.minimum(starts, last)]), _is_space(data[ends])
        if not before.any() and not after.any():
            break
        starts, ends = starts + before, np.maximum(ends - after, 0)
    return (ends > starts) & (data[np.minimum(starts, last)] == _OPEN) & (data[ends] == _CLOSE)


def joined_lines(values: Any) -> Any:
    """All messages, separated by line breaks, in one buffer. Raises `Unreadable` if that would be too large."""
    if values.nbytes > LARGEST:
        raise Unreadable(f"a message is larger than {LARGEST} bytes")
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, b"\n")[0].as_buffer()


def _is_space(numbers: Any) -> Any:
    return (numbers == ord(" ")) | (numbers == ord("\n")) | (numbers == ord("\r")) | (numbers == ord("\t"))

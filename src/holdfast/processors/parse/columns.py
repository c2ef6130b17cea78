"""Columns from messages: JSON by Arrow's parser, other encodings from the values that their decoder returns.

A message that cannot be decoded, or does not fit the schema, is bad; the others are not affected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json

from holdfast.formats._json import parsed_schema
from holdfast.processors.parse.json_fields import joined_lines, look_like_objects
from holdfast.processors.parse.portion import NO_VALUE, Bad, Unreadable

_NOT_AN_OBJECT = "the message is not a JSON object"


class MessageColumns(ABC):
    """Makes columns from messages. A portion that cannot be decoded is halved until the bad messages are alone."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, values: Any) -> tuple[list[Any], Bad]:
        """The columns of all messages of a binary array, null where a message is bad."""
        bad: Bad = {}
        items, rows = self._candidates(values, bad)
        chunks: list[tuple[Any, list[Any]]] = []
        self._sift(items, rows, chunks, bad)
        if not bad and len(chunks) == 1:
            return chunks[0][1], bad
        return self._laid_out(len(values), chunks), bad

    @abstractmethod
    def _candidates(self, values: Any, bad: Bad) -> tuple[Any, Any]:
        """The items that may be decoded, and the numbers of their rows; the others are bad."""

    @abstractmethod
    def _columns(self, items: Any) -> list[Any]:
        """The columns. Raises `ValueError` if one of the items does not fit."""

    def _screened(self, items: Any, rows: Any, bad: Bad) -> tuple[Any, Any]:  # noqa: ARG002 - not every encoding can
        """Leave out items that certainly do not fit, so that they need not be found by bisection."""
        return items, rows

    def _reason(self, item: Any, error: ValueError) -> str:  # noqa: ARG002 - others look at the item
        """What is wrong with the item; must not depend on the other items."""
        return str(error).removesuffix(" in row 0").removesuffix(".")

    def _sift(self, items: Any, rows: Any, chunks: list[Any], bad: Bad, *, screened: bool = False) -> None:
        if not len(items):
            return
        try:
            columns = self._columns(items)
            self._check_nulls(columns)
            chunks.append((rows, columns))
            return
        except ValueError as error:
            if len(items) == 1:
                bad[int(rows[0])] = self._reason(items[0], error)
                return
        if not screened:
            items, rows = self._screened(items, rows, bad)
            self._sift(items, rows, chunks, bad, screened=True)
            return
        half = len(items) // 2
        self._sift(items[:half], rows[:half], chunks, bad, screened=True)
        self._sift(items[half:], rows[half:], chunks, bad, screened=True)

    def _check_nulls(self, columns: list[Any]) -> None:
        for field, column in zip(self.schema, columns, strict=True):
            if not field.nullable and column.null_count:
                raise Unreadable(f"{field.name} is missing")

    def _laid_out(self, count: int, chunks: list[tuple[Any, list[Any]]]) -> list[Any]:
        """All columns in the order of the rows, with nulls for bad rows."""
        if not chunks:
            return [pa.nulls(count, field.type) for field in self.schema]
        indices = np.full(count, -1, np.int64)
        kept = np.concatenate([rows for rows, _ in chunks])
        indices[kept] = np.arange(len(kept))
        which = pa.array(indices, mask=indices < 0)
        return [pa.concat_arrays(pieces).take(which) for pieces in zip(*(made for _, made in chunks), strict=True)]


class JsonMessages(MessageColumns):
    """Messages that are JSON objects. Fields that are not in the schema are ignored."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self._parsed = parsed_schema(schema)

    @cached_property
    def _type_check(self) -> TypeCheck:
        return TypeCheck(self.schema)

    def _candidates(self, values: Any, bad: Bad) -> tuple[Any, Any]:
        good = look_like_objects(values)
        if good.all():
            return values, np.arange(len(values))
        for row in np.flatnonzero(~good).tolist():
            bad[row] = _NOT_AN_OBJECT if values[row].is_valid else NO_VALUE
        return values.filter(pa.array(good)), np.flatnonzero(good)

    def _screened(self, items: Any, rows: Any, bad: Bad) -> tuple[Any, Any]:
        reasons = [self._type_check.reason(message) for message in items.to_pylist()]
        stay = np.array([reason is None for reason in reasons], np.bool_)
        bad |= {int(row): reason for row, reason in zip(rows, reasons, strict=True) if reason is not None}
        return items.filter(pa.array(stay)), rows[stay]

    def _reason(self, item: Any, error: ValueError) -> str:
        return self._type_check.reason(item.as_py()) or super()._reason(item, error)

    def _columns(self, items: Any) -> list[Any]:
        try:
            # Arrow's parser accepts any bytes as text.
            items.cast(pa.string())
        except pa.ArrowInvalid:
            raise Unreadable("the message is not UTF-8") from None
        text = joined_lines(items)
        table = pa.json.read_json(
            pa.BufferReader(text),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=self._parsed, unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
        if table.num_rows != len(items):
            raise Unreadable("the message has more than one JSON object")
        columns = [table.column(field.name).combine_chunks() for field in self.schema]
        return [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]


class DecodedMessages(MessageColumns):
    """Messages that a decoder turns into mappings. Fields that are not in the schema are ignored."""

    def __init__(self, schema: pa.Schema, decode: Callable[[bytes], Any]) -> None:
        super().__init__(schema)
        self._decode = decode

    def _candidates(self, values: Any, bad: Bad) -> tuple[Any, Any]:
        records, rows = [], []
        for row, message in enumerate(values.to_pylist()):
            try:
                records.append(self._record(message))
                rows.append(row)
            except Unreadable as wrong:
                bad[row] = str(wrong)
        return records, np.array(rows, np.int64)

    def _record(self, message: bytes | None) -> Any:
        if message is None:
            raise Unreadable(NO_VALUE)
        record = self._decode(message)
        if not isinstance(record, dict):
            raise Unreadable("the message is not a record with fields")
        return record

    def _columns(self, items: Any) -> list[Any]:
        try:
            whole = pa.array(items, pa.struct(list(self.schema)))
        except (pa.ArrowTypeError, OverflowError, TypeError) as error:
            raise Unreadable(str(error)) from None
        return [whole.field(number) for number in range(len(self.schema))]


class TypeCheck:
    """Finds JSON messages with values of a wrong type, by msgspec. Not picklable.

    Arrow's parser refuses a whole portion for one message and is slow to find out which. This check is fast, and every
    message that it refuses is also refused by Arrow; Arrow may refuse more.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._decoder = msgspec.json.Decoder(_struct(schema))

    def reason(self, message: bytes) -> str | None:
        """Why the message does not fit; None if no wrong type was found."""
        try:
            self._decoder.decode(message)
        except msgspec.ValidationError as wrong:
            return f"the message does not fit the columns: {wrong}"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Arrow's parser may accept what msgspec does not.
            return None
        return None


def _struct(fields: Any) -> Any:
    names = {f"f{number}": field.name for number, field in enumerate(fields)}
    made: list[Any] = [(name, _kind(field.type) | None, None) for name, field in zip(names, fields, strict=True)]
    return msgspec.defstruct("Row", made, rename=names, gc=False)


def _kind(kind: Any) -> Any:
    types = pa.types
    if types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return int if kind.bit_width == 64 else Annotated[int, msgspec.Meta(ge=-bound, lt=bound)]
    if types.is_floating(kind):
        return float
    if types.is_boolean(kind):
        return bool
    if types.is_string(kind):
        return str
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_list(kind):
        return list[_kind(kind.value_type) | None]  # type: ignore[misc]
    return Any

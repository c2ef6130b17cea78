"""The user's functions of messages, or of Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import BatchError, Unavailable
from holdfast.flow.kafka_columns import HEADERS, KEY, PARTITION, TIMESTAMP, VALUE
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN, SYSTEM_COLUMNS
from holdfast.processors._functions import imported
from holdfast.processors.parse.messages import Message, Parsed
from holdfast.processors.parse.names import coded_texts, escaped_segment, output_folders, with_invalid
from holdfast.processors.parse.portion import Bad, Unreadable, with_column, with_faults, with_output_folders
from holdfast.processors.parse.time_patterns import INVALID

MESSAGE_COLUMNS = frozenset({PARTITION, TIMESTAMP, KEY, VALUE, HEADERS})


class MessageFunction:
    """A function that takes a `Message` and returns `Parsed`, or names alone. An error concerns that message only."""

    def __init__(self, function_name: str, *, dead_letters: bool) -> None:
        self._name = function_name
        self._function = imported(function_name)
        self._dead_letters = dead_letters

    def apply(self, topic: str, rows: Any) -> Any:
        """The rows with output folders, and with other payloads where the function returned some."""
        if not rows.num_rows:
            return rows
        names, payloads, bad = self._results(topic, rows)
        coded = coded_texts(pa.array(names, pa.string()), bad)
        if not self._dead_letters:
            coded = with_invalid(coded, INVALID)
        if coded.bad:
            rows = with_faults(rows, coded.bad)
        if payloads:
            values = [payloads.get(row, value) for row, value in enumerate(rows.column(VALUE).to_pylist())]
            rows = with_column(rows, VALUE, pa.array(values, pa.binary()))
        return with_output_folders(rows, output_folders(coded, rows.num_rows)) if any(coded.texts) else rows

    def _results(self, topic: str, rows: Any) -> tuple[list[str | None], dict[int, bytes], Bad]:
        names: list[str | None] = [None] * rows.num_rows
        payloads: dict[int, bytes] = {}
        bad: Bad = {}
        has_fault = rows.column(FAULT_COLUMN).is_valid().to_pylist()
        for row, message in enumerate(messages_of(topic, rows)):
            if has_fault[row]:
                bad[row] = "it has a fault already"
                continue
            try:
                parsed = _checked(self._function(message))
                names[row] = "/".join(escaped_segment(name) for name in parsed.names)
                if parsed.payload is not None:
                    payloads[row] = parsed.payload
            except (Unavailable, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
                bad[row] = f"{self._name}: {type(error).__name__}: {error}"
        return names, payloads, bad


class ArrowFunction:
    """A function that takes a topic and a record batch and returns a record batch.

    It must keep the system columns. An error fails the whole batch.
    """

    def __init__(self, function_name: str) -> None:
        self._name = function_name
        self._function = imported(function_name)

    def apply(self, topic: str, rows: Any) -> Any:
        """The result of the function. Raises `BatchError` if it drops what it must keep."""
        if not rows.num_rows:
            return rows
        result = self._function(topic, rows)
        if not isinstance(result, pa.RecordBatch):
            raise BatchError(f"{self._name} returned {type(result).__name__}, not a RecordBatch")
        dropped = [name for name in SYSTEM_COLUMNS if name not in result.schema.names]
        if dropped:
            raise BatchError(f"{self._name} dropped {', '.join(dropped)}; it must keep {', '.join(SYSTEM_COLUMNS)}")
        if _faults(result) < _faults(rows):
            raise BatchError(f"{self._name} dropped rows with a fault; it must keep them")
        return result


def messages_of(topic: str, rows: Any) -> Iterator[Message]:
    """Each row as a message."""
    columns = [_list(rows, name) for name in (PARTITION, ITEM_COLUMN, TIMESTAMP, KEY, VALUE, HEADERS)]
    for partition, offset, timestamp, key, value, headers in zip(*columns, strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        yield Message(topic, partition, offset, timestamp, key, _bytes(value), pairs)


def _checked(result: Any) -> Parsed:
    if isinstance(result, str):
        result = (result,)
    parsed = result if isinstance(result, Parsed) else Parsed(tuple(result))
    names: Sequence[Any] = parsed.names
    if not all(isinstance(name, str) and name for name in names):
        raise Unreadable("it returned a partition name that is empty or not text")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise Unreadable("it returned a partition name that is not valid Unicode") from None
    payload: Any = parsed.payload
    if not isinstance(payload, bytes | None):
        raise Unreadable("it returned a payload that is not bytes")
    return parsed


def _list(rows: Any, name: str) -> list[Any]:
    index = rows.schema.get_field_index(name)
    return [None] * rows.num_rows if index < 0 else list(rows.column(index).to_pylist())


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _faults(rows: Any) -> int:
    return int(rows.num_rows - rows.column(FAULT_COLUMN).null_count)

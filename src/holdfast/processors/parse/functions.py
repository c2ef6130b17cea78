"""Functions of the user's: on one message, or on Arrow record batches. They are trusted code, imported by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import BatchError, Unavailable, UsageError
from holdfast.flow.kafka_columns import HEADERS, KEY, PARTITION, TIMESTAMP, VALUE
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN, SYSTEM_COLUMNS
from holdfast.processors.parse.messages import Message, Parsed
from holdfast.processors.parse.names import coded_texts, escaped_segment, output_folders, with_invalid
from holdfast.processors.parse.portion import Bad, Unreadable, with_column, with_faults, with_output_folders
from holdfast.processors.parse.time_patterns import INVALID

MESSAGE_COLUMNS = frozenset({PARTITION, TIMESTAMP, KEY, VALUE, HEADERS})


def imported(place: str) -> Callable[..., Any]:
    """The function that `module:name` names. Raises `UsageError` when there is none."""
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"the function {place} cannot be imported: {error}") from error
    if not callable(function):
        raise UsageError(f"{place} is no function")
    return function  # type: ignore[no-any-return]


class MessageFunction:
    """A function from `Message` to `Parsed`, or to names alone. What it raises is wrong with that message."""

    def __init__(self, place: str, *, dead_letters: bool) -> None:
        self._place = place
        self._function = imported(place)
        self._dead_letters = dead_letters

    def apply(self, topic: str, rows: Any) -> Any:
        """The rows with places, and with other payloads where the function gave some."""
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
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message
                bad[row] = f"{self._place}: {type(error).__name__}: {error}"
        return names, payloads, bad


class ArrowFunction:
    """A function from topic and record batch to record batch. It keeps the system columns; what it raises fails all."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._function = imported(place)

    def apply(self, topic: str, rows: Any) -> Any:
        """What the function gives. Raises `BatchError` if it breaks a rule."""
        if not rows.num_rows:
            return rows
        result = self._function(topic, rows)
        if not isinstance(result, pa.RecordBatch):
            raise BatchError(f"{self._place} returned {type(result).__name__}, not a RecordBatch")
        dropped = [name for name in SYSTEM_COLUMNS if name not in result.schema.names]
        if dropped:
            raise BatchError(f"{self._place} dropped {', '.join(dropped)}; it must keep {', '.join(SYSTEM_COLUMNS)}")
        before, behind = (_faults(one) for one in (rows, result))
        if behind < before:
            raise BatchError(f"{self._place} dropped rows with a fault; it must keep them")
        return result


def messages_of(topic: str, rows: Any) -> Iterator[Message]:
    """Each row as a message."""
    columns = [_list(rows, name) for name in (PARTITION, ITEM_COLUMN, TIMESTAMP, KEY, VALUE, HEADERS)]
    for partition, offset, timestamp, key, value, headers in zip(*columns, strict=True):
        told = tuple((one["key"], one["value"]) for one in headers or ())
        yield Message(topic, partition, offset, timestamp, key, _bytes(value), told)


def _checked(result: Any) -> Parsed:
    if isinstance(result, str):
        result = (result,)
    parsed = result if isinstance(result, Parsed) else Parsed(tuple(result))
    names: Sequence[Any] = parsed.names
    if not all(isinstance(name, str) and name for name in names):
        raise Unreadable("it gave a partition name that is empty or no text")
    payload: Any = parsed.payload
    if not isinstance(payload, bytes | None):
        raise Unreadable("it gave a payload that is not bytes")
    return parsed


def _list(rows: Any, name: str) -> list[Any]:
    place = rows.schema.get_field_index(name)
    return [None] * rows.num_rows if place < 0 else list(rows.column(place).to_pylist())


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _faults(rows: Any) -> int:
    return int(rows.num_rows - rows.column(FAULT_COLUMN).null_count)

"""Rows as messages: which columns become key, value, headers and partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import Refused
from holdfast.flow.kafka_columns import HEADERS, KEY, VALUE

OVERHEAD = 1024
"""Bytes that a message may have besides key, value and headers."""
Headers: TypeAlias = list[tuple[str, bytes | None]]


class Message(NamedTuple):
    """A message, as it waits in a file and as it is sent."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int
    """-1: the key decides."""

    @property
    def size(self) -> int:
        of_headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + of_headers + OVERHEAD


@dataclass(frozen=True)
class MessageColumns:
    """The columns that the settings name; None: the usual one, if there is one."""

    value: str | None = None
    key: str | None = None
    headers: str | None = None
    partition: str | None = None
    max_bytes: int = 1_000_000

    def needed(self, names: list[str]) -> dict[str, None]:
        """The columns among these that are needed. Raises `Refused` if one that the settings name is missing."""
        for setting in ("value", "key", "headers", "partition"):
            column = getattr(self, setting)
            if column is not None and column not in names:
                raise Refused(f"{setting}: there is no column {column!r}; there are {', '.join(names)}")
        if self._value(names) is None:
            return dict.fromkeys(names)
        wanted = (self._value(names), self._key(names), self._headers(names), self.partition)
        return dict.fromkeys(name for name in wanted if name is not None)

    def _value(self, names: list[str]) -> str | None:
        return self.value or (VALUE if VALUE in names else None)

    def _key(self, names: list[str]) -> str | None:
        return self.key or (KEY if KEY in names else None)

    def _headers(self, names: list[str]) -> str | None:
        return self.headers or (HEADERS if HEADERS in names else None)

    def messages(self, rows: Any) -> Iterator[Message | str]:
        """For each row of a record batch its message, or why there is none."""
        from holdfast.formats._json_objects import json_objects

        names = rows.schema.names
        count = rows.num_rows
        value, key, headers = self._value(names), self._key(names), self._headers(names)
        values = (json_objects(rows) if value is None else rows.column(value)).to_pylist()
        keys = [None] * count if key is None else rows.column(key).to_pylist()
        many = [None] * count if headers is None else rows.column(headers).to_pylist()
        partitions = [-1] * count if self.partition is None else rows.column(self.partition).to_pylist()
        for row in zip(values, keys, many, partitions, strict=True):
            yield self._message(*row)

    def _message(self, value: Any, key: Any, headers: Any, partition: Any) -> Message | str:
        try:
            message = Message(_bytes("value", value), _bytes("key", key), _headers(headers), _number(partition))
        except ValueError as error:
            return str(error)
        if message.size > self.max_bytes:
            return f"the message has {message.size} bytes, and max_message_bytes is {self.max_bytes}"
        return message


def _bytes(what: str, given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode("utf-8", "surrogatepass")
    raise ValueError(f"its {what} is neither text nor bytes")


def _headers(given: Any) -> Headers:
    if given is None:
        return []
    try:
        return [(str(header["key"]), _bytes("header", header["value"])) for header in given]
    except (TypeError, KeyError):
        raise ValueError("its headers are not a list of key and value") from None


def _number(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < -1:
        raise ValueError("its partition is not a number")
    return given

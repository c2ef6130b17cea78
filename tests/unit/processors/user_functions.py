"""Parsers as users write them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import SourceUnavailable
from holdfast.processors.parse.messages import Message, Parsed

SEEN: list[Message] = []
NOT_A_FUNCTION = 1


def by_length(message: Message) -> Parsed:
    SEEN.append(message)
    if message.value is None:
        raise KeyError("value")
    return Parsed((f"topic={message.topic}", f"len={len(message.value)}"), message.value.upper())


def names_only(message: Message) -> str:
    return (message.value or b"").decode()


def names_in_json(message: Message) -> str:
    return str(json.loads(message.value or b""))


def unreachable(message: Message) -> str:
    raise SourceUnavailable("gone")


def on_batches(topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    lengths = pc.cast(pc.binary_length(rows.column("value")), pa.string())
    return rows.append_column("_place", pc.binary_join_element_wise(topic, lengths, "-"))


def drops_columns(topic: str, rows: pa.RecordBatch) -> Any:
    return rows.select(["value"])


def returns_nothing(topic: str, rows: pa.RecordBatch) -> None:
    return None

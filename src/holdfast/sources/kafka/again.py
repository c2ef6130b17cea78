"""Messages of dead letters as rows again: the value, and from the origin topic, partition and offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.flow.fault import COLUMNS
from holdfast.flow.letter import Letter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KEPT = frozenset({"topic", "partition", "offset", "value"})
"""What a letter keeps of a message; its other columns are null."""


class MessagesOfLetters:
    keeps = KEPT

    def fields(self) -> StructType:
        from pyspark.sql import types as kinds

        header = kinds.StructType(
            [kinds.StructField("key", kinds.StringType()), kinds.StructField("value", kinds.BinaryType())]
        )
        own = {
            "topic": kinds.StringType(),
            "partition": kinds.IntegerType(),
            "offset": kinds.LongType(),
            "timestamp": kinds.TimestampType(),
            "timestamp_type": kinds.IntegerType(),
            "key": kinds.BinaryType(),
            "value": kinds.BinaryType(),
            "headers": kinds.ArrayType(header),
        }
        return kinds.StructType([kinds.StructField(name, kind) for name, kind in own.items()])

    def refusal(self, letter: Letter) -> str | None:
        topic, bar, partition = letter.key.rpartition("|")
        if not (topic and bar and partition.isdigit()):
            return f"{letter.key!r} is no partition of a topic"
        return "it holds columns and not the message" if letter.form == COLUMNS else None

    def row(self, letter: Letter) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema

        topic, _, partition = letter.key.rpartition("|")
        told = {"topic": topic, "partition": int(partition), "offset": letter.item, "value": letter.record()}
        schema = to_arrow_schema(self.fields(), timezone="UTC")
        arrays = [pa.array([told.get(field.name)], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

"""The columns of Kafka messages, as sources give them and as processors, formats and runs find them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from holdfast.flow.letter import decoded_bytes, encoded_bytes

TOPIC, PARTITION, OFFSET = "topic", "partition", "offset"
TIMESTAMP, TIMESTAMP_TYPE = "timestamp", "timestamp_type"
KEY, VALUE, HEADERS = "key", "value", "headers"
KAFKA_COLUMNS = (TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS)


@cache
def kafka_schema() -> Any:
    """The columns as Arrow's schema; `pyspark.sql.pandas.types.from_arrow_schema` turns it into Spark's."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    types = {
        TOPIC: pa.string(),
        PARTITION: pa.int32(),
        OFFSET: pa.int64(),
        TIMESTAMP: pa.timestamp("us", "UTC"),
        TIMESTAMP_TYPE: pa.int32(),
        KEY: pa.binary(),
        VALUE: pa.binary(),
        HEADERS: pa.list_(header),
    }
    return pa.schema([(name, types[name]) for name in KAFKA_COLUMNS])


_KEY_ENCODING = "key_encoding"


def message_source(columns: Mapping[str, Any]) -> dict[str, Any]:
    """`source` of a message's dead letter, from its columns; the timestamp is in milliseconds."""
    source = {name: columns[name] for name in (TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE)}
    source |= {KEY: None} | encoded_bytes(KEY, columns[KEY], _KEY_ENCODING)
    if columns[HEADERS] is not None:
        source[HEADERS] = [
            {"name": name, "value": None} | encoded_bytes("value", value) for name, value in columns[HEADERS]
        ]
    return source


def columns_of_source(source: Mapping[str, Any]) -> dict[str, Any]:
    """Time, key and headers as columns, as far as `source` of a dead letter has them. Raises `ValueError`."""
    columns: dict[str, Any] = {KEY: decoded_bytes(source, KEY, _KEY_ENCODING)}
    if source.get(TIMESTAMP) is not None:
        columns |= {TIMESTAMP: source[TIMESTAMP] * 1000, TIMESTAMP_TYPE: source[TIMESTAMP_TYPE]}
    if source.get(HEADERS) is not None:
        columns[HEADERS] = [
            {"key": header["name"], "value": decoded_bytes(header, "value")} for header in source[HEADERS]
        ]
    return columns

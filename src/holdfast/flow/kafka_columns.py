"""The columns of Kafka messages, as sources give them and as processors, formats and runs find them."""

from __future__ import annotations

from functools import cache
from typing import Any

TOPIC, PARTITION, OFFSET = "topic", "partition", "offset"
TIMESTAMP, TIMESTAMP_TYPE = "timestamp", "timestamp_type"
KEY, VALUE, HEADERS = "key", "value", "headers"
KAFKA_COLUMNS = (TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE, HEADERS)


@cache
def kafka_schema() -> Any:
    """The columns as Arrow's schema; `pyspark.sql.pandas.types.from_arrow_schema` makes Spark's of it."""
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

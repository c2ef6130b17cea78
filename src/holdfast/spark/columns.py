"""The record of a row as it was read, kept beside the row while processors change it, and faults that tell of it.

A dead letter can be sent through the pipeline again only if it holds what the source gave, not what a processor had
made of it by the time another one failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.flow.fault import COLUMNS, MAX_RAW_BYTES, MAX_REASON, RECORD, ROW
from holdfast.flow.source import FAULT_COLUMN, OPTIONAL_COLUMNS, SYSTEM_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_COLUMN = "_record"
REASON_COLUMN = "_reason"
"""While a processor works on a frame: why a row has failed."""
OUR_COLUMNS = (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS, RECORD_COLUMN, REASON_COLUMN)
VALUE = "value"


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def data_columns(frame: DataFrame) -> list[str]:
    """The columns that are not holdfast's."""
    return [name for name in frame.columns if name not in OUR_COLUMNS]


def with_record(frame: DataFrame) -> DataFrame:
    """The frame of a source with the record of each row: its `value` if there is one, else all its columns."""
    return frame.withColumn(RECORD_COLUMN, _record(frame))


def with_faults(frame: DataFrame, reason: Column) -> DataFrame:
    """The frame with a fault where there is a reason and was no fault before."""
    from pyspark.sql import functions as sql

    fault = sql.col(FAULT_COLUMN)
    fails = fault.isNull() & reason.isNotNull()
    return frame.withColumn(FAULT_COLUMN, sql.when(fails, _fault(frame, reason)).otherwise(fault))


def _record(frame: DataFrame) -> Column:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType, StringType

    names = data_columns(frame)
    if VALUE in names and isinstance(frame.schema[VALUE].dataType, StringType | BinaryType):
        return sql.col(VALUE)
    return sql.struct(*(sql.col(quoted(name)) for name in names))


def _fault(frame: DataFrame, reason: Column) -> Column:
    """JSON, as `holdfast.flow.fault` reads it; what is null is left out."""
    from pyspark.sql import functions as sql

    kept = RECORD_COLUMN in frame.columns
    seen = frame if kept else frame.withColumn(RECORD_COLUMN, _record(frame))
    record = sql.col(RECORD_COLUMN) if kept else _record(frame)
    raw, encoding, form = _written(record, seen.schema[RECORD_COLUMN].dataType.typeName(), as_read=kept)
    return sql.to_json(
        sql.struct(
            sql.lit(RECORD).alias("kind"),
            sql.substring(reason, 1, MAX_REASON).alias("reason"),
            sql.substring(raw, 1, MAX_RAW_BYTES).alias("raw"),
            encoding.alias("encoding"),
            sql.when(sql.length(raw) > MAX_RAW_BYTES, sql.octet_length(raw)).alias("size"),
            form.alias("form"),
        )
    )


def _written(record: Column, kind: str, *, as_read: bool) -> tuple[Column, Column, Column]:
    """A record as text, how it is encoded, and what form the text has."""
    from pyspark.sql import functions as sql

    nothing = sql.lit(None).cast("string")
    if kind == "struct":
        return sql.to_json(record), nothing, sql.lit(COLUMNS if as_read else ROW)
    form = nothing if as_read else sql.lit(ROW)
    if kind == "string":
        return record, nothing, form
    text = record.cast("string")
    is_text = sql.is_valid_utf8(text)
    return (
        sql.when(is_text, text).otherwise(sql.base64(record)),
        sql.when(~is_text, sql.lit("base64")),
        form,
    )

"""holdfast's columns in frames that processors change: the record as it was read, and faults that contain it.

A dead letter can be redriven only if it holds the record as the source read it, not as earlier processors had changed
it when a later one failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.flow.fault import COLUMNS, MAX_RAW_BYTES, MAX_REASON, RECORD, ROW
from holdfast.flow.source import FAULT_COLUMN, OPTIONAL_COLUMNS, SYSTEM_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_COLUMN = "_record"
REASON_COLUMN = "_reason"
"""Why a row has failed; only inside one processor."""
OUR_COLUMNS = (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS, RECORD_COLUMN, REASON_COLUMN)
VALUE = "value"


def quoted(name: str) -> str:
    """A column's name, quoted for Spark's expressions; it may contain any character."""
    return "`" + name.replace("`", "``") + "`"


def data_columns(frame: DataFrame) -> list[str]:
    """The columns that are not holdfast's."""
    return [name for name in frame.columns if name not in OUR_COLUMNS]


def with_record(frame: DataFrame) -> DataFrame:
    """The frame of a source with the record of each row: its `value` if that is text or bytes, else all columns."""
    return frame.withColumn(RECORD_COLUMN, _record(frame))


def with_faults(frame: DataFrame, reason: Column) -> DataFrame:
    """The frame with a fault in every row that has a reason and had no fault before."""
    from pyspark.sql import functions as sql

    fault = sql.col(FAULT_COLUMN)
    fails = fault.isNull() & reason.isNotNull()
    return frame.withColumn(FAULT_COLUMN, sql.when(fails, _fault(frame, reason)).otherwise(fault))


def fault(reason: str | Column, when: Column | None = None) -> Column:
    """Return what a `python` processor sets as `_fault`: where `when` is true the record becomes a dead letter.

        frame.withColumn("_fault", holdfast.fault("amount is missing", when=sql.col("amount").isNull()))

    Without `when`, a record fails where the reason is not null. Rows that have a fault keep it. The letter has the
    record as it was read if the source can read it a second time, as Kafka, objects and archives can; else it has the
    reason and the origin alone. Raises `UsageError` without a Spark session.
    """
    from pyspark import SparkContext
    from pyspark.sql import functions as sql
    from pyspark.sql.utils import is_remote

    if not is_remote() and SparkContext._active_spark_context is None:  # noqa: SLF001 - Spark would only assert it
        raise UsageError("holdfast.fault needs a Spark session: call it inside the function of the processor")
    why = sql.lit(reason) if isinstance(reason, str) else reason
    fails = why.isNotNull() if when is None else why.isNotNull() & when
    said = sql.to_json(sql.struct(sql.lit(RECORD).alias("kind"), sql.substring(why, 1, MAX_REASON).alias("reason")))
    return sql.coalesce(sql.col(FAULT_COLUMN), sql.when(fails, said))


def _record(frame: DataFrame) -> Column:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType, StringType

    names = data_columns(frame)
    if VALUE in names and isinstance(frame.schema[VALUE].dataType, StringType | BinaryType):
        return sql.col(VALUE)
    return sql.struct(*(sql.col(quoted(name)) for name in names))


def _fault(frame: DataFrame, reason: Column) -> Column:
    """The fault as JSON, as `holdfast.flow.fault` decodes it, without nulls."""
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
    """A record as text, the encoding of the text, and its form."""
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

"""Runs one processor on rows, for tests and notebooks: what comes out, and which rows fail.

done = run_processor({"parse_json": {"schema": "id BIGINT"}}, [{"value": '{"id": 1}'}, {"value": "oops"}])
assert done.rows[0]["id"] == 1
assert "not a JSON object" in done.faults[1].reason
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from holdfast.config.plugins import PluginUse, Uses
from holdfast.errors import UsageError
from holdfast.flow.fault import Fault, decode_fault
from holdfast.flow.processor import Processor
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, OUTPUT_FOLDER_COLUMN
from holdfast.processors.python import PythonFunction
from holdfast.registry import Registry
from holdfast.spark.columns import RECORD_COLUMN, data_columns, with_record
from holdfast.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SYSTEM = f"{BATCH_COLUMN} STRING, {ITEM_COLUMN} BIGINT, {FAULT_COLUMN} STRING"
"""The system columns in Spark's DDL."""
_BATCH = "b"
_USE: Any = Annotated[PluginUse, Uses("processors")]


@dataclass(frozen=True)
class Processed:
    """What a processor has made of rows."""

    rows: list[dict[str, Any]]
    """Rows without a fault, in order, without holdfast's columns; an output folder is in `_place`."""
    faults: dict[int, Fault]
    """The fault of each row that has failed, by the row's number; the first row has 0."""


def run_processor(
    processor: Processor | Mapping[str, Any] | Callable[[Any], Any],
    rows: Sequence[Mapping[str, Any]],
    schema: str | None = None,
    *,
    spark: SparkSession | None = None,
) -> Processed:
    """Run the processor on these rows as a pipeline does, and return what comes out.

    `processor` is an instance, its settings as in a file such as `{"filter": {"where": "amount > 0"}}`, or a function
    for the processor `python`. `schema` has the columns in Spark's DDL, such as `id BIGINT, note STRING`; unless given,
    they are found in the rows. Uses `spark`, or else the active session, or else starts one for this call, which takes
    seconds: see `spark_session`. Raises what the processor raises, and `UsageError` if the rows do not fit a schema.
    """
    made = _processor_of(processor)
    with _session(spark) as session:
        frame = _frame(session, rows, schema)
        done = made.apply(with_record(frame)) if made.may_fault else made.apply(frame)
        found = [row.asDict(recursive=True) for row in done.drop(RECORD_COLUMN).collect()]
        shown = [*data_columns(done), *([OUTPUT_FOLDER_COLUMN] if OUTPUT_FOLDER_COLUMN in done.columns else [])]
    found.sort(key=lambda row: int(row[ITEM_COLUMN]))
    failed = [(int(row[ITEM_COLUMN]), row[FAULT_COLUMN]) for row in found if row[FAULT_COLUMN] is not None]
    return Processed(
        [{name: row[name] for name in shown} for row in found if row[FAULT_COLUMN] is None],
        {item: decode_fault(text) for item, text in reversed(failed)},
    )


@contextmanager
def spark_session(master: str = "local[1]") -> Iterator[SparkSession]:
    """A Spark session with holdfast's settings, for many calls of `run_processor`. It ends with the block.

    Raises `UsageError` if this process has a session, or no Java.
    """
    session = start_session("holdfast.testing", {"spark.sql.shuffle.partitions": "2"}, master)
    try:
        yield session
    finally:
        stop_session(session)


@contextmanager
def _session(given: SparkSession | None) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    if (found := given or SparkSession.getActiveSession()) is not None:
        yield found
    else:
        with spark_session() as started:
            yield started


def _processor_of(given: Processor | Mapping[str, Any] | Callable[[Any], Any]) -> Processor:
    if isinstance(given, Processor):
        return given
    if not isinstance(given, Mapping):
        return PythonFunction(getattr(given, "__qualname__", repr(given)), given)
    use: PluginUse = TypeAdapter(_USE).validate_python(given)
    built: Processor = Registry.installed().get("processors", use.name).build(use.config)
    return built


def _frame(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: str | None) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    system = _columns(SYSTEM)
    try:
        fields = _inferred(spark, rows) if schema is None else _columns(schema)
        cells = [(_BATCH, item, None, *(row.get(name) for name in fields.names)) for item, row in enumerate(rows)]
        return spark.createDataFrame(cells, StructType([*system.fields, *fields.fields])).coalesce(1)
    except (PySparkException, AssertionError) as wrong:
        hint = "" if schema is not None else "; give the columns as `schema`"
        raise UsageError(f"these rows do not fit their columns: {str(wrong).splitlines()[0]}{hint}") from wrong


def _columns(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl)
    if not isinstance(found, StructType):
        raise UsageError(f"schema {ddl!r} is a type, not a list of columns")
    return found


def _inferred(spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> StructType:
    if not rows:
        raise UsageError("without rows, give the columns as `schema`")
    return spark.createDataFrame([dict(row) for row in rows]).schema

"""Every built-in processor shows the behaviour that the engine relies on, and wrong ones do not."""

from __future__ import annotations

import inspect
import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from holdfast.flow.processor import Processor, TaskStep
from holdfast.flow.source import FAULT_COLUMN
from holdfast.flow.staging import StagedBatch
from holdfast.processors.python import PythonFunction
from holdfast.registry import Registry
from holdfast.testing.processors import ProcessorBehaviour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

JSON = (('{"id": 1, "note": "a"}',), ('{"id": 2}',), ('{"id": 3, "note": "c"}',))
ORDERS = ((1, "a"), (2, None), (3, "c"), (4, "d"))


class Built(ProcessorBehaviour):
    """A processor of a configuration file."""

    plugin: str
    settings: ClassVar[dict[str, Any]]
    schema = "id BIGINT, note STRING"
    good: Any = ORDERS
    bad: Any = ()

    def make_processor(self) -> Processor:
        plugin = Registry.installed().get("processors", self.plugin)
        made: Processor = plugin.build(plugin.config(**self.settings))
        return made


class TestFilter(Built):
    plugin = "filter"
    settings: ClassVar[dict[str, Any]] = {"where": "id > 1 AND note IS NOT NULL"}


class TestDropEvents(Built):
    plugin = "drop_events"
    settings: ClassVar[dict[str, Any]] = {"drop_when": "note = 'a'"}


class TestAddEntries(Built):
    plugin = "add_entries"
    settings: ClassVar[dict[str, Any]] = {"entries": [{"key": "twice", "value_expression": "id * 2"}]}


class TestDeleteEntries(Built):
    plugin = "delete_entries"
    settings: ClassVar[dict[str, Any]] = {"with_keys": ["note"]}


class TestRenameKeys(Built):
    plugin = "rename_keys"
    settings: ClassVar[dict[str, Any]] = {"entries": [{"from_key": "note", "to_key": "text"}]}


class TestSql(Built):
    plugin = "sql"
    settings: ClassVar[dict[str, Any]] = {"select": ["id", "upper(note) AS note"], "where": "id <> 2"}


class TestParseJson(Built):
    plugin = "parse_json"
    schema = "value STRING"
    settings: ClassVar[dict[str, Any]] = {"schema": "id BIGINT, note STRING"}
    good = JSON
    bad = (("nonsense",), ("[1]",))


class TestGrok(Built):
    plugin = "grok"
    schema = "value STRING"
    settings: ClassVar[dict[str, Any]] = {"match": {"value": ["%{WORD:verb} %{INT:count:int}"]}}
    good = (("get 1",), ("put 22",), ("get 3",))
    bad = (("?",),)


class TestDate(Built):
    plugin = "date"
    schema = "at STRING"
    settings: ClassVar[dict[str, Any]] = {"match": [{"key": "at", "patterns": ["yyyy-MM-dd"]}]}
    good = (("2026-01-01",), ("2026-01-02",))
    bad = (("yesterday",),)


class TestKeyValue(Built):
    plugin = "key_value"
    schema = "value STRING"
    settings: ClassVar[dict[str, Any]] = {"destination": "pairs"}
    good = (("a=1&b=2",), ("a=3",), ("b=4&a=5",))


class TestParse(Built):
    plugin = "parse"
    schema = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
    settings: ClassVar[dict[str, Any]] = {
        "time": {"json": {"field": "t", "unit": "seconds"}},
        "granularity": "hour",
        "columns": {"json": {"schema": "t BIGINT, note STRING"}},
    }
    good = tuple(("orders", 0, number, None, None, b'{"t": 176726880%d}' % number) for number in range(4))
    bad = (("orders", 0, 4, None, None, b"broken"), ("orders", 0, 5, None, None, None))


def doubled(orders: Any) -> Any:
    from pyspark.sql import functions as sql

    return orders.withColumn("twice", sql.col("id") * 2)


class TestPython(Built):
    def make_processor(self) -> Processor:
        return PythonFunction("tests:doubled", doubled)


# --- processors that are wrong on purpose ----------------------------------------------------------------------------


class Wrong(Processor):
    """Says that it changes nothing, and does not."""

    keeps_rows = True
    touches_faults = False

    @property
    def changes_rows(self) -> bool:
        return False

    def apply(self, frame: Any) -> Any:
        return frame


class DropsFaultyRows(Wrong):
    def apply(self, frame: Any) -> Any:
        return frame.where("note = note OR id > 0")


class DropsASystemColumn(Wrong):
    def apply(self, frame: Any) -> Any:
        return frame.drop("_item")


class ForgetsFaults(Wrong):
    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        return frame.withColumn(FAULT_COLUMN, sql.lit(None).cast("string"))


class ChangesRowsSecretly(Wrong):
    def apply(self, frame: Any) -> Any:
        return doubled(frame).withColumn("id", doubled(frame)["id"] + 1)


class DropsRowsSecretly(Wrong):
    def apply(self, frame: Any) -> Any:
        return frame.where("id <> 2 OR _fault IS NOT NULL")


class GivesFaultsSecretly(Wrong):
    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        fault = sql.when(sql.col("id") == 4, sql.lit('{"kind": "record", "reason": "four"}'))
        return frame.withColumn(FAULT_COLUMN, sql.coalesce(sql.col(FAULT_COLUMN), fault))


class DependsOnTheFrame(Wrong):
    @property
    def changes_rows(self) -> bool:
        return True

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        return frame.withColumn("all", sql.count("*").over(Window.partitionBy("_batch")))


class RunsAJob(Wrong):
    def apply(self, frame: Any) -> Any:
        frame.count()
        return frame


class MixesTheOrder(Wrong):
    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        return frame.orderBy(sql.col("_item").desc())


class OtherStep(TaskStep):
    numbers: ClassVar[Any] = itertools.count()

    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return wanted

    def apply(self, batch: StagedBatch, rows: Any) -> Any:
        return rows.slice(1)


class OtherRowsInTheTask(Wrong):
    def in_task(self) -> TaskStep:
        return OtherStep()


@pytest.mark.parametrize(
    ("wrong", "caught_by"),
    [
        (DropsFaultyRows, ProcessorBehaviour.test_system_columns_and_rows_with_a_fault_come_out_as_they_came_in),
        (DropsASystemColumn, ProcessorBehaviour.test_system_columns_and_rows_with_a_fault_come_out_as_they_came_in),
        (ForgetsFaults, ProcessorBehaviour.test_system_columns_and_rows_with_a_fault_come_out_as_they_came_in),
        (ChangesRowsSecretly, ProcessorBehaviour.test_rows_that_it_says_it_does_not_change_stay_as_they_were),
        (DropsRowsSecretly, ProcessorBehaviour.test_rows_come_out_in_order_and_belong_to_records_that_came_in),
        (GivesFaultsSecretly, ProcessorBehaviour.test_it_gives_faults_only_if_it_says_so_and_they_can_be_read),
        (
            DependsOnTheFrame,
            ProcessorBehaviour.test_a_row_depends_on_its_record_alone_and_comes_out_alike_each_time,
        ),
        (RunsAJob, ProcessorBehaviour.test_applying_it_runs_nothing),
        (MixesTheOrder, ProcessorBehaviour.test_rows_come_out_in_order_and_belong_to_records_that_came_in),
        (OtherRowsInTheTask, ProcessorBehaviour.test_the_step_in_the_task_gives_what_the_frame_gives),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_processor_that_is_wrong_fails_the_suite(spark: SparkSession, wrong: type[Processor], caught_by: Any) -> None:
    class Suite(Built):
        def make_processor(self) -> Processor:
            return wrong()

    with pytest.raises(Exception, match="assert") as failure:
        caught_by(Suite(), spark)
    assert not isinstance(failure.value, pytest.skip.Exception)


def test_every_built_in_processor_is_in_this_file() -> None:
    proved = {value.plugin for value in globals().values() if inspect.isclass(value) and hasattr(value, "plugin")}
    assert proved | {"python"} == set(Registry.installed().names("processors"))

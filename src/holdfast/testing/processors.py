"""The behaviour that every processor must show. Subclass it to test your own.

class TestMyProcessor(ProcessorBehaviour):
    schema = "id BIGINT, note STRING"                  # the data columns that it is given
    good = ((1, "a"), (2, "b"))                        # records that it can handle
    bad = ((3, None),)                                 # records on which it fails, if there are any

    def make_processor(self) -> Processor:
        return MyProcessor(...)

The class needs a fixture `spark` with a Spark session.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.flow.batch import Name
from holdfast.flow.fault import BATCH, RECORD, decode_fault, record_fault
from holdfast.flow.processor import Processor
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, OUTPUT_FOLDER_COLUMN, SYSTEM_COLUMNS
from holdfast.flow.staging import StagedBatch
from holdfast.spark.columns import RECORD_COLUMN, data_columns, with_record
from holdfast.testing.processing import SYSTEM

FIRST_FAULTY = 1000
Row = dict[str, Any]


class ProcessorBehaviour:
    """The guarantees of a processor that the engine relies on."""

    schema: str
    """The data columns of the source, as Spark writes them."""
    good: Sequence[tuple[Any, ...]]
    """Records without a fault, at least two."""
    bad: Sequence[tuple[Any, ...]] = ()
    """Records on which the processor fails."""
    name = Name("orders", "0")
    """The stream and the partition that the records come from."""

    @abstractmethod
    def make_processor(self) -> Processor:
        """A new instance of the processor."""

    # --- what must come out ----------------------------------------------------------------------------------------

    def test_system_columns_and_rows_with_a_fault_come_out_as_they_came_in(self, spark: Any) -> None:
        frame = self._frame(spark, faulty=2)
        made = self._applied(self.make_processor(), frame)
        assert set(SYSTEM_COLUMNS) <= set(made.columns)
        types = {field.name: field.dataType for field in frame.schema}
        assert all(made.schema[name].dataType == types[name] for name in SYSTEM_COLUMNS)
        assert [_system(row) for row in _rows(made) if row[ITEM_COLUMN] >= FIRST_FAULTY] == [
            _system(row) for row in _rows(frame) if row[ITEM_COLUMN] >= FIRST_FAULTY
        ]

    def test_rows_come_out_in_order_and_belong_to_records_that_came_in(self, spark: Any) -> None:
        frame, processor = self._frame(spark), self.make_processor()
        came, went = _rows(frame), self._applied(processor, frame).collect()
        items = [row[ITEM_COLUMN] for row in went]
        assert items == sorted(items), "the rows of a batch must keep their order"
        assert {(row[BATCH_COLUMN], row[ITEM_COLUMN]) for row in went} <= {_origin(row) for row in came}
        if processor.keeps_rows:
            assert items == [row[ITEM_COLUMN] for row in came], "keeps_rows: each row must come out once"

    def test_a_row_depends_on_its_record_alone_and_comes_out_alike_each_time(self, spark: Any) -> None:
        frame = self._frame(spark)
        middle = len(self.good) // 2
        together = _rows(self._applied(self.make_processor(), frame))
        apart = [
            row
            for part in (frame.where(f"{ITEM_COLUMN} < {middle}"), frame.where(f"{ITEM_COLUMN} >= {middle}"))
            for row in _rows(self._applied(self.make_processor(), part))
        ]
        assert apart == together

    def test_applying_it_runs_nothing(self, spark: Any) -> None:
        tracker, frame, processor = spark.sparkContext.statusTracker(), self._frame(spark), self.make_processor()
        self._applied(processor, frame)  # settings may be checked once
        before = set(tracker.getJobIdsForGroup(None))
        self._applied(processor, frame)
        assert set(tracker.getJobIdsForGroup(None)) <= before, "a processor adds to the plan and runs nothing"

    # --- what it says of itself ------------------------------------------------------------------------------------

    def test_rows_that_it_says_it_does_not_change_stay_as_they_were(self, spark: Any) -> None:
        processor, frame = self.make_processor(), self._frame(spark)
        if processor.changes_rows:
            pytest.skip("the processor changes rows")
        came = {_origin(row): row for row in _rows(frame)}
        went = _rows(self._applied(processor, frame))
        assert max(Counter(map(_origin, went)).values(), default=1) == 1
        names = [name for name in frame.columns if name != RECORD_COLUMN]
        for row in went:
            if row[FAULT_COLUMN] is None:
                assert [row[name] for name in names] == [came[_origin(row)][name] for name in names]

    def test_it_gives_faults_only_if_it_says_so_and_they_can_be_read(self, spark: Any) -> None:
        processor = self.make_processor()
        went = _rows(self._applied(processor, self._frame(spark)))
        faults = [decode_fault(row[FAULT_COLUMN]) for row in went if row[FAULT_COLUMN] is not None]
        assert processor.touches_faults or not faults, "touches_faults is False, and it gave a row a fault"
        for fault in faults:
            assert fault.kind in {RECORD, BATCH}
            assert fault.reason.strip()
            assert fault.kind == BATCH or not processor.may_fault or fault.raw is not None, "a fault without its record"
        good = [row for row in went if row[ITEM_COLUMN] < len(self.good)]
        assert all(row[FAULT_COLUMN] is None for row in good), "a record of `good` has a fault"

    def test_its_name_is_text(self) -> None:
        assert self.make_processor().name.strip()

    # --- inside the staging task -----------------------------------------------------------------------------------

    def test_the_step_in_the_task_gives_what_the_frame_gives(self, spark: Any) -> None:
        processor = self.make_processor()
        step = processor.in_task()
        if step is None:
            pytest.skip("the processor has no step inside the task")
        frame = self._frame(spark, faulty=2)
        of_frame = _rows(self._applied(processor, frame))
        of_task = _rows_of_step(self._step_applied(step, frame))
        assert [_system(row) for row in of_task] == [_system(row) for row in of_frame]
        names = set(of_task[0]) & set(of_frame[0])
        good = [(task, whole) for task, whole in zip(of_task, of_frame, strict=True) if task[FAULT_COLUMN] is None]
        for task, whole in good:
            assert {name: task[name] for name in names} == {name: whole[name] for name in names}

    def test_the_step_needs_no_columns_but_those_that_it_names(self, spark: Any) -> None:
        step = self.make_processor().in_task()
        if step is None:
            pytest.skip("the processor has no step inside the task")
        frame = self._frame(spark)
        whole = _rows_of_step(self._step_applied(step, frame))
        made = [name for name in whole[0] if name not in {*SYSTEM_COLUMNS, OUTPUT_FOLDER_COLUMN}]
        needed = step.inputs(frozenset(made[:1]))
        names = [name for name in data_columns(frame) if needed is None or name in needed]
        chosen = _rows_of_step(self._step_applied(step, frame.select(*SYSTEM_COLUMNS, *names)))
        for some, every in zip(chosen, whole, strict=True):
            assert [some[name] for name in (*SYSTEM_COLUMNS, *made[:1])] == [
                every[name] for name in (*SYSTEM_COLUMNS, *made[:1])
            ]

    # --- frames ----------------------------------------------------------------------------------------------------

    def _frame(self, spark: Any, faulty: int = 0) -> Any:
        """The records as one task reads them, followed by rows that have a fault already."""
        records = [("b", item, None, *cells) for item, cells in enumerate([*self.good, *self.bad])]
        width = len(records[0]) - len(SYSTEM_COLUMNS)
        fault = record_fault("unreadable", b"raw").encode()
        broken = [("b", FIRST_FAULTY + number, fault, *[None] * width) for number in range(faulty)]
        return spark.createDataFrame([*records, *broken], f"{SYSTEM}, {self.schema}").coalesce(1)

    def _applied(self, processor: Processor, frame: Any) -> Any:
        return (
            processor.apply(with_record(frame)).drop(RECORD_COLUMN) if processor.may_fault else processor.apply(frame)
        )

    def _step_applied(self, step: Any, frame: Any) -> Any:
        sent = pickle.loads(pickle.dumps(step))  # noqa: S301 - our own bytes
        (rows,) = frame.toArrow().combine_chunks().to_batches()
        batch = StagedBatch("b", "suite", f"{self.name.stream}|{self.name.label}", self.name, 1, 1)
        return sent.apply(batch, rows)


def _rows(frame: Any) -> list[Row]:
    found = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(found, key=lambda row: int(row[ITEM_COLUMN]))


def _rows_of_step(rows: Any) -> list[Row]:
    found: list[Row] = rows.to_pylist()
    return sorted(found, key=lambda row: int(row[ITEM_COLUMN]))


def _origin(row: Row) -> tuple[str, int]:
    return str(row[BATCH_COLUMN]), int(row[ITEM_COLUMN])


def _system(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in SYSTEM_COLUMNS)

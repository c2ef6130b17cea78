"""Several batches of tables in one task: shared among tasks, bounded in time together, and failing apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SourceUnavailable
from holdfast.flow.batch import Batch, Cut, Limits, Name
from holdfast.flow.fault import BATCH, CUT, UNAVAILABLE, decode_fault
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN
from holdfast.flow.tables import DOCUMENT_ID, Sizing
from holdfast.leases.lease import Lease
from holdfast.sources.database.reading import END, FIRST_PAGE, DatabaseRows, packed
from holdfast.sources.database.source import LIGHT_UNITS, DatabaseSource
from holdfast.sources.database.sqlite import Sqlite, SqliteConnection
from tests.servers.live_tables import SqliteFile, leased

ROWS, SIZE = 1000, 250


@pytest.fixture
def source(tmp_path: Path) -> DatabaseSource:
    server = SqliteFile(tmp_path)
    server.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    server.fill("t", [(number,) for number in range(ROWS)])
    return server.source({"e": {"table": "t", "key": "id"}})


def leases_of(source: DatabaseSource) -> list[Lease]:
    return [leased(partition) for partition in source.copy_partitions(["e"], Sizing(rows=SIZE))]


def batches_of(source: DatabaseSource) -> list[Batch]:
    found = leases_of(source)
    plans = source.plan(found, Limits())
    return [
        Batch(f"b{number}", lease, source.name(lease), plan)
        for number, (lease, plan) in enumerate(zip(found, plans, strict=True))
        if isinstance(plan, Cut)
    ]


def read(source: DatabaseSource, batches: Sequence[Batch], seconds: float = 60.0) -> list[dict[str, Any]]:
    """What one task reads of these batches."""
    tables = source._resolve(["e"])
    rows = DatabaseRows(packed(batches, tables, seconds, 1), None)
    return [row for portion in rows.rows(0) for row in portion.to_pylist()]


def faults(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {row[BATCH_COLUMN]: decode_fault(row[FAULT_COLUMN]).kind for row in rows if row[FAULT_COLUMN] is not None}


def test_tasks_share_batches_by_their_sizes(source: DatabaseSource) -> None:
    lease = leases_of(source)[0]
    sizes = (10, 40, 20, 30, 20)
    batches = [
        Batch(f"b{number}", lease, Name("e", "p"), Cut(None, END, last=True, size=size))
        for number, size in enumerate(sizes)
    ]
    tables = source._resolve(["e"])
    shared = [[each.batch for each in task] for task in packed(batches, tables, 4.0, 2)]
    assert shared == [["b1", "b4"], ["b3", "b2", "b0"]]
    assert len(packed(batches, tables, 4.0, 8)) == len(batches)
    assert packed([], tables, 4.0, 8) == []


def test_a_task_reads_its_batches_one_after_the_other_through_one_connection(
    source: DatabaseSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, connected, connect = batches_of(source), list[Sqlite](), Sqlite.connect

    def counted(dialect: Sqlite) -> SqliteConnection:
        connected.append(dialect)
        return connect(dialect)

    monkeypatch.setattr(Sqlite, "connect", counted)
    rows = read(source, batches)
    assert [row[DOCUMENT_ID] for row in rows] == [str(number) for number in range(ROWS)]
    assert [row[BATCH_COLUMN] for row in rows[:: ROWS // 4]] == ["b0", "b1", "b2", "b3"]
    assert len(connected) == 1


def test_batches_that_begin_late_end_after_a_short_page(source: DatabaseSource) -> None:
    rows = read(source, batches_of(source), seconds=0.0)
    cuts = [decode_fault(row[FAULT_COLUMN]) for row in rows if row[FAULT_COLUMN] is not None]
    assert [(cut.kind, cut.raw) for cut in cuts] == [
        (CUT, f'{{"after": [{first + FIRST_PAGE - 1}], "row": {FIRST_PAGE}}}') for first in range(0, ROWS, SIZE)
    ]
    assert len(rows) == 4 * (FIRST_PAGE + 1)


def test_a_database_that_does_not_respond_is_tried_once_for_all_batches_of_a_task(
    source: DatabaseSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, tried = batches_of(source), list[None]()

    def connect(_self: Sqlite) -> None:
        tried.append(None)
        raise SourceUnavailable("away")

    monkeypatch.setattr(Sqlite, "connect", connect)
    assert faults(read(source, batches)) == dict.fromkeys(("b0", "b1", "b2", "b3"), UNAVAILABLE)
    assert len(tried) == 1


def test_a_batch_that_cannot_be_read_does_not_fail_the_others_of_its_task(source: DatabaseSource) -> None:
    ranges = packed(batches_of(source), source._resolve(["e"]), 60.0, 1)[0]
    broken = replace(ranges[1], wanted=replace(ranges[1].wanted, start=[object()]))
    rows = DatabaseRows([[ranges[0], broken, *ranges[2:]]], None)
    found = [row for portion in rows.rows(0) for row in portion.to_pylist()]
    assert faults(found) == {"b1": BATCH}
    assert {row[BATCH_COLUMN] for row in found if row[FAULT_COLUMN] is None} == {"b0", "b2", "b3"}


def test_partitions_are_light_while_a_node_reads_them_in_some_seconds(source: DatabaseSource) -> None:
    lease = leases_of(source)[0]
    units = lease.order.work_units
    assert units == SIZE
    few = [lease] * (LIGHT_UNITS // units - 1)
    assert source.is_light(few)
    assert not source.is_light([*few, lease])

"""Reads batches of tables in tasks: page by page from the last key, each page in a transaction of its own.

A task reads several batches, one after the other, so that rows of the next are read while those of the last are sent.
Batches end after some seconds, so that a node that dies costs its successor no more than that. Where they end is known
only then: a row with the fault `cut` marks it. Pages grow until they have some megabytes, so that rows of any size fit.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import BatchError, Refused, SourceUnavailable
from holdfast.flow.batch import Batch
from holdfast.flow.fault import COLUMNS, Fault, batch_fault, cut_fault, record_fault, unavailable_fault
from holdfast.flow.letter import Letter
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.tables import DELETED, DOCUMENT, DOCUMENT_ID, DOCUMENT_VERSION, ENTITY
from holdfast.formats._arrays import begins_with, has_byte
from holdfast.leases.lease import Json
from holdfast.sources.database.dialect import Connection
from holdfast.sources.database.keys import from_json, to_json
from holdfast.sources.database.table import EntityTable, KeyRange, Page

FIRST_PAGE = 64
MAX_PAGE = 5000
PAGE_GROWTH = 4
PAGE_BYTES = 8 * 1024 * 1024
BATCH_BYTES = 256 * 1024 * 1024
END: Json = {"done": True}
"""The position behind the last row of a partition."""

DATA_SCHEMA = pa.schema(
    [
        (ENTITY, pa.string()),
        (DOCUMENT_ID, pa.string()),
        (DOCUMENT_VERSION, pa.int64()),
        (DELETED, pa.bool_()),
        (DOCUMENT, pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        (BATCH_COLUMN, pa.dictionary(pa.int32(), pa.string())),
        (ITEM_COLUMN, pa.int64()),
        (FAULT_COLUMN, pa.string()),
        *DATA_SCHEMA,
    ]
)
_JSON = msgspec.json.Decoder(msgspec.Raw)


def position_after(values: Sequence[Any], row: int) -> Json:
    """The position after the row with these values of the order; `row` rows of the partition come before it."""
    return {"after": to_json(values), "row": row}


def is_position(position: Json) -> bool:
    """Whether a batch can begin at this position."""
    match position:
        case None | {"after": list(), "row": int()}:
            return True
    return False


def range_of(spec: Any, position: Json) -> KeyRange:
    """What is left of a partition at this position."""
    start, end, after = spec.get("from"), spec.get("to"), (position or {}).get("after")
    return KeyRange(
        start=None if start is None else from_json(start),
        after=None if after is None else from_json(after),
        end=None if end is None else from_json(end),
        since=spec.get("since"),
    )


class PageSize:
    """How many rows the next page should have."""

    def __init__(self) -> None:
        self.rows = FIRST_PAGE

    def learn(self, rows: int, size: int) -> None:
        """Note that a page had that many rows and bytes."""
        fitting = int(PAGE_BYTES * rows / max(1, size))
        self.rows = max(1, min(fitting, PAGE_GROWTH * self.rows, MAX_PAGE))


def pages(
    table: EntityTable,
    connection: Connection,
    wanted: KeyRange,
    most: int | None = None,
    *,
    live_only: bool = False,
    size: PageSize | None = None,
) -> Iterator[Page]:
    """The range page by page, at most `most` rows of it. The last page may be empty, and no page is yielded twice.

    `size` has adapted to earlier pages of the table, and adapts to these.
    """
    size, left = size or PageSize(), most
    while True:
        limit = size.rows if left is None else min(size.rows, left)
        page = table.read(connection.rows(*table.page(wanted, limit, live_only=live_only)), wanted.since)
        yield page
        left = None if left is None else left - len(page)
        if len(page) < limit or left == 0:
            return
        size.learn(len(page), page.size)
        wanted = replace(wanted, after=page.last)


@dataclass(frozen=True)
class TableRange:
    """What a batch reads, and when it ends."""

    batch: str
    table: EntityTable
    wanted: KeyRange
    row: int
    """Rows of the partition before this batch."""
    max_records: int | None
    max_bytes: int
    seconds: float | None
    """How long after the begin of its task it is read; None for a batch that must be read to its end."""


@dataclass(frozen=True)
class DatabaseRows:
    """The batches of a round: each is read by one task, and a task reads several, one after the other. A `TaskRows`."""

    packed: Sequence[Sequence[TableRange]]
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.packed)

    def rows(self, task: int) -> Iterator[Any]:
        reader, left = TaskReader(time.monotonic()), list(self.packed[task])
        try:
            while left:
                yield from reader.rows(left.pop(0))
        except SourceUnavailable as error:
            # The others would wait for the same server.
            for wanted in left:
                yield _mark(wanted, wanted.row, unavailable_fault(str(error)))
        finally:
            reader.close()


class TaskReader:
    """Reads the batches of one task through one connection. `began`: when the task began."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._connection: Connection | None = None
        self._sizes: defaultdict[str, PageSize] = defaultdict(PageSize)

    def rows(self, wanted: TableRange) -> Iterator[Any]:
        """The rows of a batch, or what is wrong with it.

        In an outage, a row with a fault comes before `SourceUnavailable` is raised.
        """
        try:
            if self._connection is None:
                self._connection = wanted.table.dialect.connect()
            yield from self._read(wanted, self._connection)
        except (BatchError, Refused) as error:
            self.close()
            yield _mark(wanted, wanted.row, batch_fault(f"entity {wanted.table.name}: {error}"))
        except SourceUnavailable as error:
            yield _mark(wanted, wanted.row, unavailable_fault(str(error)))
            raise

    def _read(self, wanted: TableRange, connection: Connection) -> Iterator[Any]:
        number, size = wanted.row, 0
        # A batch that begins late ends after a page: a short one.
        learned = None if self._is_late(wanted) else self._sizes[wanted.table.name]
        for page in pages(wanted.table, connection, wanted.wanted, wanted.max_records, size=learned):
            if not len(page):
                return
            yield _portion(wanted, number, page)
            number, size = number + len(page), size + page.size
            if self._is_late(wanted) or size >= wanted.max_bytes or number - wanted.row == wanted.max_records:
                # Perhaps nothing follows; the next batch finds that out.
                yield _mark(wanted, number, cut_fault(position_after(page.last, number)))
                return

    def _is_late(self, wanted: TableRange) -> bool:
        return wanted.seconds is not None and time.monotonic() - self._began >= wanted.seconds

    def close(self) -> None:
        """Close the connection; the next batch makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def packed(
    batches: Sequence[Batch], tables: Mapping[str, EntityTable], seconds: float, tasks: int
) -> list[list[TableRange]]:
    """The batches of each task: at most `tasks` tasks, with about the same work."""
    made: list[list[TableRange]] = [[] for _ in range(min(tasks, len(batches)))]
    loads = [(0, task) for task in range(len(made))]
    # The largest first, so that the small ones fill the gaps.
    for batch in sorted(batches, key=lambda batch: -batch.cut.size):
        load, task = heappop(loads)
        made[task].append(_range(batch, tables, seconds))
        heappush(loads, (load + batch.cut.size, task))
    return made


def _range(batch: Batch, tables: Mapping[str, EntityTable], seconds: float) -> TableRange:
    spec, cut = batch.lease.spec, batch.cut
    wanted, last = range_of(spec, cut.start), cut.end.get("after")
    if last is not None:
        wanted = replace(wanted, last=from_json(last))
    row, limit = int((cut.start or {}).get("row", 0)), seconds if last is None else None
    most = cut.max_records if last is None else None
    return TableRange(batch.id, tables[spec["entity"]], wanted, row, most, BATCH_BYTES, limit)


# --- rows -----------------------------------------------------------------------------------------------------------


def _portion(wanted: TableRange, first: int, page: Page) -> Any:
    count, table = len(page), wanted.table
    documents, faults = pa.array(page.documents, pa.string()), pa.nulls(count, pa.string())
    if table.config.json_column is not None and not (table.has_valid_json and _are_plain(documents)):
        checked = [
            (None, None) if deleted else _checked(document, table.has_valid_json)
            for document, deleted in zip(page.documents, page.deleted, strict=True)
        ]
        documents = pa.array([document for document, _ in checked], pa.string())
        faults = pa.array([None if fault is None else fault.encode() for _, fault in checked], pa.string())
    arrays = [
        _batch_column(wanted, count),
        pa.array(np.arange(first, first + count)),
        faults,
        pa.repeat(table.name, count),
        pa.array(page.ids, pa.string()),
        pa.array(page.versions, pa.int64()),
        pa.array(map(bool, page.deleted), pa.bool_(), size=count),
        documents,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _are_plain(documents: Any) -> bool:
    """Whether all documents that are JSON are objects on one line.

    Most pages are like that and need no further check.
    """
    return bool(begins_with(documents, b"{").all()) and not any(has_byte(documents, byte) for byte in (b"\n", b"\r"))


def _checked(document: str | None, is_valid: bool) -> tuple[str | None, Fault | None]:
    """The document on one line, and what is wrong with it."""
    if document is None:
        return None, record_fault("the column of the document is NULL", b"")
    try:
        if not is_valid:
            _JSON.decode(document)
    except msgspec.DecodeError as error:
        return None, record_fault(str(error), document.encode("utf-8", "replace"))
    if not document.lstrip().startswith("{"):
        return None, record_fault("the document is not a JSON object", document.encode("utf-8", "replace"))
    if "\n" in document or "\r" in document:
        # Between the parts of JSON only: inside of strings, line ends are escaped.
        document = document.replace("\n", " ").replace("\r", " ")
    return document, None


def _mark(wanted: TableRange, item: int, fault: Fault) -> Any:
    system = [_batch_column(wanted, 1), pa.array([item], pa.int64()), pa.array([fault.encode()], pa.string())]
    return pa.RecordBatch.from_arrays([*system, *(pa.nulls(1, field.type) for field in DATA_SCHEMA)], schema=SCHEMA)


def _batch_column(wanted: TableRange, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([wanted.batch], pa.string()))


class TableRebuilder:
    """Makes rows from letters. A `Rebuilder`."""

    @property
    def keeps(self) -> frozenset[str] | None:
        return None

    def fields(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(DATA_SCHEMA)

    def refusal(self, letter: Letter) -> str | None:
        if letter.form == COLUMNS:
            return None
        return "it does not hold its row as it was read; `holdfast reindex verify --repair` writes the row of today"

    def row(self, letter: Letter) -> Any:
        columns = json.loads(letter.record())
        if not isinstance(columns, dict):
            raise ValueError("it is not a row of a table")  # noqa: TRY004 - as the interface says
        try:
            return pa.RecordBatch.from_pylist([columns], schema=DATA_SCHEMA)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"it is not a row of a table: {error}") from error

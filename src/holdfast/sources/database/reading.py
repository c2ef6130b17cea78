"""Reads batches of tables in tasks: page by page from the last key, each page in a transaction of its own.

A batch ends after some seconds, so that a node that dies costs its successor no more than that. Where it ends is known
only then: a row with the fault `cut` says it. Pages grow until they have some megabytes, so that rows of any size fit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import BatchError, Refused, SourceUnavailable
from holdfast.flow.batch import Batch
from holdfast.flow.fault import Fault, batch_fault, cut_fault, record_fault, unavailable_fault
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.tables import DELETED, DOCUMENT, DOCUMENT_ID, DOCUMENT_VERSION, ENTITY
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
    """The position behind the row with these values of the order; `row` rows of the partition come before it."""
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
        """A page had that many rows and bytes."""
        fitting = int(PAGE_BYTES * rows / max(1, size))
        self.rows = max(1, min(fitting, PAGE_GROWTH * self.rows, MAX_PAGE))


def pages(
    table: EntityTable, connection: Connection, wanted: KeyRange, most: int | None = None, *, live_only: bool = False
) -> Iterator[Page]:
    """The range page by page, at most `most` rows of it. The last page may be empty, and no page is there twice."""
    size, left = PageSize(), most
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
    """None for a batch that must be read to its end."""


@dataclass(frozen=True)
class DatabaseRows:
    """The batches of a round, each read by one task in order. A `TaskRows`."""

    ranges: Sequence[TableRange]
    schema: Any

    @property
    def tasks(self) -> int:
        return len(self.ranges)

    def rows(self, task: int) -> Iterator[Any]:
        wanted = self.ranges[task]
        try:
            with wanted.table.dialect.connected() as connection:
                yield from _read(wanted, connection)
        except (BatchError, Refused) as error:
            yield _mark(wanted, wanted.row, batch_fault(f"entity {wanted.table.name}: {error}"))
        except SourceUnavailable as error:
            yield _mark(wanted, wanted.row, unavailable_fault(str(error)))


def _read(wanted: TableRange, connection: Connection) -> Iterator[Any]:
    began, number, size = time.monotonic(), wanted.row, 0
    for page in pages(wanted.table, connection, wanted.wanted, wanted.max_records):
        if not len(page):
            return
        yield _portion(wanted, number, page)
        number, size = number + len(page), size + page.size
        is_late = wanted.seconds is not None and time.monotonic() - began >= wanted.seconds
        if is_late or size >= wanted.max_bytes or number - wanted.row == wanted.max_records:
            # Perhaps nothing follows; the next batch finds that out.
            yield _mark(wanted, number, cut_fault(position_after(page.last, number)))
            return


def ranges(batches: Sequence[Batch], tables: dict[str, EntityTable], seconds: float) -> list[TableRange]:
    """What to read of each batch."""
    found = []
    for batch in batches:
        spec, cut = batch.lease.spec, batch.cut
        wanted, last = range_of(spec, cut.start), cut.end.get("after")
        if last is not None:
            wanted = replace(wanted, last=from_json(last))
        row, limit = int((cut.start or {}).get("row", 0)), seconds if last is None else None
        most = cut.max_records if last is None else None
        found.append(TableRange(batch.id, tables[spec["entity"]], wanted, row, most, BATCH_BYTES, limit))
    return found


# --- rows -----------------------------------------------------------------------------------------------------------


def _portion(wanted: TableRange, first: int, page: Page) -> Any:
    count, table = len(page), wanted.table
    documents, faults = page.documents, pa.nulls(count, pa.string())
    if table.config.json_column is not None and not (table.has_valid_json and _are_plain(page.documents)):
        checked = [
            (None, None) if deleted else _checked(document, table.has_valid_json)
            for document, deleted in zip(page.documents, page.deleted, strict=True)
        ]
        documents = [document for document, _ in checked]
        faults = pa.array([None if fault is None else fault.encode() for _, fault in checked], pa.string())
    arrays = [
        _batch_column(wanted, count),
        pa.array(range(first, first + count), pa.int64()),
        faults,
        pa.array([table.name] * count, pa.string()),
        pa.array(page.ids, pa.string()),
        pa.array(page.versions, pa.int64()),
        pa.array(map(bool, page.deleted), pa.bool_(), size=count),
        pa.array(documents, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _are_plain(documents: Sequence[str | None]) -> bool:
    """Whether all are JSON objects on one line, if they are JSON at all; most pages are, and need no further look."""
    return all(
        document is not None and document[:1] == "{" and "\n" not in document and "\r" not in document
        for document in documents
    )


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
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([wanted.batch], pa.string()))

"""From rows of live tables to bulk entries for staged indexes: the text of a document is sent as it is, not parsed.

Every row names its document, the external version and whether it is deleted. The version makes the order of writes
irrelevant: of two writes of a document, the one with the higher version stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.search_index import WRITE_ALIAS
from holdfast.flow.staging import StagedBatch
from holdfast.flow.tables import DELETED, DOCUMENT, DOCUMENT_ID, DOCUMENT_VERSION, ENTITY, TABLE_COLUMNS
from holdfast.formats._arrays import begins_with, beside, binary, content, has_byte
from holdfast.formats._json_objects import json_objects, json_texts
from holdfast.sinks.opensearch.bulk_body import Entries, RecordNumbers
from holdfast.sinks.opensearch.documents import (
    LARGEST_PORTION,
    MAX_ID_BYTES,
    NOT_AN_OBJECT,
    Faults,
    beside_each_other,
)

VERSION_TYPE = "external_gte"
NO_INDEX = "no index is known for its entity"
_VERSION_TYPE = f',"version_type":"{VERSION_TYPE}"'.encode()
_LINE = b"\n"


@dataclass(frozen=True)
class StagedEntryBuilder:
    """Makes entries from rows. Picklable."""

    indexes: Mapping[str, str] = field(default_factory=dict)
    """By batch, the index of its rows: the staged index of their entity in this run, or a write alias of the index."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """By entity, the index of rows whose batch has none: rows that are sent again after their run."""

    @property
    def names(self) -> frozenset[str]:
        """The columns that the builder uses."""
        return frozenset(TABLE_COLUMNS)

    @property
    def document_id(self) -> str:
        return DOCUMENT_ID

    @property
    def time_fields(self) -> tuple[str, ...]:
        """The fields whose times name the index: none."""
        return ()

    def entries(
        self,
        batch: StagedBatch,
        numbers: RecordNumbers,
        items: Any,
        rows: Any,
        until: float | None = None,
    ) -> Iterator[tuple[Entries, Faults]]:
        """Yields portions of the rows as entries, each with the faults of rows that cannot become entries."""
        if rows.nbytes > LARGEST_PORTION and rows.num_rows > 1:
            half = rows.num_rows // 2
            yield from self.entries(batch, numbers, items.slice(0, half), rows.slice(0, half), until)
            yield from self.entries(batch, numbers, items.slice(half), rows.slice(half), until)
        else:
            yield self._made(batch, items, rows)

    def _made(self, batch: StagedBatch, items: Any, rows: Any) -> tuple[Entries, Faults]:
        form = batch.raw_form(is_value=False)
        indexes = self._indexes(batch, rows)
        reasons = _reasons(rows, indexes)
        faults = [(items[row].as_py(), _fault(rows, row, reason, form)) for row, reason in sorted(reasons.items())]
        if reasons:
            good = np.ones(rows.num_rows, bool)
            good[list(reasons)] = False
            kept = pa.array(np.flatnonzero(good))
            items, rows, indexes = items.take(kept), rows.take(kept), indexes.take(kept)
        entries = _entries(rows, indexes)
        borders = np.concatenate([[0], np.cumsum(np.asarray(pc.binary_length(entries)))]).astype(np.int64)
        return StagedEntries(batch, content(entries), borders, np.asarray(items), rows, form), faults

    def _indexes(self, batch: StagedBatch, rows: Any) -> Any:
        """The index of each row; null where none is known."""
        index = self.indexes.get(batch.id)
        if index is not None:
            return pa.repeat(pa.scalar(index, pa.string()), rows.num_rows)
        encoded = rows.column(ENTITY).dictionary_encode()
        aliases = pa.array([self.aliases.get(entity) for entity in encoded.dictionary.to_pylist()], pa.string())
        return aliases.take(encoded.indices)


class StagedEntries(Entries):
    """Entries whose `documents` are whole rows, which become JSON only if they are refused."""

    def fault(self, index: int, reason: str) -> Fault:
        return _fault(self.documents, index, reason, self.form)


def _fault(rows: Any, row: int, reason: str, form: str | None) -> Fault:
    text: str = json_objects(rows.slice(row, 1))[0].as_py()
    return replace(record_fault(reason, text.encode()), form=form)


def _reasons(rows: Any, indexes: Any) -> dict[int, str]:
    """By row, the first reason why it cannot become an entry."""
    ids = pc.binary_length(rows.column(DOCUMENT_ID)).fill_null(0)
    versions = rows.column(DOCUMENT_VERSION).cast(pa.int64()).fill_null(0)
    alive = ~np.asarray(rows.column(DELETED).fill_null(False))
    documents = _documents(rows)
    is_object = begins_with(documents, b"{")
    for row in np.flatnonzero(alive & ~is_object).tolist():
        is_object[row] = documents[row].as_py().lstrip()[:1] == b"{"
    wrong = {
        NO_INDEX: np.asarray(indexes.is_null()),
        f"its document id is empty or longer than {MAX_ID_BYTES} bytes": (np.asarray(ids) == 0)
        | (np.asarray(ids) > MAX_ID_BYTES),
        "its version is negative": np.asarray(versions) < 0,
        NOT_AN_OBJECT: alive & ~is_object,
    }
    reasons: dict[int, str] = {}
    for reason, found in wrong.items():
        for row in np.flatnonzero(found).tolist():
            reasons.setdefault(row, reason)
    return reasons


def _entries(rows: Any, indexes: Any) -> Any:
    target = _target(rows, indexes)
    documents = _documents(rows)
    if has_byte(documents, _LINE):
        documents = pc.replace_substring(documents, _LINE, b" ")
    written = beside_each_other(rows.num_rows, b'{"index":', *target, documents, _LINE)
    deleted = rows.column(DELETED).fill_null(False)
    if not pc.any(deleted).as_py():
        return written
    return pc.if_else(deleted, beside_each_other(rows.num_rows, b'{"delete":', *target), written)


def _target(rows: Any, indexes: Any) -> list[Any]:
    """The pieces of what follows the action: index, id and version of each row."""
    encoded = indexes.dictionary_encode()
    heads = pa.array(map(_head, encoded.dictionary.to_pylist()), pa.binary())
    head = heads[0].as_py() if len(heads) == 1 else heads.take(encoded.indices)
    versions = rows.column(DOCUMENT_VERSION).cast(pa.int64())
    numbers = binary(versions.cast(pa.string()))
    pieces = [head, binary(json_texts(rows.column(DOCUMENT_ID)))]
    if not versions.null_count:
        return [*pieces, b',"version":', numbers, _VERSION_TYPE, b"}}\n"]
    named = beside(pa.scalar(b',"version":'), numbers, pa.scalar(_VERSION_TYPE))
    return [*pieces, pc.if_else(versions.is_valid(), named, b""), b"}}\n"]


def _head(index: str) -> bytes:
    # Without the alias required, a request that arrives after the alias was removed creates an index of that name. The
    # server does not look at it in deletes, which leave an empty index then.
    required = {"require_alias": True} if index.endswith(WRITE_ALIAS) else {}
    return json.dumps({"_index": index, **required}).removesuffix("}").encode() + b',"_id":'


def _documents(rows: Any) -> Any:
    documents = binary(rows.column(DOCUMENT))
    return documents.fill_null(b"") if documents.null_count else documents

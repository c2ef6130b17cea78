"""Rows become entries of a bulk request in Arrow's native code; no Python code runs for each record unless a template
needs a field of it.

A record that is JSON text already is not changed. Otherwise Spark's `to_json` makes the text if rows are in the JVM
(2.2 µs for each record, against 1.7 for transferring the columns and 2.0 for making JSON in Python), and
`holdfast.formats` makes it if they are not: sending them through the JVM would cost more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.staging import StagedBatch
from holdfast.formats._arrays import begins_with, beside, binary, content, has_byte, is_bytes
from holdfast.formats._json_objects import json_objects
from holdfast.sinks.opensearch.bulk_body import Entries, RecordNumbers, origin_prefix
from holdfast.sinks.opensearch.fields import VALUE, Fields, are_objects, document_column
from holdfast.sinks.opensearch.templates import MAX_INDEX_NAME, IndexName, Template, is_after

ORIGIN, SERVER = "origin", "server"
ACTIONS = ("index", "create", "update", "upsert", "delete")
LARGEST_PORTION = 1 << 29
"""Arrow addresses the bytes of a column with 32 bits, and an action is added to each document."""
RETRY_ON_CONFLICT = 3
MAX_ID_BYTES = MAX_ROUTING_BYTES = 512
"""OpenSearch refuses a longer id. It stores a routing beside each document, and has no bound of its own for it."""
SMALL_PORTION = 8
"""Rows up to which plain Python is faster than Arrow."""
NOT_AN_OBJECT = "it is not a JSON object"
_LINE = b"\n"

Faults = list[tuple[int, Fault]]


@dataclass(frozen=True)
class EntryBuilder:
    """Makes entries from records. Picklable."""

    index: IndexName
    action: Template = Template("index")
    document_id: Template | str = ORIGIN
    routing: Template | None = None
    version: Template | None = None
    version_type: str = "external"
    text_field: str | None = None

    @cached_property
    def _plain(self) -> str | None:
        """The action, if the first line of every entry consists of it and an id by origin."""
        plain = self.document_id == ORIGIN and self.index.constant and not self.routing and not self.version
        return self.action.constant if plain and self.action.constant in {"index", "create"} else None

    @property
    def names(self) -> frozenset[str]:
        """The fields that templates use."""
        templates = (self.index.template, self.action, self.document_id, self.routing, self.version)
        return frozenset(name for text in templates if isinstance(text, Template) for name in text.names)

    @property
    def time_fields(self) -> tuple[str, ...]:
        """The fields whose times name the index."""
        return self.index.template.times

    def entries(
        self, batch: StagedBatch, numbers: RecordNumbers, items: Any, rows: Any, until: float | None = None
    ) -> Iterator[tuple[Entries, Faults]]:
        """Yields portions of the rows as entries, each with the faults of rows that cannot become entries.

        No index is named after a time later than `until`; None: it may be any time.
        """
        if self._plain and (small := _small_entries(self._plain, batch, numbers, items, rows)) is not None:
            yield small, []
        elif rows.nbytes > LARGEST_PORTION and rows.num_rows > 1:
            half = rows.num_rows // 2
            yield from self.entries(batch, numbers, items.slice(0, half), rows.slice(0, half), until)
            yield from self.entries(batch, numbers, items.slice(half), rows.slice(half), until)
        else:
            yield _Portion(self, batch, numbers.of(items), items, rows, until).made()


class _Portion:
    """Rows that become entries. The first reason why a row is refused is kept."""

    def __init__(
        self, builder: EntryBuilder, batch: StagedBatch, numbers: Any, items: Any, rows: Any, until: float | None
    ) -> None:
        self._builder = builder
        self._until = until
        self._batch = batch
        self._numbers = numbers
        self._items = items
        self._count = rows.num_rows
        self._reasons: dict[int, str] = {}
        self._raw = _documents(rows)
        self._is_text = document_column(rows.schema) == VALUE
        self._raw_form = batch.raw_form(is_value=self._is_text)
        self._documents = self._as_objects(self._raw) if document_column(rows.schema) else self._raw
        key = pa.repeat(pa.scalar(batch.key, pa.string()), self._count)
        self._fields = Fields(rows, {"_item": items.cast(pa.string()), "_key": key}, self._documents)

    def made(self) -> tuple[Entries, Faults]:
        entries = self._entries()
        if not self._reasons:
            return self._bulk_entries(entries, np.asarray(self._items), self._documents), []
        good = np.ones(self._count, bool)
        good[list(self._reasons)] = False
        faults = [
            (
                self._items[index].as_py(),
                replace(record_fault(reason, self._raw[index].as_py() or b""), form=self._raw_form),
            )
            for index, reason in sorted(self._reasons.items())
        ]
        mask = pa.array(good)
        kept = [column.filter(mask) for column in (entries, self._items, self._documents)]
        return self._bulk_entries(kept[0], np.asarray(kept[1]), kept[2]), faults

    def _bulk_entries(self, entries: Any, items: Any, documents: Any) -> Entries:
        borders = np.concatenate([[0], np.cumsum(np.asarray(pc.binary_length(entries)))]).astype(np.int64)
        return Entries(self._batch, content(entries), borders, items, documents, self._raw_form)

    # --- documents ---------------------------------------------------------------------------------------------

    def _as_objects(self, values: Any) -> Any:
        """The values, each on one line.

        A value that is not an object becomes the field `text_field` of one, or is refused.
        """
        if values.null_count:
            values = values.fill_null(b"")
        others = np.flatnonzero(~begins_with(values, b"{"))
        if len(others):
            values = self._wrapped(values, others)
        return pc.replace_substring(values, _LINE, b" ") if has_byte(values, _LINE) else values

    def _wrapped(self, values: Any, others: Any) -> Any:
        text_field, wrapped = self._builder.text_field, values.to_pylist()
        for index in others.tolist():
            text = wrapped[index]
            if text.lstrip()[:1] == b"{":
                continue
            if text_field is None or not _is_text(text):
                self._reasons[index] = NOT_AN_OBJECT
            else:
                wrapped[index] = _object_of(text_field, text)
        return pa.array(wrapped, pa.binary())

    # --- actions -----------------------------------------------------------------------------------------------

    def _entries(self) -> Any:
        only = self._builder.action.constant
        if only is not None:
            self._check_bodies(only, np.ones(self._count, bool))
            return self._with_action(only, self._metadata(only))
        actions = self._builder.action.texts(self._fields, self._count)
        self._refuse(
            ~np.asarray(pc.is_in(actions, pa.array(ACTIONS))), f"its action is not one of {', '.join(ACTIONS)}"
        )
        found = [action for action in ACTIONS if pc.any(pc.equal(actions, action)).as_py()]
        for action in found:
            self._check_bodies(action, np.asarray(pc.equal(actions, action).fill_null(False)))
        made = {action: self._with_action(action, self._metadata(action)) for action in found}
        chosen = pa.repeat(pa.scalar(b"", pa.binary()), self._count)
        for action, entries in made.items():
            chosen = pc.if_else(pc.equal(actions, action).fill_null(False), entries, chosen)
        return chosen

    def _check_bodies(self, action: str, rows: Any) -> None:
        """Refuse documents of updates that are not exactly one object: other text could change the update itself."""
        if action in {"update", "upsert"} and self._is_text:
            indexes = np.flatnonzero(rows)
            wrong = np.zeros(self._count, bool)
            wrong[indexes] = ~np.array(are_objects(self._documents.take(pa.array(indexes))), bool)
            self._refuse(wrong, NOT_AN_OBJECT)

    def _with_action(self, action: str, metadata: Any) -> Any:
        """The entries of this action. `metadata` of the documents is an array, or one text for all."""
        word = "update" if action == "upsert" else action
        head = (f'{{"{word}":'.encode(), metadata, b"}\n")
        if action == "delete":
            return beside_each_other(self._count, *head)
        if word != "update":
            return beside_each_other(self._count, *head, self._documents, _LINE)
        tail = b',"doc_as_upsert":true}\n' if action == "upsert" else b"}\n"
        return beside_each_other(self._count, *head, b'{"doc":', self._documents, tail)

    def _metadata(self, action: str) -> Any:
        builder, metadata = self._builder, dict[str, Any]()
        if builder.document_id == ORIGIN and builder.index.constant and not builder.routing and not builder.version:
            if action in {"update", "upsert"}:
                return self._origin_metadata(f',"retry_on_conflict":{RETRY_ON_CONFLICT}}}')
            return self._origin_metadata("}")
        if not builder.index.constant:
            metadata["_index"] = self._indexes()
        if builder.document_id != SERVER:
            metadata["_id"] = self._ids()
        if builder.routing is not None:
            metadata["routing"] = self._routings(builder.routing)
        if action in {"update", "upsert"}:
            metadata["retry_on_conflict"] = pa.repeat(pa.scalar(RETRY_ON_CONFLICT), self._count)
        elif builder.version is not None:
            metadata["version"] = self._versions(builder.version)
            metadata["version_type"] = pa.repeat(pa.scalar(builder.version_type), self._count)
        if not metadata:
            return b"{}"
        return json_objects(pa.RecordBatch.from_pydict(metadata)).cast(pa.binary())

    def _origin_metadata(self, end: str) -> Any:
        begin = f'{{"_id":"{origin_prefix(self._batch)}'.encode()
        return beside(pa.scalar(begin), self._numbers.cast(pa.binary()), pa.scalar(f'"{end}'.encode()))

    def _ids(self) -> Any:
        if isinstance(self._builder.document_id, Template):
            ids = self._needed("document_id", self._builder.document_id)
            empty = np.asarray(pc.binary_length(ids).fill_null(1)) == 0
            too_long = np.asarray(pc.binary_length(ids).fill_null(0)) > MAX_ID_BYTES
            self._refuse(empty | too_long, f"its document id is empty or longer than {MAX_ID_BYTES} bytes")
            return ids
        return pc.binary_join_element_wise(origin_prefix(self._batch), self._numbers, "")

    def _routings(self, template: Template) -> Any:
        texts = self._needed("routing", template)
        too_long = np.asarray(pc.binary_length(texts).fill_null(0)) > MAX_ROUTING_BYTES
        self._refuse(too_long, f"its routing is longer than {MAX_ROUTING_BYTES} bytes")
        return texts

    def _indexes(self) -> Any:
        names = self._needed("index", self._builder.index.template)
        too_long = np.asarray(pc.binary_length(names).fill_null(0)) > MAX_INDEX_NAME
        self._refuse(too_long, f"the index that its fields name has more than {MAX_INDEX_NAME} bytes")
        if self._until is not None:
            for name in self._builder.time_fields:
                self._refuse_after(name, self._until)
        encoded = pc.utf8_lower(names).dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        bad = [index for index, name in enumerate(distinct) if not self._builder.index.allows(name)]
        if bad:
            wrong = pc.is_in(encoded.indices, pa.array(bad, pa.int32()))
            self._refuse(np.asarray(wrong.fill_null(False)), "the index that its fields name is not allowed")
        return encoded.cast(pa.string())

    def _refuse_after(self, name: str, until: float) -> None:
        """Refuse records whose field holds a later time: each would create an index for its wrong time."""
        encoded = self._fields(name).dictionary_encode()
        ahead = [index for index, text in enumerate(encoded.dictionary.to_pylist()) if is_after(text, until)]
        if ahead:
            wrong = pc.is_in(encoded.indices, pa.array(ahead, pa.int32()))
            self._refuse(np.asarray(wrong), f"its time is too far ahead: {name} is more than max_ahead in the future")

    def _versions(self, template: Template) -> Any:
        texts = self._needed("version", template)
        whole = pc.match_substring_regex(texts, r"^[0-9]{1,18}$").fill_null(True)
        self._refuse(~np.asarray(whole), "its version is not a whole number")
        return pc.if_else(whole, texts, "0").cast(pa.int64())

    def _needed(self, setting: str, template: Template) -> Any:
        texts = template.texts(self._fields, self._count)
        if texts.null_count:
            self._refuse(np.asarray(texts.is_null()), f"it lacks a field of the {setting} template: {template.text}")
        return texts

    def _refuse(self, wrong: Any, reason: str) -> None:
        for index in np.flatnonzero(wrong).tolist():
            self._reasons.setdefault(index, reason)


def _small_entries(action: str, batch: StagedBatch, numbers: RecordNumbers, items: Any, rows: Any) -> Entries | None:
    """The rows with ids by origin, each under this action; None if this fast path does not apply.

    For an object with one record, Arrow's calls alone take a third of a millisecond; the fast path takes a twentieth of
    that.
    """
    if not 0 < rows.num_rows <= SMALL_PORTION or rows.schema.names != [VALUE] or not is_bytes(rows.schema.types[0]):
        return None
    documents, wanted = binary(rows.column(0)), items.to_pylist()
    values = documents.to_pylist()
    if not all(value is not None and value[:1] == b"{" and b"\n" not in value for value in values):
        return None
    if not numbers.add_ascending(wanted):
        return None
    head = f'{{"{action}":{{"_id":"{origin_prefix(batch)}'
    lines = [f'{head}{item}"}}}}\n'.encode() + value + b"\n" for item, value in zip(wanted, values, strict=True)]
    borders = np.array([0, *accumulate(map(len, lines))], np.int64)
    return Entries(batch, b"".join(lines), borders, np.array(wanted), documents, batch.raw_form(is_value=True))


def _documents(rows: Any) -> Any:
    """The rows as documents, not yet checked."""
    column = document_column(rows.schema)
    return binary(json_objects(rows) if column is None else rows.column(column))


def beside_each_other(count: int, *pieces: Any) -> Any:
    """The pieces of each row joined. A piece that is the same for all rows is not repeated in memory."""
    made = beside(*(pa.scalar(piece, pa.binary()) if isinstance(piece, bytes) else piece for piece in pieces))
    return made if isinstance(made, pa.Array) else pa.repeat(made, count)


def _is_text(value: bytes) -> bool:
    try:
        return bool(value.decode().strip())
    except UnicodeDecodeError:
        return False


def _object_of(name: str, text: bytes) -> bytes:
    row = pa.RecordBatch.from_pydict({name: [text.decode()]})
    document: bytes = json_objects(row)[0].as_py().encode()
    return document

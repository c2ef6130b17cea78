"""From rows to entries of a bulk request, in Arrow's own code: nothing runs per record where nothing must be looked up.

A record that is JSON text already is passed through as it is. Else Spark's `to_json` makes it where rows are in the JVM
(2.2 µs a record on its way to Python, against 1.7 for the columns and 2.0 for JSON made there), and `holdfast.formats`
where they are not: to send them through the JVM would cost more than that.
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
from holdfast.formats._arrays import beside, binary, content, has_byte, is_bytes
from holdfast.formats._json_objects import json_objects
from holdfast.sinks.opensearch.bulk_body import Entries
from holdfast.sinks.opensearch.document_ids import Numbers, origin_of
from holdfast.sinks.opensearch.fields import VALUE, Fields, are_objects, document_column
from holdfast.sinks.opensearch.templates import IndexName, Template

ORIGIN, SERVER = "origin", "server"
ACTIONS = ("index", "create", "update", "upsert", "delete")
LARGEST_PORTION = 1 << 29
"""Arrow counts the bytes of a column by 32 bits, and an action comes to each document."""
RETRY_ON_CONFLICT = 3
SMALL_PORTION = 8
"""Rows up to which plain Python is faster than Arrow."""
NO_OBJECT = "it is no JSON object"
_LINE = b"\n"

Faults = list[tuple[int, Fault]]


@dataclass(frozen=True)
class Form:
    """How a record becomes an entry. Picklable."""

    index: IndexName
    action: Template = Template("index")
    document_id: Template | str = ORIGIN
    routing: Template | None = None
    version: Template | None = None
    version_type: str = "external"
    text_field: str | None = None

    @cached_property
    def _plain(self) -> str | None:
        """The action, if it is all that a row's first line says beside an id by origin."""
        plain = self.document_id == ORIGIN and self.index.constant and not self.routing and not self.version
        return self.action.constant if plain and self.action.constant in {"index", "create"} else None

    @property
    def names(self) -> frozenset[str]:
        """Fields that templates need."""
        given = (self.index.template, self.action, self.document_id, self.routing, self.version)
        return frozenset(name for one in given if isinstance(one, Template) for name in one.names)

    def entries(self, batch: StagedBatch, numbers: Numbers, items: Any, rows: Any) -> Iterator[tuple[Entries, Faults]]:
        """The rows as entries, in portions, and those that cannot be any."""
        if self._plain and (small := _small_entries(self._plain, batch, numbers, items, rows)) is not None:
            yield small, []
        elif rows.nbytes > LARGEST_PORTION and rows.num_rows > 1:
            half = rows.num_rows // 2
            yield from self.entries(batch, numbers, items.slice(0, half), rows.slice(0, half))
            yield from self.entries(batch, numbers, items.slice(half), rows.slice(half))
        else:
            yield _Portion(self, batch, numbers.of(items), items, rows).made()


class _Portion:
    """Rows on their way to entries. Reasons against a row are collected; one is enough."""

    def __init__(self, form: Form, batch: StagedBatch, numbers: Any, items: Any, rows: Any) -> None:
        self._form = form
        self._batch = batch
        self._numbers = numbers
        self._items = items
        self._count = rows.num_rows
        self._reasons: dict[int, str] = {}
        self._raw = _documents(rows)
        self._is_text = document_column(rows.schema) == VALUE
        self._raw_form = batch.raw_form(is_value=self._is_text)
        self._documents = self._as_objects(self._raw) if document_column(rows.schema) else self._raw
        own = {"_item": items.cast(pa.string()), "_key": pa.repeat(pa.scalar(batch.key, pa.string()), self._count)}
        self._fields = Fields(rows, own, self._documents)

    def made(self) -> tuple[Entries, Faults]:
        entries = self._entries()
        if not self._reasons:
            return self._of(entries, np.asarray(self._items), self._documents), []
        good = np.ones(self._count, bool)
        good[list(self._reasons)] = False
        faults = [
            (
                self._items[place].as_py(),
                replace(record_fault(reason, self._raw[place].as_py() or b""), form=self._raw_form),
            )
            for place, reason in sorted(self._reasons.items())
        ]
        mask = pa.array(good)
        kept = [one.filter(mask) for one in (entries, self._items, self._documents)]
        return self._of(kept[0], np.asarray(kept[1]), kept[2]), faults

    def _of(self, entries: Any, items: Any, documents: Any) -> Entries:
        borders = np.concatenate([[0], np.cumsum(np.asarray(pc.binary_length(entries)))]).astype(np.int64)
        return Entries(self._batch, content(entries), borders, items, documents, self._raw_form)

    # --- documents ---------------------------------------------------------------------------------------------

    def _as_objects(self, values: Any) -> Any:
        """The values, each on one line. One that is no object gets a field of its own, or is refused."""
        if values.null_count:
            values = values.fill_null(b"")
        odd = np.flatnonzero(~_looks_like_object(values))
        if len(odd):
            values = self._mended(values, odd)
        return pc.replace_substring(values, _LINE, b" ") if has_byte(values, _LINE) else values

    def _mended(self, values: Any, odd: Any) -> Any:
        named, mended = self._form.text_field, values.to_pylist()
        for place in odd.tolist():
            text = mended[place]
            if text.lstrip()[:1] == b"{":
                continue
            if named is None or not _is_text(text):
                self._reasons[place] = NO_OBJECT
            else:
                mended[place] = _object_of(named, text)
        return pa.array(mended, pa.binary())

    # --- actions -----------------------------------------------------------------------------------------------

    def _entries(self) -> Any:
        only = self._form.action.constant
        if only is not None:
            self._check_bodies(only, np.ones(self._count, bool))
            return self._acting(only, self._facts(only))
        asked = self._form.action.texts(self._fields, self._count)
        self._refuse(~np.asarray(pc.is_in(asked, pa.array(ACTIONS))), f"its action is none of {', '.join(ACTIONS)}")
        found = [action for action in ACTIONS if pc.any(pc.equal(asked, action)).as_py()]
        for action in found:
            self._check_bodies(action, np.asarray(pc.equal(asked, action).fill_null(False)))
        made = {action: self._acting(action, self._facts(action)) for action in found}
        chosen = pa.repeat(pa.scalar(b"", pa.binary()), self._count)
        for action, entries in made.items():
            chosen = pc.if_else(pc.equal(asked, action).fill_null(False), entries, chosen)
        return chosen

    def _check_bodies(self, action: str, rows: Any) -> None:
        """A document within an update's body must be one object: a text with more in it would change the update."""
        if action in {"update", "upsert"} and self._is_text:
            places = np.flatnonzero(rows)
            wrong = np.zeros(self._count, bool)
            wrong[places] = ~np.array(are_objects(self._documents.take(pa.array(places))), bool)
            self._refuse(wrong, NO_OBJECT)

    def _acting(self, action: str, facts: Any) -> Any:
        """`facts` are what the action says of each document: an array, or one text for all."""
        word = "update" if action == "upsert" else action
        head = (f'{{"{word}":'.encode(), facts, b"}\n")
        if action == "delete":
            return _beside(self._count, *head)
        if word != "update":
            return _beside(self._count, *head, self._documents, _LINE)
        tail = b',"doc_as_upsert":true}\n' if action == "upsert" else b"}\n"
        return _beside(self._count, *head, b'{"doc":', self._documents, tail)

    def _facts(self, action: str) -> Any:
        form, facts = self._form, dict[str, Any]()
        if form.document_id == ORIGIN and form.index.constant and not form.routing and not form.version:
            if action in {"update", "upsert"}:
                return self._origin_facts(f',"retry_on_conflict":{RETRY_ON_CONFLICT}}}')
            return self._origin_facts("}")
        if not form.index.constant:
            facts["_index"] = self._indexes()
        if form.document_id != SERVER:
            facts["_id"] = self._ids()
        if form.routing is not None:
            facts["routing"] = self._needed("routing", form.routing)
        if action in {"update", "upsert"}:
            facts["retry_on_conflict"] = pa.repeat(pa.scalar(RETRY_ON_CONFLICT), self._count)
        elif form.version is not None:
            facts["version"] = self._versions(form.version)
            facts["version_type"] = pa.repeat(pa.scalar(form.version_type), self._count)
        if not facts:
            return b"{}"
        return json_objects(pa.RecordBatch.from_pydict(facts)).cast(pa.binary())

    def _origin_facts(self, end: str) -> Any:
        begin = f'{{"_id":"{origin_of(self._batch)}'.encode()
        return beside(pa.scalar(begin), self._numbers.cast(pa.binary()), pa.scalar(f'"{end}'.encode()))

    def _ids(self) -> Any:
        if isinstance(self._form.document_id, Template):
            ids = self._needed("document_id", self._form.document_id)
            empty = np.asarray(pc.binary_length(ids).fill_null(1)) == 0
            too_long = np.asarray(pc.binary_length(ids).fill_null(0)) > 512
            self._refuse(empty | too_long, "its document id is empty or longer than 512 bytes")
            return ids
        return pc.binary_join_element_wise(origin_of(self._batch), self._numbers, "")

    def _indexes(self) -> Any:
        names = self._needed("index", self._form.index.template)
        encoded = pc.utf8_lower(names).dictionary_encode()
        known = encoded.dictionary.to_pylist()
        bad = [place for place, name in enumerate(known) if not self._form.index.allows(name)]
        if bad:
            wrong = pc.is_in(encoded.indices, pa.array(bad, pa.int32()))
            self._refuse(np.asarray(wrong.fill_null(False)), "the index that its fields name is not allowed")
        return encoded.cast(pa.string())

    def _versions(self, template: Template) -> Any:
        texts = self._needed("version", template)
        whole = pc.match_substring_regex(texts, r"^[0-9]{1,18}$").fill_null(True)
        self._refuse(~np.asarray(whole), "its version is no whole number")
        return pc.if_else(whole, texts, "0").cast(pa.int64())

    def _needed(self, what: str, template: Template) -> Any:
        texts = template.texts(self._fields, self._count)
        if texts.null_count:
            self._refuse(np.asarray(texts.is_null()), f"it lacks a field of which its {what} is made: {template.text}")
        return texts

    def _refuse(self, wrong: Any, reason: str) -> None:
        for place in np.flatnonzero(wrong).tolist():
            self._reasons.setdefault(place, reason)


def _small_entries(action: str, batch: StagedBatch, numbers: Numbers, items: Any, rows: Any) -> Entries | None:
    """The rows with ids by origin, each under this action; None if the rows or documents are not that plain.

    For an object with one record, Arrow's calls alone take a third of a millisecond; this takes a twentieth of that.
    """
    if not 0 < rows.num_rows <= SMALL_PORTION or rows.schema.names != [VALUE] or not is_bytes(rows.schema.types[0]):
        return None
    documents, wanted = binary(rows.column(0)), items.to_pylist()
    values = documents.to_pylist()
    if not all(value is not None and value[:1] == b"{" and b"\n" not in value for value in values):
        return None
    if not numbers.go_up(wanted):
        return None
    head = f'{{"{action}":{{"_id":"{origin_of(batch)}'
    lines = [f'{head}{item}"}}}}\n'.encode() + value + b"\n" for item, value in zip(wanted, values, strict=True)]
    borders = np.array([0, *accumulate(map(len, lines))], np.int64)
    return Entries(batch, b"".join(lines), borders, np.array(wanted), documents, batch.raw_form(is_value=True))


def _documents(rows: Any) -> Any:
    """The rows as they came, for an index or for the dead letters."""
    column = document_column(rows.schema)
    return binary(json_objects(rows) if column is None else rows.column(column))


def _looks_like_object(values: Any) -> Any:
    """Whether the first byte of each is a brace; false for one that is empty."""
    starts = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    if not len(data):
        return np.zeros(len(values), bool)
    first = data[np.minimum(starts[:-1], len(data) - 1)]
    return (first == ord("{")) & (starts[1:] > starts[:-1])


def _beside(count: int, *pieces: Any) -> Any:
    """Each row's pieces as one. A piece that is the same for all rows is not repeated in memory."""
    made = beside(*(pa.scalar(piece, pa.binary()) if isinstance(piece, bytes) else piece for piece in pieces))
    return made if isinstance(made, pa.Array) else pa.repeat(made, count)


def _is_text(value: bytes) -> bool:
    try:
        return bool(value.decode().strip())
    except UnicodeDecodeError:
        return False


def _object_of(name: str, text: bytes) -> bytes:
    one = pa.RecordBatch.from_pydict({name: [text.decode()]})
    made: bytes = json_objects(one)[0].as_py().encode()
    return made

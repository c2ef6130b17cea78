"""Dead letters in an index: written by tasks, listed, fetched, and marked as redriven."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.deadletters.staging import LetterStaging
from holdfast.errors import BatchError, Refused, SinkUnavailable
from holdfast.flow.fault import ROW, Fault, dead_letter
from holdfast.flow.letter import CommittedLetters, Letter, LetterId, NewLetter, letter_of, new_letters
from holdfast.flow.names import segment
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json
from holdfast.sinks.opensearch.access import Access
from holdfast.sinks.opensearch.bulk_body import Body, Entries
from holdfast.sinks.opensearch.templates import index_name_of

LETTERS_PER_BODY = 500
BODY_BYTES = 8 << 20
"""Bytes of letters in a request that has more than one of them."""
PART_LENGTH = 1 << 20
"""Characters of a large record in one document: each is far below `http.max_content_length` of any server."""
PAGE_SIZE = 1000
LISTS = "letters"
"""Key of a receipt: the ids of the documents that list the letters of the commit."""
_PROPERTIES = {
    "place": {"type": "keyword"},
    "number": {"type": "long"},
    "sink": {"type": "keyword"},
    "reason": {"type": "text"},
    "raw": {"type": "text", "index": False},
    "at": {"type": "date"},
    "redriven": {"type": "keyword"},
    "source": {"type": "object", "enabled": False},
    "spilled": {"type": "object", "enabled": False},
    "row": {"type": "text", "index": False},
    "missing": {"type": "text", "index": False},
    "part": {"type": "text", "index": False},
    "letters": {"type": "object", "enabled": False},
    "note": {"type": "text", "index": False},
    "origin": {
        "properties": {"pipeline": {"type": "keyword"}, "key": {"type": "keyword"}, "item": {"type": "long"}},
    },
}

_Result = TypeVar("_Result")
Send = Callable[[Body], None]


def letters_index(pipeline: str) -> str:
    """The index of a pipeline's dead letters unless the settings name another one."""
    return index_name_of(f"{pipeline}-deadletters")


def letter_id(sink: str, batch: StagedBatch, letter: NewLetter) -> LetterId:
    """The id of a letter. A redrive of the record that fails again gives another id.

    A record that became several rows may have several letters, with different ids for different contents.
    """
    row = letter.more.get("row") or (letter.fault.raw if letter.fault.form == ROW else "")
    origin = f"{batch.key}\0{batch.incarnation}\0{batch.name.label}\0{row}"
    digest = hashlib.blake2b(origin.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return LetterId(f"{sink}.{base64.urlsafe_b64encode(digest).decode()}", letter.item)


def document_id(letter: LetterId) -> str:
    """The id of the letter's document in the index."""
    return f"{letter.container}.{letter.number}"


def part_id(letter: LetterId, part: int) -> str:
    """The id of the document with a part of the letter's record, if it is large."""
    return f"{document_id(letter)}.part-{part}"


@dataclass(frozen=True)
class LetterIndex:
    """Where letters are indexed. Picklable."""

    sink: str
    index: str | None = None
    """`<pipeline>-deadletters` unless given."""
    copied: bool = False
    """Whether copies of the letters are sent when their commit is published: then its receipt names lists of them."""

    def begin(self, send: Send) -> LetterStaging:
        return _IndexedLetters(self, send)


class _IndexedLetters(LetterStaging):
    """Each letter is a document whose id follows from its origin: a letter that is written twice exists once."""

    def __init__(self, target: LetterIndex, send: Send) -> None:
        self._target = target
        self._send = send
        self._written: defaultdict[str, list[LetterId]] = defaultdict(list)
        """By batch, the letters of this attempt, if copies are sent."""

    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        entries, size = list[_Entry](), 0
        for letter in new_letters(batch, faults):
            for entry in self._entries(batch, letter):
                if entries and (len(entries) == LETTERS_PER_BODY or size + len(entry.line) > BODY_BYTES):
                    self._send_entries(batch, entries)
                    entries, size = [], 0
                entries.append(entry)
                size += len(entry.line)
        if entries:
            self._send_entries(batch, entries)

    def _send_entries(self, batch: StagedBatch, entries: Sequence[_Entry]) -> None:
        borders = np.concatenate([[0], np.cumsum([len(entry.line) for entry in entries])]).astype(np.int64)
        items = np.array([entry.item for entry in entries], np.int64)
        texts = pa.array([entry.raw for entry in entries], pa.string()).cast(pa.binary())
        data = b"".join(entry.line for entry in entries)
        index = self._target.index or letters_index(batch.pipeline)
        self._send(Body([Entries(batch, data, borders, items, texts)], letters=index))

    def lists(self, batch: StagedBatch) -> list[str]:
        written, names = sorted(set(self._written.pop(batch.id, ()))), list[str]()
        for portion in _portions(written):
            # Unique to this attempt: another one of the same batch may have other letters.
            names.append(f"{self._target.sink}.list.{uuid.uuid4().hex}")
            listed = {"letters": [{"place": letter.container, "number": letter.number} for letter in portion]}
            self._send_entries(batch, [_Entry(portion[0].number, _indexed(names[-1], listed), "")])
        return names

    def finish(self, batch: StagedBatch) -> list[dict[str, Json]]:  # noqa: ARG002 - the sender waits for all of a batch
        return []

    def abandon(self, batch: StagedBatch) -> None:
        """Letters that were sent stay: they will be written again under the same ids."""
        self._written.pop(batch.id, None)

    def _entries(self, batch: StagedBatch, letter: NewLetter) -> Iterator[_Entry]:
        """The letter as a document, after those with the parts of its record, if it is large."""
        sink = self._target.sink
        identity, more, raw = letter_id(sink, batch, letter), letter.more, letter.fault.raw or ""
        if self._target.copied:
            self._written[batch.id].append(identity)
        if letter.spill is not None:
            text = letter.spill.decode()
            parts = [text[at : at + PART_LENGTH] for at in range(0, len(text), PART_LENGTH)]
            for number, part in enumerate(parts):
                yield _Entry(letter.item, _indexed(part_id(identity, number), {"part": part}), "")
            more = letter.spilled({"parts": len(parts)})
        fields = json.loads(dead_letter(batch.pipeline, batch.key, letter.item, letter.fault, more))
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        document = {**fields, "sink": sink, "at": now, "place": identity.container, "number": identity.number}
        yield _Entry(letter.item, _indexed(document_id(identity), document), raw)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Action and document of a bulk request, on two lines."""

    item: int
    line: bytes
    raw: str


def _indexed(identity: str, document: Mapping[str, Any]) -> bytes:
    action = json.dumps({"index": {"_id": identity}}).encode()
    return b"%s\n%s\n" % (action, json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace"))


class IndexLetters(CommittedLetters):
    """The letters of one sink, in an index that other sinks may use, too. Connects for every call."""

    def __init__(self, access: Access, index: str, pipeline: str, sink: str) -> None:
        self._access = access
        self._index = index
        self._sink = sink
        self._filter = [{"term": {"origin.pipeline": pipeline}}, {"term": {"sink": sink}}]

    def prepare(self) -> None:
        """Create the index if it does not exist. Raises `SinkUnavailable` and `Refused`."""
        body = {"mappings": {"properties": _PROPERTIES}}
        if not self._call(partial(self._created, body)):
            # An index of an earlier version; without these, the new fields are searchable, which costs more.
            with suppress(Refused):
                self._call(lambda client: client.indices.put_mapping(index=self._index, body=body["mappings"]))

    def letters(self) -> Iterator[Letter]:
        self._call(lambda client: client.indices.refresh(index=self._index, ignore=[404]))
        after: list[Any] | None = None
        while True:
            page = self._page(after)
            yield from map(_letter, page)
            if len(page) < PAGE_SIZE:
                return
            after = page[-1]["sort"]

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        found: dict[str, Letter] = {}
        for portion in _portions(ids):
            docs = self._call(partial(self._fetched, {"ids": [document_id(letter) for letter in portion]}))
            found |= {doc["_id"]: _letter(doc) for doc in docs.get("docs", ()) if doc.get("found")}
        missing = next((letter for letter in ids if document_id(letter) not in found), None)
        if missing is not None:
            raise BatchError(f"the dead letter {document_id(missing)} is not in {self._index} any more")
        return [found[document_id(letter)] for letter in ids]

    def read_spilled(self, letter: Letter) -> bytes | None:
        texts = []
        for number in range((letter.spilled or {})["parts"]):
            (found,) = self._documents([part_id(letter.id, number)])
            if found is None:
                return None
            texts.append(found["part"])
        return "".join(texts).encode()

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        for portion in _portions(ids):
            lines: list[Any] = []
            for letter in portion:
                lines += [{"update": {"_id": document_id(letter)}}, {"doc": {"redriven": run}}]
            response = self._call(partial(self._marked, lines))
            items = response.get("items", ()) if isinstance(response, dict) else ()
            if len(items) != len(portion):
                raise self._access.unexpected_response(response)
            statuses = {item["update"]["status"] for item in items} - {200, 404}
            if statuses:
                raise SinkUnavailable(f"{self._access.label} has not marked all letters: {sorted(statuses)}")

    def note_name(self, receipt: Any, commit: str) -> str | None:
        return commit if receipt.get(LISTS) else None

    def of_receipt(self, receipt: Any) -> Iterator[Letter]:
        for name in receipt.get(LISTS, ()):
            (listed,) = self._documents([name])
            if listed is None:
                raise BatchError(f"the list {name} of dead letters is not in {self._index} any more")
            yield from self.fetch([LetterId(letter["place"], letter["number"]) for letter in listed["letters"]])

    def note(self, topic: str, name: str, text: bytes) -> bytes | None:
        identity = f"{self._sink}.note.{name}.{segment(topic)}"
        if self._call(partial(self._noted, identity, {"note": text.decode()})):
            return None
        (found,) = self._documents([identity])
        if found is None:
            raise SinkUnavailable(f"{self._access.label} has lost the note {identity}")
        return str(found["note"]).encode()

    def _documents(self, ids: Sequence[str]) -> list[Any]:
        """The contents of these documents; None for one that does not exist."""
        found = self._call(partial(self._fetched, {"ids": list(ids)})).get("docs", ())
        return [doc["_source"] if doc.get("found") else None for doc in found] or [None] * len(ids)

    def _noted(self, identity: str, document: Any, client: Any) -> bool:
        """Create the document. Returns False if it exists already."""
        from opensearchpy.exceptions import ConflictError

        try:
            client.create(index=self._index, id=identity, body=document)
        except ConflictError:
            return False
        return True

    def _created(self, body: Any, client: Any) -> bool:
        """Create the index. Returns False if it exists already."""
        from opensearchpy.exceptions import RequestError

        try:
            client.indices.create(index=self._index, body=body)
        except RequestError as error:
            reason = error.info.get("error") if isinstance(error.info, dict) else None
            if not isinstance(reason, dict) or reason.get("type") != "resource_already_exists_exception":
                raise
            return False
        return True

    def _fetched(self, body: Any, client: Any) -> Any:
        return client.mget(index=self._index, body=body, ignore=[404])

    def _marked(self, lines: Sequence[Any], client: Any) -> Any:
        return client.bulk(index=self._index, body=lines, refresh=True)

    def _page(self, after: list[Any] | None) -> list[Any]:
        order, query = [{"place": "asc"}, {"number": "asc"}], {"bool": {"filter": self._filter}}
        body: dict[str, Any] = {"size": PAGE_SIZE, "query": query, "sort": order}
        if after is not None:
            body["search_after"] = after
        found = self._call(lambda client: client.search(index=self._index, body=body, ignore=[404]))
        return list(found.get("hits", {}).get("hits", ()))

    def _call(self, request: Callable[[Any], _Result]) -> _Result:
        client = self._access.connect()
        try:
            return self._access.call(lambda: request(client))
        finally:
            client.close()


def _letter(hit: Any) -> Letter:
    source = hit["_source"]
    at = dt.datetime.fromisoformat(source["at"]).timestamp() if "at" in source else None
    return letter_of(source, LetterId(str(source["place"]), int(source["number"])), at, source.get("redriven"))


def _portions(ids: Iterable[LetterId]) -> Iterator[list[LetterId]]:
    left = iter(ids)
    while portion := list(islice(left, PAGE_SIZE)):
        yield portion

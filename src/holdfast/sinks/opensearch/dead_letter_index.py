"""Dead letters in an index: written by tasks, listed, fetched, and marked as redriven."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.deadletters.staging import LetterStaging
from holdfast.errors import BatchError, SinkUnavailable
from holdfast.flow.fault import ROW, Fault, dead_letter
from holdfast.flow.letter import Letter, LetterBox, LetterId, letter_of
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json
from holdfast.sinks.opensearch.access import Access
from holdfast.sinks.opensearch.bulk_body import Body, Entries
from holdfast.sinks.opensearch.templates import index_name_of

LETTERS_PER_BODY = 500
PAGE_SIZE = 1000
_PROPERTIES = {
    "place": {"type": "keyword"},
    "number": {"type": "long"},
    "sink": {"type": "keyword"},
    "reason": {"type": "text"},
    "raw": {"type": "text", "index": False},
    "at": {"type": "date"},
    "redriven": {"type": "keyword"},
    "origin": {
        "properties": {"pipeline": {"type": "keyword"}, "key": {"type": "keyword"}, "item": {"type": "long"}},
    },
}

_Result = TypeVar("_Result")
Send = Callable[[Body], None]


def letters_index(pipeline: str) -> str:
    """The index of a pipeline's dead letters unless the settings name another one."""
    return index_name_of(f"{pipeline}-deadletters")


def letter_id(sink: str, batch: StagedBatch, item: int, fault: Fault) -> LetterId:
    """The id of a letter. A redrive of the record that fails again gives another id.

    A record that became several rows may have several letters, with different ids for different contents.
    """
    origin = f"{batch.key}\0{batch.incarnation}\0{batch.name.label}\0{fault.raw if fault.form == ROW else ''}"
    digest = hashlib.blake2b(origin.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return LetterId(f"{sink}.{base64.urlsafe_b64encode(digest).decode()}", item)


def document_id(letter: LetterId) -> str:
    """The id of the letter's document in the index."""
    return f"{letter.container}.{letter.number}"


@dataclass(frozen=True)
class LetterIndex:
    """Where letters are indexed. Picklable."""

    sink: str
    index: str | None = None
    """`<pipeline>-deadletters` unless given."""

    def begin(self, send: Send) -> LetterStaging:
        return _IndexedLetters(self.sink, self.index, send)


class _IndexedLetters(LetterStaging):
    """Each letter is a document whose id follows from its origin: a letter that is written twice exists once."""

    def __init__(self, sink: str, index: str | None, send: Send) -> None:
        self._sink = sink
        self._index = index
        self._send = send

    def write(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        index = self._index or letters_index(batch.pipeline)
        for at in range(0, len(faults), LETTERS_PER_BODY):
            portion = faults[at : at + LETTERS_PER_BODY]
            lines = [self._entry(batch, item, fault) for item, fault in portion]
            borders = np.concatenate([[0], np.cumsum([len(line) for line in lines])]).astype(np.int64)
            items = np.array([item for item, _ in portion], np.int64)
            texts = pa.array([fault.raw or "" for _, fault in portion]).cast(pa.binary())
            self._send(Body([Entries(batch, b"".join(lines), borders, items, texts)], letters=index))

    def finish(self, batch: StagedBatch) -> list[dict[str, Json]]:  # noqa: ARG002 - the sender waits for all of a batch
        return []

    def abandon(self, batch: StagedBatch) -> None:
        """Letters that were sent stay: they will be written again under the same ids."""

    def _entry(self, batch: StagedBatch, item: int, fault: Fault) -> bytes:
        identity = letter_id(self._sink, batch, item, fault)
        action = json.dumps({"index": {"_id": document_id(identity)}}).encode()
        fields = json.loads(dead_letter(batch.pipeline, batch.key, item, fault))
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        letter = {**fields, "sink": self._sink, "at": now, "place": identity.container, "number": identity.number}
        return b"%s\n%s\n" % (action, json.dumps(letter, ensure_ascii=False).encode("utf-8", "backslashreplace"))


class IndexLetters(LetterBox):
    """The letters of one sink, in an index that other sinks may use, too. Connects for every call."""

    def __init__(self, access: Access, index: str, pipeline: str, sink: str) -> None:
        self._access = access
        self._index = index
        self._filter = [{"term": {"origin.pipeline": pipeline}}, {"term": {"sink": sink}}]

    def prepare(self) -> None:
        """Create the index if it does not exist. Raises `SinkUnavailable` and `Refused`."""
        body = {"mappings": {"properties": _PROPERTIES}}
        self._call(partial(self._created, body))

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

    def _created(self, body: Any, client: Any) -> None:
        from opensearchpy.exceptions import RequestError

        try:
            client.indices.create(index=self._index, body=body)
        except RequestError as error:
            reason = error.info.get("error") if isinstance(error.info, dict) else None
            if not isinstance(reason, dict) or reason.get("type") != "resource_already_exists_exception":
                raise

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

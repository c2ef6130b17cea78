"""Dead letters in an index: to be looked at, fetched, and marked as sent again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from holdfast.errors import BatchError, SinkUnavailable
from holdfast.flow.letter import Letter, LetterBox, LetterId, letter_of
from holdfast.sinks.opensearch.access import Access
from holdfast.sinks.opensearch.letters import document_id

AT_ONCE = 1000
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


class IndexLetters(LetterBox):
    """The letters of one sink in an index, which others may share. Connects for every call."""

    def __init__(self, access: Access, index: str, pipeline: str, sink: str) -> None:
        self._access = access
        self._index = index
        self._own = [{"term": {"origin.pipeline": pipeline}}, {"term": {"sink": sink}}]

    def prepare(self) -> None:
        """Make the index if there is none. Raises `SinkUnavailable` and `Refused`."""
        body = {"mappings": {"properties": _PROPERTIES}}
        self._asked(partial(self._created, body))

    def letters(self) -> Iterator[Letter]:
        self._asked(lambda client: client.indices.refresh(index=self._index, ignore=[404]))
        after: list[Any] | None = None
        while True:
            page = self._page(after)
            yield from map(_letter, page)
            if len(page) < AT_ONCE:
                return
            after = page[-1]["sort"]

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        found: dict[str, Letter] = {}
        for some in _portions(ids):
            docs = self._asked(partial(self._fetched, {"ids": [document_id(one) for one in some]}))
            found |= {doc["_id"]: _letter(doc) for doc in docs.get("docs", ()) if doc.get("found")}
        missing = next((one for one in ids if document_id(one) not in found), None)
        if missing is not None:
            raise BatchError(f"there is no dead letter {document_id(missing)} in {self._index} any more")
        return [found[document_id(one)] for one in ids]

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        for some in _portions(ids):
            lines: list[Any] = []
            for one in some:
                lines += [{"update": {"_id": document_id(one)}}, {"doc": {"redriven": run}}]
            told = self._asked(partial(self._marked, lines))
            items = told.get("items", ()) if isinstance(told, dict) else ()
            if len(items) != len(some):
                raise self._access.not_understood(told)
            statuses = {item["update"]["status"] for item in items} - {200, 404}
            if statuses:
                raise SinkUnavailable(f"{self._access.place} has not marked all letters: {sorted(statuses)}")

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
        order, own = [{"place": "asc"}, {"number": "asc"}], {"bool": {"filter": self._own}}
        body: dict[str, Any] = {"size": AT_ONCE, "query": own, "sort": order}
        if after is not None:
            body["search_after"] = after
        found = self._asked(lambda client: client.search(index=self._index, body=body, ignore=[404]))
        return list(found.get("hits", {}).get("hits", ()))

    def _asked(self, ask: Callable[[Any], _Result]) -> _Result:
        client = self._access.connect()
        try:
            return self._access.call(lambda: ask(client))
        finally:
            client.close()


def _letter(hit: Any) -> Letter:
    told = hit["_source"]
    at = dt.datetime.fromisoformat(told["at"]).timestamp() if "at" in told else None
    return letter_of(told, LetterId(str(told["place"]), int(told["number"])), at, told.get("redriven"))


def _portions(ids: Iterable[LetterId]) -> Iterator[list[LetterId]]:
    left = iter(ids)
    while some := list(islice(left, AT_ONCE)):
        yield some

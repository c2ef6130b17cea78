"""Indexes of a cluster as a reindex run needs them, see `holdfast.flow.search_index`.

An alias is swapped by `must_exist`, which makes the server compare before it changes anything. Documents are deleted by
sequence number, so that one that was written since it was found stays. Indexes from versions without spare aliases are
removed if none of their aliases is live at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from holdfast.errors import Refused, SinkUnavailable
from holdfast.flow.search_index import (
    SPARE_ALIAS,
    SUSPENDED,
    WRITE_ALIAS,
    AliasState,
    IndexedDocument,
    IndexOwner,
    IndexPlan,
    NewDocument,
    SearchIndexes,
)
from holdfast.sinks.opensearch.access import Access, is_cluster_response, summary
from holdfast.sinks.opensearch.bulk_response import is_cluster_error, reason_of
from holdfast.sinks.opensearch.index_setup import GC_DELETES
from holdfast.sinks.opensearch.staged_entries import VERSION_TYPE

META = "holdfast"
REFRESH, REPLICAS = "index.refresh_interval", "index.number_of_replicas"
FILLING = {REFRESH: "-1", REPLICAS: 0, GC_DELETES: "30d"}
"""Settings while an index is filled. Deleted versions must be remembered for longer than a run may take."""
PAGE = 5000
TEXT_PAGE = 500
SCROLL = "10m"


class OpenSearchIndexes(SearchIndexes):
    """Used by one thread at a time."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: Any = None

    def create(self, index: str, owner: IndexOwner, plan: IndexPlan) -> None:
        meta = {**plan.mappings.get("_meta", {}), META: owner._asdict() | {"spare_alias": True}}
        body = {
            "settings": _flat(plan.settings) | FILLING,
            "mappings": {**plan.mappings, "_meta": meta},
            "aliases": {index + SPARE_ALIAS: {}},
        }
        created = self._unless(400, "PUT", _path(index), body, only="resource_already_exists_exception")
        if created is None and self.owner(index) != owner:
            raise Refused(f"{self._access.label}: the index {index!r} exists already and does not belong to this run")

    def restore(self, index: str, plan: IndexPlan) -> None:
        self._set(index, plan, (REFRESH, REPLICAS))
        self.refresh(index)

    def finish(self, index: str, plan: IndexPlan) -> None:
        self._set(index, plan, (GC_DELETES,))

    def _set(self, index: str, plan: IndexPlan, names: Sequence[str]) -> None:
        wanted = _flat(plan.settings)
        # null: the default of the server
        self._request("PUT", f"{_path(index)}/_settings", {name: wanted.get(name) for name in names})

    def refresh(self, index: str) -> None:
        response = self._request("POST", f"{_path(index)}/_refresh")
        if response["_shards"]["failed"]:
            raise SinkUnavailable(f"{self._access.label}: not all shards of {index} can be refreshed now")

    def count(self, index: str) -> int:
        response = self._request("GET", f"{_path(index)}/_count")
        if response["_shards"]["failed"]:
            raise SinkUnavailable(f"{self._access.label}: not all shards of {index} can be counted now")
        return int(response["count"])

    def owner(self, index: str) -> IndexOwner | None:
        meta = self._meta(index)
        return IndexOwner(meta["pipeline"], meta["run"]) if meta else None

    def _meta(self, index: str) -> Mapping[str, Any]:
        """What the run that has created the index has noted in it; empty if there is no such index or note."""
        found = self._unless(404, "GET", f"{_path(index)}/_mapping")
        meta = ((found or {}).get(index) or {}).get("mappings", {}).get("_meta", {}).get(META)
        return meta if isinstance(meta, dict) else {}

    def _spare(self, index: str) -> dict[str, str] | None:
        """The spare alias that the index has while it is not live; None if it never has one."""
        return {"index": index, "alias": index + SPARE_ALIAS} if self._meta(index).get("spare_alias") else None

    def alias(self, alias: str) -> AliasState:
        found = self._unless(404, "GET", f"{_path(alias)}/_alias") or {}
        if alias in found:
            return AliasState((alias,), concrete=True)
        options = [dict(index["aliases"].get(alias, {})) for index in found.values()]
        return AliasState(tuple(sorted(found)), options=options[0] if options else {})

    def swap(self, alias: str, former: AliasState, index: str) -> bool:
        given = {**former.options, "index": index, "alias": alias}
        removed = [
            {"remove_index": {"index": name}}
            if former.concrete
            else {"remove": {"index": name, "alias": alias, "must_exist": True}}
            for name in former.indexes
        ]
        spares = [] if former.concrete else [{"add": spare} for name in former.indexes if (spare := self._spare(name))]
        if taken := self._spare(index):
            removed.append({"remove": {**taken, "must_exist": True}})
        body = {"actions": [*removed, *spares, {"add": given}]}
        if former.concrete and self.alias(alias) != former:
            return False
        return self._unless(404, "POST", "/_aliases", body) is not None

    def open_writes(self, index: str, alias: str) -> None:
        body = {"actions": [{"add": {"index": index, "alias": alias}}]}
        if self._unless(404, "POST", "/_aliases", body) is None:
            raise Refused(f"{self._access.label}: the index {index!r} is gone")

    def suspend_writes(self, alias: str) -> None:
        self._rename(alias, SUSPENDED + alias)

    def reopen_writes(self, alias: str) -> bool:
        self._rename(SUSPENDED + alias, alias)
        return bool(self.alias(alias).indexes)

    def _rename(self, alias: str, name: str) -> None:
        """Give the alias another name, in one action, unless it has that name or is gone."""
        for index in self.alias(alias).indexes:
            given = {"index": index, "alias": name}
            removed = {"index": index, "alias": alias, "must_exist": True}
            self._unless(404, "POST", "/_aliases", {"actions": [{"remove": removed}, {"add": given}]})

    def writes(self, alias: str) -> tuple[str, ...]:
        # In one request: a rename in between would hide it.
        names = f"{quote(alias, safe='')},{quote(SUSPENDED + alias, safe='')}"
        # The server responds with 404 also if only one of them is there, and names the indexes of the other one.
        found = self._request("GET", f"/_alias/{names}", params={"ignore": 404})
        return tuple(name for name, state in found.items() if isinstance(state, dict) and "aliases" in state)

    def close_writes(self, alias: str) -> None:
        while indexes := self.writes(alias):
            for index in indexes:
                for name in (alias, SUSPENDED + alias):
                    self._unless(404, "DELETE", f"{_path(index)}/_alias/{quote(name, safe='')}")

    def pages(self, index: str, *, texts: bool = False) -> Iterator[Sequence[IndexedDocument]]:
        body = {
            "size": TEXT_PAGE if texts else PAGE,
            "sort": ["_doc"],
            "version": True,
            "seq_no_primary_term": True,
            "_source": texts,
        }
        page = self._request("POST", f"{_path(index)}/_search", body, {"scroll": SCROLL})
        try:
            while hits := self._hits(page):
                yield [_document(hit) for hit in hits]
                page = self._request("POST", "/_search/scroll", {"scroll": SCROLL, "scroll_id": page["_scroll_id"]})
        finally:
            with suppress(Refused, SinkUnavailable):
                self._request("DELETE", "/_search/scroll", {"scroll_id": page["_scroll_id"]})

    def _hits(self, page: Any) -> list[Any]:
        if page["_shards"]["failed"] or page.get("timed_out"):
            raise SinkUnavailable(f"{self._access.label} cannot search all shards now")
        return list(page["hits"]["hits"])

    def find(self, index: str, ids: Sequence[str]) -> Mapping[str, IndexedDocument]:
        named = [id_ for id_ in ids if id_]  # the server refuses the whole request for an empty id
        if not named:
            return {}
        found = self._request("POST", f"{_path(index)}/_mget", {"ids": named})["docs"]
        for hit in found:
            if "error" in hit:
                raise SinkUnavailable(f"{self._access.label} cannot read {hit['_id']}: {reason_of(hit)}")
        return {hit["_id"]: _document(hit) for hit in found if hit["found"]}

    def delete(self, index: str, documents: Sequence[IndexedDocument]) -> int:
        targets = ({"_id": found.id, **_unchanged(found)} for found in documents)
        return self._written(index, "".join(f"{json.dumps({'delete': target})}\n" for target in targets))

    def put(self, index: str, documents: Sequence[NewDocument]) -> int:
        lines = []
        for document in documents:
            lines += [json.dumps(_action(document)), document.text.replace("\n", " ")]
        return self._written(index, "".join(f"{line}\n" for line in lines))

    def _written(self, index: str, body: str) -> int:
        """How many of the entries have taken effect."""
        response = self._request("POST", f"{_path(index)}/_bulk", body) if body else {"items": []}
        return sum(self._is_done(found) for item in response["items"] for found in item.values())

    def _is_done(self, item: Any) -> bool:
        status = item["status"]
        if status == 429 or status >= 500 or is_cluster_error(item.get("error")):
            raise SinkUnavailable(f"{self._access.label} cannot change a document now: {reason_of(item)}")
        return bool(status < 300)

    def remove(self, index: str, owner: IndexOwner) -> bool:
        if self.owner(index) != owner or self._named_by(index, WRITE_ALIAS, SPARE_ALIAS) or not self._retired(index):
            return False
        self._unless(404, "DELETE", _path(index))
        return True

    def _named_by(self, index: str, *except_ends: str) -> list[str]:
        """The aliases of the index, except those that end with one of these texts."""
        found = self._unless(404, "GET", f"{_path(index)}/_alias") or {}
        return [name for state in found.values() for name in state["aliases"] if not name.endswith(except_ends)]

    def _retired(self, index: str) -> bool:
        """Take the spare alias of the index. Returns whether nobody can promote the index any more."""
        spare = self._spare(index)
        if spare is None:
            return True
        body = {"actions": [{"remove": {**spare, "must_exist": True}}]}
        # Without a spare alias it is either live, or somebody else has begun to remove it.
        return self._unless(404, "POST", "/_aliases", body) is not None or not self._named_by(index, WRITE_ALIAS)

    # --- requests ----------------------------------------------------------------------------------------------

    def _request(self, method: str, path: str, body: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        return self._access.call(lambda: self._sent(method, path, body, params))

    def _unless(self, status: int, method: str, path: str, body: Any = None, only: str = "") -> Any:
        """The response; None if the cluster responds with that status, and with that type of error if one is given."""
        from opensearchpy.exceptions import TransportError

        def request() -> Any:
            try:
                return self._sent(method, path, body, None)
            except TransportError as error:
                if error.status_code == status and is_cluster_response(error) and only in summary(error):
                    return None
                raise

        return self._access.call(request)

    def _sent(self, method: str, path: str, body: Any, params: Mapping[str, Any] | None) -> Any:
        if self._client is None:
            self._client = self._access.connect()
        response = self._client.transport.perform_request(method, path, params=dict(params or {}), body=body)
        if not isinstance(response, dict):
            raise self._access.unexpected_response(response)
        return response


def _path(index: str) -> str:
    return f"/{quote(index, safe='')}"


def _document(hit: Any) -> IndexedDocument:
    text = json.dumps(hit["_source"], sort_keys=True, ensure_ascii=False) if "_source" in hit else None
    return IndexedDocument(hit["_id"], hit["_version"], hit["_seq_no"], hit["_primary_term"], text)


def _unchanged(found: IndexedDocument) -> dict[str, int]:
    """The condition that the document was not changed since it was found."""
    return {"if_seq_no": found.sequence, "if_primary_term": found.term}


def _action(document: NewDocument) -> dict[str, Any]:
    target: dict[str, Any] = {"_id": document.id}
    if document.version is not None:
        return {"index": target | {"version": document.version, "version_type": VERSION_TYPE}}
    if document.found is not None:
        return {"index": target | _unchanged(document.found)}
    return {"create": target}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under their full names, such as `index.number_of_replicas`."""
    flat: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for inner, found in value.items():
                add(f"{name}.{inner}" if name else inner, found)
        else:
            flat[name if name.startswith("index.") else f"index.{name}"] = value

    add("", dict(settings))
    return flat

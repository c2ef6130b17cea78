"""Pages of a pipeline and of a partition."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from holdfast.errors import NotFound, UsageError
from holdfast.leases.lease import Lease, Status
from holdfast.leases.operator import Operator
from holdfast.leases.query import Query
from holdfast.observe import insights
from holdfast.web.dashboard import Dashboard
from holdfast.web.page import Data, Parameters
from holdfast.web.pages_fleet import head, node_names, page_of, source_of
from holdfast.web.pages_runs import backups
from holdfast.web.timeline import tenures_of, timeline

PAGE_SIZE = 100
LONGEST_INDEX = 20
_MOST_LOOKS = 20
"""Pages of the store that are read for one page that is filtered by key."""


def show_pipeline(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return a pipeline, or a run of it: sums, and its partitions from a key on. Raises `NotFound`, `UsageError`."""
    name, run = parameters["pipeline"], parameters.get("run", "")
    identifier = dashboard.identifier(name)
    wanted = {field: parameters.get(field, "") for field in ("status", "node", "key", "after")}
    (summary,) = dashboard.overview(name)["pipelines"]
    counts = insights.counts(dashboard.store, identifier, run) if run else summary["partitions"]
    names = node_names(dashboard)
    rows = _rows(dashboard, identifier, run, wanted, names)
    return {
        "head": head(
            dashboard,
            pipeline=name,
            run=run,
            filter=wanted,
            filtered=any(wanted.values()),
            backfill=not run and bool(backups(dashboard)),
        ),
        "summary": summary,
        "counts": counts,
        "partitions": {
            "rows": [_listed(row, names) for row in rows[:PAGE_SIZE]],
            "matching": _matching(wanted, counts),
            "first": _address(name, run, {**wanted, "after": ""}),
            "next": _address(name, run, {**wanted, "after": rows[PAGE_SIZE - 1].key})
            if len(rows) > PAGE_SIZE
            else None,
        },
    }


def show_partition(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return everything that is stored about a partition. Raises `NotFound`, `PartitionNotFound`."""
    name, run, key = parameters["pipeline"], parameters.get("run", ""), parameters.get("key", "")
    row = Operator(dashboard.store, str, dashboard.identifier(name), run).show(key)
    fields = insights.partition(row)
    names = node_names(dashboard)
    shown = {**fields, "owner_name": names.get(row.owner, row.owner)}
    state = {field: fields[field] for field in ("sourcePartitionStatus", "token", "last_error", "halt_reason")}
    state["rewindable"] = not run and source_of(dashboard, name) == "kafka" and row.progress.position is not None
    return {
        "head": head(dashboard, pipeline=name, run=run, key=key),
        "row": state,
        "timeline": timeline(tenures_of(row), names, dashboard.store.now()),
        "progress": {field: shown[field] for field in _PROGRESS},
        "files": list(_files(row.commit.receipts or {})),
        "fields": fields,
    }


def show_cell(dashboard: Dashboard, parameters: Parameters) -> Data:
    """Return the key of the partition at an index of the map. Raises `NotFound`."""
    name, run, text = parameters["pipeline"], parameters.get("run", ""), parameters.get("index", "")
    found = dashboard.snapshots.get(dashboard.identifier(name), run)
    # Python refuses to read numbers of thousands of digits.
    if not text.isdecimal() or len(text) > LONGEST_INDEX or int(text) >= len(found.keys):
        raise NotFound(
            f"there is no partition at index {text[:LONGEST_INDEX]!r}; {name} has {len(found.keys)} partitions"
        )
    index = int(text)
    return {
        "head": head(dashboard, pipeline=name, run=run),
        "cell": {"index": index, "key": found.keys[index], "status": found.statuses[index]},
    }


_PROGRESS = (
    *("position", "owner_name", "sequence", "generation", "counts", "attempts", "takeovers", "group"),
    *("created_at", "claimed_at", "updated_at", "completed_at", "reOpenAt", "not_before"),
)


def _rows(
    dashboard: Dashboard, identifier: str, run: str, wanted: Mapping[str, str], names: Mapping[str | None, str]
) -> list[Lease]:
    """The rows of the page, and one more if there is a next page."""
    query = Query(identifier, run, _statuses(wanted["status"]))
    queries = [query]
    if wanted["node"]:
        owners = [session for session, name in names.items() if wanted["node"] in {name, session}]
        queries = [replace(query, owner=owner) for owner in owners or [wanted["node"]]]
    looked = (_looked(dashboard, each, _start(wanted)) for each in queries)
    return list(islice(_beginning_with(wanted["key"], merge(*looked, key=lambda row: row.key)), PAGE_SIZE + 1))


def _beginning_with(prefix: str, rows: Iterable[Lease]) -> Iterator[Lease]:
    for row in rows:
        if row.key.startswith(prefix):
            yield row
        elif row.key > prefix:
            return


def _looked(dashboard: Dashboard, query: Query, after: str | None) -> Iterator[Lease]:
    for _ in range(_MOST_LOOKS):
        page = dashboard.store.find(replace(query, after_key=after, limit=PAGE_SIZE + 1))
        yield from page
        if len(page) <= PAGE_SIZE:
            return
        after = page[-1].key


def _start(wanted: Mapping[str, str]) -> str | None:
    """A key before which no key of the page can be; None for the beginning."""
    if wanted["after"]:
        return wanted["after"]
    begin, last = wanted["key"][:-1], wanted["key"][-1:]
    # The last key with one character less, unless that is the middle of a pair or no character at all.
    before = f"{chr(ord(last) - 1)}{chr(sys.maxunicode)}" if last and (1 < ord(last) < 0xD800) else ""
    return begin + before or None


def _statuses(text: str) -> tuple[Status, ...]:
    try:
        return (Status(text.upper()),) if text else ()
    except ValueError:
        raise UsageError(f"there is no status {text!r}; use one of {', '.join(Status)}") from None


def _listed(row: Lease, names: Mapping[str | None, str]) -> Data:
    return {**insights.partition(row), "owner_name": names.get(row.owner, row.owner)}


def _matching(wanted: Mapping[str, str], counts: Mapping[str, int]) -> int | None:
    """How many partitions match; None if nobody has counted them."""
    if wanted["node"] or wanted["key"]:
        return None
    return counts[wanted["status"].upper()] if wanted["status"] else sum(counts.values())


def _address(pipeline: str, run: str, wanted: Mapping[str, str]) -> str:
    given = {name: value for name, value in {"run": run, **wanted}.items() if value}
    return f"{page_of(pipeline)}?{urlencode(given)}" if given else page_of(pipeline)


def _files(receipts: Mapping[str, Any]) -> Iterable[Data]:
    for sink, receipt in receipts.items():
        entries = receipt.get("files") if isinstance(receipt, dict) else None
        for entry in entries if isinstance(entries, Sequence) else ():
            if isinstance(entry, dict):
                path = entry.get("path") or entry.get("name")
                yield {"sink": sink, "path": path, "records": entry.get("records"), "bytes": entry.get("bytes")}

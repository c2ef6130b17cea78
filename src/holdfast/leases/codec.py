"""A lease as columns and one flat JSON body.

Stores keep columns only for what is searched or compared; everything else is the body. The body's keys are flat, so
that a store may change one of them in place, and an unknown key is kept: a node of the next version may have
written it.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from holdfast.errors import RowTooLarge
from holdfast.leases.lease import Commit, Counts, History, Json, Lease, Order, Ownership, Progress, Status

BODY_VERSION = 1


class Columns(NamedTuple):
    """What every store can search by, in the order of its table."""

    pipeline: str
    run: str
    key: str
    group: str
    status: str
    owner: str | None
    token: int
    version: int
    due_at: float | None
    priority: int
    ordinal: int


def columns(lease: Lease) -> Columns:
    own, order = lease.ownership, lease.order
    return Columns(
        lease.pipeline,
        lease.run,
        lease.key,
        lease.group,
        own.status.value,
        own.owner,
        own.token,
        own.version,
        own.due_at,
        order.priority,
        order.ordinal,
    )


def encode_body(lease: Lease) -> str:
    """Everything that is not a column. A row that could not be read is written back untouched."""
    if lease.unreadable is not None:
        return lease.unreadable
    order, progress, commit, past = lease.order, lease.progress, lease.commit, lease.history
    body: dict[str, Json] = {
        **lease.extra,
        "v": BODY_VERSION,
        "spec": dict(lease.spec),
        "write_id": lease.ownership.write_id,
        "work_units": order.work_units,
        "range_start": order.range_start,
        "range_end": order.range_end,
        "estimated_count": order.estimated_count,
        "position": progress.position,
        "acked": [list(span) for span in progress.acked],
        "state": progress.state,
        "counts": [
            progress.counts.processed,
            progress.counts.succeeded,
            progress.counts.failed,
            progress.counts.dead,
        ],
        "sequence": commit.sequence,
        "generation": commit.generation,
        "incarnation": commit.incarnation,
        "commit_id": commit.commit_id,
        "receipts": None if commit.receipts is None else dict(commit.receipts),
    }
    body.update(zip(_HISTORY, _values_of_history(past), strict=True))
    return _dumped(body)


def encode_within(lease: Lease, max_bytes: int) -> str:
    """The body, if spec, progress and receipts fit into that many bytes; raises `RowTooLarge` if not.

    The row's own book-keeping (ids, times, the last error) comes on top: a row that was accepted once can always be
    claimed, released and failed. A body that could not be read is never refused.
    """
    body = encode_body(lease)
    if _size(body) <= max_bytes or lease.unreadable is not None:
        return body
    size = _size(encode_body(_without_bookkeeping(lease)))
    if size > max_bytes:
        raise RowTooLarge(
            f"partition {lease.key!r}: spec, progress and receipts take {size} bytes, the store's limit is {max_bytes}"
        )
    return body


def decode(row: Columns, body: str) -> Lease:
    """The lease of a stored row. A body that cannot be read gives a lease marked `unreadable`, never a fresh one."""
    try:
        return _read(row, json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError):
        ownership = Ownership(Status(row.status), row.owner, row.token, row.version, "", row.due_at)
        order = Order(row.priority, row.ordinal)
        return Lease(row.pipeline, row.key, row.run, row.group, {}, ownership, order, unreadable=body)


_HISTORY = tuple(History.__dataclass_fields__)
_values_of_history = operator.attrgetter(*_HISTORY)
_history_in = operator.itemgetter(*_HISTORY)
_write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_write_ascii_json = json.JSONEncoder(separators=(",", ":")).encode


def _dumped(body: Mapping[str, Json]) -> str:
    text = _write_json(body)
    try:
        _size(text)
    except UnicodeEncodeError:
        # A lone surrogate, as in an error that names an undecodable file, has no UTF-8 form of its own.
        return _write_ascii_json(body)
    return text


def _size(body: str) -> int:
    return len(body) if body.isascii() else len(body.encode())


def _without_bookkeeping(lease: Lease) -> Lease:
    return replace(
        lease,
        ownership=Ownership(),
        order=Order(),
        commit=Commit(receipts=lease.commit.receipts),
        history=History(),
        extra={},
    )


def _read(row: Columns, body: Mapping[str, Json]) -> Lease:
    if body["v"] != BODY_VERSION:
        raise ValueError(f"body version {body['v']} is not known")
    own = Ownership(Status(row.status), row.owner, row.token, row.version, body["write_id"], row.due_at)
    order = Order(
        row.priority,
        row.ordinal,
        body["work_units"],
        body["range_start"],
        body["range_end"],
        body["estimated_count"],
    )
    acked = tuple([(start, end) for start, end in body["acked"]])
    progress = Progress(body["position"], acked, body["state"], Counts(*body["counts"]))
    commit = Commit(body["sequence"], body["generation"], body["incarnation"], body["commit_id"], body["receipts"])
    extra = {} if body.keys() <= _KNOWN else {name: body[name] for name in body.keys() - _KNOWN}
    return Lease(
        row.pipeline,
        row.key,
        row.run,
        row.group,
        body["spec"],
        own,
        order,
        progress,
        commit,
        _history(body),
        None,
        extra,
    )


def _history(body: Mapping[str, Json]) -> History:
    try:
        return History(*_history_in(body))
    except KeyError:
        # A name that is missing was not known yet to the version that wrote the row.
        return History(**{name: body[name] for name in _HISTORY if name in body})


_KNOWN = frozenset(json.loads(encode_body(Lease("", ""))))

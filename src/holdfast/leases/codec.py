"""A lease as columns and one flat JSON body.

Stores keep columns only for what is searched or compared; everything else is in the body. The body's keys are flat, so
that a store may change one of them in place. Keys that this version does not have are kept: a node of the next version
may have written them. Values needed for fencing and resuming are always written; others are left out if they are the
same as in a new row, which makes most bodies four times smaller.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.errors import RowTooLarge
from holdfast.leases.columns import Columns
from holdfast.leases.lease import Commit, Counts, History, Json, Lease, LetterWindow, Order, Ownership, Progress, Status
from holdfast.leases.store import ClaimRequest
from holdfast.leases.suspicion import blamed
from holdfast.leases.tenures import with_lapsed

BODY_VERSION = 1


def encode_body(lease: Lease) -> str:
    """Everything that is not a column. A row that could not be read is written back untouched."""
    if lease.unreadable is not None:
        return lease.unreadable
    commit = lease.commit
    body: dict[str, Json] = {
        **lease.extra,
        "v": BODY_VERSION,
        "spec": dict(lease.spec),
        "write_id": lease.ownership.write_id,
        "position": lease.progress.position,
        "sequence": commit.sequence,
        "generation": commit.generation,
        "incarnation": commit.incarnation,
    }
    parts = zip(_OPTIONAL, _optional_parts(lease), _DEFAULTS, strict=True)
    body.update({name: value for name, value, default in parts if value != default})
    return _dumped(body)


def encode_within(lease: Lease, max_bytes: int) -> str:
    """The body, if spec, progress and receipts fit into that many bytes; raises `RowTooLarge` if not.

    Bookkeeping (ids, times, the last error) is not counted: a row that was accepted once can always be claimed,
    released and failed. A body that could not be read is never refused.
    """
    body = encode_body(lease)
    if lease.unreadable is not None or _size(body) <= max_bytes:
        return body
    size = _size(encode_body(_without_bookkeeping(lease)))
    if size > max_bytes:
        raise RowTooLarge(
            f"partition {lease.key!r}: spec, progress and receipts take {size} bytes, the store's limit is {max_bytes}"
        )
    return body


def size_without_receipts(lease: Lease) -> int:
    """The bytes of the row that `encode_within` counts, without its receipts."""
    return _size(encode_body(_without_bookkeeping(replace(lease, commit=Commit()))))


class Taken(NamedTuple):
    """A stored row as a claim leaves it, and the lease that it holds."""

    row: Columns
    body: str
    lease: Lease


def take_stored(row: Columns, body: str, claim: ClaimRequest, now: float) -> Taken:
    """The row that `claim.take` makes from a stored row that can be claimed; an unreadable row is returned as it is.

    The same as decode, take and encode, at half the cost: a node claims hundreds of leases in a call.
    """
    try:
        parts = json.loads(body)
        parts.pop("write_id")
        if row.status == _ASSIGNED:
            _note_lapsed(parts, Former(row.token, row.owner, None), now)
        parts.update(write_id=claim.write_id, claimed_at=now, updated_at=now)
        if parts.get("started_at") is None:
            parts["started_at"] = now
        taken = _row_of_owner(row, claim, now)
        _note_deaths(parts, taken, int(row.status == _ASSIGNED and row.owner != claim.owner))
        return Taken(taken, _dumped(parts), _read(taken, parts))
    except _UNREADABLE:
        return Taken(row, body, _unread(row, body))


def decode(row: Columns, body: str) -> Lease:
    """The lease of a stored row. If the body cannot be read, the lease has `unreadable` set; it is never a new one."""
    try:
        return _read(row, json.loads(body))
    except _UNREADABLE:
        return _unread(row, body)


class Former(NamedTuple):
    """An owner whose deadline has passed and whose lease a claim has taken, as the row named it before."""

    token: int
    owner: str | None
    since: float | None
    """None if the body has it, because no claim came after it."""


def decode_claimed(
    row: Columns,
    body: str,
    changes: Mapping[str, Json],
    deaths: int,
    read_claim: Callable[[], tuple[Sequence[Former], str]],
) -> Lease:
    """Like `decode`, for a store whose claims leave the body unchanged and store their changes in columns.

    `deaths` is the body's `takeovers` plus one for each claim since that took the row from another owner.
    `read_claim` returns the owners since the body was written, from which claims took the lease, one after the other,
    and the write id of the last claim; the row is unreadable if it raises.
    """
    try:
        parts = json.loads(body)
        former, parts["write_id"] = read_claim()
        if former:
            taken_at: list[Json] = [*(each.since for each in former[1:]), changes["claimed_at"]]
            for each, now in zip(former, taken_at, strict=True):
                _note_lapsed(parts, each, now)
        parts.update(changes)
        _note_deaths(parts, row, deaths - parts.get("takeovers", 0))
        return _read(row, parts)
    except _UNREADABLE:
        return _unread(row, body)


_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
_ASSIGNED = Status.ASSIGNED.value
_ORDER = ("work_units", "range_start", "range_end", "estimated_count", "index")
_HISTORY = tuple(History.__dataclass_fields__)
_PROGRESS = ("acked", "state", "counts", "dropped", "letter_window", "forwarded")
_OPTIONAL = (*_PROGRESS, "commit_id", "receipts", "switched_at", *_ORDER, *_HISTORY)
_BODY_KEYS = frozenset(("v", "spec", "write_id", "position", "sequence", "generation", "incarnation", *_OPTIONAL))
_PROGRESS_KEYS = frozenset(_PROGRESS)
_NO_PROGRESS = Progress()
_NO_COUNTS = _NO_PROGRESS.counts
_NO_WINDOW = LetterWindow()
_STATUSES = {status.value: status for status in Status}

_order_parts = operator.attrgetter(*_ORDER)
_history_parts = operator.attrgetter(*_HISTORY)
_write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_write_ascii_json = json.JSONEncoder(separators=(",", ":")).encode


def _optional_parts(lease: Lease) -> tuple[Json, ...]:
    """Values of `_OPTIONAL`, as JSON has them."""
    progress, commit = lease.progress, lease.commit
    return (
        progress.acked,
        progress.state,
        None if progress.counts is _NO_COUNTS else _numbers(progress.counts),
        progress.counts.dropped,
        progress.window,
        progress.forwarded,
        commit.commit_id,
        None if commit.receipts is None else dict(commit.receipts),
        commit.switched_at,
        *_order_parts(lease.order),
        *_history_parts(lease.history),
    )


def _numbers(counts: Counts) -> list[int] | None:
    numbers = [counts.processed, counts.succeeded, counts.failed, counts.dead]
    return numbers if any(numbers) else None


_DEFAULTS = _optional_parts(Lease("", ""))
_ORDER_DEFAULTS = _order_parts(Order())
_HISTORY_DEFAULTS = _history_parts(History())


def _row_of_owner(row: Columns, claim: ClaimRequest, now: float) -> Columns:
    token, version = row.token + 1, row.version + 1
    rest = (claim.due_at(now), row.priority, row.ordinal)
    return Columns(row.pipeline, row.run, row.key, row.group, _ASSIGNED, claim.owner, token, version, *rest)


def _note_lapsed(parts: dict[str, Json], former: Former, now: float) -> None:
    """Record in a body the tenure of an owner whose deadline has passed, and whose lease is taken now."""
    since = parts.get("claimed_at") if former.since is None else former.since
    known, sequence = parts.get("tenures", ()), parts["sequence"]
    parts["tenures"] = with_lapsed(known, former.token, former.owner, since, now, sequence)


def _note_deaths(parts: dict[str, Json], taken: Columns, deaths: int) -> None:
    """Update `takeovers` and `begun` in a body after that many takes, each from an owner that died."""
    begun = parts.get("begun")
    if not deaths and begun is None:
        return
    deadline, before = taken.due_at is not None, parts.get("takeovers", 0)
    count = before
    for _ in range(deaths):
        count = blamed(count, begun, deadline=deadline)
        begun = begun if deadline else False
    if count != before:
        parts["takeovers"] = count
    if begun is not None:
        parts["begun"] = False


def _unread(row: Columns, body: str) -> Lease:
    # A status of a later version counts as FAILED: this version cannot work on the row.
    status = _STATUSES.get(row.status, Status.FAILED)
    ownership = Ownership(status, row.owner, row.token, row.version, "", row.due_at)
    order = Order(row.priority, row.ordinal)
    return Lease(row.pipeline, row.key, row.run, row.group, {}, ownership, order, unreadable=body)


def _dumped(body: Mapping[str, Json]) -> str:
    text = _write_json(body)
    try:
        _size(text)
    except UnicodeEncodeError:
        # A lone surrogate, as in an error that names an undecodable file, cannot be written as UTF-8.
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
        raise ValueError(f"body version {body['v']} is not supported")
    get = body.get
    return Lease(
        row.pipeline,
        row.key,
        row.run,
        row.group,
        body["spec"],
        Ownership(_STATUSES[row.status], row.owner, row.token, row.version, body["write_id"], row.due_at),
        Order(row.priority, row.ordinal, *map(get, _ORDER, _ORDER_DEFAULTS)),
        _progress(body["position"], body),
        _commit(body),
        History(*map(get, _HISTORY, _HISTORY_DEFAULTS)),
        None,
        {} if body.keys() <= _BODY_KEYS else {name: body[name] for name in body.keys() - _BODY_KEYS},
    )


def _commit(body: Mapping[str, Json]) -> Commit:
    named, get = (body["sequence"], body["generation"], body["incarnation"]), body.get
    return Commit(*named, get("commit_id", ""), get("receipts"), get("switched_at", 0))


def _progress(position: Json, body: Mapping[str, Json]) -> Progress:
    if _PROGRESS_KEYS.isdisjoint(body):
        # Most rows that are claimed are new, or have a position only.
        return _NO_PROGRESS if position is None else Progress(position)
    get = body.get
    return Progress(
        position,
        _spans(get("acked", ())),
        get("state"),
        _counts(get("counts"), get("dropped", 0)),
        _window(get("letter_window")),
        _spans(get("forwarded", ())),
    )


def _spans(acked: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple([(start, end) for start, end in acked]) if acked else ()


def _window(numbers: Sequence[int] | None) -> LetterWindow:
    return _NO_WINDOW if numbers is None else LetterWindow(*numbers)


def _counts(numbers: Sequence[int] | None, dropped: int) -> Counts:
    if numbers is None and not dropped:
        return _NO_COUNTS
    processed, succeeded, failed, dead = numbers or (0, 0, 0, 0)
    return Counts(processed, succeeded, failed, dead, dropped)

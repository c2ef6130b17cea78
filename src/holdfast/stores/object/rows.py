"""A lease as an object: its name and its bytes, which are a line with the searchable columns, followed by the body.

The line also has a nonce, so that no two writes have the same bytes: on S3 the ETag is computed from them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.leases.codec import decode, encode_within
from holdfast.leases.columns import Columns, columns
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query, Rank, claim_rank
from holdfast.stores.object.objects import Found

LEASES = "leases/"
FORMAT = 1
_SHOWN = 40
_GONE = "GONE"


@dataclass(frozen=True, slots=True)
class Stored:
    """A row as it is in its object. The body is decoded when it is needed."""

    row: Columns
    body: str
    nonce: str
    tag: str = ""

    @property
    def gone(self) -> bool:
        """Whether the row was removed and its object still exists."""
        return self.row.status == _GONE

    def lease(self) -> Lease:
        return decode(self.row, self.body)

    def data(self) -> bytes:
        """The object's bytes."""
        line = json.dumps({"format": FORMAT, "nonce": self.nonce, "row": self.row}, ensure_ascii=False)
        return f"{line}\n".encode() + self.body.encode("utf-8", "surrogateescape")


def stored(lease: Lease, nonce: str, max_bytes: int) -> Stored:
    """The row of a lease. Raises `RowTooLarge`."""
    return Stored(columns(lease), encode_within(lease, max_bytes), nonce)


def tombstone(lease: Lease, nonce: str) -> Stored:
    """The row that replaces a removed one."""
    return Stored(columns(lease)._replace(status=_GONE), "", nonce)


def parsed(name: str, found: Found) -> Stored:
    """The row of an object. An object that is not a row becomes a FAILED row: a person must check it."""
    # Bytes that are not UTF-8 are kept: what cannot be read is written back as it is.
    text = found.data.decode("utf-8", "surrogateescape")
    line, _, body = text.partition("\n")
    try:
        parts = json.loads(line)
        return Stored(_columns(parts["row"]), body, parts["nonce"], found.tag)
    except (ValueError, TypeError, KeyError):
        unknown = Columns("", "", f"?{name}", "", Status.FAILED.value, None, 0, -1, None, 0, 0)
        return Stored(unknown, text, "", found.tag)


def _columns(values: Any) -> Columns:
    row = Columns(*values)
    kinds = [type(value) for value in (*row[:5], *row[6:8], *row[9:])]
    if kinds != [str] * 5 + [int] * 4 or not isinstance(row.due_at, float | int | None):
        raise TypeError("not a row")
    return row


def folder_of(pipeline: str, run: str | None) -> str:
    """The prefix of the names of a pipeline's rows, or of one run's rows if a run is given."""
    above = f"{LEASES}{_part(pipeline)}/"
    return above if run is None else f"{above}{_part(run)}/"


def name_of(key: Key) -> str:
    """The name of a row's object."""
    return f"{folder_of(key.pipeline, key.run)}{_part(key.key)}"


def _part(text: str) -> str:
    # Keys are opaque and may have a thousand bytes: the digest distinguishes them, the rest is for people.
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", text[:_SHOWN])
    return f"{shown}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def matching(rows: list[Stored], query: Query, now: float) -> list[Stored]:
    """The rows that match the query, in its order."""
    wanted = {status.value for status in query.statuses}
    matches = _condition(query, now)
    found = [row for row in rows if (not wanted or row.row.status in wanted) and matches(row.row)]
    found.sort(key=_claim_order(query) if query.due else lambda stored: (stored.row.key, stored.row.run))
    return found if query.limit is None else found[: query.limit]


def _condition(query: Query, now: float) -> Callable[[Columns], bool]:
    others = None if query.without_owners is None else frozenset(query.without_owners)

    def matches(row: Columns) -> bool:
        is_due = row.due_at is not None and row.due_at <= now
        return (
            not (query.due and not is_due)
            and not (query.not_due and is_due)
            and (query.owner is None or row.owner == query.owner)
            and (others is None or (row.owner is not None and row.owner not in others))
            and (query.group is None or row.group == query.group)
            and (query.after_key is None or row.key > query.after_key)
        )

    return matches


def _claim_order(query: Query) -> Callable[[Stored], tuple[int, Rank, str]]:
    index = {status.value: at for at, status in enumerate(query.claim_statuses)}

    def rank(stored: Stored) -> tuple[int, Rank, str]:
        row = stored.row
        within = claim_rank(row.status, row.due_at, row.priority, row.ordinal, row.key)
        return (index.get(row.status, len(index)), within, row.run)

    return rank

"""What the SQL stores share: the table's statements, rows to leases and back, and the conditions of a `Query`.

Values travel as parameters only, written `?`. Statuses stand in the text: they are words of our own, and a partial
index serves a statement only if it names the status.
"""
# ruff: noqa: S608 - the texts are made of constants of this module alone

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.leases.codec import Columns, columns, decode, encode_within
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.store import ClaimRequest, Query

Row: TypeAlias = tuple[Any, ...]

UNFINISHED = tuple(status for status in Status if status not in FINISHED)
CLAIM_ORDER = ClaimRequest("", "", "").order + FINISHED

_NAMES = tuple(f'"{name}"' for name in (*Columns._fields, "body"))
_KEY_NAMES = _NAMES[:3]
_THIS_ROW = " AND ".join(f"{name} = ?" for name in _KEY_NAMES)

INSERT = f"INSERT INTO lease ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))}) ON CONFLICT DO NOTHING"
SELECT = f"SELECT {', '.join(_NAMES)} FROM lease"
SELECT_ONE = f"{SELECT} WHERE {_THIS_ROW}"
UPDATE_ONE = f'UPDATE lease SET {", ".join(f"{name} = ?" for name in _NAMES[3:])} WHERE {_THIS_ROW} AND "version" = ?'
DELETE_ONE = f'DELETE FROM lease WHERE {_THIS_ROW} AND "version" = ?'
COUNT = 'SELECT "status", count(*) FROM lease WHERE "pipeline" = ? AND "run" = ? GROUP BY "status"'


class Statement(NamedTuple):
    """A text and its parameters."""

    text: str
    parameters: Sequence[Any]


def row_of(lease: Lease, max_body_bytes: int) -> Row:
    """The lease as a row of the table; raises `RowTooLarge`."""
    return (*columns(lease), encode_within(lease, max_body_bytes))


def lease_of(row: Row) -> Lease:
    """The lease of a row of the table, marked `unreadable` if its body is."""
    return decode(Columns(*row[:-1]), row[-1])


def update_of(row: Row, version: int) -> Row:
    """Parameters of `UPDATE_ONE` that put this row in place of the one with that version."""
    return (*row[3:], *row[:3], version)


def searches(query: Query, now: float) -> list[Statement]:
    """One statement per status, so that each is served by one index; none of them sorts more than it answers.

    In order of claim their answers follow each other; otherwise each is ordered by key and they are to be merged.
    """
    if not query.statuses:
        return [_search(query, status, now) for status in CLAIM_ORDER] if query.due else [_search(query, None, now)]
    return [_search(query, status, now) for status in dict.fromkeys(query.statuses)]


def _search(query: Query, status: Status | None, now: float) -> Statement:
    conditions = _conditions(query, now)
    texts = [text for text, _ in conditions]
    if status is not None:
        texts.append(has(status))
    order = claim_order(status) if query.due else '"key", "run"'
    text = f"{SELECT} WHERE {' AND '.join(texts)} ORDER BY {order}"
    parameters = [value for _, values in conditions for value in values]
    if query.limit is None:
        return Statement(text, parameters)
    return Statement(f"{text} LIMIT ?", [*parameters, query.limit])


def has(status: Status) -> str:
    """The condition that a row has this status."""
    return f"\"status\" = '{status.value}'"


def claim_order(status: Status | None) -> str:
    """In which order rows of this status are claimed; the indexes have it too."""
    if status is Status.UNASSIGNED:
        return '"priority" DESC, "ordinal", "key", "run"'
    return '"due_at", "key", "run"'


def _conditions(query: Query, now: float) -> list[tuple[str, Sequence[Any]]]:
    wanted: list[tuple[str, Sequence[Any]]] = [('"pipeline" = ?', [query.pipeline])]
    if query.run is not None:
        wanted.append(('"run" = ?', [query.run]))
    if query.due:
        wanted.append(('"due_at" <= ?', [now]))
    if query.not_due:
        wanted.append(('("due_at" IS NULL OR "due_at" > ?)', [now]))
    if query.owner is not None:
        wanted.append(('"owner" = ?', [query.owner]))
    if query.without_owners is not None:
        wanted.append(_owned_by_none_of(query.without_owners))
    if query.group is not None:
        wanted.append(('"group" = ?', [query.group]))
    if query.after_key is not None:
        wanted.append(('"key" > ?', [query.after_key]))
    return wanted


def _owned_by_none_of(owners: tuple[str, ...]) -> tuple[str, Sequence[Any]]:
    if not owners:
        return ('"owner" IS NOT NULL', [])
    return (f'"owner" IS NOT NULL AND "owner" NOT IN ({", ".join("?" * len(owners))})', owners)

"""Statements for many rows at once in PostgreSQL, and conversion of rows and leases.

Each operation is one statement outside of any transaction: it is applied as a whole or not at all, and rows that it
does not return were not changed.
"""
# ruff: noqa: S608 - the texts are made of constants and a checked table name

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.leases.codec import Former, decode, decode_claimed
from holdfast.leases.columns import Columns
from holdfast.leases.lease import Lease
from holdfast.stores import _sql
from holdfast.stores.postgresql.tables import seal_of

NAMES = (*Columns._fields, "body")
CLAIMED = ("claim_id", "claimed_at", "started_at", "takeovers")
KEY = NAMES[:3]

_TYPES = {
    **dict.fromkeys(NAMES, "text"),
    **dict.fromkeys(("token", "version", "priority", "ordinal", "takeovers", "expected"), "bigint"),
    **dict.fromkeys(("due_at", "started_at"), "double precision"),
    "readable": "boolean",
}
_WRITTEN = (*NAMES, "started_at", "takeovers", "readable")
"""The columns that are sent. The last three repeat values of the body, for statements that cannot read the body."""


def _quoted(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f'{prefix}"{name}"' for name in names)


def _rows(names: Sequence[str]) -> str:
    """Rows from one array per column."""
    arrays = ", ".join(f"%s::{_TYPES[name]}[]" for name in names)
    return f"unnest({arrays}) AS n({_quoted(names)})"


_SAME_KEY = " AND ".join(f'l."{name}" = n."{name}"' for name in KEY)
_SEALED = f"""CASE WHEN n."readable" THEN {seal_of('n."body"')} END"""


@dataclass(frozen=True)
class Texts:
    """The statements on one table. Its name is quoted."""

    table: str

    @property
    def select(self) -> str:
        return f"SELECT {_quoted((*NAMES, *CLAIMED))} FROM {self.table}"

    @property
    def insert(self) -> str:
        kept = (*NAMES, "started_at", "takeovers")
        return (
            f'INSERT INTO {self.table} ({_quoted(kept)}, "seal") '
            f"SELECT {_quoted(kept, 'n.')}, {_SEALED} FROM {_rows(_WRITTEN)} "
            f"ON CONFLICT DO NOTHING RETURNING {_quoted(KEY)}"
        )

    @property
    def update(self) -> str:
        changes = ", ".join(f'"{name}" = n."{name}"' for name in (*NAMES[3:], "started_at", "takeovers"))
        return (
            f'UPDATE {self.table} AS l SET {changes}, "seal" = {_SEALED}, "claim_id" = NULL, "claimed_at" = NULL '
            f'FROM {_rows((*_WRITTEN, "expected"))} WHERE {_SAME_KEY} AND l."version" = n."expected" '
            f"RETURNING {_quoted(KEY, 'l.')}"
        )

    @property
    def delete(self) -> str:
        return (
            f"DELETE FROM {self.table} AS l USING {_rows((*KEY, 'expected'))} "
            f'WHERE {_SAME_KEY} AND l."version" = n."expected" RETURNING {_quoted(KEY, "l.")}'
        )

    @property
    def get(self) -> str:
        return f"SELECT {_quoted((*NAMES, *CLAIMED), 'l.')} FROM {_rows(KEY)} JOIN {self.table} AS l ON {_SAME_KEY}"

    @property
    def count(self) -> str:
        # In two halves, one for each index.
        of_run = '"pipeline" = %(pipeline)s AND "run" = %(run)s'
        return (
            f'SELECT "status", count(*) FROM {self.table} WHERE {of_run} AND "status" <> \'UNASSIGNED\' GROUP BY 1 '
            f"UNION ALL SELECT 'UNASSIGNED', count(*) FROM {self.table} WHERE {of_run} AND \"status\" = 'UNASSIGNED'"
        )

    @property
    def sums(self) -> str:
        fields = '"done_by" text, "estimated_count" bigint, "work_units" bigint, "counts" json'
        of_body = f"""json_to_record(CASE WHEN l."seal" IS NULL THEN '{{}}' ELSE l."body"::json END) AS b({fields})"""
        numbers = ['b."estimated_count"', 'b."work_units"', *(f'(b."counts"->>{at})::bigint' for at in range(4))]
        summed = ", ".join(f"SUM(COALESCE({number}, {int('units' in number)}))::bigint" for number in numbers)
        return (
            f'SELECT l."group", l."status", COALESCE(l."owner", b."done_by"), COUNT(*), {summed} '
            f'FROM {self.table} AS l, {of_body} WHERE "pipeline" = %(pipeline)s AND "run" = %(run)s GROUP BY 1, 2, 3'
        )


def written(lease: Lease, max_body_bytes: int) -> _sql.Row:
    """The lease as it is sent; raises `RowTooLarge`."""
    history = lease.history
    row = _sql.row_of(lease, max_body_bytes)
    return (*row, history.started_at, history.takeovers, lease.unreadable is None)


def arrays(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The rows as one list per column."""
    return [list(column) for column in zip(*rows, strict=True)]


def lease_of(row: _sql.Row) -> Lease:
    """The lease of a row, as the last write or claim left it."""
    columns, body, (claim_id, *claim) = Columns(*row[:11]), row[11], row[12:]
    return decode(columns, body) if claim_id is None else lease_after_claim(columns, body, claim_id, *claim)


def lease_after_claim(
    columns: Columns, body: str, claim_id: str, claimed_at: float, started_at: float | None, deaths: int
) -> Lease:
    """The lease of a row whose last change was a claim; the body is that of the write before the claim."""
    return decode_claimed(
        columns,
        body,
        {
            "claimed_at": claimed_at,
            "updated_at": claimed_at,
            "started_at": claimed_at if started_at is None else started_at,
        },
        deaths,
        lambda: _former_and_id(claim_id),
    )


@lru_cache(maxsize=16)  # the rows of one claim have the same id
def _former_and_id(stored: str) -> tuple[Sequence[Former], str]:
    claim_id: str = json.loads(stored)
    if not claim_id.startswith("[["):
        return (), claim_id
    former, _, write_id = claim_id.partition("\n")
    return tuple(Former(*each[:3]) for each in json.loads(former)), json.loads(write_id)


def claim_id_of(write_id: str) -> str:
    """A write id as a claim stores it: as JSON, because text in PostgreSQL cannot have every character."""
    return json.dumps(write_id)

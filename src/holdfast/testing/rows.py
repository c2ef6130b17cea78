"""Rows for tests, and text that other systems handle wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.leases.lease import History, Lease, Order, Ownership, Progress, Status
from holdfast.leases.transitions import stamped

PIPELINE = "orders"

ODD_TEXTS = (
    "",
    " ",
    "a",
    "A",
    "a ",
    " a",
    "a\n",
    "a\r\n",
    "a\tb",
    "a|b",
    "a/b",
    "../../etc/passwd",
    ".",
    "..",
    "a\\b",
    "a'b",
    'a"b',
    "a''b",
    "`a`",
    "'; DROP TABLE lease; --",
    "%",
    "_",
    "a%",
    "a_",
    "*",
    "?",
    "?1",
    ":a",
    "%s",
    "{}",
    "[a]",
    "null",
    "0",
    "00",
    "1e3",
    "true",
    "é",
    "e\u0301",
    "ß",
    "SS",
    "ı",
    "I",
    "😀",
    "\u202eabc\u202c",
    "\u200fא",
    "\ufeffa",
    "\u0001",
    "\u007f",
    "\uffff",
    "\U0010ffff",
    "k" * 1024,
    "é" * 512,
)
"""Keys that must stay distinct and be returned exactly. The last two have 1,024 bytes in UTF-8."""


def make_row(key: str = "a", *, pipeline: str = PIPELINE, run: str = "", **fields: Any) -> Lease:
    """A row with these fields, each set in the part of the lease that has it.

    `due_at` is 0 unless given, so that an UNASSIGNED row can be claimed at once.
    """

    def part(kind: type[Any]) -> dict[str, Any]:
        return {name: fields.pop(name) for name in kind.__dataclass_fields__ if name in fields}

    parts: dict[str, Any] = {
        "ownership": Ownership(**part(Ownership)),
        "order": Order(**part(Order)),
        "progress": Progress(**part(Progress)),
        "history": History(**part(History)),
    }
    return Lease(pipeline, key, run, **parts, **fields)


def assigned_row(key: str, owner: str, *, due_at: float | None = None, **fields: Any) -> Lease:
    """A row that is ASSIGNED to `owner` under token 1."""
    return make_row(key, status=Status.ASSIGNED, owner=owner, due_at=due_at, **{"token": 1, **fields})


def touched(row: Lease, write_id: str = "touched", **ownership: Any) -> Lease:
    """The row's successor, with these fields of its ownership changed."""
    return stamped(row, replace(row, ownership=replace(row.ownership, **ownership)), write_id)

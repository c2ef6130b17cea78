"""Shared by the SQL stores: the table's statements, conversion of rows and leases, and the conditions of a `Query`.

Values are passed only as parameters, written `?`. Statuses are in the text: they are constants, and a partial index is
used only if the statement names the status. The second half is for stores on a server.
"""
# ruff: noqa: S608 - the texts are made of constants of this module alone

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.errors import NotCreatedYet, SchemaMismatch
from holdfast.leases.codec import decode, encode_within
from holdfast.leases.columns import Columns, OutlineRow, columns
from holdfast.leases.lease import UNFINISHED, Counts, Key, Lease, Status
from holdfast.leases.query import CLAIM_COLUMNS, Query, Rank, claim_rank
from holdfast.leases.sums import PartitionSum

C = TypeVar("C")
Row: TypeAlias = tuple[Any, ...]

_NAMES = tuple(f'"{name}"' for name in (*Columns._fields, "body"))
_KEY_NAMES = _NAMES[:3]
_THIS_ROW = " AND ".join(f"{name} = ?" for name in _KEY_NAMES)

INSERT_NEW = f"INSERT INTO lease ({', '.join(_NAMES)}) VALUES ({', '.join('?' * len(_NAMES))})"
INSERT = f"{INSERT_NEW} ON CONFLICT DO NOTHING"
SELECT = f"SELECT {', '.join(_NAMES)} FROM lease"
SELECT_KEY = f"SELECT {', '.join(_KEY_NAMES)} FROM lease"
SELECT_ONE = f"{SELECT} WHERE {_THIS_ROW}"
UPDATE_ONE = f'UPDATE lease SET {", ".join(f"{name} = ?" for name in _NAMES[3:])} WHERE {_THIS_ROW} AND "version" = ?'
DELETE_ONE = f'DELETE FROM lease WHERE {_THIS_ROW} AND "version" = ?'
_OUTLINE = "SELECT {} FROM lease".format(", ".join(f'"{name}"' for name in OutlineRow._fields))
SUMMED = ("estimated_count", "work_units", "counts[0]", "counts[1]", "counts[2]", "counts[3]")
"""Numbers of the body that are summed."""
COUNT = 'SELECT "status", count(*) FROM lease WHERE "pipeline" = ? AND "run" = ? GROUP BY "status"'


def sums_text(value: Callable[[str], str], joined: str = "") -> str:
    """The statement that sums the rows of a run; `value` is SQL for a value of the body, null if there is none.

    `joined` is what the rows are joined with to have these values.
    """
    numbers = ", ".join(f"SUM(COALESCE({value(name)}, {int(name == 'work_units')}))" for name in SUMMED)
    return (
        f'SELECT "group", "status", COALESCE("owner", {value("done_by")}) AS "session", COUNT(*), {numbers} '
        f'FROM lease{joined} WHERE "pipeline" = ? AND "run" = ? GROUP BY "group", "status", "session"'
    )


def sum_of(row: Row) -> PartitionSum:
    """The sum in a row that the statement of `sums_text` returns."""
    group, status, session, *numbers = row
    partitions, expected, units, *counts = map(int, numbers)
    return PartitionSum(group, Status(status), session, partitions, expected, units, Counts(*counts))


class Statement(NamedTuple):
    """The text of a statement and its parameters."""

    text: str
    parameters: Sequence[Any]


def row_of(lease: Lease, max_body_bytes: int) -> Row:
    """The lease as a row of the table; raises `RowTooLarge`."""
    return (*columns(lease), encode_within(lease, max_body_bytes))


def lease_of(row: Row) -> Lease:
    """The lease of a row of the table. It is marked `unreadable` if its body cannot be decoded."""
    return decode(Columns(*row[:-1]), row[-1])


def update_of(row: Row, version: int) -> Row:
    """Parameters of `UPDATE_ONE` that replace the row with that version by this one."""
    return (*row[3:], *row[:3], version)


def searches(query: Query, now: float) -> list[Statement]:
    """One statement per status, so that each uses one index; none sorts more rows than it returns.

    In order of claim, the results are concatenated; otherwise each is ordered by key, and the caller merges them.
    """
    if not query.statuses and not query.due:
        return [_search(query, None, now)]
    return [_search(query, status, now) for status in query.claim_statuses]


def _search(query: Query, status: Status | None, now: float) -> Statement:
    conditions = _conditions(query, now)
    texts = [text for text, _ in conditions]
    if status is not None:
        texts.append(has(status))
    order = claim_order(status) if query.due and status is not None else '"key", "run"'
    text = f"{SELECT} WHERE {' AND '.join(texts)} ORDER BY {order}"
    parameters = [value for _, values in conditions for value in values]
    if query.limit is None:
        return Statement(text, parameters)
    return Statement(f"{text} LIMIT ?", [*parameters, query.limit])


def outline_search(pipeline: str, run: str | None) -> Statement:
    """The statement for the fields of `OutlineRow` of all rows."""
    conditions = _conditions(Query(pipeline, run), 0.0)
    text = f'{_OUTLINE} WHERE {" AND ".join(text for text, _ in conditions)} ORDER BY "key", "run"'
    return Statement(text, [value for _, values in conditions for value in values])


def has(status: Status) -> str:
    """The condition that a row has this status."""
    return f"\"status\" = '{status.value}'"


def claim_order(status: Status) -> str:
    """`ORDER BY` for rows of this status in the order of claim; the indexes have it too."""
    return ", ".join(f'"{column.name}"{" DESC" * column.descending}' for column in CLAIM_COLUMNS[status])


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
    # For a row without owner this is null, which is not true.
    return (f'"owner" NOT IN ({", ".join("?" * len(owners))})', owners)


# --- for stores on a server ----------------------------------------------------------------------------------------


def for_server(text: str, table: str, select: str = "") -> str:
    """A statement of this module in the form of drivers: `%s` for `?`, the table's name, the columns of `select`."""
    return text.replace(SELECT, select or SELECT).replace(" lease", f" {table}").replace("?", "%s")


def combined(statements: Sequence[Statement]) -> Statement:
    """One statement that returns the rows of all statements, so that they are read at the same moment."""
    if len(statements) == 1:
        return statements[0]
    text = " UNION ALL ".join(f"({statement.text})" for statement in statements)
    return Statement(text, [value for statement in statements for value in statement.parameters])


def in_order(rows: Iterable[Row], query: Query) -> list[Row]:
    """The rows in the order of the query, regardless of the order in which the server returned the combined parts."""
    if not query.due:
        return sorted(rows, key=lambda row: (row[2], row[1]))[: query.limit]
    index = {status.value: at for at, status in enumerate(query.claim_statuses)}
    return sorted(rows, key=lambda row: (index[row[4]], _rank(row), row[1]))[: query.limit]


def parts_of_snapshot(pipeline: str, sessions: str, run: str) -> Statement:
    """One statement for all that `snapshot_of` needs."""
    parts = searches(Query(sessions, run=None), 0.0)
    if pipeline != sessions:
        parts += searches(Query(pipeline, run, UNFINISHED), 0.0)
    return combined(parts)


def snapshot_of(rows: Iterable[Row], pipeline: str, sessions: str, run: str) -> tuple[list[Row], list[Row]]:
    """The rows of sessions and those of unfinished leases, in order of key."""
    ordered = in_order(rows, Query(""))
    leases = [row for row in ordered if (row[0], row[1]) == (pipeline, run) and row[4] in UNFINISHED]
    return [row for row in ordered if row[0] == sessions], leases


def _rank(row: Row) -> Rank:
    _, _, key, _, status, _, _, _, due_at, priority, ordinal = row[:11]
    return claim_rank(status, due_at, priority, ordinal, key)


def rounds(keys: Sequence[Key]) -> list[list[int]]:
    """Indexes of the keys, sorted by key, in as few rounds as possible so that no key occurs twice in a round.

    Writers that lock rows in the same order do not deadlock, and a statement for many rows must not contain a row
    twice, because it has no defined order.
    """
    parted: list[list[int]] = []
    seen: dict[Key, int] = {}
    for index, key in enumerate(keys):
        number = seen[key] = seen.get(key, -1) + 1
        if number == len(parted):
            parted.append([])
        parted[number].append(index)
    return [sorted(indexes, key=keys.__getitem__) for indexes in parted]


class Connections(Generic[C]):
    """Connections to one server, one for each concurrent call; each is used by one thread at a time.

    `connect` opens a connection; `usable` returns whether a connection can still be used after that many idle seconds.
    """

    def __init__(
        self, connect: Callable[[], C], usable: Callable[[C, float], bool], close: Callable[[C], None]
    ) -> None:
        self._connect = connect
        self._usable = usable
        self._close = close
        self._idle: list[tuple[C, float]] = []
        self._lock = threading.Lock()

    def take(self) -> C:
        """A connection that no other thread uses. Raises what `connect` raises."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection, since = self._idle.pop()
            if self._usable(connection, time.monotonic() - since):
                return connection
            self._close(connection)
        return self._connect()

    def give_back(self, connection: C) -> None:
        """Return a connection, in any state; it is reused if it is still usable."""
        if self._usable(connection, 0.0):
            with self._lock:
                self._idle.append((connection, time.monotonic()))
        else:
            self._close(connection)

    @contextmanager
    def lent(self) -> Iterator[C]:
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close the idle connections. Connections in use stay open, so call it when there are none."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._close(connection)


class Tables(NamedTuple):
    """Versions stored in the tables: their own, and the oldest holdfast schema that may work on them.

    After a change that only adds, `oldest` stays one version lower, so that nodes can be upgraded one by one.
    """

    version: int
    oldest: int


NO_TABLES = Tables(0, 0)


def is_behind(location: str, found: Tables, wanted: int, *, may_change: bool) -> bool:
    """Whether the tables must be migrated to the wanted version. Raises `SchemaMismatch` if they cannot be used."""
    there = f"tables of version {found.version}" if found.version else "no lease tables"
    needs = f"{location} has {there}, and this holdfast needs version {wanted}"
    if found.oldest > wanted:
        raise SchemaMismatch(f"{needs}: they belong to a newer holdfast; upgrade this one")
    if found.version < wanted and not may_change:
        maker = "`holdfast run` creates them, unless skip_table_creation is set"
        raise NotCreatedYet(f"{needs}: they may not be created here; {maker}")
    return found.version < wanted

"""Claims in PostgreSQL: one statement, with SKIP LOCKED, for as many leases as are wanted.

The candidates are locked first, in order of claim, without waiting for locks. All conditions are on the row itself: in
READ COMMITTED a row that was changed meanwhile is evaluated again in its new version, but a joined row would not be.
The clock is read after the row is locked. A row that was changed and is still free is skipped, because its new version
is not in this statement's snapshot; the next claim finds it.
"""
# ruff: noqa: S608 - the texts are made of constants and a checked table name

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.leases.columns import Columns
from holdfast.leases.lease import FINISHED, Lease, Status
from holdfast.leases.query import Rank, claim_rank
from holdfast.leases.store import ClaimRequest
from holdfast.leases.tenures import MOST_TENURES
from holdfast.stores import _sql
from holdfast.stores.postgresql.connection import PatientConnection
from holdfast.stores.postgresql.statements import claim_id_of, lease_after_claim
from holdfast.stores.postgresql.tables import seal_of

_UNASSIGNED = Status.UNASSIGNED.value
_ASSIGNED = Status.ASSIGNED.value

# Who held a lease past its deadline is known to this statement alone, as the body stays as it is: `claim_id` has those
# since the body was written, the last few, and a line break before the id.
_FORMER = """CASE WHEN l."claim_id" LIKE '"[[%'
        THEN split_part(l."claim_id"::json #>> ARRAY[]::text[], E'\\n', 1)::jsonb ELSE '[]'::jsonb END"""
_CLAIM_ID = f"""CASE WHEN l."status" = '{_ASSIGNED}' THEN to_json((
        CASE WHEN jsonb_array_length({_FORMER}) < {MOST_TENURES} THEN {_FORMER} ELSE {_FORMER} - 0 END
        || jsonb_build_array(jsonb_build_array(l."token", l."owner",
            CASE WHEN l."claim_id" IS NOT NULL THEN l."claimed_at" END))
        )::text || E'\\n' || $6)::text ELSE $6 END"""

_TAKE = f"""
UPDATE {{table}} AS l SET "status" = '{_ASSIGNED}', "owner" = $4, "token" = l."token" + 1, "version" = l."version" + 1,
    "due_at" = candidate.now + $5::double precision, "claim_id" = {{claim_id}}, "claimed_at" = candidate.now,
    "started_at" = coalesce(l."started_at", l."claimed_at"),
    "takeovers" = l."takeovers" + (l."status" = '{_ASSIGNED}' AND l."owner" IS DISTINCT FROM $4)::int
FROM candidate WHERE l.ctid = candidate.ctid AND l."seal" = {seal_of('l."body"')}
RETURNING candidate."status", candidate."due_at", l."key", l."group", l."token", l."version", l."due_at",
    l."priority", l."ordinal", l."claim_id", l."claimed_at", l."started_at", l."takeovers", l."body"
"""


class ClaimTexts:
    """The two statements that claim: from the beginning of the queue, and after the remembered head."""

    def __init__(self, table: str, clock: str, statement_clock: str) -> None:
        self._table = table
        self._clock = clock
        self._statement_clock = statement_clock
        unclaimed = self._arm(Status.UNASSIGNED, '"priority" = $7 AND ("ordinal", "key") > ($8, $9)')
        # Nobody holds these. PostgreSQL prepares every expression for each claim, also one that it never evaluates.
        self.head = self._claim([unclaimed], claim_id="$6")

    def look(self, order: Sequence[Status]) -> str:
        """The statement that claims from the beginning of the queue, in that order of statuses."""
        return self._claim([self._arm(status) for status in order])

    def _arm(self, status: Status, further: str = "true") -> str:
        # The statement's own time may be a little early, never late; as it is fixed, the index can search by it.
        return (
            f'SELECT * FROM (SELECT ctid, "status", "due_at" FROM {self._table} WHERE "pipeline" = $1 AND "run" = $2 '
            f'AND "status" = \'{status.value}\' AND "due_at" <= {self._statement_clock} AND {further} '
            f"ORDER BY {_sql.claim_order(status)} LIMIT $3::bigint FOR UPDATE SKIP LOCKED) AS {status.value.lower()}"
        )

    def _claim(self, arms: Sequence[str], claim_id: str = _CLAIM_ID) -> str:
        take = _TAKE.format(table=self._table, claim_id=claim_id)
        return (
            f"WITH candidate AS MATERIALIZED (SELECT found.*, {self._clock} AS now "
            f"FROM ({' UNION ALL '.join(arms)}) AS found LIMIT $3::bigint) {take}"
        )


class Claimed(NamedTuple):
    """The leases that one statement took, in order of claim, and where the next claim in the queue may begin."""

    leases: list[Lease]
    head: QueuePosition | None


def claim(db: PatientConnection, text: str, request: ClaimRequest, after: QueuePosition | None) -> Claimed:
    """Run a statement of `ClaimTexts`."""
    timeout = request.ownership_timeout
    parameters = [
        request.pipeline.encode(),
        request.run.encode(),
        b"%d" % request.limit,
        request.owner.encode(),
        None if timeout is None else repr(timeout).encode(),
        claim_id_of(request.write_id).encode(),
    ]
    if after is not None:
        parameters += (b"%d" % after.priority, b"%d" % after.ordinal, after.key.encode())
    rows = db.run_prepared(text, parameters)
    if len(rows) > 1:
        rows.sort(key=lambda row: _rank(row, request.order))
    return Claimed([_lease(row, request) for row in rows], _head(rows))


def _lease(row: _sql.Row, request: ClaimRequest) -> Lease:
    _, _, key, group, token, version, due_at, priority, ordinal, *claimed, body = row
    columns = Columns(
        request.pipeline, request.run, key, group, _ASSIGNED, request.owner, token, version, due_at, priority, ordinal
    )
    return lease_after_claim(columns, body, *claimed)


def _rank(row: _sql.Row, order: Sequence[Status]) -> tuple[int, Rank]:
    status, due_at, key, _, _, _, _, priority, ordinal, *_ = row
    return (order.index(status), claim_rank(status, due_at, priority, ordinal, key))


def _head(rows: Sequence[_sql.Row]) -> QueuePosition | None:
    if not rows or rows[-1][0] != _UNASSIGNED:
        return None
    _, _, key, _, _, _, _, priority, ordinal, *_ = rows[-1]
    return QueuePosition(priority, ordinal, key)


# --- the head of the queue -------------------------------------------------------------------------------------------
# A claimed lease leaves a dead entry in the index, which stays there until the server vacuums the table. All of them
# are at the head of the queue, and a claim that begins at the beginning walks over each of them: within a minute of
# busy claiming it takes several times as long. So a process that has claimed many goes on behind the last one. A lease
# that comes to lie before that position (handed back, due by now, its owner gone) is found when the whole queue is
# searched: about once a second, and whenever nothing more is found.

WORTH_REMEMBERING = 100
"""Number of claims after which skipping the dead index entries pays off. Until then, every claim searches the whole
queue."""
LOOK_EVERY, LOOK_EVERY_AT_LEAST = 1.0, 5.0
TIME_FOR_LOOKING = 0.05
"""Maximum fraction of time that a process spends on searching the whole queue."""


class QueuePosition(NamedTuple):
    """The position of a lease in the queue of unassigned ones."""

    priority: int
    ordinal: int
    key: str

    @property
    def rank(self) -> Rank:
        return claim_rank(_UNASSIGNED, None, *self)


class Head:
    """The head of the queue of one pipeline and run. Threads may share it: a wrong position costs one search."""

    def __init__(self) -> None:
        self._last: QueuePosition | None = None
        self._claimed = 0
        self._look_at = 0.0

    def position(self, now: float) -> QueuePosition | None:
        """The position after which to claim; None if the whole queue is to be searched."""
        return self._last if now < self._look_at and self._claimed >= WORTH_REMEMBERING else None

    def looked(self, number: int, last: QueuePosition | None, started: float, now: float) -> None:
        """Note a search of the whole queue since `started` that took `number` leases; `last` is the last position."""
        wait = min(max(LOOK_EVERY, (now - started) / TIME_FOR_LOOKING), LOOK_EVERY_AT_LEAST)
        self._look_at = now + wait
        self.went_on(number, last)

    def went_on(self, number: int, last: QueuePosition | None) -> None:
        """Note a claim of `number` leases after the remembered position.

        Without `last`, the next claim searches all.
        """
        self._claimed += number
        self._last = last

    def written(self, lease: Lease) -> None:
        """Note a row that this process wrote. Forget the remembered position if the row may be claimed before it."""
        if self._last is None or lease.status in FINISHED or lease.ownership.due_at is None:
            return
        order = lease.order
        position = QueuePosition(order.priority, order.ordinal, lease.key)
        if lease.status is not Status.UNASSIGNED or position.rank <= self._last.rank:
            self._last = None

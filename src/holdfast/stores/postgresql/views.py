"""Runs as views in PostgreSQL, see `holdfast.flow.run_views`.

Names are not quoted, so that PostgreSQL folds them like those in queries written for MySQL, and `unix_timestamp()` is
a function that such queries call. A body that holdfast has not written counts as empty. Characters that text in
PostgreSQL cannot have, NUL and lone surrogates, are replaced.
"""
# ruff: noqa: S608 - the texts are made of constants, a checked table name and quoted literals

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from holdfast.flow.run_views import RUN_VIEWS, ViewedRuns
from holdfast.stores.postgresql.connection import PatientConnection
from holdfast.stores.postgresql.tables import seal_of

_MARK = "made by holdfast"
"""Comment of the function, so that a function of somebody else is neither replaced nor removed."""

_ODD, _REPLACEMENT = r"\\u(0000|d[89a-f][0-9a-f]{2})", r"\\ufffd"


def _body(row: str) -> str:
    """SQL for the body of a row as jsonb."""
    text = f"""regexp_replace({row}."body", '{_ODD}', '{_REPLACEMENT}', 'gi')"""
    return f"""CASE WHEN {row}."seal" = {seal_of(f'{row}."body"')} THEN {text} ELSE '{{}}' END::jsonb"""


def _number(name: str) -> str:
    return f"CASE jsonb_typeof(b->'{name}') WHEN 'number' THEN (b->>'{name}')::bigint END"


def _count(*positions: int) -> str:
    return " + ".join(f"coalesce((b->'counts'->>{at})::bigint, 0)" for at in positions)


def _milliseconds(seconds: str) -> str:
    return f"floor(({seconds}) * 1000)::bigint"


def _time(name: str, of: str = "b") -> str:
    return f"({of}->>'{name}')::double precision"


_RUN = """run AS MATERIALIZED (
    SELECT r."pipeline", r."key" AS id, b->'state' AS s
    FROM {table} AS r CROSS JOIN LATERAL (SELECT {body} AS b OFFSET 0) AS o
    WHERE r."pipeline" IN ({runs}) AND r."run" = '' AND b->'state'->'configuration'->>'kind' = {kind})"""

_NODE = """node AS MATERIALIZED (
    SELECT n."key" AS session, b->'state'->>'name' AS name, {heartbeat} AS last_heartbeat,
        coalesce(n."due_at", {ended}) AS due_at
    FROM {table} AS n CROSS JOIN LATERAL (SELECT {node_body} AS b OFFSET 0) AS o
    WHERE n."pipeline" = {fleet} AND n."run" = '')"""

_GROUP_SUMS = ", ".join(
    f"coalesce(sum((v->>'{name}')::bigint), 0)::bigint AS {name}"
    for name in ("total", "processed", "succeeded", "failed")
)
_ENTITY_STATS = """jsonb_object_agg(k, jsonb_build_object('totalRecords', v->'total', 'successRecords', v->'succeeded',
    'failedRecords', v->'failed')) AS stats"""
_JOB = f"""CREATE VIEW search_index_job AS WITH {_RUN}
SELECT run.id::varchar AS id, (s->>'status')::varchar AS status, (s->'configuration')::text AS jobConfiguration,
    (s->'configuration'->>'stagedIndexPrefix')::varchar AS stagedIndexPrefix, g.total AS totalRecords,
    g.processed AS processedRecords, g.succeeded AS successRecords, g.failed AS failedRecords,
    coalesce(g.stats, '{{{{}}}}')::text AS statsJson, (s->>'created_by')::varchar AS createdBy,
    {_milliseconds(_time("created_at", "s"))} AS createdAt, {_milliseconds(_time("started_at", "s"))} AS startedAt,
    {_milliseconds(_time("completed_at", "s"))} AS completedAt, {_milliseconds(_time("updated_at", "s"))} AS updatedAt,
    s->>'error' AS errorMessage
FROM run CROSS JOIN LATERAL (SELECT {_GROUP_SUMS}, {_ENTITY_STATS} FROM jsonb_each(s->'groups') AS e(k, v)) AS g"""

# Until the next write of the row, a claim has changed columns and not the body; `codec` counts deaths the same way.
_TAKEOVERS = """CASE WHEN l."due_at" IS NOT NULL THEN l."takeovers" ELSE t.counted + (l."takeovers" > t.counted
    AND coalesce((b->>'begun')::boolean, t.counted > 0))::int END"""

_PARTITION = f"""CREATE VIEW search_index_partition AS WITH {_RUN}, {_NODE}
SELECT (run.id || '/' || l."key")::varchar AS id, run.id::varchar AS jobId, l."group"::varchar AS entityType,
    ({_number("index")})::int AS partitionIndex, {_number("range_start")} AS rangeStart,
    {_number("range_end")} AS rangeEnd, {_number("estimated_count")} AS estimatedCount,
    coalesce({_number("work_units")}, 1) AS workUnits, l."priority"::int AS priority,
    CASE l."status" WHEN 'ASSIGNED' THEN 'PROCESSING' WHEN 'COMPLETED' THEN 'COMPLETED' WHEN 'FAILED' THEN 'FAILED'
        ELSE 'PENDING' END::varchar AS status,
    coalesce({_number("range_start")}, 0) + {_count(0)} AS processingCursor, {_count(0)} AS processedCount,
    {_count(1)} AS successCount, {_count(2, 3)} AS failedCount,
    coalesce(node.name, w.session)::varchar AS assignedServer,
    {_milliseconds(f'coalesce(l."claimed_at", {_time("claimed_at")})')} AS claimedAt,
    {_milliseconds('coalesce(l."started_at", l."claimed_at")')} AS startedAt,
    {_milliseconds(_time("completed_at"))} AS completedAt,
    {_milliseconds(f'greatest(l."claimed_at", {_time("updated_at")}, h.last_heartbeat)')} AS lastUpdateAt,
    b->>'last_error' AS lastError, (coalesce({_number("attempts")}, 0) + {_TAKEOVERS})::int AS retryCount
FROM run JOIN {{table}} AS l ON l."pipeline" = left(run."pipeline", -6) AND l."run" = run.id
    CROSS JOIN LATERAL (SELECT {{partition_body}} AS b OFFSET 0) AS o
    CROSS JOIN LATERAL (SELECT coalesce(l."owner", b->>'done_by') AS session) AS w
    CROSS JOIN LATERAL (SELECT coalesce({_number("takeovers")}, 0) AS counted) AS t
    LEFT JOIN node ON node.session = w.session
    CROSS JOIN LATERAL (SELECT CASE l."status" WHEN 'ASSIGNED' THEN node.last_heartbeat END AS last_heartbeat) AS h"""

_LOCK = f"""CREATE VIEW search_reindex_lock AS WITH {_RUN}, {_NODE}
SELECT ('SEARCH_REINDEX_LOCK/' || left(l."pipeline", -5) || '/' || l."key")::varchar AS lockKey,
    run.id::varchar AS jobId, coalesce(node.name, l."owner")::varchar AS serverId,
    {_milliseconds(f'coalesce(l."claimed_at", {_time("claimed_at")})')} AS acquiredAt,
    {_milliseconds(f'greatest(l."claimed_at", {_time("updated_at")}, node.last_heartbeat)')} AS lastHeartbeat,
    {_milliseconds('least(l."due_at", node.due_at)')} AS expiresAt
FROM {{table}} AS l CROSS JOIN LATERAL (SELECT {{partition_body}} AS b OFFSET 0) AS o
    JOIN run ON run."pipeline" = l."pipeline" || 's' AND run.id = b->'state'->>'run'
    LEFT JOIN node ON node.session = l."owner"
WHERE l."pipeline" IN ({{locks}}) AND l."run" = '' AND l."status" = 'ASSIGNED'"""


_EXISTING = """SELECT relname FROM pg_catalog.pg_class
    WHERE relname = ANY(%s) AND relkind = 'v' AND pg_catalog.pg_table_is_visible(oid)"""


def create_views(db: PatientConnection, table: str, runs: ViewedRuns) -> None:
    """Create the views on that table, whose name is quoted, and the function, in one transaction."""
    parts = {
        "table": table,
        "body": _body("r"),
        "node_body": _body("n"),
        "partition_body": _body("l"),
        "runs": _literals(db, runs.run_rows),
        "locks": _literals(db, [name[:-1] for name in runs.run_rows]),
        "kind": _literals(db, [runs.kind]),
        "fleet": _literals(db, [runs.fleet]),
        "heartbeat": _time("last_heartbeat", "(b->'state')"),
        "ended": _time("completed_at"),
    }
    with db.transaction():
        remove_views(db)
        for text in (_JOB, _PARTITION, _LOCK):
            db.execute(text.format(**parts).encode())
        if db.execute("SELECT to_regprocedure('unix_timestamp()')").fetchone() == (None,):
            clock = "SELECT floor(extract(epoch FROM statement_timestamp()))::bigint"
            db.execute(f"CREATE FUNCTION unix_timestamp() RETURNS bigint LANGUAGE sql STABLE AS '{clock}'".encode())
            db.execute(f"COMMENT ON FUNCTION unix_timestamp() IS '{_MARK}'".encode())


def remove_views(db: PatientConnection) -> None:
    """Remove the views, and the function if `create_views` has created it, in one transaction."""
    with db.transaction():
        for (name,) in db.execute(_EXISTING, (list(RUN_VIEWS),)).fetchall():
            db.execute(f"DROP VIEW {name}".encode())
        found = db.execute("SELECT obj_description(to_regprocedure('unix_timestamp()'), 'pg_proc')").fetchone()
        if found == (_MARK,):
            db.execute("DROP FUNCTION unix_timestamp()")


def _literals(db: PatientConnection, texts: Sequence[str]) -> str:
    return ", ".join(sql.Literal(text).as_string(db) for text in texts)

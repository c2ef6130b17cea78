"""Runs as views in MariaDB and MySQL, see `holdfast.flow.run_views`. A body that is not JSON counts as empty."""
# ruff: noqa: S608 - the texts are made of constants, a checked table name and hexadecimal literals

from __future__ import annotations

from collections.abc import Sequence

from pymysql.cursors import Cursor

from holdfast.flow.run_views import RUN_VIEWS, ViewedRuns


def _body(row: str, **columns: str) -> str:
    """A join with values of the body: type and path by name. A value of another type is null."""
    listed = ", ".join(f'"{name}" {kind_and_path}' for name, kind_and_path in columns.items())
    return f"""JOIN JSON_TABLE(IF(JSON_VALID({row}."body"), {row}."body", '{{{{}}}}'), '$' COLUMNS ({listed}))"""


def _at(kind: str, path: str) -> str:
    # Without it, text has the character set of the database, which may lack characters.
    charset = " CHARACTER SET utf8mb4" if kind.startswith(("VARCHAR", "TEXT")) else ""
    return f"{kind}{charset} PATH '$.{path}'"


def _text(name: str) -> str:
    return f"CONVERT({name} USING utf8mb4)"


def _milliseconds(seconds: str) -> str:
    return f"CAST(FLOOR(({seconds}) * 1000) AS SIGNED)"


_TIMES = ("created_at", "started_at", "completed_at", "updated_at")


_RUN_BODY = _body(
    "r",
    kind=_at("VARCHAR(100)", "state.configuration.kind"),
    status=_at("VARCHAR(32)", "state.status"),
    prefix=_at("VARCHAR(255)", "state.configuration.stagedIndexPrefix"),
    created_by=_at("VARCHAR(255)", "state.created_by"),
    error=_at("TEXT", "state.error"),
    **{name: _at("DOUBLE", f"state.{name}") for name in _TIMES},
)
_RUNS = f"""{{table}} AS r {_RUN_BODY} AS s ON r."pipeline" IN ({{runs}}) AND r."run" = '' AND s."kind" = {{kind}}"""

_NODES = f"""(SELECT n."key" AS "session", s."name", s."last_heartbeat", COALESCE(n."due_at", s."ended") AS "due_at"
    FROM {{table}} AS n {
    _body(
        "n",
        name=_at("VARCHAR(255)", "state.name"),
        last_heartbeat=_at("DOUBLE", "state.last_heartbeat"),
        ended=_at("DOUBLE", "completed_at"),
    )
} AS s WHERE n."pipeline" = {{fleet}} AND n."run" = '')"""


def _group_sum(name: str) -> str:
    groups = """JSON_EXTRACT(r."body", '$.state.groups.*')"""
    column = f"""COLUMNS ("n" BIGINT PATH '$.{name}')"""
    return f"""(SELECT COALESCE(SUM(g."n"), 0) FROM JSON_TABLE({groups}, '$[*]' {column}) AS g)"""


_KEYS = """JSON_TABLE(JSON_KEYS(r."body", '$.state.groups'), '$[*]' COLUMNS ("at" FOR ORDINALITY,
    "k" TEXT CHARACTER SET utf8mb4 PATH '$'))"""
_VALUES = """JSON_TABLE(JSON_EXTRACT(r."body", '$.state.groups.*'), '$[*]' COLUMNS ("at" FOR ORDINALITY,
    "total" BIGINT PATH '$.total', "succeeded" BIGINT PATH '$.succeeded', "failed" BIGINT PATH '$.failed'))"""
_ENTITY_STATS = f"""COALESCE((SELECT JSON_OBJECTAGG(k."k", JSON_OBJECT('totalRecords', v."total",
    'successRecords', v."succeeded", 'failedRecords', v."failed")) FROM {_KEYS} AS k JOIN {_VALUES} AS v
    ON v."at" = k."at"), '{{{{}}}}')"""

_JOB = f"""CREATE VIEW search_index_job AS
SELECT {_text('r."key"')} AS id, s."status" AS status,
    JSON_EXTRACT(r."body", '$.state.configuration') AS jobConfiguration, s."prefix" AS stagedIndexPrefix,
    {_group_sum("total")} AS totalRecords, {_group_sum("processed")} AS processedRecords,
    {_group_sum("succeeded")} AS successRecords, {_group_sum("failed")} AS failedRecords,
    {_ENTITY_STATS} AS statsJson, s."created_by" AS createdBy,
    {_milliseconds('s."created_at"')} AS createdAt, {_milliseconds('s."started_at"')} AS startedAt,
    {_milliseconds('s."completed_at"')} AS completedAt, {_milliseconds('s."updated_at"')} AS updatedAt,
    s."error" AS errorMessage
FROM {_RUNS}"""

_PARTITION_BODY = _body(
    "l",
    done_by=_at("VARCHAR(400)", "done_by"),
    last_error=_at("TEXT", "last_error"),
    **{
        name: _at("BIGINT", name)
        for name in ("index", "range_start", "range_end", "estimated_count", "work_units", "attempts", "takeovers")
    },
    **{f"count_{at}": _at("BIGINT", f"counts[{at}]") for at in range(4)},
    **{name: _at("DOUBLE", name) for name in ("claimed_at", "started_at", "completed_at", "updated_at")},
)

_PARTITION = f"""CREATE VIEW search_index_partition AS
SELECT {_text("CONCAT(l.run, '/', l.`key`)")} AS id, {_text('l."run"')} AS jobId,
    {_text('l."group"')} AS entityType, b."index" AS partitionIndex, b."range_start" AS rangeStart,
    b."range_end" AS rangeEnd, b."estimated_count" AS estimatedCount, COALESCE(b."work_units", 1) AS workUnits,
    l."priority" AS priority,
    CASE l."status" WHEN 'ASSIGNED' THEN 'PROCESSING' WHEN 'COMPLETED' THEN 'COMPLETED' WHEN 'FAILED' THEN 'FAILED'
        ELSE 'PENDING' END AS status,
    COALESCE(b."range_start", 0) + COALESCE(b."count_0", 0) AS processingCursor,
    COALESCE(b."count_0", 0) AS processedCount, COALESCE(b."count_1", 0) AS successCount,
    COALESCE(b."count_2", 0) + COALESCE(b."count_3", 0) AS failedCount,
    COALESCE(n."name", {_text('l."owner"')}, b."done_by") AS assignedServer,
    {_milliseconds('b."claimed_at"')} AS claimedAt, {_milliseconds('b."started_at"')} AS startedAt,
    {_milliseconds('b."completed_at"')} AS completedAt,
    {
    _milliseconds('''GREATEST(COALESCE(b."updated_at", b."claimed_at", 0),
        COALESCE(IF(l."status" = 'ASSIGNED', n."last_heartbeat", 0), 0))''')
} AS lastUpdateAt,
    b."last_error" AS lastError, COALESCE(b."attempts", 0) + COALESCE(b."takeovers", 0) AS retryCount
FROM {_RUNS}
    JOIN {{table}} AS l ON l."pipeline" = LEFT(r."pipeline", LENGTH(r."pipeline") - 6) AND l."run" = r."key"
    {_PARTITION_BODY} AS b
    LEFT JOIN {_NODES} AS n ON n."session" = COALESCE(l."owner", CAST(b."done_by" AS BINARY))"""

_LOCK_BODY = _body(
    "l",
    run_id=_at("VARCHAR(400)", "state.run"),
    claimed_at=_at("DOUBLE", "claimed_at"),
    updated_at=_at("DOUBLE", "updated_at"),
)

_LOCK = f"""CREATE VIEW search_reindex_lock AS
SELECT {_text("CONCAT('SEARCH_REINDEX_LOCK/', LEFT(l.pipeline, LENGTH(l.pipeline) - 5), '/', l.`key`)")}
        AS lockKey, {_text('r."key"')} AS jobId, COALESCE(n."name", {_text('l."owner"')}) AS serverId,
    {_milliseconds('b."claimed_at"')} AS acquiredAt,
    {_milliseconds('GREATEST(b."updated_at", COALESCE(n."last_heartbeat", 0))')} AS lastHeartbeat,
    {_milliseconds('LEAST(l."due_at", COALESCE(n."due_at", l."due_at"))')} AS expiresAt
FROM {{table}} AS l {_LOCK_BODY} AS b
    ON l."pipeline" IN ({{locks}}) AND l."run" = '' AND l."status" = 'ASSIGNED'
    JOIN ({_RUNS}) ON r."pipeline" = CONCAT(l."pipeline", 's') AND r."key" = CAST(b."run_id" AS BINARY)
    LEFT JOIN {_NODES} AS n ON l."owner" = n."session" """


def create_views(cursor: Cursor, table: str, runs: ViewedRuns) -> None:
    """Create the views on that table, whose name is quoted. The server commits each of them."""
    parts = {
        "table": table,
        "runs": _literals(runs.run_rows),
        "locks": _literals([name[:-1] for name in runs.run_rows]),
        "kind": f"_utf8mb4 {_literals([runs.kind])}",
        "fleet": _literals([runs.fleet]),
    }
    for text in (_JOB, _PARTITION, _LOCK):
        cursor.execute(text.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1).format(**parts))


def remove_views(cursor: Cursor) -> None:
    for name in RUN_VIEWS:
        cursor.execute(f"DROP VIEW IF EXISTS {name}")


def _literals(texts: Sequence[str]) -> str:
    """Names as the table has them: bytes, to which no collation and no mode of quoting applies."""
    return ", ".join(f"X'{text.encode().hex()}'" for text in texts)

"""The tables in PostgreSQL: how they are created, and where their version is.

Next to the columns that every store has, a row has those that a claim changes (`claim_id`, `claimed_at`, `started_at`,
`takeovers`): a claim then does not change the body, however large it is. They count only while `claim_id` is set, that
is until the next write of the whole row. `claim_id` is a JSON string: the id of the claim. If leases were claimed past
their deadline since, a line before the id lists the owners that had them (token, name, time of claim); nodes of earlier
versions take both lines for the id. `seal` shows that holdfast itself has written the body and can read it: a claim,
which never reads the body, takes only such rows.
"""
# ruff: noqa: S608 - the texts are made of constants and a checked prefix

from __future__ import annotations

from holdfast.errors import StoreError
from holdfast.leases.codec import BODY_VERSION
from holdfast.stores._sql import NO_TABLES, Tables, is_behind
from holdfast.stores.postgresql import PostgresqlConfig
from holdfast.stores.postgresql.connection import PatientConnection, server_name

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # The head of the queue is rewritten all the time: vacuum it early, and leave room for new versions of rows.
        """CREATE TABLE {lease} (
            "pipeline" text COLLATE "C" NOT NULL, "run" text COLLATE "C" NOT NULL, "key" text COLLATE "C" NOT NULL,
            "group" text COLLATE "C" NOT NULL, "status" text COLLATE "C" NOT NULL, "owner" text COLLATE "C",
            "token" bigint NOT NULL, "version" bigint NOT NULL, "due_at" double precision,
            "priority" bigint NOT NULL, "ordinal" bigint NOT NULL, "claim_id" text, "claimed_at" double precision,
            "started_at" double precision, "takeovers" bigint NOT NULL, "seal" bigint, "body" text NOT NULL,
            PRIMARY KEY ("pipeline", "run", "key"))
            WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)""",
        # Two indexes that share the rows between them, each in order of claim: a claim writes to one of them.
        """CREATE INDEX {unassigned} ON {lease}
            ("pipeline", "run", "priority" DESC, "ordinal", "key", "due_at") WHERE "status" = 'UNASSIGNED'""",
        """CREATE INDEX {by_status} ON {lease}
            ("pipeline", "run", "status", "due_at", "key") WHERE "status" <> 'UNASSIGNED'""",
    ),
)
"""Migration from each version of the tables to the next."""
SCHEMA_VERSION = len(MIGRATIONS)
OLDEST_USABLE = 1
"""The oldest version of holdfast's schema that can work on tables of this version: changes only ever add."""


def seal_of(body: str) -> str:
    """SQL for the seal of a body. It only shows that holdfast wrote the body, so any good hash is sufficient."""
    return f"hashtextextended({body}, {BODY_VERSION})"


def lease_table(config: PostgresqlConfig) -> str:
    """The name of the table of leases, quoted."""
    return f'"{config.table_prefix}lease"'


def prepare_tables(db: PatientConnection, config: PostgresqlConfig) -> None:
    """Create or migrate the tables, unless that is forbidden. Raises `SchemaMismatch`."""
    names = _names(config)
    may_change = not config.skip_table_creation
    if not is_behind(server_name(config), _found(db, names), SCHEMA_VERSION, may_change=may_change):
        return
    with db.transaction():
        # All that start at once come here; the first one works, the others find its tables.
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (names["lease"],))
        found = _found(db, names)
        if is_behind(server_name(config), found, SCHEMA_VERSION, may_change=may_change):
            _migrate(db, names, found)


def _migrate(db: PatientConnection, names: dict[str, str], found: Tables) -> None:
    for statement in (each for step in MIGRATIONS[found.version :] for each in step):
        db.execute(statement.format(**names))
    db.execute("CREATE TABLE IF NOT EXISTS {versions} (version int NOT NULL, oldest int NOT NULL)".format(**names))
    db.execute("DELETE FROM {versions}".format(**names))
    db.execute("INSERT INTO {versions} VALUES (%s, %s)".format(**names), (SCHEMA_VERSION, OLDEST_USABLE))


def _found(db: PatientConnection, names: dict[str, str]) -> Tables:
    # Not by to_regclass: it may remember that there was no table before another node was waited for.
    there = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = %s AND pg_catalog.pg_table_is_visible(oid)"
    if db.execute(there, (names["versions"].strip('"'),)).fetchone() is None:
        return NO_TABLES
    row = db.execute("SELECT version, oldest FROM {versions}".format(**names)).fetchone()
    return NO_TABLES if row is None else Tables(*row)


def _names(config: PostgresqlConfig) -> dict[str, str]:
    prefix = config.table_prefix
    return {
        "lease": lease_table(config),
        "unassigned": f'"{prefix}lease_unassigned"',
        "by_status": f'"{prefix}lease_by_status"',
        "versions": f'"{prefix}schema_version"',
    }


def require_unicode(db: PatientConnection, config: PostgresqlConfig) -> None:
    """Raise `StoreError` unless the database is in UTF8: keys may have any character."""
    encoding = db.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{server_name(config)}: the encoding of the database is {encoding}, and must be UTF8")

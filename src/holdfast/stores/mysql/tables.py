"""The tables in MariaDB and MySQL: how they are created, and where their version is.

Names are bytes, because every text collation treats some different names as equal. Their lengths are limited by the
index: 400 bytes for a pipeline and for a run, 2,000 for a key.
"""
# ruff: noqa: S608 - the texts are made of constants and a checked prefix

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.connections import Connection

from holdfast.errors import StoreUnavailable
from holdfast.stores._sql import NO_TABLES, Tables, is_behind
from holdfast.stores.mysql import MysqlConfig
from holdfast.stores.mysql.connection import NO_TABLE, code_of, server_name

BY_RANK, BY_DUE = '"by_rank"', '"by_due"'
"""Indexes in order of claim: of unassigned leases, and of the others."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # MariaDB before 10.8 has no descending index, so priorities are kept with the other sign too.
        f"""CREATE TABLE IF NOT EXISTS {{lease}} (
            "pipeline" VARBINARY(400) NOT NULL, "run" VARBINARY(400) NOT NULL, "key" VARBINARY(2000) NOT NULL,
            "group" VARBINARY(2000) NOT NULL, "status" VARBINARY(16) NOT NULL, "owner" VARBINARY(400),
            "token" BIGINT NOT NULL, "version" BIGINT NOT NULL, "due_at" DOUBLE,
            "priority" BIGINT NOT NULL, "ordinal" BIGINT NOT NULL,
            "rank" BIGINT GENERATED ALWAYS AS (-"priority") STORED,
            "body" LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
            PRIMARY KEY ("pipeline", "run", "key"),
            KEY {BY_RANK} ("pipeline", "run", "status", "rank", "ordinal", "key", "due_at"),
            KEY {BY_DUE} ("pipeline", "run", "status", "due_at", "key"))
            ENGINE = InnoDB ROW_FORMAT = DYNAMIC""",
    ),
)
"""Migration from each version of the tables to the next. A step may be repeated, because DDL commits implicitly."""
SCHEMA_VERSION = len(MIGRATIONS)
OLDEST_USABLE = 1
"""The oldest version of holdfast's schema that can work on tables of this version: changes only ever add."""


def lease_table(config: MysqlConfig) -> str:
    """The name of the table of leases, quoted."""
    return f'"{config.table_prefix}lease"'


def prepare_tables(db: Connection[Any], config: MysqlConfig) -> None:
    """Create or migrate the tables, unless that is forbidden. Raises `SchemaMismatch`."""
    names = {"lease": lease_table(config), "versions": f'"{config.table_prefix}schema_version"'}
    may_change = not config.skip_table_creation
    if not is_behind(server_name(config), _found(db, names), SCHEMA_VERSION, may_change=may_change):
        return
    cursor = db.cursor()
    # All that start at once come here; the first one works, the others find its tables.
    cursor.execute("SELECT GET_LOCK(CONCAT(DATABASE(), %s), %s)", (f".{names['lease']}", config.statement_timeout))
    if cursor.fetchone() != (1,):
        raise StoreUnavailable(f"{server_name(config)}: another node is creating the tables")
    try:
        found = _found(db, names)
        if is_behind(server_name(config), found, SCHEMA_VERSION, may_change=may_change):
            _migrate(db, names, found)
    finally:
        cursor.execute("DO RELEASE_LOCK(CONCAT(DATABASE(), %s))", (f".{names['lease']}",))


def _migrate(db: Connection[Any], names: dict[str, str], found: Tables) -> None:
    cursor = db.cursor()
    for statement in (each for step in MIGRATIONS[found.version :] for each in step):
        cursor.execute(statement.format(**names))
    versions = 'CREATE TABLE IF NOT EXISTS {versions} ("version" INT NOT NULL, "oldest" INT NOT NULL) ENGINE = InnoDB'
    cursor.execute(versions.format(**names))
    db.begin()
    cursor.execute("DELETE FROM {versions}".format(**names))
    cursor.execute("INSERT INTO {versions} VALUES (%s, %s)".format(**names), (SCHEMA_VERSION, OLDEST_USABLE))
    db.commit()


def _found(db: Connection[Any], names: dict[str, str]) -> Tables:
    cursor = db.cursor()
    try:
        cursor.execute('SELECT "version", "oldest" FROM {versions}'.format(**names))
    except pymysql.Error as error:
        if code_of(error) == NO_TABLE:
            return NO_TABLES
        raise
    row = cursor.fetchone()
    return NO_TABLES if row is None else Tables(*row)

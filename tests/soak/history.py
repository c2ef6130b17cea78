"""Every version of every row, kept by triggers of the database itself and read with plain SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

_KEPT = ("pipeline", "key", "status", "owner", "token", "version", "due_at", "body")
_COLUMNS = ", ".join(f'"{name}"' for name in _KEPT)
READ = f'SELECT "at", "gone", {_COLUMNS} FROM soak_history ORDER BY "id"'
OPEN_ROWS = """SELECT count(*) FROM {table} WHERE "pipeline" IN ('pull', 'share') AND "status" <> 'COMPLETED'"""
ALL_ROWS = """SELECT count(*) FROM {table} WHERE "pipeline" IN ('pull', 'share')"""


def _note(row: str, gone: int, clock: str) -> str:
    values = ", ".join(f'{row}."{name}"' for name in _KEPT)
    return f'INSERT INTO soak_history ("at", "gone", {_COLUMNS}) VALUES ({clock}, {gone}, {values});'


def for_sqlite(table: str) -> list[str]:
    clock = "(julianday('now') - 2440587.5) * 86400.0"
    made = """CREATE TABLE soak_history ("id" INTEGER PRIMARY KEY AUTOINCREMENT, "at" REAL, "gone" INTEGER,
        "pipeline" TEXT, "key" TEXT, "status" TEXT, "owner" TEXT, "token" INTEGER, "version" INTEGER, "due_at" REAL,
        "body" TEXT)"""
    return [made, *_triggers(table, "BEGIN {} END", clock)]


def for_mariadb(table: str) -> list[str]:
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6"
    made = """CREATE TABLE soak_history ("id" BIGINT AUTO_INCREMENT PRIMARY KEY, "at" DOUBLE, "gone" INT,
        "pipeline" VARBINARY(400), "key" VARBINARY(2000), "status" VARBINARY(16), "owner" VARBINARY(400),
        "token" BIGINT, "version" BIGINT, "due_at" DOUBLE, "body" LONGTEXT CHARACTER SET utf8mb4) ENGINE = InnoDB"""
    # A statement that meets a row and leaves it as it is fires too.
    same = " AND ".join(f'NEW."{name}" <=> OLD."{name}"' for name in _KEPT)
    insert, update, delete = _triggers(table, "BEGIN {} END", clock)
    return [made, insert, update.replace("BEGIN", f"BEGIN IF NOT ({same}) THEN").replace("END", "END IF; END"), delete]


def for_postgresql(table: str) -> list[str]:
    clock = "extract(epoch from clock_timestamp())"
    made = """CREATE TABLE soak_history ("id" bigserial PRIMARY KEY, "at" double precision, "gone" int,
        "pipeline" text, "key" text, "status" text, "owner" text, "token" bigint, "version" bigint,
        "due_at" double precision, "body" text)"""
    function = (
        "CREATE FUNCTION soak_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP = 'DELETE' THEN {_note('OLD', 1, clock)} RETURN OLD; END IF; {_note('NEW', 0, clock)} RETURN NEW; "
        "END $$"
    )
    trigger = "AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION soak_note()".format
    return [made, function, f"CREATE TRIGGER soak_note {trigger(table)}"]


def _triggers(table: str, block: str, clock: str) -> list[str]:
    kinds = {"INSERT": ("NEW", 0), "UPDATE": ("NEW", 0), "DELETE": ("OLD", 1)}
    return [
        f"CREATE TRIGGER soak_{kind.lower()} AFTER {kind} ON {table} FOR EACH ROW {block.format(_note(*row, clock))}"
        for kind, row in kinds.items()
    ]


class Version(NamedTuple):
    """A row as one write has left it, by the store's clock."""

    at: float
    gone: bool
    pipeline: str
    key: str
    status: str
    owner: str | None
    token: int
    version: int
    due_at: float | None
    """Of an ASSIGNED row: set when its owner has gone, and anybody may take it."""
    body: dict[str, Any]

    @property
    def position(self) -> int:
        return int(self.body["position"] or 0)

    @property
    def sequence(self) -> int:
        return int(self.body["sequence"])

    @property
    def receipts(self) -> Any:
        return self.body.get("receipts")

    @property
    def commit_id(self) -> str:
        return str(self.body.get("commit_id", ""))


def versions(rows: Iterable[tuple[Any, ...]]) -> list[Version]:
    """What `READ` answered, in order. For each row that is the order of its writes."""
    return [_version(*(_text(value) for value in row)) for row in rows]


def _version(at: Any, gone: Any, *kept: Any) -> Version:
    return Version._make((float(at), bool(gone), *kept[:-1], json.loads(kept[-1])))


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value

"""A sink for `holdfast run`: records are appended to a table of SQLite, each exactly once.

Tasks stage rows in a table of their own, under a part number that no other attempt has. Publishing moves the parts that
the commit names to the table that readers see, in one transaction, together with the commit's number: so a commit is
visible as a whole or not at all, and publishing it again does nothing.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from holdfast import (
    Fault,
    Halt,
    Json,
    KeepsStaged,
    Lease,
    Name,
    Options,
    Plugin,
    Publication,
    PublishResult,
    Registry,
    Restages,
    Sink,
    SinkUnavailable,
    StagedBatch,
    StagedDataGone,
    Stager,
    Staging,
    Unavailable,
    Witness,
)

TABLES = """
CREATE TABLE IF NOT EXISTS records (stream, label, item INTEGER, record TEXT, fault TEXT);
CREATE TABLE IF NOT EXISTS staged (part, stream, label, token INTEGER, item INTEGER, record TEXT, fault TEXT);
CREATE TABLE IF NOT EXISTS commits (stream, label, sequence INTEGER, id, PRIMARY KEY (stream, label, sequence));
CREATE INDEX IF NOT EXISTS staged_by_part ON staged (part);
"""


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """All of it or nothing. Raises `SinkUnavailable` where SQLite cannot be reached or is locked for too long."""
    try:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise SinkUnavailable(f"{path}: {error}") from error


class SqliteConfig(Options):
    path: Path = Field(description="The database file. Every node and every executor must see it.")


class SqliteStaging(Staging):
    def __init__(self, path: str) -> None:
        self._path = path
        self._attempt = uuid.uuid4().hex
        self._rows: dict[str, int] = {}

    def write(self, batch: StagedBatch, items: Any, rows: Any, place: str = "") -> int:  # noqa: ARG002 - no folders
        records = [json.dumps(row, default=str) for row in rows.to_pylist()]
        self._add(batch, [(item, record, None) for item, record in zip(items.to_pylist(), records, strict=True)])
        return 0

    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        self._add(batch, [(item, fault.raw, fault.reason) for item, fault in faults])

    def _add(self, batch: StagedBatch, rows: Sequence[tuple[int, str | None, str | None]]) -> None:
        common = (self._part(batch), batch.name.stream, batch.name.label, batch.token)
        with transaction(self._path) as database:
            database.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", [(*common, *row) for row in rows])
        self._rows[batch.id] = self._rows.get(batch.id, 0) + len(rows)

    def finish(self, batch: StagedBatch) -> Json:
        return {"part": self._part(batch), "rows": self._rows.pop(batch.id, 0)}

    def abandon(self, batch: StagedBatch) -> None:
        with suppress(SinkUnavailable), transaction(self._path) as database:
            database.execute("DELETE FROM staged WHERE part = ?", [self._part(batch)])

    def _part(self, batch: StagedBatch) -> str:
        return f"{batch.id}-{self._attempt}"


@dataclass(frozen=True)
class SqliteStager(Stager):
    path: str

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return dict.fromkeys(fields.names)

    def begin(self) -> SqliteStaging:
        return SqliteStaging(self.path)


class SqliteSink(Sink, KeepsStaged, Restages, Witness):
    def __init__(self, name: str, config: SqliteConfig, formats: Registry) -> None:  # noqa: ARG002 - rows are JSON
        self.name = name
        self._path = str(config.path)

    def open(self, pipeline: str, *, durable: bool) -> None:  # noqa: ARG002 - the file may have several pipelines
        with transaction(self._path) as database:
            for statement in TABLES.split(";"):
                database.execute(statement)

    def stager(self) -> SqliteStager:
        return SqliteStager(self._path)

    def receipt(self, parts: Sequence[Json]) -> Json:
        return {"parts": [part["part"] for part in parts], "rows": sum(part["rows"] for part in parts)}

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [self._publish(publication) for publication in publications]

    def _publish(self, publication: Publication) -> PublishResult:
        try:
            with transaction(self._path) as database:
                _move(database, publication)
        except (Halt, SinkUnavailable, StagedDataGone) as trouble:
            return trouble
        return None

    def discard_staged(self, publications: Sequence[Publication]) -> None:
        parts = [(part,) for publication in publications for part in publication.receipt["parts"]]
        with suppress(SinkUnavailable), transaction(self._path) as database:
            database.executemany("DELETE FROM staged WHERE part = ?", parts)

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        with suppress(SinkUnavailable), transaction(self._path) as database:
            for lease, name in taken:
                pending = (lease.commit.receipts or {}).get(self.name, {"parts": []})
                database.execute(
                    "DELETE FROM staged WHERE stream = ? AND label = ? AND token < ? "
                    "AND part NOT IN (SELECT value FROM json_each(?))",
                    (name.stream, name.label, lease.token, json.dumps(pending["parts"])),
                )

    def mend(self, publication: Publication, fresh: Json) -> Json:  # noqa: ARG002 - publishing is all or nothing
        return fresh

    def witness(self, taken: Sequence[tuple[Lease, Name]]) -> list[Halt | Unavailable | None]:
        try:
            with transaction(self._path) as database:
                return [_ahead(database, lease, name) for lease, name in taken]
        except SinkUnavailable as away:
            return [away for _ in taken]


def _move(database: sqlite3.Connection, publication: Publication) -> None:
    """Move what was staged to where readers see it, unless this commit has done so before."""
    name, commit, receipt = publication.name, publication.lease.commit, publication.receipt
    key = (name.stream, name.label, commit.sequence)
    made = database.execute("SELECT id FROM commits WHERE stream = ? AND label = ? AND sequence = ?", key).fetchone()
    if made is not None:
        if made[0] != commit.commit_id:
            raise Halt(f"commit {commit.sequence} of {name.stream} {name.label} is {made[0]}, not {commit.commit_id}")
        return
    moved = database.execute(
        "INSERT INTO records SELECT stream, label, item, record, fault FROM staged "
        "WHERE part IN (SELECT value FROM json_each(?)) ORDER BY item",
        [json.dumps(receipt["parts"])],
    ).rowcount
    if moved != receipt["rows"]:
        raise StagedDataGone(f"{receipt['rows'] - moved} staged rows of commit {commit.commit_id} are gone")
    database.execute("INSERT INTO commits VALUES (?, ?, ?, ?)", (*key, commit.commit_id))


def _ahead(database: sqlite3.Connection, lease: Lease, name: Name) -> Halt | None:
    """A `Halt` if the table has a commit that the row does not know: the store has lost writes."""
    key = (name.stream, name.label, lease.commit.sequence)
    later = database.execute("SELECT id FROM commits WHERE stream = ? AND label = ? AND sequence > ?", key).fetchone()
    return None if later is None else Halt(f"{name.stream} {name.label} has commit {later[0]}, which the store lacks")


PLUGIN = Plugin("sqlite", SqliteConfig, SqliteSink, "Records appended to a table of SQLite.")

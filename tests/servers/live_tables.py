"""Cases that the source `database` must pass on every database, and how tests reach one."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.errors import BatchError, Refused
from holdfast.flow.batch import Limits
from holdfast.flow.source import FAULT_COLUMN, Source
from holdfast.flow.tables import Sizing
from holdfast.leases import split as splits
from holdfast.leases.lease import Json, Lease, Ownership, Partition, Status, new_lease
from holdfast.sources.database import PLUGIN, calculator
from holdfast.sources.database.reading import END
from holdfast.sources.database.source import DatabaseSource
from holdfast.testing.source_setting import PIPELINE, SourceSetting, at
from tests.servers.databases import Database, Postgresql
from tests.servers.processes import PASSWORD

BIG = Limits(max_bytes=1 << 30)
NAMES = (f"t{number}" for number in itertools.count())


class TableServer(ABC):
    """A database with tables of tests."""

    integer = "BIGINT"
    text = "VARCHAR(200)"
    document = "TEXT"
    time = "TIMESTAMP"
    boolean = "BOOLEAN"
    binary = "VARBINARY(16)"

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def connect(self) -> Any:
        """A connection that commits when it is asked to."""

    @property
    def mark(self) -> str:
        return "%s"

    def run(self, *statements: str) -> None:
        with self.session() as cursor:
            for text in statements:
                cursor.execute(text)
            cursor.connection.commit()

    def fill(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join([self.mark] * len(rows[0]))
        with self.session() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            cursor.connection.commit()

    @contextmanager
    def session(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            yield connection.cursor()
        finally:
            connection.rollback()
            connection.close()

    def source(self, entities: dict[str, Any], **more: Any) -> DatabaseSource:
        return DatabaseSource(PLUGIN.config.model_validate({"url": self.url, "entities": entities, **more}))


class SqliteFile(TableServer):
    integer = "INTEGER"
    binary = "BLOB"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tables.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def mark(self) -> str:
        return "?"

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)


class ServerTables(TableServer):
    def __init__(self, database: Database) -> None:
        self.database = database
        if isinstance(database, Postgresql):
            self.binary = "BYTEA"
            self.time = "TIMESTAMPTZ"
        else:
            self.time, self.document = "DATETIME(6)", "LONGTEXT"
            self.text = "VARCHAR(200) CHARACTER SET utf8mb4"

    @property
    def url(self) -> str:
        scheme = "postgresql" if isinstance(self.database, Postgresql) else "mysql"
        server = self.database.server
        return f"{scheme}://{server.user}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/{self.database.name}"

    def connect(self) -> Any:
        return self.database.connect()


class Walk(SourceSetting):
    """Reads a given source as a node does."""

    def make_source(self) -> Source:
        raise NotImplementedError


def leased(partition: Partition) -> Lease:
    row = new_lease(PIPELINE, partition, "w", run="r", now=0.0)
    return replace(row, ownership=Ownership(Status.ASSIGNED, "node", 1))


def rows_of(source: Source, partitions: Sequence[Partition], limits: Limits = BIG) -> list[dict[str, Any]]:
    """All rows of these partitions, batch by batch, as a node reads them."""
    setting = Walk()
    found: list[dict[str, Any]] = []
    for partition in partitions:
        found += [row for part in setting.walk_of(source, None, leased(partition), limits) for row in part.rows]
    return found


def copied(source: DatabaseSource, entity: str, rows: int | None = None) -> dict[str, Any]:
    """By id, the documents of a copy; each id is there once."""
    found = rows_of(source, list(source.copy_partitions([entity], Sizing(rows=rows))))
    documents = {row["document_id"]: row for row in found}
    assert len(documents) == len(found)
    return documents


def changed(source: DatabaseSource, entity: str, since: Json, number: int = 1) -> list[str]:
    """The ids that a catch-up finds, sorted."""
    return sorted(
        row["document_id"] for row in rows_of(source, list(source.catch_up_partitions([entity], since, number)))
    )


class LiveTablesCases:
    """Subclasses have the fixture `server`."""

    @pytest.fixture
    def table(self) -> str:
        return next(NAMES)

    # --- keys ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("rows", [1, 3])
    def test_partitions_cover_every_row_once_with_keys_that_are_far_apart(
        self, server: TableServer, table: str, rows: int
    ) -> None:
        keys = [-(10**15), -5, 0, 1, 2, 3, 4, 10**6, 10**12, 10**18]
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, v {server.text})")
        server.fill(table, [(key, f"v{key}") for key in keys])
        source = server.source({"e": {"table": table, "key": "id"}})
        found = copied(source, "e", rows)
        assert sorted(map(int, found)) == keys
        assert json.loads(found["1"]["document"]) == {"id": 1, "v": "v1"}
        made = list(source.copy_partitions(["e"], Sizing(rows=rows)))
        assert sum(part.estimated_count or 0 for part in made) == len(keys)
        assert [part.range_start for part in sorted(made, key=lambda part: part.index or 0)][:2] in ([0], [0, rows])

    def test_text_keys_keep_the_order_of_their_collation(self, server: TableServer, table: str) -> None:
        keys = ["", " ", "A", "B b", "a'b", 'q"q', "ö", "z%s", "Ω", "日本", "\U0001f600", "back\\slash", "t\tab", "c:d"]
        server.run(f"CREATE TABLE {table} (id {server.text} PRIMARY KEY, v {server.integer})")
        kept = [key for key in keys if key.strip() or key == ""]
        server.fill(table, [(key, 1) for key in kept])
        source = server.source({"e": {"table": table, "key": "id"}})
        assert sorted(copied(source, "e", 2)) == sorted(kept)
        assert set(source.present("e", [*kept, "missing", "B B"])) == set(kept)

    def test_composite_keys_have_ids_that_differ(self, server: TableServer, table: str) -> None:
        keys = [("a", 1), ("a", 2), ("a:1", 2), ("a%3A1", 2), ("b", 0), ("b", 10**10)]
        server.run(f"CREATE TABLE {table} (a {server.text}, b {server.integer}, PRIMARY KEY (a, b))")
        server.fill(table, keys)
        source = server.source({"e": {"table": table, "key": ["a", "b"]}})
        found = copied(source, "e", 1)
        assert len(found) == len(keys)
        assert set(source.present("e", [*found, "a", "a:x", "no:7"])) == set(found)
        documents = [json.loads(row["document"]) for row in found.values()]
        assert sorted((each["a"], each["b"]) for each in documents) == sorted(keys)

    def test_binary_keys(self, server: TableServer, table: str) -> None:
        keys = [bytes([n, 0, 255, 39, 92]) for n in range(5)]
        server.run(f"CREATE TABLE {table} (id {server.binary} NOT NULL PRIMARY KEY, v {server.integer})")
        server.fill(table, [(key, 1) for key in keys])
        source = server.source({"e": {"table": table, "key": "id", "fields": ["v"]}})
        assert sorted(copied(source, "e", 2)) == [key.hex() for key in keys]
        assert list(source.present("e", [keys[0].hex(), "zz"])) == [keys[0].hex()]

    def test_bytes_in_a_document_are_on_one_line(self, server: TableServer, table: str) -> None:
        long = server.binary.replace("16", "200")
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, raw {long})")
        server.fill(table, [(1, bytes(range(200)))])
        (row,) = copied(server.source({"e": {"table": table, "key": "id"}}), "e").values()
        assert not set(json.loads(row["document"])["raw"]) & {"\n", "\r", " "}

    def test_ids_of_documents_that_no_row_can_have(self, server: TableServer, table: str) -> None:
        server.run(
            f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, name {server.text} NOT NULL UNIQUE)",
            f"INSERT INTO {table} VALUES (7, 'seven')",
        )
        odd = ["\0", "a\0b", "9" * 30, "-" + "9" * 19, "1_0", "", " 7", "x" * 512, "9" * 5000]
        source = server.source({"n": {"table": table, "key": "id"}, "t": {"table": table, "key": "name"}})
        assert source.present("n", [*odd, "7"]) == {"7": None}
        assert source.present("t", [*odd, "seven"]) == {"seven": None}
        (found,) = source.find("n", [*odd, "7"]).values()
        assert (found.document_id, json.loads(found.document)) == ("7", {"id": 7, "name": "seven"})

    def test_a_key_that_is_not_unique_is_refused(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (a {server.integer}, b {server.integer}, PRIMARY KEY (a, b))")
        with pytest.raises(Refused, match="not unique"):
            server.source({"e": {"table": table, "key": "a"}}).open()

    def test_rows_without_a_key_are_not_missed_in_silence(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} UNIQUE, v {server.integer})")
        server.fill(table, [(1, 1), (None, 2)])
        with pytest.raises(Refused, match="NULL in id"):
            list(server.source({"e": {"table": table, "key": "id"}}).copy_partitions(["e"], Sizing()))

    # --- settings and rows -----------------------------------------------------------------------------------------

    def test_wrong_names_are_named(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, value {server.integer})")
        with pytest.raises(Refused, match="did you mean 'value'"):
            server.source({"e": {"table": table, "key": "id", "fields": ["valeu"]}}).open()
        with pytest.raises(Refused, match="no_such"):
            server.source({"e": {"table": "no_such", "key": "id"}}).open()

    def test_a_query_joins_tables(self, server: TableServer, table: str) -> None:
        server.run(
            f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, owner {server.integer})",
            f"CREATE TABLE {table}_owner (id {server.integer} PRIMARY KEY, name {server.text})",
            f"INSERT INTO {table}_owner VALUES (1, 'Ann 100%')",
            f"INSERT INTO {table} VALUES (7, 1), (8, 1), (9, NULL)",
        )
        query = (
            f"SELECT t.id, o.name FROM {table} t LEFT JOIN {table}_owner o ON o.id = t.owner "
            "WHERE o.name IS NULL OR o.name LIKE 'Ann%';"
        )
        source = server.source({"e": {"query": query, "key": "id", "fields": {"ownerName": "name"}}})
        found = {id_: json.loads(row["document"]) for id_, row in copied(source, "e", 1).items()}
        assert found == {"7": {"ownerName": "Ann 100%"}, "8": {"ownerName": "Ann 100%"}, "9": {"ownerName": None}}

    def test_a_json_column_is_the_document_and_bad_ones_are_letters(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, doc {server.document}, uid {server.text})")
        documents = ['{"a": "ü"}', '{\n "b":\r\n [1, 2.50]}', "[1]", "{", None]
        server.fill(table, [(n, document, f"u{n}") for n, document in enumerate(documents)])
        source = server.source({"e": {"table": table, "key": "id", "json": "doc", "document_id": "uid"}})
        found = copied(source, "e")
        assert found["u0"]["document"] == documents[0]
        assert "\n" not in found["u1"]["document"]
        assert json.loads(found["u1"]["document"]) == {"b": [1, 2.5]}
        assert [found[f"u{n}"][FAULT_COLUMN] is not None for n in range(5)] == [False, False, True, True, True]
        assert list(source.present("e", ["u1", "1"])) == ["u1"]

    def test_many_fields_and_every_type_become_json(self, server: TableServer, table: str) -> None:
        many = ", ".join(f"c{n} {server.integer}" for n in range(130))
        server.run(
            f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, at {server.time}, raw {server.binary}, {many})",
            f"INSERT INTO {table} (id, at, c0, c129) VALUES (1, '2026-03-01 10:00:00.250', 0, 129)",
        )
        (row,) = copied(server.source({"e": {"table": table, "key": "id"}}), "e").values()
        document = json.loads(row["document"])
        assert len(document) == 133
        assert (document["c0"], document["c1"], document["c129"], document["raw"]) == (0, None, 129, None)
        assert document["at"].replace(" ", "T").startswith("2026-03-01T10:00:00.25")

    def test_rows_of_a_megabyte_come_in_small_pages(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, doc {server.document})")
        body = json.dumps({"x": "y" * (1 << 20)})
        server.fill(table, [(n, body) for n in range(20)])
        source = server.source({"e": {"table": table, "key": "id", "json": "doc"}})
        assert {len(row["document"]) for row in copied(source, "e").values()} == {len(body)}

    def test_a_column_that_vanishes_fails_the_batch_with_its_name(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, gone {server.integer})")
        server.fill(table, [(1, 1)])
        source = server.source({"e": {"table": table, "key": "id"}})
        made = list(source.copy_partitions(["e"], Sizing()))
        server.run(f"ALTER TABLE {table} DROP COLUMN gone")
        with pytest.raises(BatchError, match="gone"):
            rows_of(source, made)

    def test_rows_that_are_deleted_and_added_meanwhile(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, v {server.integer})")
        server.fill(table, [(n, 1) for n in range(100, 200)])
        source = server.source({"e": {"table": table, "key": "id"}})
        made = list(source.copy_partitions(["e"], Sizing(rows=10)))
        server.run(f"DELETE FROM {table} WHERE id >= 105", f"INSERT INTO {table} VALUES (1, 1), (999, 1)")
        assert sorted(int(row["document_id"]) for row in rows_of(source, made)) == [1, *range(100, 105), 999]
        assert source.counts(["e"]) == {"e": 7}
        assert [row.document_id for page in source.pages("e") for row in page][:2] == ["1", "100"]

    def test_the_rest_of_a_partition_is_split_at_its_cursor(
        self, server: TableServer, table: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calculator, "SMALLEST_SPLIT", 4)
        server.run(f"CREATE TABLE {table} (a {server.text}, b {server.integer}, PRIMARY KEY (a, b))")
        server.fill(table, [(f"k{n % 3}", n) for n in range(30)])
        source = server.source({"e": {"table": table, "key": ["a", "b"]}})
        (partition,) = source.copy_partitions(["e"], Sizing())
        lease = leased(partition)
        first = Walk().walk_of(source, None, lease, Limits(max_records=7))[0]
        read = at(lease, first.end, len(first.rows))
        made = source.split(read)
        assert made is not None
        kept = splits.split(read, made, read, 0.0)
        (child,) = splits.unfinished_split(kept)
        ids = [
            [row["document_id"] for part in Walk().walk_of(source, None, each, BIG) for row in part.rows]
            for each in (kept, leased(child))
        ]
        assert (len(ids[0]), len(ids[1])) == (11, 12)
        assert {*ids[0], *ids[1]} == set(copied(source, "e")) - {row["document_id"] for row in first.rows}
        assert (kept.order.estimated_count, child.estimated_count, child.range_end) == (18, 12, 30)
        assert source.split(at(lease, END)) is None

    # --- versions, deletes, catching up ----------------------------------------------------------------------------

    def test_changes_since_a_mark_are_found_with_versions_and_deletes(self, server: TableServer, table: str) -> None:
        server.run(
            f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, updated {server.time}, gone {server.boolean})",
            f"CREATE INDEX {table}_u ON {table} (updated, id)",
        )
        server.fill(table, [(n, f"2020-01-01 00:00:0{n}.250", False) for n in range(6)])
        entity = {"table": table, "key": "id", "updated_at": "updated", "deleted": "gone"}
        source = server.source({"e": entity}, clock_skew="1s")
        mark = source.watermark()
        assert changed(source, "e", mark) == []
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        server.run(f"UPDATE {table} SET updated = '{now}', gone = TRUE WHERE id = 3")
        assert changed(source, "e", json.loads(json.dumps(mark))) == ["3"]
        found = copied(source, "e", 2)
        assert found["2"]["document_version"] == 1577836802250
        assert (found["3"]["deleted"], found["3"]["document"], found["2"]["deleted"]) == (True, None, False)
        assert source.counts(["e"]) == source.counts(["e"], mark) == {"e": 5}
        server.run(f"UPDATE {table} SET updated = '{now}' WHERE id < 2")
        assert (source.counts(["e"]), source.counts(["e"], mark)) == ({"e": 5}, {"e": 3})
        assert set(source.present("e", ["2", "3"])) == {"2"}
        assert source.present("e", ["2"]) == {"2": 1577836802250}

    def test_integer_times(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, updated {server.integer})")
        server.fill(table, [(1, 5), (2, int(time.time() * 1000) + 60_000)])
        source = server.source({"e": {"table": table, "key": "id", "updated_at": "updated"}})
        assert changed(source, "e", source.watermark()) == ["2"]

    def test_without_a_version_all_rows_are_read_again(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY)")
        server.fill(table, [(1,), (2,)])
        source = server.source({"e": {"query": f"SELECT id FROM {table}", "key": "id"}})
        assert changed(source, "e", source.watermark()) == ["1", "2"]

    def test_a_time_series_is_cut_by_time_and_only_new_rows_are_read_again(
        self, server: TableServer, table: str
    ) -> None:
        server.run(
            f"CREATE TABLE {table} (id {server.integer} PRIMARY KEY, at {server.time} NOT NULL)",
            f"CREATE INDEX {table}_at ON {table} (at)",
        )
        server.fill(table, [(n, f"2020-01-01 00:00:{n // 5:02}") for n in range(100, 0, -1)])
        source = server.source({"e": {"table": table, "key": "id", "append_only": "at"}})
        assert sorted(map(int, copied(source, "e", 3))) == list(range(1, 101))
        made = list(source.copy_partitions(["e"], Sizing(rows=3)))
        assert len(made) > 10
        assert all(len(part.spec["from"]) == 1 for part in made if part.spec["from"] is not None)
        mark = source.watermark()
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        server.run(f"INSERT INTO {table} VALUES (101, '{now}')")
        assert changed(source, "e", mark) == ["101"]

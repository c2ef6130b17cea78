"""Cases of tombstones that the source `database` must pass on every database."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.errors import Refused
from holdfast.leases.lease import Json
from holdfast.sources.database.source import DatabaseSource
from tests.servers.live_tables import LiveTablesCases, TableServer


def removed(source: DatabaseSource, mark: Json) -> list[list[str]]:
    """The pages of ids, without the empty ones."""
    pages = source.removed("e", mark)
    assert pages is not None
    return [sorted(page) for page in pages]


class TombstoneCases(LiveTablesCases):
    """Subclasses have the fixture `server`."""

    def entity(self, table: str, **more: Any) -> dict[str, Any]:
        tombstones = {"table": f"{table}_gone", "deleted_at": "at"}
        return {"e": {"table": table, "key": "id", "tombstones": tombstones, "updated_at_unit": "ms", **more}}

    def test_ids_of_rows_that_were_deleted_since_a_mark(
        self, server: TableServer, table: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.sources.database.source.TOMBSTONES_OF_A_PAGE", 2)
        server.run(
            f"CREATE TABLE {table} (id {server.text} PRIMARY KEY, v {server.integer})",
            f"CREATE TABLE {table}_gone (id {server.text} NOT NULL, at {server.integer} NOT NULL)",
        )
        server.fill(f"{table}_gone", [("old", 1000), ("again", 1000)])
        source = server.source(self.entity(table), clock_skew="0s")
        source.open()
        mark, now = source.watermark(), int(time.time() * 1000) + 60_000
        assert removed(source, mark) == []
        # A key may be deleted several times, also at the same moment.
        keys = ["o'd\"d", "日本:%", "again", "again", "later"]
        server.fill(f"{table}_gone", [(key, now) for key in keys])
        server.fill(f"{table}_gone", [("again", now + 5)])
        pages = removed(source, mark)
        assert sorted({key for page in pages for key in page}) == sorted(set(keys))
        assert max(map(len, pages)) == 2

    def test_times_of_deletes_and_a_query(self, server: TableServer, table: str) -> None:
        server.run(
            f"CREATE TABLE {table} (a {server.text}, b {server.integer}, PRIMARY KEY (a, b))",
            f"CREATE TABLE {table}_log (a {server.text}, b {server.integer}, kind {server.text}, at {server.time})",
            f"INSERT INTO {table}_log VALUES ('x', 1, 'delete', '2020-01-01 00:00:00')",
            f"INSERT INTO {table}_log VALUES ('x:y', 2, 'delete', '2100-01-01 00:00:00')",
            f"INSERT INTO {table}_log VALUES ('x', 3, 'update', '2100-01-01 00:00:00')",
        )
        query = f"SELECT a, b, at FROM {table}_log WHERE kind LIKE 'delet%'"
        source = server.source(
            {"e": {"table": table, "key": ["a", "b"], "tombstones": {"query": query, "deleted_at": "at"}}}
        )
        source.open()
        assert removed(source, source.watermark()) == [["x%3Ay:2"]]

    def test_tombstones_that_would_be_missed_are_refused_and_wrong_names_are_named(
        self, server: TableServer, table: str
    ) -> None:
        server.run(
            f"CREATE TABLE {table} (id {server.text} PRIMARY KEY)",
            f"CREATE TABLE {table}_gone (id {server.text}, at {server.integer})",
        )
        server.fill(f"{table}_gone", [("a", 1)])
        server.fill(f"{table}_gone", [("b", None)])
        source = server.source(self.entity(table))
        with pytest.raises(Refused, match="tombstones have NULL in at, id"):
            removed(source, source.watermark())
        tombstones = {"table": f"{table}_gone", "deleted_at": "att"}
        with pytest.raises(Refused, match=r"e\.tombstones.*'att'.*did you mean 'at'"):
            server.source(self.entity(table, tombstones=tombstones)).open()

    def test_without_tombstones_or_a_mark_keys_have_to_be_compared(self, server: TableServer, table: str) -> None:
        server.run(f"CREATE TABLE {table} (id {server.text} PRIMARY KEY)")
        source = server.source({"e": {"table": table, "key": "id"}})
        assert source.removed("e", source.watermark()) is None
        server.run(f"CREATE TABLE {table}_gone (id {server.text}, at {server.integer})")
        assert server.source(self.entity(table)).removed("e", None) is None

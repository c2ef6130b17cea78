"""The source `database` on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.flow.batch import Limits
from holdfast.flow.source import Source
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import Partition
from holdfast.sources.database.source import DatabaseSource
from holdfast.testing.sources import SourceBehaviour
from tests.servers.live_tables import SqliteFile, TableServer
from tests.servers.tombstones import TombstoneCases


@pytest.fixture
def spark() -> Any:
    """Tasks read tables by themselves: their rows need no session."""
    return None


class TestDatabaseSource(SourceBehaviour):
    records = 23
    small = Limits(max_bytes=64, max_records=2)
    run = "run"

    @pytest.fixture(autouse=True)
    def _tables(self, tmp_path: Path) -> None:
        self.server = SqliteFile(tmp_path)
        self.server.run("CREATE TABLE a (id INTEGER PRIMARY KEY, v TEXT)", "CREATE TABLE b (k TEXT PRIMARY KEY)")
        self.server.fill("a", [(n * n, f"v{n}") for n in range(13)])
        self.server.fill("b", [(f"k{n}",) for n in range(10)])

    def source(self, server: TableServer) -> DatabaseSource:
        return server.source({"a": {"table": "a", "key": "id"}, "b": {"table": "b", "key": "k", "priority": 1}})

    def make_source(self) -> Source:
        return self.source(self.server)

    def make_unreachable_source(self) -> Source:
        return self.source(SqliteFile(Path("/nowhere")))

    def partitions(self, source: Source, state: dict[str, Any] | None = None) -> list[Partition]:
        assert isinstance(source, DatabaseSource)
        return list(source.copy_partitions(["a", "b"], Sizing(rows=5)))


class TestSqliteTables(TombstoneCases):
    @pytest.fixture
    def server(self, tmp_path: Path) -> TableServer:
        return SqliteFile(tmp_path)

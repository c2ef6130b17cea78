"""Runs as views: the monitoring queries of OpenMetadata's reindexing, as they were written for its own tables."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pymysql
import pytest
from typer.testing import CliRunner

from holdfast.cli.root import app as commands
from holdfast.errors import StoreError
from holdfast.flow.run import Run
from holdfast.flow.run_views import RUN_VIEWS, HasRunViews, ViewedRuns
from holdfast.flow.runs import Runs
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Counts, Key, Lease, Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming, nodes_of
from holdfast.leases.store import ClaimingStore
from holdfast.leases.transitions import RetryLimits
from holdfast.runs.lock import RunLock
from holdfast.testing.worlds import make_world
from holdfast.web.job_status import status_message
from tests.servers.databases import Database, Mariadb, Postgresql, TurnableServerClock
from tests.servers.processes import PASSWORD

JOB_STATUS = """
SELECT id, status, totalRecords, successRecords, failedRecords, updatedAt
FROM search_index_job WHERE status IN ('RUNNING', 'READY');
"""
PARTITION_DISTRIBUTION = """
SELECT assignedServer, status, COUNT(*) as count
FROM search_index_partition WHERE jobId = %s
GROUP BY assignedServer, status;
"""
STALE_PARTITIONS = """
SELECT * FROM search_index_partition
WHERE status = 'PROCESSING'
AND lastUpdateAt < (UNIX_TIMESTAMP() * 1000 - 300000);
"""
COLUMNS = {
    "search_index_job": "id status jobConfiguration stagedIndexPrefix totalRecords processedRecords successRecords "
    "failedRecords statsJson createdBy createdAt startedAt completedAt updatedAt errorMessage",
    "search_index_partition": "id jobId entityType partitionIndex rangeStart rangeEnd estimatedCount workUnits "
    "priority status processingCursor processedCount successCount failedCount assignedServer claimedAt startedAt "
    "completedAt lastUpdateAt lastError retryCount",
    "search_reindex_lock": "lockKey jobId serverId acquiredAt lastHeartbeat expiresAt",
}
PIPELINE, RUN = "prod|catalog", "reindex-1"
FLEET = nodes_of("prod")
CONFIGURATION = {"kind": "reindex", "entities": ["users", "orders"], "stagedIndexPrefix": "staged_"}
LIMITS = RetryLimits()
NUMBERS = {
    "range_start": "rangeStart",
    "range_end": "rangeEnd",
    "estimated_count": "estimatedCount",
    "work_units": "workUnits",
    "index": "partitionIndex",
}
PARTITIONS = [
    Partition("users/0", "users", priority=5, work_units=12, range_start=0, range_end=60, estimated_count=60, index=0),
    Partition("users/1", "users", priority=4, range_start=60, range_end=100, estimated_count=40, index=1),
    Partition("orders/0", "orders", priority=3, range_start=0, range_end=30, estimated_count=30, index=0),
    Partition("orders/1", "orders", priority=2, range_start=30, range_end=50, estimated_count=20, index=1),
    Partition("orders/2", "orders", priority=1, range_start=50, range_end=55, estimated_count=5, index=2),
]


class Views(NamedTuple):
    """The views as somebody reads them who knows nothing of holdfast."""

    database: Database

    def rows(self, text: str, *values: Any) -> list[dict[str, Any]]:
        with self.database.session() as cursor:
            cursor.execute(text, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def all(self, view: str) -> list[dict[str, Any]]:
        """The rows by the names of the columns as MySQL shows them; PostgreSQL folds them to lower case."""
        names = COLUMNS[view].split()
        return [dict(zip(names, row.values(), strict=True)) for row in self.rows(f"SELECT * FROM {view} ORDER BY 1")]

    def partition(self, key: str) -> dict[str, Any]:
        (row,) = [row for row in self.all("search_index_partition") if row["id"] == f"{RUN}/{key}"]
        return row


class Node:
    def __init__(self, store: ClaimingStore, name: str) -> None:
        self.session = Session(store, make_world(name), FLEET, NodeInfo(name, f"host:{name}"), SessionTiming())
        self.session.join()
        live = Coordinator(store, make_world(f"{name}-live"), self.session, PIPELINE, policy=ClaimPolicy())
        self.runs = Runs(live)
        self.lock = RunLock(live, self.runs)
        self.leases = self.runs.coordinator(RUN)


class Site:
    """A run of five partitions on two nodes, of which the first drives it."""

    def __init__(self, database: Database) -> None:
        self.views = Views(database)
        self.clock = TurnableServerClock(database)
        self.clock.turn(time.time() - 1_000_000 - 1000)
        self.store = database.make_store(self.clock.sql)
        self.store.open()
        self.a, self.b = Node(self.store, "a"), Node(self.store, "b")
        runs = self.a.runs
        runs.add(RUN, configuration=CONFIGURATION, created_by="ann")
        self.token = self.a.lock.acquire(RUN, ["users", "orders"])
        runs.drive(RUN, self.token)
        runs.create(RUN, self.token, PARTITIONS)
        runs.start(RUN, self.token)

    def create(self) -> None:
        assert isinstance(self.store, HasRunViews)
        self.store.create_run_views(ViewedRuns(["other", PIPELINE], FLEET, "reindex"))

    def remove(self) -> None:
        assert isinstance(self.store, HasRunViews)
        self.store.remove_run_views()

    def work(self) -> Run:
        """Node a completes the first partition and is in the middle of the third, b fails the second; one is free."""
        first, second, third, fourth = (node.leases.claim(1)[0] for node in (self.a, self.b, self.a, self.b))
        self.count(self.a, first, Counts(60, 57, 2, 1))
        self.a.leases.write([first], transitions.complete)
        hopeless = RetryLimits(max_retries=0)
        self.b.leases.write([second], lambda row, now: transitions.fail_attempt(row, "x\0y", hopeless, now))
        self.count(self.a, third, Counts(7, 7))
        self.b.leases.write([fourth], lambda row, now: transitions.fail_attempt(row, "no", LIMITS, now))
        return self.a.runs.aggregate(RUN, self.token)

    def count(self, node: Node, lease: Lease, counts: Counts) -> None:
        node.leases.write([lease], lambda row, _: replace(row, progress=replace(row.progress, counts=counts)))


@pytest.fixture(params=["postgresql", "mariadb"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    kind = Postgresql if request.param == "postgresql" else Mariadb
    site = Site(kind(request.getfixturevalue(f"{request.param}_server")))
    try:
        yield site
    finally:
        site.remove()
        site.store.close()


def test_the_monitoring_queries_run_as_they_are_written(site: Site) -> None:
    run = site.work()
    site.create()
    (job,) = [tuple(row.values()) for row in site.views.rows(JOB_STATUS)]
    assert job == (RUN, "RUNNING", 155, 64, 3, int((run.updated_at or 0) * 1000))
    found = site.views.rows(PARTITION_DISTRIBUTION, RUN)
    assert {tuple(row.values()) for row in found} == {
        ("a", "COMPLETED", 1),
        ("b", "FAILED", 1),
        ("a", "PROCESSING", 1),
        (None, "PENDING", 2),
    }
    assert site.views.rows(PARTITION_DISTRIBUTION, "another") == []


def test_a_partition_looks_stale_only_if_its_node_is_silent(site: Site) -> None:
    for node in (site.a, site.b):
        node.leases.claim(1)
    site.create()
    assert [row["id"] for row in site.views.rows(STALE_PARTITIONS)] == [f"{RUN}/users/0", f"{RUN}/users/1"]
    site.clock.turn(1000)
    site.a.session.heartbeat()
    assert [row["id"] for row in site.views.rows(STALE_PARTITIONS)] == [f"{RUN}/users/1"]


def test_jobs_and_partitions_have_every_column(site: Site) -> None:
    site.a.runs.add("backfill-1", configuration={"kind": "backfill"}, created_by="bob")
    run = site.work()
    site.create()
    (job,) = site.views.all("search_index_job")
    assert json.loads(job.pop("jobConfiguration")) == CONFIGURATION
    assert json.loads(job.pop("statsJson")) == json.loads(status_message(run))["stats"]["entityStats"]
    assert job == {
        "id": RUN,
        "status": "RUNNING",
        "stagedIndexPrefix": "staged_",
        "totalRecords": 155,
        "processedRecords": 67,
        "successRecords": 64,
        "failedRecords": 3,
        "createdBy": "ann",
        "createdAt": _milliseconds(run.created_at),
        "startedAt": _milliseconds(run.started_at),
        "completedAt": None,
        "updatedAt": _milliseconds(run.updated_at),
        "errorMessage": None,
    }
    for partition in PARTITIONS:
        row, stored = site.views.partition(partition.key), _row(site, partition.key)
        assert {name: row[column] for name, column in NUMBERS.items()} == {
            name: getattr(partition, name) for name in NUMBERS
        }
        past, counts = stored.history, stored.progress.counts
        assert row["jobId"] == RUN
        assert row["entityType"] == partition.group
        assert row["priority"] == partition.priority
        assert row["processingCursor"] == int(partition.range_start or 0) + counts.processed
        assert (row["processedCount"], row["successCount"]) == (counts.processed, counts.succeeded)
        assert row["failedCount"] == counts.failed + counts.dead
        assert (row["claimedAt"], row["startedAt"]) == (_milliseconds(past.claimed_at), _milliseconds(past.started_at))
        assert row["completedAt"] == _milliseconds(past.completed_at)
        assert row["retryCount"] == past.attempts + past.takeovers
    # Text in PostgreSQL cannot have a NUL.
    assert site.views.partition("users/1")["lastError"] == "x\ufffdy"
    assert site.views.partition("orders/1")["retryCount"] == 1


def test_a_partition_of_nodes_that_died_shows_its_new_owner_and_how_often_it_was_taken_over(site: Site) -> None:
    site.create()
    site.b.leases.claim(1)
    for taker, takeovers in ((site.a, 0), (Node(site.store, "c"), 2)):
        site.clock.turn(40)
        taker.session.join()
        taker.leases.sweep()
        (taken,) = taker.leases.claim(1)
        assert _owner_and_retries(site) == (taker.session.name, takeovers)
        taker.leases.write([taken], lambda row, _: transitions.begin(row, 10, LIMITS))
        assert _owner_and_retries(site) == (taker.session.name, max(1, takeovers))


def _owner_and_retries(site: Site) -> tuple[str, int]:
    row, stored = site.views.partition("users/0"), _row(site, "users/0").history
    assert row["retryCount"] == stored.takeovers
    return row["assignedServer"], row["retryCount"]


def test_locks_are_those_of_the_entities_and_expire_with_the_session(site: Site) -> None:
    site.clock.turn(100)
    site.a.session.heartbeat()
    now = site.store.now()
    site.create()
    locks = site.views.all("search_reindex_lock")
    assert [lock["lockKey"] for lock in locks] == [
        f"SEARCH_REINDEX_LOCK/{PIPELINE}/orders",
        f"SEARCH_REINDEX_LOCK/{PIPELINE}/users",
    ]
    for lock in locks:
        assert (lock["jobId"], lock["serverId"]) == (RUN, "a")
        assert lock["acquiredAt"] <= int(now * 1000) - 100_000
        assert lock["lastHeartbeat"] == _milliseconds(now)
        assert lock["expiresAt"] == _milliseconds(now + 30)
    site.a.lock.release()
    assert site.views.all("search_reindex_lock") == []


def test_a_row_that_cannot_be_read_does_not_hide_the_others(site: Site) -> None:
    site.create()
    table = site.views.database.table
    site.views.database.run(f"""UPDATE {table} SET "body" = '{{oops' WHERE "key" = 'users/0'""")
    assert len(site.views.all("search_index_partition")) == len(PARTITIONS)
    assert site.views.partition("users/0")["rangeEnd"] is None


def test_views_are_replaced_and_removed_and_a_table_of_that_name_is_kept(site: Site) -> None:
    site.create()
    site.create()
    site.remove()
    site.remove()
    database = site.views.database
    database.run("CREATE TABLE search_index_partition (id int)", "INSERT INTO search_index_partition VALUES (1)")
    try:
        with pytest.raises(StoreError, match="search_index_partition"):
            site.create()
        site.remove()
        assert database.run("SELECT * FROM search_index_partition") == [(1,)]
    finally:
        database.run("DROP TABLE search_index_partition")


def test_the_command_creates_the_views_of_all_pipelines_of_a_file_and_removes_them(site: Site, tmp_path: Path) -> None:
    site.work()
    settings = site.views.database.settings().model_dump(include={"host", "port", "database", "user", "table_prefix"})
    name = {"postgres": "postgresql", "tests": "mysql"}[settings["database"]]
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "password").chmod(0o600)
    settings["password"] = f"${{file:{tmp_path / 'password'}}}"
    coordination = {"partition_prefix": "prod", "store": {name: settings}}
    pipeline = {"source": {"objects": {"folder": "in"}}, "sinks": [{"files": {"root": "out"}}]}
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps({"source_coordination": coordination, "pipelines": {"catalog": pipeline}}))
    created = CliRunner().invoke(commands, ["reindex", "views", str(file)])
    assert (created.exit_code, created.output) == (0, f"created {', '.join(RUN_VIEWS)}\n")
    assert len(site.views.rows(STALE_PARTITIONS)) == 1
    assert CliRunner().invoke(commands, ["reindex", "views", str(file), "--remove"]).exit_code == 0
    with pytest.raises((psycopg.Error, pymysql.Error), match="search_index_job"):
        site.views.rows(JOB_STATUS)


def test_a_function_of_somebody_else_is_kept(postgresql_server: Any) -> None:
    database = Postgresql(postgresql_server)
    store = database.make_store()
    store.open()
    database.run("CREATE FUNCTION unix_timestamp() RETURNS int LANGUAGE sql AS 'SELECT 7'", "SELECT 1")
    try:
        store.create_run_views(ViewedRuns([PIPELINE], FLEET, "reindex"))  # type: ignore[attr-defined]
        store.remove_run_views()  # type: ignore[attr-defined]
        assert database.run("SELECT unix_timestamp()") == [(7,)]
    finally:
        database.run("DROP FUNCTION unix_timestamp()")
        store.close()


def test_the_columns_are_those_of_the_tables() -> None:
    assert tuple(COLUMNS) == RUN_VIEWS


def _row(site: Site, key: str) -> Lease:
    (row,) = site.store.get([Key(PIPELINE, RUN, key)])
    assert row is not None
    return row


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)

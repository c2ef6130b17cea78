"""`holdfast reindex`: what a person does with reindex runs. No node runs here; the index server is a model."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import assemble
from holdfast.cli import reindex
from holdfast.flow.partition_list import PartitionLimits
from holdfast.flow.run import GroupStats, NodeStats, Run, RunStatus
from holdfast.flow.search_index import AliasState, IndexOwner, IndexPlan
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import Partition
from holdfast.leases.session import Session
from holdfast.leases.world import host_world
from holdfast.runs.lock import LockTiming
from holdfast.runs.reindex_configuration import checked_configuration, parse_configuration
from holdfast.runs.reindex_pipeline import run_pipeline, with_limits
from holdfast.runs.reindex_state import LAST_PASS, EntityIndex, ReindexState
from holdfast.sinks.opensearch.staged_sink import StagedSink
from holdfast.sources.database.source import DatabaseSource
from tests.simulation.index_server import IndexServer
from tests.unit.cli.conftest import Site

FILE = """\
source_coordination:
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  catalog:
    source:
      database:
        url: sqlite:///{folder}/app.db
        entities:
          users: {{table: users, key: id, updated_at: changed, index: people}}
          teams: {{table: users, key: id, updated_at: changed}}
    sinks:
      - opensearch: {{hosts: ["http://127.0.0.1:9"], mode: staged}}
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> IndexServer:
    model = IndexServer()
    monkeypatch.setattr(StagedSink, "indexes", lambda _sink: model)
    return model


@pytest.fixture
def file(site: Site, tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "app.db") as database:
        database.execute("create table users (id integer primary key, name text, changed integer)")
        database.executemany("insert into users values (?, ?, ?)", [(number, "x", 5) for number in range(7)])
    path = tmp_path / "catalog.yaml"
    path.write_text(FILE.format(folder=tmp_path))
    site.store(str(path)).close()
    return str(path)


def stored(site: Site, file: str) -> assemble.StoredPipeline:
    return assemble.StoredPipeline(assemble.load_settings(file), site.store(file), "catalog")


def end_run(site: Site, file: str, run_id: str, status: RunStatus, state: ReindexState) -> None:
    """The run as its driver would have left it."""
    runs = stored(site, file).runs()
    runs.keep(run_id, 1, state.encode())
    runs.create(run_id, 1, ())
    runs.start(run_id, 1)
    runs.end(run_id, 1, status)


def test_a_run_is_started_listed_stopped_resumed_and_throttled(site: Site, file: str) -> None:
    started = site.invoke("reindex", "start", file, "--entities", "users", "--batch-size", "50")
    run_id = started.stdout.strip()
    assert (started.exit_code, run_id[:8]) == (0, "reindex-")
    (listed,) = site.json("reindex", "list", file)
    assert (listed["id"], listed["status"]) == (run_id, "INITIALIZING")
    chosen = listed["configuration"]
    assert (chosen["entities"], chosen["batchSize"], chosen["recreateIndex"]) == (["users"], 50, True)
    assert "is INITIALIZING" in site.invoke("reindex", "status", file).stdout
    assert site.invoke("reindex", "throttle", file, "2500").stdout == f"run {run_id}: at most 2500 records per second\n"
    assert site.json("reindex", "status", file)["throttle"] == 2500
    assert site.invoke("reindex", "throttle", file, "none").stdout == f"run {run_id}: no limit\n"
    assert "neither a number" in site.invoke("reindex", "throttle", file, "fast").stderr
    runs = stored(site, file).runs()
    runs.create(run_id, 1, ())
    assert "is STOPPED" in site.invoke("reindex", "stop", file).stdout  # no node runs that would settle it
    assert "is READY" in site.invoke("reindex", "resume", file).stdout


def test_the_status_shows_entities_the_rate_and_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {"users": GroupStats(partitions=4, total=100, completed=1, processed=40, succeeded=38, failed=2)}
    nodes = {"vm:1": NodeStats(held=3, completed=1, processed=40, failed=2)}
    run = Run("r1", RunStatus.RUNNING, groups=groups, nodes=nodes, rate=6.0, phase="catch-up")
    reindex._show(run, {"vm:1": "replica1"}, json=False)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "run r1 is RUNNING (catch-up)"
    assert shown[2].split() == ["users", "4", "1", "0", "100", "38", "2"]
    assert shown[3] == "6 documents per second, about 10s left"
    assert shown[5].split() == ["replica1", "3", "1", "40", "2"]


def test_a_dry_run_shows_partitions_and_changes_nothing(site: Site, file: str) -> None:
    shown = site.invoke("reindex", "start", file, "--dry-run")
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [
        ["users", "people", "1", "7", "-"],
        ["teams", "teams", "1", "7", "-"],
    ]
    assert site.json("reindex", "list", file) == []


def test_a_dry_run_estimates_the_time_by_the_speed_of_the_latest_copy(site: Site, file: str) -> None:
    runs = stored(site, file).runs()
    for number, rates in enumerate([{"users": 9.0, "teams": 0.5}, {"users": 0.25}, {}]):
        run_id = f"r{number}"
        runs.add(
            run_id, configuration=checked_configuration({"entities": ["users", "teams"]}).encode(), created_by="ann"
        )
        runs.keep(run_id, 1, ReindexState({}, {}, rates=rates).encode())
        runs.fail(run_id, "no node")
    shown = site.invoke("reindex", "start", file, "--dry-run")
    # 7 rows, and four batches at a time.
    assert [line.split()[-1] for line in shown.stdout.splitlines()[1:]] == ["7.0", "3.5"]


def test_the_nodes_that_run_now_decide_the_number_of_partitions(site: Site, file: str) -> None:
    pipeline = stored(site, file)
    driver: Any = run_pipeline(pipeline, checked_configuration({}).encode()).driver
    assert driver.sizing(checked_configuration({})).slots == 4, "a node is expected"
    sessions = [_joined(pipeline, name, ("catalog",)) for name in ("a", "b", "c")]
    _joined(pipeline, "idle", ())
    assert driver.sizing(checked_configuration({})).slots == 12
    assert driver.sizing(checked_configuration({"consumerThreads": 2})).slots == 6
    assert driver.sizing(checked_configuration({"useDistributedIndexing": False})).slots == 4
    sessions[0].leave()
    assert driver.sizing(checked_configuration({})).slots == 8


def _joined(pipeline: assemble.StoredPipeline, name: str, pipelines: tuple[str, ...]) -> Session:
    session = assemble.new_session(
        pipeline.settings, pipeline.store, host_world(lambda _event: None), pipelines=pipelines, name=name
    )
    session.join()
    return session


def test_locks_and_limits_of_runs_are_those_of_the_file(site: Site, file: str) -> None:
    made = run_pipeline(stored(site, file), checked_configuration({}).encode())
    assert (made.lock_timing, made.limits) == (LockTiming(300.0, 60.0), PartitionLimits(10_000, 50_000))
    text = Path(file).read_text()
    runs = "runs: {lock_timeout: 40s, max_partitions_per_group: 3, max_partitions: 5}"
    Path(file).write_text(f"{text}    {runs}\n")
    made = run_pipeline(stored(site, file), checked_configuration({"partitionSize": 2}).encode())
    assert (made.lock_timing, made.limits) == (LockTiming(40.0, 8.0), PartitionLimits(3, 5))
    refused = site.invoke("reindex", "start", file, "--dry-run", "--configuration", _saved(file, {"partitionSize": 2}))
    assert "make them of 3 rows or more" in refused.stderr


def _saved(file: str, configuration: dict[str, Any]) -> str:
    path = Path(file).with_name("run.json")
    path.write_text(json.dumps(configuration))
    return str(path)


def test_a_dry_run_has_the_partitions_of_the_run(site: Site, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Sizing] = []
    original = DatabaseSource.copy_partitions

    def copy_partitions(self: DatabaseSource, entities: Sequence[str], sizing: Sizing) -> Iterator[Partition]:
        given.append(sizing)
        return original(self, entities, sizing)

    monkeypatch.setattr(DatabaseSource, "copy_partitions", copy_partitions)
    monkeypatch.setattr(StagedSink, "indexes", lambda _sink: IndexServer())
    site.invoke("reindex", "start", file, "--dry-run")
    configuration = checked_configuration({"entities": ["users", "teams"]})
    made = run_pipeline(stored(site, file), configuration.encode())
    mark = made.built.source.watermark()  # type: ignore[attr-defined]
    indexes = {name: EntityIndex(name, name) for name in configuration.entities}
    state = ReindexState(mark, indexes).encode()
    list(made.driver.partitions(Run("r1", RunStatus.INITIALIZING, configuration.encode(), state=state)))
    assert given[0] == given[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("start", "--entities", "nobody"), "there is no entity 'nobody'; there are users, teams"),
        (("start", "--changed"), "no COMPLETED run covers users, teams"),
        (("start", "--changed", "--recreate"), "cannot be combined"),
        (("status",), "has no reindex runs"),
        (("rollback",), "there is nothing to take back"),
        (("views",), "the store sqlite cannot have views; only postgresql and mysql can"),
        (("serve", "--host", "192.0.2.1"), "add --allow-remote"),
    ],
)
@pytest.mark.usefixtures("server")
def test_what_cannot_be_done_is_said(site: Site, file: str, arguments: tuple[str, ...], message: str) -> None:
    verb, *options = arguments
    result = site.invoke("reindex", verb, file, *options)
    assert result.exit_code != 0
    assert message in result.stderr


def test_the_json_of_openmetadata_is_accepted_under_its_names(site: Site, file: str, tmp_path: Path) -> None:
    given = {
        "entities": ["users"],
        "recreateIndex": False,
        "batchSize": 100,
        "consumerThreads": 2,
        "useDistributedIndexing": True,
        "maxConcurrentRequests": 100,
        "payLoadSize": "100MB",
        "stagedIndexPrefix": "rebuild_",
    }
    (tmp_path / "run.json").write_text(json.dumps(given))
    started = site.invoke("reindex", "start", file, "--configuration", str(tmp_path / "run.json"), "--batch-size", "70")
    assert started.exit_code == 0, started.stderr
    (listed,) = site.json("reindex", "list", file)
    assert listed["configuration"] | given | {"batchSize": 70, "payLoadSize": 100_000_000} == listed["configuration"]
    limited = with_limits(stored(site, file), parse_configuration(json.dumps(given))).configured
    sink: Any = limited.sinks[0].use.config
    assert (limited.round.max_batches, sink.concurrency) == (2, 50)
    assert (sink.max_bulk_documents, sink.max_bulk_bytes) == (100, 100_000_000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batchSize": 0}, "batchSize: Input should be greater than or equal to 1"),
        ({"batchsize": 5}, "batchsize is not a member of the configuration; there are entities, recreateIndex"),
    ],
)
def test_a_wrong_member_of_the_configuration_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        checked_configuration(given)


def test_what_changed_is_copied_since_the_mark_of_the_last_completed_run(site: Site, file: str) -> None:
    first = site.invoke("reindex", "start", file).stdout.strip()
    indexes = {name: EntityIndex(name, f"staged_{name}_1", first) for name in ("users", "teams")}
    end_run(site, file, first, RunStatus.COMPLETED, ReindexState({"at": 9}, indexes, LAST_PASS))
    assert site.invoke("reindex", "start", file, "--changed", "--entities", "users").exit_code == 0
    chosen = site.json("reindex", "status", file)["configuration"]
    assert (chosen["changedSince"], chosen["recreateIndex"]) == ({"at": 9}, False)


def test_a_run_that_was_not_promoted_is_promoted_by_a_further_run(site: Site, file: str) -> None:
    first = site.invoke("reindex", "start", file, "--entities", "users").stdout.strip()
    assert "is INITIALIZING" in site.invoke("reindex", "promote", file).stderr
    state = ReindexState(None, {"users": EntityIndex("people", "staged_people_1", first)})
    end_run(site, file, first, RunStatus.COMPLETED_WITH_ERRORS, state)
    assert site.invoke("reindex", "promote", file, "--min-ratio", "0.5").exit_code == 0
    chosen = site.json("reindex", "status", file)["configuration"]
    assert (chosen["continues"], chosen["promoteWithErrors"], chosen["minRatio"]) == (first, True, 0.5)


def test_a_stopped_run_is_resumed_and_not_promoted_without_the_rows_that_it_has_not_copied(
    site: Site, file: str, server: IndexServer
) -> None:
    run_id = site.invoke("reindex", "start", file, "--entities", "users").stdout.strip()
    server.create("staged_people_1", IndexOwner("catalog", run_id), IndexPlan())
    runs = stored(site, file).runs()
    runs.keep(run_id, 1, ReindexState(None, {"users": EntityIndex("people", "staged_people_1", run_id)}).encode())
    runs.create(run_id, 1, ())
    site.invoke("reindex", "stop", file)
    assert "`holdfast reindex resume`" in site.invoke("reindex", "promote", file).stderr


def test_a_rollback_moves_the_alias_back_and_deletes_the_index(site: Site, file: str, server: IndexServer) -> None:
    run_id = site.invoke("reindex", "start", file, "--entities", "users").stdout.strip()
    former = AliasState(("people_old",))
    target = EntityIndex("people", "staged_people_1", run_id, former)
    server.write("people_old", "1", 5, "{}")
    server.create("staged_people_1", IndexOwner("catalog", run_id), IndexPlan())
    server.swap("people", AliasState(), "staged_people_1")
    assert "stop it first" in site.invoke("reindex", "rollback", file, "--entities", "users").stderr
    end_run(site, file, run_id, RunStatus.COMPLETED, ReindexState(None, {"users": target}, LAST_PASS))
    result = site.invoke("reindex", "rollback", file, "--entities", "users")
    assert result.stdout == "users: the alias people names people_old again, instead of staged_people_1\n"
    assert server.alias("people").indexes == ("people_old",)
    assert list(server.indexes) == ["people_old"]


def test_a_rollback_that_ends_between_two_entities_is_not_audited_as_refused(
    site: Site, file: str, server: IndexServer
) -> None:
    run_id = site.invoke("reindex", "start", file).stdout.strip()
    targets = {}
    for entity, alias in (("users", "people"), ("teams", "teams")):
        targets[entity] = EntityIndex(alias, f"staged_{alias}", run_id, AliasState((f"{alias}_old",)))
        server.create(f"staged_{alias}", IndexOwner("catalog", run_id), IndexPlan())
        server.swap(alias, AliasState(), f"staged_{alias}")
    server.write("people_old", "1", 5, "{}")  # and there is no teams_old any more
    end_run(site, file, run_id, RunStatus.COMPLETED, ReindexState(None, targets, LAST_PASS))
    assert "cannot name teams_old again" in site.invoke("reindex", "rollback", file).stderr
    assert server.alias("people").indexes == ("people_old",)
    (entry,) = site.json("audit-log", file, "--limit", "1")
    assert (entry["action"], entry["outcome"]) == ("reindex rollback", "unknown")


def test_after_a_rollback_what_changed_is_counted_from_the_run_of_the_index_that_is_live_again(
    site: Site, file: str, server: IndexServer
) -> None:
    runs = []
    for number in (1, 2, 3):
        runs.append(site.invoke("reindex", "start", file, "--entities", "users").stdout.strip())
        former, index = AliasState((f"people_{number - 1}",)), f"people_{number}"
        if number == 3:
            target = EntityIndex("people", "people", former=former)  # in place, in the index of the second run
        else:
            target = EntityIndex("people", index, runs[-1], former)
            server.create(index, IndexOwner("catalog", runs[-1]), IndexPlan())
            server.swap("people", server.alias("people"), index)
        end_run(site, file, runs[-1], RunStatus.COMPLETED, ReindexState({"at": number}, {"users": target}, LAST_PASS))
    start = ("reindex", "start", file, "--entities", "users", "--changed")
    server.indexes["hidden"] = server.indexes.pop("people_1")
    assert "cannot name people_1 again" in site.invoke("reindex", "rollback", file, "--entities", "users").stderr
    assert site.invoke(*start).exit_code == 0
    last = site.json("reindex", "status", file)
    assert last["configuration"]["changedSince"] == {"at": 3}
    stored(site, file).runs().fail(last["id"], "stopped by the test")
    server.indexes["people_1"] = server.indexes.pop("hidden")
    assert site.invoke("reindex", "rollback", file, "--entities", "users").exit_code == 0
    assert site.invoke(*start).exit_code == 0
    assert site.json("reindex", "status", file)["configuration"]["changedSince"] == {"at": 1}


def test_verify_finds_what_differs_and_mends_it(site: Site, file: str, server: IndexServer) -> None:
    server.write("people", "0", 5, json.dumps({"id": 0, "name": "x", "changed": 5}))
    server.write("people", "99", 5, "{}")
    result = site.invoke("reindex", "verify", file, "--entities", "users", "--json")
    (found,) = json.loads(result.stdout)
    assert (result.exit_code, found["missing"], found["different"], found["extra"]) == (1, 6, 0, 1)
    assert site.invoke("reindex", "verify", file, "--entities", "users", "--repair").exit_code == 0
    assert site.invoke("reindex", "verify", file, "--entities", "users").exit_code == 0
    assert len(server.search("people")) == 7


def test_a_repair_that_the_index_refuses_is_not_a_success(
    site: Site, file: str, server: IndexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write("people", "0", 5, "{}")
    monkeypatch.setattr(server, "put", lambda *_: 0)
    assert site.invoke("reindex", "verify", file, "--entities", "users", "--repair").exit_code == 1


def test_rows_are_not_written_past_the_processors_that_change_documents(
    site: Site, file: str, server: IndexServer
) -> None:
    text = Path(file).read_text()
    Path(file).write_text(
        text.replace("    sinks:", "    processors:\n      - drop_events: {drop_when: 'id = 3'}\n    sinks:")
    )
    server.write("people", "0", 5, "{}")
    result = site.invoke("reindex", "verify", file, "--entities", "users", "--repair")
    assert result.exit_code != 0
    assert "holdfast reindex start --in-place" in result.stderr
    assert len(server.search("people")) == 1
    assert site.invoke("reindex", "verify", file, "--entities", "users").exit_code == 1


def test_runs_of_others_are_not_reindex_runs(site: Site, file: str) -> None:
    stored(site, file).runs().add("backfill-1", configuration={"kind": "backfill"}, created_by="ann")
    assert site.json("reindex", "list", file) == []

"""`holdfast runs`: what goes on beside the live pipeline, and how to end it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import typer

from holdfast import assemble
from holdfast.cli.options import arguments_of, opened_pipeline
from holdfast.cli.reprocess import end
from holdfast.flow.run import Run, RunStatus
from holdfast.flow.runs import Runs
from holdfast.leases.lease import Partition
from holdfast.leases.store import Store
from tests.unit.cli.conftest import Site


@pytest.fixture
def file(site: Site) -> str:
    return site.write()


@pytest.fixture
def store(site: Site, file: str) -> Iterator[Store]:
    opened = site.store(file)
    yield opened
    opened.close()


@pytest.fixture
def runs(file: str, store: Store) -> Runs:
    found = assemble.StoredPipeline(assemble.load_settings(file), store, "orders").runs()
    configuration = {"kind": "backfill", "generation": 2, "roots": {"files": "out-g2"}}
    found.add("backfill-1", configuration=configuration, created_by="ann")
    found.create("backfill-1", 1, [Partition("orders|0", "orders")])
    found.start("backfill-1", 1)
    return found


@pytest.mark.usefixtures("runs")
def test_runs_are_listed_and_shown(site: Site, file: str) -> None:
    (row,) = site.json("runs", "list", file)
    assert (row["id"], row["status"], row["created_by"]) == ("backfill-1", "RUNNING", "ann")
    head, row = site.invoke("runs", "list", file).stdout.splitlines()
    assert head.startswith("RUN ")
    assert "backfill-1" in row
    shown = json.loads(site.invoke("runs", "show", file, "backfill-1", "--json").stdout)
    assert shown["configuration"]["roots"] == {"files": "out-g2"}


def test_a_run_that_nobody_works_on_is_stopped_at_once(site: Site, file: str, runs: Runs) -> None:
    result = site.invoke("runs", "stop", file, "backfill-1")
    assert (result.exit_code, result.stdout) == (0, "run backfill-1 is STOPPED\n")
    assert runs.show("backfill-1").status.value == "STOPPED"
    second = site.invoke("runs", "stop", file, "backfill-1")
    assert second.exit_code != 0
    assert "cannot become STOPPING" in second.stderr
    assert site.invoke("runs", "resume", file, "backfill-1").stdout == "run backfill-1 is READY\n"
    assert runs.show("backfill-1").status.value == "READY"


def test_a_run_that_a_node_works_on_stops_when_that_has_let_go(site: Site, file: str, store: Store, runs: Runs) -> None:
    worker = assemble.StoredPipeline(assemble.load_settings(file), store, "orders").runs()
    session = worker.coordinator("backfill-1").session
    session.join()
    (held,) = worker.coordinator("backfill-1").claim(1)
    assert "is STOPPING" in site.invoke("runs", "stop", file, "backfill-1").stdout
    worker.coordinator("backfill-1").release([held])
    assert runs.settle_stop("backfill-1").status.value == "STOPPED"


def test_the_progress_of_groups_and_nodes_is_shown(site: Site, file: str, runs: Runs) -> None:
    session = runs.coordinator("backfill-1").session
    session.join()
    runs.coordinator("backfill-1").claim(1)
    runs.aggregate("backfill-1", 1)
    shown = site.invoke("runs", "show", file, "backfill-1").stdout
    headline, groups, group, nodes, node = shown.splitlines()
    assert headline.startswith("backfill-1 is RUNNING; 0 of 0 records, 0 failed")
    assert (groups.split()[0], group.split()[:3]) == ("GROUP", ["orders", "1", "0"])
    assert (nodes.split()[0], node.split()[1:3]) == ("NODE", ["1", "0"])


def test_a_run_is_throttled_until_the_limit_is_lifted(site: Site, file: str, runs: Runs) -> None:
    assert "at most 500 records" in site.invoke("runs", "throttle", file, "backfill-1", "500").stdout
    assert runs.show("backfill-1").throttle == 500
    assert "neither a number" in site.invoke("runs", "throttle", file, "backfill-1", "0").stderr
    assert site.invoke("runs", "throttle", file, "backfill-1", "none").stdout == "run backfill-1: no limit\n"
    assert runs.show("backfill-1").throttle is None


@pytest.mark.parametrize("verb", ["show", "stop", "resume", "join"])
def test_a_run_that_is_not_there_is_told(site: Site, file: str, runs: Runs, verb: str) -> None:
    result = site.invoke("runs", verb, file, "backfill-9")
    assert result.exit_code == 2
    assert "there is no run 'backfill-9'" in result.stderr
    assert runs.show("backfill-1").status.value == "RUNNING"


def test_a_run_that_has_ended_is_not_joined(site: Site, file: str, runs: Runs) -> None:
    runs.fail("backfill-1", "its disk was full")
    result = site.invoke("runs", "join", file, "backfill-1")
    assert result.exit_code == 2
    assert "is FAILED; there is nothing left to do" in result.stderr


def test_a_pipeline_is_paused_and_a_node_drained_until_that_is_taken_back(site: Site, file: str, runs: Runs) -> None:
    runs.coordinator("backfill-1").session.join()
    assert site.invoke("pipelines", "pause", file, "--pipeline", "orders").stdout == "pipeline orders is paused\n"
    assert site.json("pipelines", "list", file)["orders"] == "paused"
    site.invoke("pipelines", "resume", file, "--pipeline", "orders")
    assert site.json("pipelines", "list", file)["orders"] == "active"
    (node,) = site.json("nodes", file)
    assert node["drained"] is False
    site.invoke("drain", file, node["name"])
    assert site.json("nodes", file)[0]["drained"] is True
    assert "drained" in site.invoke("nodes", file).stdout
    site.invoke("undrain", file, node["name"])
    assert site.json("nodes", file)[0]["drained"] is False
    for verb in ("drain", "undrain"):
        result = site.invoke(verb, file, "nobody")
        assert (result.exit_code, "there is no node 'nobody'" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("kind", "status", "wanted"),
    [
        ("backfill", RunStatus.RUNNING, "continue it with `holdfast runs join f.yaml --pipeline orders r1`"),
        ("rewind", RunStatus.STOPPED, "`holdfast runs resume f.yaml --pipeline orders r1` lets it go on"),
        ("rewind", RunStatus.COMPLETED_WITH_ERRORS, "--pipeline orders --run r1 --status FAILED` shows which and why"),
        ("backfill", RunStatus.FAILED, "give the command of this backfill with a --root that has no files"),
        ("redrive", RunStatus.FAILED, "`holdfast deadletters redrive f.yaml --pipeline orders` sends what was not"),
        ("reindex", RunStatus.FAILED, "`holdfast reindex start f.yaml --pipeline orders` begins another run"),
    ],
)
def test_a_run_that_is_not_complete_names_the_next_command(
    kind: str, status: RunStatus, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        end(Run("r1", status, {"kind": kind}), "f.yaml --pipeline orders")
    assert ended.value.exit_code == 1
    assert wanted in capsys.readouterr().err


def test_a_complete_run_names_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        end(Run("r1", RunStatus.COMPLETED, {"kind": "rewind", "roots": {"files": "out-g2"}}), "f.yaml")
    assert ended.value.exit_code == 0
    assert capsys.readouterr().err == "sink files: out-g2\n"


@pytest.mark.usefixtures("runs")
def test_the_failed_partitions_of_a_run_are_listed_with_their_errors(site: Site, file: str, store: Store) -> None:
    pipeline = assemble.StoredPipeline(assemble.load_settings(file), store, "orders")
    pipeline.operator("backfill-1").fail("orders|0", "its file is damaged")
    assert site.json("partitions", "list", file, "--status", "FAILED") == []
    (row,) = site.json("partitions", "list", file, "--run", "backfill-1", "--status", "FAILED")
    assert row["sourcePartitionKey"] == "orders|0"
    shown = site.invoke("partitions", "list", file, "--run", "backfill-1")
    assert "its file is damaged" in shown.stdout
    assert "1 partition in total: 1 FAILED" in shown.stderr


def test_a_command_that_is_named_carries_the_pipeline_only_if_the_file_has_several(site: Site) -> None:
    for pipelines, wanted in ((["orders"], ""), (["orders", "users"], " --pipeline orders")):
        file = site.write(*pipelines)
        site.store(file).close()
        with opened_pipeline(file, "orders") as opened:
            assert arguments_of(file, opened) == f"{file}{wanted}"

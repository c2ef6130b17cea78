from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__, service
from holdfast.assemble import Emit
from holdfast.config.models import Settings
from holdfast.events import NothingAcquired, PartitionFailed
from holdfast.leases.lease import Partition
from tests.unit.cli.conftest import Site

COMMANDS = [
    (),
    ("run",),
    ("validate",),
    ("schema",),
    ("plugins",),
    ("nodes",),
    ("status",),
    ("lag",),
    ("partitions",),
    *[("partitions", name) for name in ("list", "show", "reopen", "release", "fail", "purge", "forget")],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_explains_and_shows_an_example(site: Site, command: tuple[str, ...]) -> None:
    result = site.invoke(*command, "--help")

    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert " ".join(("holdfast", *command)) in result.stdout.partition("Example")[2]


def test_version(site: Site) -> None:
    result = site.invoke("--version")

    assert (result.exit_code, result.stdout) == (0, f"holdfast {__version__}\n")


# --- validate, schema, plugins ---------------------------------------------------------------------------------------


def test_a_valid_file(site: Site) -> None:
    file = site.write("orders", "users")

    assert site.invoke("validate", file).stdout == f"{file} is valid; store: sqlite; pipelines: orders, users\n"
    assert site.json("validate", file) == {
        "file": file,
        "valid": True,
        "store": "sqlite",
        "pipelines": ["orders", "users"],
        "problems": [],
        "warnings": [],
        "notes": [],
    }


def test_what_a_format_cannot_hold_is_said_with_the_setting_that_decides(site: Site) -> None:
    file = site.write("orders")
    path = Path(file)
    sink = f"files: {{root: {site.folder}, format: {{text: {{tombstones: skip, containing: escape}}}}}}"
    path.write_text(path.read_text().replace("tests.unit.cli.fakes:SINK:", sink))

    notes = [
        "messages that contain the delimiter are escaped (containing: escape; may be dead_letter, length_prefix, skip)",
        "null messages (tombstones) are left out and counted (tombstones: skip; may be dead_letter, empty, escape)",
    ]
    said = [f"pipelines.orders.sinks.files: format text: {note}" for note in notes]
    assert site.json("validate", file)["notes"] == said
    assert site.invoke("validate", file).stderr.splitlines() == [f"{file}: note: {note}" for note in said]


def test_what_runs_of_live_tables_cost_and_need_is_said(site: Site) -> None:
    path = site.folder / "catalog.yaml"
    path.write_text(
        """\
source_coordination: {store: {in_memory: {}}}
pipelines:
  catalog:
    source:
      database:
        url: sqlite:///app.db
        entities:
          flagged: {table: a, key: id, updated_at: changed, deleted: gone}
          noted: {table: b, key: id, updated_at: changed, tombstones: {table: b_gone, deleted_at: at}}
          plain: {table: c, key: id}
    sinks:
      - opensearch: {hosts: ["http://localhost:9200"], mode: staged}
"""
    )
    notes = [
        "noted: tombstones must be kept until the next run; at needs an index",
        "plain: without updated_at, all rows are read again after the copy (in a PostgreSQL table: searched)",
        "plain: without deleted or tombstones, all keys are compared to find deleted rows",
    ]
    said = [f"pipelines.catalog.source.database.entities.{note}" for note in notes]
    assert site.json("validate", str(path))["notes"] == said


def test_a_secret_in_the_file_is_warned_of(site: Site) -> None:
    file = site.write("orders")
    path = Path(file)
    path.write_text(path.read_text() + "\nspark: {conf: {spark.hadoop.fs.s3a.secret.key: hunter2}}\n")

    warning = (
        "spark.conf: spark.hadoop.fs.s3a.secret.key stands in the file as plain text; write ${env:NAME} or ${file:PATH}"
    )
    result = site.invoke("validate", file)
    assert (result.exit_code, result.stderr) == (0, f"{file}: warning: {warning}\n")
    assert site.json("validate", file)["warnings"] == [warning]


@pytest.mark.parametrize(
    "command", [("validate",), ("run",), ("nodes",), ("partitions", "list"), ("partitions", "list", "--json")]
)
def test_a_wrong_file_is_answered_with_line_and_column(site: Site, command: tuple[str, ...]) -> None:
    file = site.write(store="sqlite: {path: x.db, paht: y.db}")

    result = site.invoke(*command, file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"{file}:4:26: unknown key 'paht'; did you mean 'path'?\n")
    assert "    4 |     sqlite: {path: x.db, paht: y.db}\n" in result.stderr


def test_problems_of_a_wrong_file_as_json(site: Site) -> None:
    file = site.write(store="sqlite: {path: x.db, paht: x.db}")

    result = site.invoke("validate", file, "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    report = json.loads(result.stdout)
    assert (report["valid"], report["file"]) == (False, file)
    (problem,) = report["problems"]
    assert problem["message"].startswith("unknown key 'paht'")
    assert (problem["file"], problem["line"], problem["column"]) == (file, 4, 26)


def test_a_file_is_checked_without_its_variables(site: Site) -> None:
    file = site.write(store="sqlite: {path: '${env:LEASES_OF_NOBODY}'}")
    assert site.invoke("validate", file).exit_code == 2
    assert site.invoke("validate", file, "--no-env").stdout.startswith(f"{file} is valid; store: sqlite")
    assert site.json("validate", file, "--no-env")["valid"] is True


def test_a_file_that_does_not_exist(site: Site) -> None:
    result = site.invoke("validate", "nowhere.yaml")

    assert (result.exit_code, result.stderr) == (2, "nowhere.yaml: no such file\n")


def test_a_secret_in_a_wrong_file_is_not_shown(site: Site) -> None:
    file = site.write()
    with open(file, "a", encoding="utf-8") as more:  # noqa: PTH123
        more.write("  users:\n    source:\n      tests.unit.cli.fakes:SOURCE: {password: hunter2}\n    sinks: []\n")

    result = site.invoke("validate", file)
    assert result.exit_code == 2
    assert "plain-text secrets are not allowed in the file" in result.stderr
    assert "hunter2" not in result.output
    assert "hunter2" not in site.invoke("validate", file, "--json").output


def test_the_schema_is_json_schema(site: Site) -> None:
    result = site.invoke("schema")

    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_plugins_are_listed_with_their_summaries(site: Site) -> None:
    listed = {(row["kind"], row["name"]): row for row in site.json("plugins")}

    sqlite = listed["store", "sqlite"]
    assert sqlite["summary"]
    assert sqlite["problem"] is None
    assert sqlite["summary"] in site.invoke("plugins").stdout


def test_a_plugin_that_cannot_be_loaded_does_not_hide_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.stores.sqlite", None)

    listed = {row["name"]: row for row in site.json("plugins") if row["kind"] == "store"}
    assert "cannot be loaded" in listed["sqlite"]["problem"]
    assert listed["in_memory"]["summary"]


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_nodes_with_their_leases(site: Site) -> None:
    file = site.write()
    leases = site.coordinator(file)
    leases.create([Partition("a"), Partition("b")])
    leases.claim(2)

    (node,) = site.json("nodes", file)
    assert (node["name"], node["session"], node["leases"]) == ("replica1", leases.session.id, 2)
    assert (node["alive"], node["ended"], node["draining"]) == (True, False, False)
    assert node["pipelines"] == ["prod|orders"]
    _, line = site.invoke("nodes", file).stdout.splitlines()
    assert line.split()[:4] == ["replica1", "alive", "2", "1"]


def test_sessions_that_ended_are_shown_on_request(site: Site) -> None:
    file = site.write()
    store = site.store(file)
    site.session(file, store, "gone").leave()
    site.session(file, store, "here")

    assert [node["name"] for node in site.json("nodes", file)] == ["here"]
    assert [(node["name"], node["ended"]) for node in site.json("nodes", file, "--all")] == [
        ("gone", True),
        ("here", False),
    ]
    assert "ended" in site.invoke("nodes", file, "--all").stdout


@pytest.mark.parametrize("command", [("nodes",), ("status",), ("lag",), ("partitions", "list")])
def test_a_store_that_only_its_own_process_sees_is_not_shown_as_empty(site: Site, command: tuple[str, ...]) -> None:
    file = site.write(store="in_memory:")

    result = site.invoke(*command, file)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "error: the store in_memory is visible only inside the process that runs the pipeline"
    )


# --- run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_call(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `run` asks of the composition root, which does not start Spark here."""
    run_call: dict[str, Any] = {"answer": 0}

    def run(
        settings: Settings,
        emit: Emit,
        *,
        node_name: str | None = None,
        pipelines: Sequence[str] = (),
        beside: object = None,
        watch: object = None,
        measurements: object = None,
    ) -> int:
        run_call.update(settings=settings, node_name=node_name, pipelines=list(pipelines))
        emit(PartitionFailed("prod|orders", "a", "no more retries"))
        emit(NothingAcquired("prod|orders"))
        return int(run_call["answer"])

    monkeypatch.setattr(service, "run", run)
    return run_call


@pytest.mark.parametrize("code", [0, 1])
def test_run_ends_with_the_code_of_the_run(site: Site, run_call: dict[str, Any], code: int) -> None:
    run_call["answer"] = code

    result = site.invoke("run", site.write())
    assert (result.exit_code, result.stdout) == (code, "")
    assert (run_call["node_name"], run_call["pipelines"]) == (None, [])
    named = "holdfast partitions reopen" in result.stderr.splitlines()[-1]
    assert named == bool(code), "the next command is named if there is something to do"


def test_run_one_pipeline_under_a_name(site: Site, run_call: dict[str, Any]) -> None:
    file = site.write("orders", "users", "items")

    result = site.invoke("run", file, "--node", "replica7", "--pipeline", "users", "--pipeline", "items")
    assert result.exit_code == 0
    assert (run_call["node_name"], run_call["pipelines"]) == ("replica7", ["users", "items"])


def test_a_pipeline_that_is_not_in_the_file_is_refused_before_anything_starts(site: Site) -> None:
    result = site.invoke("run", site.write("orders", "users"), "--pipeline", "oders")
    assert result.exit_code == 2
    assert result.stderr == "error: there is no pipeline 'oders' in this file; did you mean 'orders'?\n"


@pytest.mark.usefixtures("run_call")
def test_run_logs_to_stderr_without_debug_events(site: Site) -> None:
    first, line, alert, last = site.invoke("run", site.write()).stderr.splitlines()

    assert re.fullmatch(r"starting Spark 4\.\S+( on Java \d+)? …", first)
    assert re.fullmatch(r"0 records in \S+ \(0/s\), 1 partition failed", last)
    assert line.endswith('error   partition failed: pipeline prod|orders, key a, error "no more retries"')
    assert "error   alert raised: kind partition_failed, pipeline prod|orders, key a, message " in alert


@pytest.mark.usefixtures("run_call")
def test_run_names_the_master_that_is_given(site: Site) -> None:
    file = Path(site.write())
    file.write_text(file.read_text() + "spark: {master: 'local[3]'}\n")
    assert site.invoke("run", str(file)).stderr.splitlines()[0].endswith(" (local[3]) …")


@pytest.mark.usefixtures("run_call")
@pytest.mark.parametrize("options", [("run", "--verbose"), ("--verbose", "run")])
def test_run_logs_debug_events_on_request(site: Site, options: tuple[str, ...]) -> None:
    _, *lines, _ = site.invoke(*options, site.write()).stderr.splitlines()

    assert [line.split()[1] for line in lines] == ["error", "error", "debug"]


@pytest.mark.usefixtures("run_call")
def test_run_can_be_quiet(site: Site) -> None:
    lines = site.invoke("run", site.write(), "--quiet").stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["error", "error"]


@pytest.mark.usefixtures("run_call")
@pytest.mark.parametrize(
    ("in_file", "options"), [("json", ()), ("text", ("--log", "json")), ("json", ("--log", "json"))]
)
def test_run_logs_json(site: Site, in_file: str, options: tuple[str, ...]) -> None:
    file = site.write()
    with open(file, "a", encoding="utf-8") as more:  # noqa: PTH123
        more.write(f"node: {{log: {in_file}}}\n")

    lines = site.invoke("run", file, *options).stderr.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["PartitionFailed", "AlertRaised"]

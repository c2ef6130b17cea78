"""`holdfast run` and `holdfast reindex`: nodes copy a table while an application changes and searches it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.opensearch import OpenSearchServer
from tests.servers.search_traffic import Reader, Writer, create_users

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 600.0
FILE = """
source_coordination:
  store: {{sqlite: {{path: {folder}/leases.db}}}}
node: {{session_timeout: 8s, heartbeat_interval: 2s}}
pipelines:
  catalog:
    source:
      database:
        url: sqlite:///{folder}/app.db
        clock_skew: 1s
        entities:
          users: {{table: users, key: id, updated_at: changed, index: people}}
    sinks:
      - opensearch: {{hosts: ["{endpoint}"], mode: staged}}
"""


@contextmanager
def node(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("ab") as log:
        command = [sys.executable, "-m", "holdfast", "run", str(folder / "catalog.yaml"), "--node", name]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def holdfast(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    verb, *options = arguments
    command = [sys.executable, "-m", "holdfast", "reindex", verb, str(folder / "catalog.yaml"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def status(folder: Path) -> Any:
    shown = holdfast(folder, "status", "--json")
    return json.loads(shown.stdout) if shown.returncode == 0 else {"status": shown.stderr}


def wait_for(folder: Path, *states: str) -> Any:
    end = time.monotonic() + PATIENCE
    while (found := status(folder))["status"] not in states:
        assert time.monotonic() < end, found
        time.sleep(0.5)
    return found


def test_nodes_pick_up_runs_and_no_change_or_search_is_lost_when_one_is_killed(
    opensearch_server: OpenSearchServer, tmp_path: Path
) -> None:
    create_users(tmp_path / "app.db")
    (tmp_path / "catalog.yaml").write_text(FILE.format(folder=tmp_path, endpoint=opensearch_server.endpoint))
    (tmp_path / "run.json").write_text('{"partitionSize": 50}')
    with ExitStack() as nodes:
        victim = nodes.enter_context(node(tmp_path, "victim"))
        nodes.enter_context(node(tmp_path, "survivor"))
        end = time.monotonic() + PATIENCE
        while holdfast(tmp_path, "start").returncode:
            assert time.monotonic() < end, "the nodes have not created the store"
        assert wait_for(tmp_path, "COMPLETED", "FAILED")["status"] == "COMPLETED"

        reader, writer = Reader(opensearch_server), Writer(tmp_path / "app.db", opensearch_server)
        with reader, writer:
            assert holdfast(tmp_path, "start", "--configuration", str(tmp_path / "run.json")).returncode == 0
            wait_for(tmp_path, "RUNNING", "COMPLETED")
            victim.kill()
            run = wait_for(tmp_path, "COMPLETED", "FAILED", "COMPLETED_WITH_ERRORS")
        assert (run["status"], run["error"]) == ("COMPLETED", None)
        assert not reader.misses
        verified = holdfast(tmp_path, "verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert opensearch_server.client().indices.get_alias(name="people").keys() == {f"staged_people_{run['id']}"}

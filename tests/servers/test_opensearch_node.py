"""A node that indexes: documents by expressions of Spark, and a cluster that is away in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import assemble
from holdfast.leases.lease import Status
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import running

FILES, RECORDS = 4, 500
PATIENCE = 120.0

PIPELINE = """\
source_coordination: {{store: {{sqlite: {{path: {root}/leases.db}}}}}}
node: {{name: a, log: json}}
spark: {{master: "local[1]"}}
pipelines:
  orders:
    source:
      objects:
        folder: {root}/in
        schema: id BIGINT, kind STRING, price DOUBLE, at TIMESTAMP
    processors:
      - sql: {{select: ["*", "price * 2 AS twice"]}}
    sinks:
      - opensearch:
          hosts: ["{endpoint}"]
          index: orders-{{kind}}
          document_id: "{{id}}"
          patience: 120s
          mappings: {{properties: {{twice: {{type: double}}}}}}
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[OpenSearchServer]:
    with running(OpenSearchServer) as started:
        yield started


class Node:
    """A node in a process of its own, whose log can be waited for."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-m", "holdfast", "run", str(file)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[dict[str, object]] = []
        self._heard = threading.Condition()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def wait_for(self, event: str) -> dict[str, object]:
        with self._heard:
            assert self._heard.wait_for(lambda: self._first(event) or self._process.poll() is not None, PATIENCE)
            found = self._first(event)
        assert found is not None, self.log
        return found

    def ended(self) -> int:
        code = self._process.wait(PATIENCE)
        self._reading.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code

    def kill(self) -> None:
        self._process.kill()
        self.ended()

    def _first(self, event: str) -> dict[str, object] | None:
        return next((entry for entry in self.log if entry.get("event") == event), None)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("{"):
                with self._heard:
                    self.log.append(json.loads(line))
                    self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()


def test_while_the_cluster_is_away_the_node_waits_keeps_its_leases_and_says_so(
    server: OpenSearchServer, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = [json.dumps(_order(number * RECORDS + count)) + "\n" for count in range(RECORDS)]
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines))
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(root=tmp_path, endpoint=server.endpoint))
    node = Node(file)
    try:
        node.wait_for("SinkOpened")
        server.stop()
        # The node hears of it from its tasks while these wait.
        event = node.wait_for("Unreachable")
        assert "does not respond" in str(event["error"])
        settings = assemble.load_settings(file)
        store = assemble.open_store(settings, create=False)
        rows = list(assemble.StoredPipeline(settings, store, "orders").operator().rows())
        store.close()
        assert {(row.status, row.history.attempts) for row in rows} == {(Status.ASSIGNED, 0)}
        server.start()
        assert node.ended() == 0
    except BaseException:
        node.kill()
        raise
    assert server.count("orders-a") + server.count("orders-b") == FILES * RECORDS
    assert server.documents("orders-b")["7"] == {**_order(7), "at": "2026-01-01T00:00:00.000Z", "twice": 14.0}


def _order(number: int) -> dict[str, object]:
    kind = "b" if number % 2 else "a"
    return {"id": number, "kind": kind, "price": float(number), "at": "2026-01-01T00:00:00Z"}

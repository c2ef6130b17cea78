"""Nodes that scan a bucket on real servers: versitygw, OpenSearch and PostgreSQL; and what they say and count."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.arena import Table
from tests.e2e.fleet import Node, eventually
from tests.e2e.freezing import freeze, thaw
from tests.e2e.scan_corpus import LARGE
from tests.servers.opensearch import OpenSearchServer
from tests.servers.processes import PASSWORD, PostgresqlServer, free_port, running
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

WITHIN = 240.0
HEAD = """
allow_plaintext_secrets: true
source_coordination:
  store:
    postgresql: {{host: 127.0.0.1, port: {store}, database: postgres, user: postgres, password: {password}}}
node:
  session_timeout: 5s
  heartbeat_interval: 1s
  metrics_port: {metrics}
spark:
  master: local[1]
  conf: {{spark.driver.memory: 512m, spark.ui.enabled: false}}
pipelines:
"""


class Servers:
    """What nodes need, running."""

    def __init__(self, stack: ExitStack) -> None:
        self.s3 = stack.enter_context(running(S3Server))
        self.store = stack.enter_context(running(PostgresqlServer))
        self.search = stack.enter_context(running(OpenSearchServer))
        # Nobody needs their data any more, and an orderly end takes them long.
        stack.callback(self.search.crash)
        stack.callback(self.s3.crash)

    @property
    def reach(self) -> str:
        """Settings of S3, in a line."""
        return json.dumps(
            {
                "endpoint_url": self.s3.endpoint,
                "region": REGION,
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
                "path_style": True,
            }
        )


class Scan:
    """Nodes by name that run one pipeline, and what the store, their logs and their metrics tell of it."""

    def __init__(self, root: Path, servers: Servers, pipeline: str, settings: str) -> None:
        """`settings` are those of the pipeline, as YAML below its name."""
        self.root = root
        self.servers = servers
        self.pipeline = pipeline
        self.table = Table(servers.store.port, pipeline)
        self.nodes: dict[str, Node] = {}
        self._settings = settings
        self._metrics: dict[str, int] = {}

    def start(self, *names: str) -> None:
        """Processes of these names; they join when they are ready."""
        for name in names:
            self._metrics[name] = free_port()
            values = {"store": self.servers.store.port, "password": json.dumps(PASSWORD)}
            head = HEAD.format(metrics=self._metrics[name], **values)
            config = self.root / f"{name}.yaml"
            config.write_text(f"{head}  {self.pipeline}:\n{self._settings}")
            self.nodes[name] = Node(self.root, config, name, "--verbose")

    def running(self) -> list[Node]:
        """Nodes that were not killed. Fails if one of them has ended by itself."""
        for node in self.nodes.values():
            assert node.process.poll() in {None, -9}, node.said()[-3000:]
        return [node for node in self.nodes.values() if node.process.poll() is None]

    def waits_for(self, what: str, completed: int, failed: int = 0) -> None:
        """Wait until at least so many partitions are at their ends."""

        def true() -> bool:
            self.running()
            statuses = self.table.statuses()
            return statuses["COMPLETED"] >= completed and statuses["FAILED"] >= failed

        try:
            eventually(true, WITHIN, what)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{dict(self.table.statuses())}\n{self._complaints()}") from None

    def kill_one_at_work(self, documents: Callable[[str], int]) -> Node:
        """Kill a node with SIGKILL when some documents of a batch are in the index and the batch is not committed.

        `documents` tells how many of an object, by its partition's key, the index has.
        """
        victims: list[Node] = []

        def met() -> bool:
            found = next((node for node in self.running() if self._frozen_half_way(node, documents)), None)
            victims.extend([found] if found else [])
            return bool(victims)

        eventually(met, WITHIN, "a node has sent a part of a batch")
        (victim,) = victims
        victim.kill()
        assert self.table.held_by(victim) > 0
        return victim

    def _frozen_half_way(self, node: Node, documents: Callable[[str], int]) -> bool:
        """Whether the node stands still now, with documents in the index of which it has decided nothing."""

        def half_way(key: str) -> bool:
            return documents(key) > self.committed().get(key, Counter())["records"]

        begun = next((key for key in self.table.keys_of(node) if LARGE in key and half_way(key)), None)
        if begun is None:
            return False
        freeze(node.process.pid)
        met = half_way(begun)
        if not met:
            thaw(node.process.pid)
        return met

    # --- what they say -----------------------------------------------------------------------------------------

    def said(self, node: Node, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Events of that kind and with these fields in a node's log."""
        lines = node.log.read_bytes().split(b"\n")[:-1]
        events = [json.loads(line) for line in lines if f'"event": "{event}"'.encode() in line]
        return [found for found in events if all(found[name] == value for name, value in fields.items())]

    def all_have_joined(self) -> None:
        """Wait until every node takes part: one that starts while the index is away would not."""
        eventually(lambda: all(self.said(node, "NodeJoined") for node in self.running()), WITHIN, "all nodes join")

    def all_miss_the_index(self) -> None:
        """Wait until every node has said that the index does not answer."""

        def true() -> bool:
            return all(self.said(node, "Unreachable", what="sink") for node in self.running())

        eventually(true, WITHIN, "every node says that the index is away")

    def committed(self) -> dict[str, Counter[str]]:
        """Records and dead letters of each partition in commits that the nodes have reported."""
        sums: dict[str, Counter[str]] = {}
        for node in self.nodes.values():
            for event in self.said(node, "BatchCommitted"):
                sums.setdefault(event["key"], Counter()).update(records=event["records"], dead=event["dead"])
        return sums

    def metric(self, node: Node, metric: str, **labels: str) -> int:
        """The sum of a metric of a node over all that has these labels."""
        port = self._metrics[node.name]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        found = [line for line in lines if re.match(rf"{metric}[{{ ]", line) and all(label in line for label in wanted)]
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in found))

    def partitions(self) -> list[dict[str, Any]]:
        """What `holdfast partitions list` tells of each."""
        return self._asked("partitions", "list")

    def letters(self) -> list[dict[str, Any]]:
        """What `holdfast deadletters list --by-partition` prints, one entry for each partition and reason."""
        return self._asked("deadletters", "list", "--by-partition")

    def _complaints(self) -> str:
        lines = [line for node in self.nodes.values() for line in node.said().splitlines() if '"error"' in line]
        return "\n".join(line[:500] for line in lines[-10:])

    def _asked(self, *command: str) -> list[dict[str, Any]]:
        config = str(self.root / f"{next(iter(self.nodes))}.yaml")
        words = [sys.executable, "-m", "holdfast", *command, config, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def stop(self) -> None:
        """All that run leave in order."""
        left = self.running()
        for node in left:
            node.process.terminate()
        assert [node.exit_code() for node in left] == [0] * len(left)

    def end(self) -> None:
        for node in self.nodes.values():
            thaw(node.process.pid)
            node.kill()
        self.table.close()


@contextmanager
def scan(root: Path, servers: Servers, pipeline: str, settings: str) -> Iterator[Scan]:
    """A pipeline without nodes yet; whatever is left of them ends with it."""
    made = Scan(root, servers, pipeline, settings)
    try:
        yield made
    finally:
        made.end()

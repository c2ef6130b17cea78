"""Three nodes on a real PostgreSQL, each behind a proxy of its own, with as much input as they can take."""

from __future__ import annotations

import gzip
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.e2e.fleet import Node, eventually
from tests.e2e.freezing import thaw
from tests.servers.holding import HoldingProxy
from tests.servers.processes import PASSWORD, PostgresqlServer, running

LINES = 400
LOW, HIGH = 60, 100
"""Files that wait or are worked on: below the first, new ones are added up to the second."""

CONFIG = """
allow_plaintext_secrets: true
source_coordination:
  store:
    postgresql: {{host: 127.0.0.1, port: {port}, database: postgres, user: postgres, password: {password}}}
node:
  session_timeout: 4s
  heartbeat_interval: 1s
spark:
  master: local[1]
  conf: {{spark.driver.memory: 512m}}
pipelines:
  orders:
    source:
      objects:
        folder: "{root}/in"
        codec: jsonl
        schema: "id BIGINT, note STRING"
        scan: follow
        interval: 1s
    sinks:
      - files: {{root: "{root}/out", format: parquet}}
    batch: {{max_bytes: 16KB}}
    round: {{max_batches: 6}}
    # No fault of a node is a fault of its batches: one attempt that is counted fails the partition, and the test.
    retries: {{max_retries: 0}}
"""


class Table:
    """What the lease table says, asked in plain SQL."""

    def __init__(self, port: int, pipeline: str = "orders") -> None:
        self._pipeline = pipeline
        self._db = psycopg.connect(
            host="127.0.0.1", port=port, dbname="postgres", user="postgres", password=PASSWORD, autocommit=True
        )

    def close(self) -> None:
        self._db.close()

    def statuses(self) -> Counter[str]:
        """How many partitions there are of each status."""
        question = "SELECT status, count(*) FROM holdfast_lease WHERE pipeline = %s GROUP BY 1"
        return Counter(dict(self._ask(question, self._pipeline)))

    def held_by(self, node: Node, *, pipeline: str | None = None) -> int:
        """How many rows are in the hands of a session of this process."""
        question = "SELECT count(*) FROM holdfast_lease WHERE pipeline = %s AND status = 'ASSIGNED' AND owner LIKE %s"
        ((count,),) = self._ask(question, pipeline or self._pipeline, f"%:{node.process.pid}:%") or [(0,)]
        return int(count)

    def keys_of(self, node: Node) -> list[str]:
        """Keys of the partitions that a session of this process holds."""
        question = "SELECT key FROM holdfast_lease WHERE pipeline = %s AND status = 'ASSIGNED' AND owner LIKE %s"
        return [key for (key,) in self._ask(question, self._pipeline, f"%:{node.process.pid}:%")]

    def is_dispossessed(self, node: Node) -> bool:
        """Whether its session has ended, and others have all that it held."""
        return not self.has_joined(node) and not self.held_by(node)

    def has_joined(self, node: Node) -> bool:
        """Whether a session of this process is live."""
        return self.held_by(node, pipeline="$nodes") > 0

    def _ask(self, question: str, pipeline: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(question, (pipeline, *values)).fetchall()
        except psycopg.errors.UndefinedTable:
            return []  # no node has come so far yet


class Feeder:
    """Adds files in a thread of its own, so that there is work until the test stops it."""

    def __init__(self, root: Path, table: Table) -> None:
        self._root = root
        self._table = table
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.files = 0

    def __enter__(self) -> Self:
        self._feed()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._enough.wait(0.5):
            self._feed()

    def _feed(self) -> None:
        undone = self.files - self._table.statuses()["COMPLETED"]
        for _ in range(HIGH - undone if undone < LOW else 0):
            self._add_file()

    def _add_file(self) -> None:
        """A file of three batches, or of one if it is compressed. It appears when it is complete."""
        ids = range(self.files * LINES, (self.files + 1) * LINES)
        text = "".join(json.dumps({"id": i, "note": f"n{i}" * 8}) + "\n" for i in ids).encode()
        zipped = self.files % 5 == 4
        name = f"f{self.files:06d}.jsonl{'.gz' if zipped else ''}"
        (self._root / "drafts" / name).write_bytes(gzip.compress(text, 1) if zipped else text)
        (self._root / "drafts" / name).rename(self._root / "in" / name)
        self.files += 1


class Arena:
    """The running nodes by name, and what they share."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        for name in ("in", "drafts"):
            (root / name).mkdir()
        self.table = Table(port)
        self.proxies: dict[str, HoldingProxy] = {}
        self.nodes: dict[str, Node] = {}

    def add(self, name: str, proxy: HoldingProxy) -> None:
        """A node with that name and that line to the store, started."""
        config = CONFIG.format(port=proxy.port, password=json.dumps(PASSWORD), root=self.root)
        self._config(name).write_text(config)
        self.proxies[name] = proxy
        self.start(name)

    def start(self, name: str) -> None:
        """A new process under that name."""
        self.nodes[name] = Node(self.root, self._config(name), name, "--verbose")

    def at_work(self) -> list[Node]:
        """Nodes that hold partitions now. Fails if a node has ended by itself, or a partition has failed."""
        for node in self.nodes.values():
            assert node.process.poll() is None, node.said()[-3000:]
        assert self.table.statuses()["FAILED"] == 0, self.complaints()
        return [node for node in self.nodes.values() if self.table.held_by(node)]

    def complaints(self) -> str:
        """The last errors in the nodes' logs."""
        lines = [line for node in self.nodes.values() for line in node.said().splitlines() if '"error"' in line]
        return "\n".join(line[:500] for line in lines[-10:])

    def drain(self, files: int, within: float) -> None:
        """Wait until all of these files are done, and stop the nodes in order."""
        eventually(lambda: not self.at_work() and self.table.statuses() == {"COMPLETED": files}, within, "all is done")
        # A node that still starts after the last fault has nothing to hand back, and ends by the signal.
        eventually(lambda: all(self.table.has_joined(node) for node in self.nodes.values()), within, "all have joined")
        for node in self.nodes.values():
            node.process.terminate()
        assert [node.exit_code() for node in self.nodes.values()] == [0] * len(self.nodes)

    def end(self) -> None:
        """Whatever is left of the nodes ends."""
        for node in self.nodes.values():
            thaw(node.process.pid)
            node.kill()
        self.table.close()

    def _config(self, name: str) -> Path:
        return self.root / f"{name}.yaml"


@contextmanager
def arena(root: Path, *names: str) -> Iterator[Arena]:
    """Nodes of these names at work on `in`, which is to be fed."""
    with ExitStack() as stack:
        server = stack.enter_context(running(PostgresqlServer))
        made = Arena(root, server.port)
        stack.callback(made.end)
        for name in names:
            made.add(name, stack.enter_context(HoldingProxy(server.port)))
        yield made

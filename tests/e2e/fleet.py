"""Real node processes on one SQLite store, and an oracle that shares no code with the product.

The oracle reads the lease table with `sqlite3` and the output with `pyarrow`, as a suspicious user would.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

CONFIG = """
source_coordination:
  store:
    {store}
node:
  session_timeout: 5s
  heartbeat_interval: 1s
spark:
  master: local[1]
pipelines:
  orders:
    source:
      objects: {{folder: "{root}/in", codec: jsonl, schema: "id BIGINT, note STRING", scan: once}}
    sinks:
      - files: {{root: "{root}/out", format: parquet}}
    batch: {{max_bytes: {batch}}}
    round: {{max_batches: {round}}}
    retries: {{max_retries: 2, backoff: 200ms, max_backoff: 1s}}
"""


class Site:
    """A folder with input, configuration, leases and output."""

    def __init__(self, root: Path, *, store: str = "sqlite", batch: str = "512KB", max_batches: int = 2) -> None:
        self.root = root
        self.config = root / "pipeline.yaml"
        block = f'sqlite: {{path: "{root}/leases.db"}}' if store == "sqlite" else f"{store}:"
        self.config.write_text(CONFIG.format(store=block, root=root, batch=batch, round=max_batches))
        (root / "in").mkdir()
        self.records = 0

    def add_files(self, count: int, lines: int, *, zipped_every: int = 5) -> None:
        """Files of records whose ids go on from the last one."""
        for number in range(count):
            ids = range(self.records, self.records + lines)
            text = "".join(json.dumps({"id": i, "note": f"n{i}" * 8}) + "\n" for i in ids).encode()
            zipped = number % zipped_every == zipped_every - 1
            path = self.root / "in" / f"f{self.records:09d}.jsonl{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(text, 1) if zipped else text)
            self.records += lines

    def start(self, node: str) -> Node:
        return Node(self.root, self.config, node)

    @contextmanager
    def nodes(self, *names: str) -> Iterator[list[Node]]:
        """Started nodes; whatever is left of them is killed at the end."""
        started = [self.start(name) for name in names]
        try:
            yield started
        finally:
            for node in started:
                node.kill()

    def rows(self, what: str = "key, status, owner", pipeline: str = "orders") -> list[tuple[Any, ...]]:
        path = self.root / "leases.db"
        if not path.exists():
            return []
        with sqlite3.connect(path, timeout=10) as db:
            try:
                return db.execute(f"SELECT {what} FROM lease WHERE pipeline = ?", (pipeline,)).fetchall()
            except sqlite3.OperationalError:
                return []

    def statuses(self) -> Counter[str | None]:
        return Counter(status for _, status, _ in self.rows())

    def owned_by(self, node: Node) -> list[str | None]:
        """Keys of the leases that a session of this process holds."""
        return [key for key, _, owner in self.rows() if owner and f":{node.process.pid}:" in owner]

    def published(self) -> Counter[int]:
        """How often each id is in the files that a plain listing shows."""
        ids: Counter[int] = Counter()
        # Nodes remove folders of staged files; a listing that walks through them would fail.
        for path in (self.root / "out").glob("[!_.]*/**/*.parquet"):
            if not any(part.startswith(("_", ".")) for part in path.relative_to(self.root / "out").parts):
                ids.update(pq.read_table(path, columns=["id"]).column("id").to_pylist())
        return ids

    def assert_exactly_once(self) -> None:
        ids = self.published()
        twice = [number for number, copies in ids.items() if copies > 1]
        lost = [number for number in range(self.records) if number not in ids]
        assert (twice[:5], lost[:5], len(ids)) == ([], [], self.records)


class Node:
    """One `holdfast run` process."""

    def __init__(self, folder: Path, config: Path, name: str, *options: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        command = [sys.executable, "-m", "holdfast", "run", str(config), "--node", name, "--log", "json", *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def exit_code(self, within: float = 60.0) -> int:
        """Its exit code; fails with its log if it does not end in time. A busy machine gets the time that it needs."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node runs after {within} s:\n{self.said()[-3000:]}") from None

    def said(self) -> str:
        return self.log.read_text()


def eventually(true: Callable[[], object], within: float = 240.0, what: str = "") -> None:
    """Wait until that is so."""
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.05)

"""Whole nodes that run a function over an embedded stream, as users start them and with default settings."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from benchmarks._function_loops import HANDLERS
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.stream import Stream, StreamSettings
from tests.e2e.freezing import descendants

PATIENCE = 300.0
PIPELINE = "orders"


class FunctionFleet:
    """A stream, a store, and nodes that share the shards."""

    def __init__(self, folder: Path, shards: int, handler: str) -> None:
        self.folder, self.shards = folder, shards
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._stream = Stream.create(folder / "streams", "orders", StreamSettings(shards))
        (folder / "handlers.py").write_text(HANDLERS)
        self._leases = folder / "leases.db"
        pipeline = {
            "source": {"stream": {"name": "orders", "folder": str(folder / "streams")}},
            "sinks": [{"function": {"handler": f"handlers.py:{handler}", "on_error": {"after_retries": "stop"}}}],
        }
        settings = {
            "source_coordination": {"store": {"sqlite": {"path": str(self._leases)}}},
            "pipelines": {PIPELINE: pipeline},
        }
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(settings))

    # --- nodes ---------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "holdfast", "run", "pipeline.yaml", "--node", name, "--log", "json"]
        environment = {**os.environ, "BENCH_FOLDER": str(self.folder), "BENCH_RECORDS": "0"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def stop(self, name: str) -> None:
        """Let the node leave, and wait until it has."""
        node = self.nodes.pop(name)
        node.send_signal(signal.SIGTERM)
        node.wait(PATIENCE)

    def kill(self, name: str) -> None:
        """Kill the driver; its JVM and workers end by themselves."""
        node = self.nodes.pop(name)
        node.kill()
        node.wait()

    def close(self) -> None:
        for node in self.nodes.values():
            for process in [*descendants(node.pid), node.pid]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            node.wait()

    def processes_of(self, name: str) -> list[int]:
        """The driver of a node, its JVM and its workers."""
        pid = self.nodes[name].pid
        return [pid, *descendants(pid)]

    def processes(self) -> list[int]:
        return [process for name in self.nodes for process in self.processes_of(name)]

    # --- shards --------------------------------------------------------------------------------------------------

    def wait_for_shares(self) -> None:
        """Wait until all nodes hold all shards, in equal parts."""
        until(lambda: self._shares() == _equal(self.shards, len(self.nodes)), "equal shares")

    def _shares(self) -> list[int]:
        rows = self._select(f"SELECT owner FROM lease WHERE pipeline LIKE '%{PIPELINE}' AND status = 'ASSIGNED'")
        return sorted(Counter(owner for (owner,) in rows).values())

    def writes(self) -> int:
        """Writes of rows since the store was made: each raises the version of its row by one."""
        return int(self._select("SELECT sum(version) FROM lease")[0][0])

    def _select(self, query: str) -> list[tuple[int | str, ...]]:
        if not self._leases.exists():
            return []
        with sqlite3.connect(f"file:{self._leases}?mode=ro", uri=True, timeout=30) as database:
            try:
                return database.execute(query).fetchall()
            except sqlite3.OperationalError:  # the first node is about to make the table
                return []

    # --- records -------------------------------------------------------------------------------------------------

    @contextmanager
    def producing(self, rate: float) -> Iterator[None]:
        """Append so many records per second, in turns to each shard, until the end."""
        over = threading.Event()

        def produce() -> None:
            start, count = time.monotonic(), 0
            while not over.is_set():
                behind = start + count / rate - time.monotonic()
                if behind > 0:
                    over.wait(behind)
                self._stream.append(count % self.shards, [NewRecord(b"x" * 150)])
                count += 1

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def notes(self) -> dict[int, list[tuple[float, int]]]:
        """By shard, when a record was handled and by which process, in order."""
        found: dict[int, list[tuple[float, int]]] = {}
        for file in self.folder.glob("notes-*"):
            process = int(file.name.removeprefix("notes-"))
            for line in file.read_text().splitlines():
                words = line.split()
                if len(words) == 4:
                    found.setdefault(int(words[0]), []).append((float(words[3]), process))
        return {shard: sorted(lines) for shard, lines in found.items()}


@contextmanager
def fleet(shards: int, handler: str) -> Iterator[FunctionFleet]:
    """A fleet without nodes; all of them are ended."""
    with tempfile.TemporaryDirectory() as folder:
        made = FunctionFleet(Path(folder), shards, handler)
        try:
            yield made
        finally:
            made.close()


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until it is so."""
    give_up = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what} did not come")
        time.sleep(0.1)


def _equal(shards: int, nodes: int) -> list[int]:
    return sorted((shards + index) // nodes for index in range(nodes))

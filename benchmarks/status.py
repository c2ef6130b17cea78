"""`holdfast status` on 10,000 partitions: the whole command, as a person waits for it.

Three nodes hold a tenth of the partitions of a pipeline, half are completed, some have failed. Figures are milliseconds
from the start of the process to its end, and of its processor, beside the bar of one second; and of the look at the
store alone, beside one that reads all rows. The fastest of some, because others may use the machine; on a busy one only
those of the processor mean something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.leases.lease import Counts, History, Lease, Ownership, Partition, Progress, Status, new_lease
from holdfast.leases.store import Store
from holdfast.observe.overview import overview
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.faults import PlainStore
from tests.servers.databases import Postgresql
from tests.servers.processes import PASSWORD, PostgresqlServer, running

PARTITIONS, NODES = 10_000, 3
MOST_MS = 1000.0
REPETITIONS = 5
FILE = """
source_coordination: {{store: {{{store}}}}}
pipelines:
  orders:
    source: {{kafka: {{bootstrap_servers: "localhost:1", topics: [orders]}}}}
    sinks: [{{files: {{root: {root}, format: jsonl}}}}]
"""


def run() -> list[Comparison]:
    """Each store against the bar, and against reading all rows."""
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        found: list[Comparison] = []
        for name, store, settings in _stores(closing, folder):
            for at in range(0, PARTITIONS, 500):
                store.add([_row(number) for number in range(at, at + 500)])
            file = folder / f"{name}.yaml"
            file.write_text(FILE.format(store=settings, root=folder / "out"))
            taken = [_command_ms(file) for _ in range(REPETITIONS)]
            for unit, fastest in zip(("ms", "ms of CPU"), map(min, zip(*taken, strict=True)), strict=True):
                found.append(compare("status", f"{name}, the command against its bar", fastest, MOST_MS, unit, "<= 1"))
            ours, rows = interleaved([partial(_look_ms, store), partial(_look_ms, PlainStore(store))], REPETITIONS)
            found.append(compare("status", f"{name}, against reading all rows", ours, rows, "ms", "<= 0.5"))
        return found


def _stores(closing: ExitStack, folder: Path) -> Iterator[tuple[str, Store, str]]:
    sqlite = SqliteStore(folder / "leases.db")
    server = Postgresql(closing.enter_context(running(PostgresqlServer)))
    postgresql = server.make_store()
    password = folder / "password"
    password.write_text(PASSWORD)
    address = f"host: 127.0.0.1, port: {server.server.port}, database: {server.name}, user: {server.server.user}"
    tables = f"table_prefix: {server.prefix}, password: '${{file:{password}}}'"
    described = (
        (sqlite, f"sqlite: {{path: {folder / 'leases.db'}}}"),
        (postgresql, f"postgresql: {{{address}, {tables}}}"),
    )
    for name, (store, settings) in zip(("sqlite", "postgresql"), described, strict=True):
        store.open()
        closing.callback(store.close)
        yield name, store, settings


def _row(number: int) -> Lease:
    row = new_lease("orders", Partition(f"orders|{number}", "orders", {"topic": "orders"}), "made", now=1e9)
    progress = Progress({"offset": 5000}, counts=Counts(5000, 4990, 0, 10))
    done = History(created_at=1e9, done_by=f"n{number % NODES}")
    if number % 100 == 1:
        failed = Ownership(Status.FAILED, None, 1, 3, "written", None)
        return replace(row, ownership=failed, history=replace(done, last_error="it cannot be read"))
    if number % 10 == 0:
        held = Ownership(Status.ASSIGNED, f"n{number % NODES}", 1, 3, "written", None)
        return replace(row, ownership=held, progress=progress)
    completed = Ownership(Status.COMPLETED, None, 1, 3, "written", None)
    return replace(row, ownership=completed, progress=progress, history=done) if number % 2 else row


def _command_ms(file: Path) -> tuple[float, float]:
    """Milliseconds by the clock, and of the processor."""
    started, used = time.perf_counter(), os.times()
    words = [sys.executable, "-m", "holdfast", "status", str(file)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    spent = os.times()
    cpu = spent.children_user + spent.children_system - used.children_user - used.children_system
    return (time.perf_counter() - started) * 1000, cpu * 1000


def _look_ms(store: Store) -> float:
    started = time.perf_counter()
    found = overview(store, "$nodes", {"orders": "orders"})
    took = time.perf_counter() - started
    if sum(found["pipelines"][0]["partitions"].values()) != PARTITIONS:
        raise ValueError(f"{found['pipelines']} are not {PARTITIONS} partitions")
    return took * 1000

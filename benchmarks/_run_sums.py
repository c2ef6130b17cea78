"""Summing up a run of 10,000 partitions: one grouped read of the store beside a read of all rows.

The driver of a run does it every two seconds, and no other node does. Half of the partitions are finished, by three
nodes. Against reading all rows, figures are milliseconds of one sum as its caller sees it. The bar of 100 ms holds for
the CPU of a driver that aggregates a run, and on PostgreSQL for that of the server as well: others may use the machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks._process_cpu import cpu_seconds
from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.runs import Runs
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Counts, History, Lease, Ownership, Partition, Progress, Status, new_lease
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import Store
from holdfast.leases.sums import sums
from holdfast.leases.world import host_world
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.faults import PlainStore
from tests.servers.databases import Mariadb, Postgresql
from tests.servers.processes import MariadbServer, PostgresqlServer, Server, running

PARTITIONS, GROUPS, NODES = 10_000, 20, 3
MOST_MS = 100.0
REPETITIONS = 7
AGGREGATIONS = 20
PIPELINE, RUN = "bench", "r"


def run() -> list[Comparison]:
    """Against a read of all rows in the same store, and on PostgreSQL against the bar."""
    with ExitStack() as closing:
        found: list[Comparison] = []
        for name, store, server in _stores(closing):
            for at in range(0, PARTITIONS, 500):
                store.add([_row(number) for number in range(at, at + 500)])
            grouped, read = interleaved([partial(_ms, store), partial(_ms, PlainStore(store))], REPETITIONS)
            found.append(compare("run_sums", f"{name}, against reading all rows", grouped, read, "ms", "<= 0.5"))
            if server is not None:
                found += _costs(name, store, server)
        return found


def _costs(name: str, store: Store, server: Server) -> list[Comparison]:
    """CPU milliseconds of the driver's sum, of the server for it, and of the look of another node at the run."""
    runs = _runs(store)
    node, before = time.process_time(), cpu_seconds(server.pid)
    for _ in range(AGGREGATIONS):
        runs.aggregate(RUN, 1)
    driver = (time.process_time() - node) * 1000 / AGGREGATIONS
    served = (cpu_seconds(server.pid) - before) * 1000 / AGGREGATIONS
    node = time.process_time()
    for _ in range(AGGREGATIONS):
        runs.show(RUN)
    other = (time.process_time() - node) * 1000 / AGGREGATIONS
    # MariaDB parses each value of a row by itself, and has no bar.
    bar: str | float = "<= 1" if name == "postgresql" else 0
    return [
        compare("run_sums", f"{name}, CPU of the driver", driver, MOST_MS, "ms", "<= 1"),
        compare("run_sums", f"{name}, CPU of the server", served, MOST_MS, "ms", bar),
        compare("run_sums", f"{name}, CPU of another node", other, MOST_MS, "ms", "<= 0.05"),
    ]


def _runs(store: Store) -> Runs:
    """The runs of the pipeline, with one that is RUNNING."""
    world = host_world(lambda _event: None)
    session = Session(store, world, "$nodes", NodeInfo("bench", "bench", pipelines=(PIPELINE,)), SessionTiming())
    runs = Runs(Coordinator(store, world, session, PIPELINE, policy=ClaimPolicy()))
    runs.add(RUN, configuration={}, created_by="bench")
    runs.create(RUN, 1, ())
    runs.start(RUN, 1)
    return runs


def _stores(closing: ExitStack) -> Iterator[tuple[str, Store, Server | None]]:
    folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
    sqlite = SqliteStore(folder / "leases.db")
    postgresql = closing.enter_context(running(PostgresqlServer))
    mariadb = closing.enter_context(running(MariadbServer))
    found: list[tuple[str, Store, Server | None]] = [
        ("sqlite", sqlite, None),
        ("postgresql", Postgresql(postgresql).make_store(), postgresql),
        ("mariadb", Mariadb(mariadb).make_store(), mariadb),
    ]
    for name, store, server in found:
        store.open()
        closing.callback(store.close)
        yield name, store, server


def _row(number: int) -> Lease:
    partition = Partition(
        f"p{number:05}", f"group{number % GROUPS}", {"from": number * 5000, "to": number * 5000 + 4999}
    )
    row = new_lease(PIPELINE, replace(partition, estimated_count=5000, work_units=5000), "made", run=RUN, now=1e9)
    if number % 2:
        return row
    done = Ownership(Status.COMPLETED, None, 1, 3, "written", None)
    counts, history = (
        Progress(5000, counts=Counts(5000, 4990, 10)),
        History(created_at=1e9, done_by=f"n{number % NODES}"),
    )
    return replace(row, ownership=done, progress=counts, history=history)


def _ms(store: Store) -> float:
    started = time.perf_counter()
    found = sums(store, PIPELINE, RUN)
    took = time.perf_counter() - started
    if sum(part.partitions for part in found) != PARTITIONS:
        raise ValueError(f"{found} are not {PARTITIONS} partitions")
    return took * 1000

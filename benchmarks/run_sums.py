"""Summing up a run of 10,000 partitions: one grouped read of the store beside a read of all rows.

The driver of a run does it every two seconds. Half of the partitions are finished, by three nodes. Figures are
milliseconds of one sum, as its caller sees it. The bar for PostgreSQL is 100 ms, for the fastest of some sums: others
may use the machine.
"""

from __future__ import annotations

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
from holdfast.leases.sums import sums
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.faults import PlainStore
from tests.servers.databases import Mariadb, Postgresql
from tests.servers.processes import MariadbServer, PostgresqlServer, running

PARTITIONS, GROUPS, NODES = 10_000, 20, 3
MOST_MS = 100.0
REPETITIONS = 7


def run() -> list[Comparison]:
    """Against a read of all rows in the same store, and on PostgreSQL against the bar."""
    with ExitStack() as closing:
        found: list[Comparison] = []
        for name, store in _stores(closing):
            for at in range(0, PARTITIONS, 500):
                store.add([_row(number) for number in range(at, at + 500)])
            fastest = [float("inf")]
            grouped, read = interleaved([partial(_ms, store, fastest), partial(_ms, PlainStore(store))], REPETITIONS)
            found.append(compare("run_sums", f"{name}, against reading all rows", grouped, read, "ms", "<= 0.5"))
            if name == "postgresql":
                found.append(compare("run_sums", f"{name}, against its bar", fastest[0], MOST_MS, "ms", "<= 1"))
        return found


def _stores(closing: ExitStack) -> Iterator[tuple[str, Store]]:
    folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
    sqlite = SqliteStore(folder / "leases.db")
    postgresql = Postgresql(closing.enter_context(running(PostgresqlServer))).make_store()
    mariadb = Mariadb(closing.enter_context(running(MariadbServer))).make_store()
    for name, store in (("sqlite", sqlite), ("postgresql", postgresql), ("mariadb", mariadb)):
        store.open()
        closing.callback(store.close)
        yield name, store


def _row(number: int) -> Lease:
    partition = Partition(
        f"p{number:05}", f"group{number % GROUPS}", {"from": number * 5000, "to": number * 5000 + 4999}
    )
    row = new_lease("bench", replace(partition, estimated_count=5000, work_units=5000), "made", run="r", now=1e9)
    if number % 2:
        return row
    done = Ownership(Status.COMPLETED, None, 1, 3, "written", None)
    counts, history = (
        Progress(5000, counts=Counts(5000, 4990, 10)),
        History(created_at=1e9, done_by=f"n{number % NODES}"),
    )
    return replace(row, ownership=done, progress=counts, history=history)


def _ms(store: Store, fastest: list[float] | None = None) -> float:
    started = time.perf_counter()
    found = sums(store, "bench", "r")
    took = time.perf_counter() - started
    if sum(part.partitions for part in found) != PARTITIONS:
        raise ValueError(f"{found} are not {PARTITIONS} partitions")
    if fastest is not None:
        fastest[0] = min(fastest[0], took * 1000)
    return took * 1000

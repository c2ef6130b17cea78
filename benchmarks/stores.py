"""All stores in one table: claims, commits and heartbeats per second, the slowest claims, requests per 1,000 leases.

Every server is a real one on this host, with nobody else on it; one process works on one lease at a time, then on a
hundred at a time to count requests. A request is an HTTP request where there are such, elsewhere a call of the store,
which is one transaction. The bars are about requests: what a bucket costs is paid by the request.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._object_fleet import ObjectFleet
from benchmarks.harness import Comparison, compare
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Lease, Partition
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import Store
from holdfast.leases.transitions import Advance
from holdfast.leases.world import host_world
from holdfast.leases.writes import Change
from holdfast.stores.dynamodb.store import DynamodbStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.object.folder import FolderObjects
from holdfast.stores.object.s3 import S3Objects
from holdfast.stores.object.store import ObjectStore
from holdfast.stores.sqlite import SqliteStore
from tests.servers.databases import Mariadb, Postgresql
from tests.servers.dynamodb import DynamodbServer
from tests.servers.http_proxy import HttpProxy
from tests.servers.processes import MariadbServer, PostgresqlServer, running
from tests.servers.s3 import S3Server
from tests.servers.s3_roots import BUCKET, access

LEASES, BATCH = 200, 100
COUNTED = 1_000
NODES, IDLE_LEASES = 20, 1_000
MOST_REQUESTS = 4
MOST_PASSES = 5


@dataclass(frozen=True)
class Subject:
    """A store; `on` makes a handle on it through that port, if it is reached through one."""

    name: str
    on: Callable[[int], Store]
    port: int = 0


@dataclass(frozen=True)
class Figures:
    claims: float
    commits: float
    heartbeats: float
    slowest_claim: float
    """99 of 100 are faster, in seconds."""
    requests: float
    """For 1,000 leases: take, commit, complete."""


def run() -> list[Comparison]:
    with ExitStack() as stack:
        figures = {subject.name: measure(subject) for subject in subjects(stack)}
    _show(figures)
    on_s3 = figures["object on S3"].requests / COUNTED
    per_lease = compare("stores", "object: requests per lease", on_s3, MOST_REQUESTS, "requests", "<= 1")
    return [per_lease, *_object_fleet()]


def subjects(stack: ExitStack) -> Iterator[Subject]:
    """Every store, one after the other; its server runs from then on."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    memory = MemoryStore()
    yield Subject("in_memory", lambda _: memory)
    yield Subject("sqlite", lambda _: SqliteStore(folder / "leases.db"))
    postgresql = Postgresql(stack.enter_context(running(PostgresqlServer, fsync="on")))
    yield Subject("postgresql", lambda _: postgresql.make_store())
    mariadb = Mariadb(stack.enter_context(running(MariadbServer)))
    yield Subject("mysql (MariaDB)", lambda _: mariadb.make_store())
    dynamodb = stack.enter_context(running(DynamodbServer))
    yield Subject("dynamodb (local)", partial(_on_dynamodb, dynamodb), dynamodb.port)
    yield Subject("object in a folder", lambda _: ObjectStore(FolderObjects(folder / "objects")))
    s3 = stack.enter_context(running(S3Server))
    s3.create_bucket(BUCKET)
    yield Subject("object on S3", _on_s3, s3.port)


def _on_dynamodb(server: DynamodbServer, port: int) -> Store:
    return DynamodbStore(server.config(table_name="bench", endpoint_url=f"http://127.0.0.1:{port}"))


def _on_s3(port: int) -> Store:
    return ObjectStore(S3Objects(replace(access(port), patience=10.0), "bench/"))


def measure(subject: Subject) -> Figures:
    store = subject.on(subject.port)
    store.open()
    node = Worker(store, "one at a time")
    node.leases.create(Partition(f"p{number:05d}") for number in range(LEASES))
    spans: list[float] = []
    leases = [node.claim_one(spans) for _ in range(LEASES)]
    commits = _rate(lambda lease: node.commit([lease]), leases)
    heartbeats = _rate(lambda _: node.session.heartbeat(), range(LEASES))
    spans.sort()
    figures = LEASES / sum(spans), commits, heartbeats, spans[len(spans) * 99 // 100], _requests(subject)
    store.close()
    return Figures(*figures)


def _requests(subject: Subject) -> float:
    """One node makes the leases, another works on them. Listings of a bucket are not counted: they go by the look."""
    store = subject.on(subject.port)
    Worker(store, "supplier", "counted").leases.create(Partition(f"c{number:05d}") for number in range(COUNTED))
    store.close()
    if not subject.port:
        return 3 * COUNTED / BATCH
    with HttpProxy(subject.port) as proxy:
        node = Worker(subject.on(proxy.port), "a hundred at a time", "counted")
        proxy.requests.clear()
        for _ in range(COUNTED // BATCH):
            node.complete(node.commit(node.leases.claim(BATCH)))
        return sum("list-type" not in line for line in proxy.requests)


class Worker:
    """The real core of a node on a store."""

    def __init__(self, store: Store, name: str, pipeline: str = "single") -> None:
        world = host_world(lambda _: None)
        self.session = Session(store, world, "$nodes", NodeInfo(name, name), SessionTiming())
        self.session.join()
        self.leases = Coordinator(store, world, self.session, pipeline, policy=ClaimPolicy())

    def claim_one(self, spans: list[float]) -> Lease:
        started = time.perf_counter()
        (lease,) = self.leases.claim(1)
        spans.append(time.perf_counter() - started)
        return lease

    def commit(self, leases: Sequence[Lease]) -> list[Lease]:
        written = self.leases.write_each([(lease, _commit_of(lease)) for lease in leases])
        return [row for row in written if isinstance(row, Lease)]

    def complete(self, leases: Sequence[Lease]) -> None:
        done = self.leases.write(leases, lambda row, now: transitions.complete(_published(row, now), now))
        if len(done) != BATCH or not all(isinstance(row, Lease) for row in done):
            raise RuntimeError("a lease was lost with nobody else there")


def _commit_of(lease: Lease) -> Change:
    advance = Advance("commit", {"offset": 1}, {"files": [{"path": "a"}]})
    return lambda row: transitions.commit(row, advance, lease, 1.0)


def _published(row: Lease, now: float) -> Lease:
    return transitions.published(row, "commit", now)


def _rate(do: Callable[[Any], object], inputs: Sequence[Any]) -> float:
    started = time.perf_counter()
    for one in inputs:
        do(one)
    return len(inputs) / (time.perf_counter() - started)


def _show(figures: Mapping[str, Figures]) -> None:
    table = Table("store", "claims/s", "commits/s", "heartbeats/s", "p99 of a claim", "requests per 1,000 leases")
    for name, one in figures.items():
        rates = [f"{rate:,.0f}" for rate in (one.claims, one.commits, one.heartbeats)]
        table.add_row(name, *rates, f"{one.slowest_claim * 1e3:.1f} ms", f"{one.requests:,.0f}")
    Console().print(table)


def _object_fleet() -> list[Comparison]:
    """A thousand leases on twenty nodes: what they ask when idle, and what a node that joins costs."""
    fleet = ObjectFleet(IDLE_LEASES)
    for _ in range(NODES):
        fleet.join()
    fleet.until_balanced()
    fleet.passes(2)
    idle = _asked(fleet, 6)
    fleet.join()
    before = fleet.bucket.asked["conflict"]
    passes = fleet.until_balanced()
    conflicts = fleet.bucket.asked["conflict"] - before
    looks, pages = 6 * NODES, -(-(IDLE_LEASES + NODES) // 1_000)
    print(f"{IDLE_LEASES} leases on {NODES} nodes, idle, per minute: {dict(idle)}; a join: {conflicts} conflicts")
    return [
        compare("stores", "object: idle PUT per node and heartbeat", idle["PUT"] / looks, 1, "requests", "<= 1"),
        compare("stores", "object: idle LIST per node and heartbeat", idle["LIST"] / looks, pages, "requests", "<= 1"),
        compare("stores", "object: idle GET of others' heartbeats", idle["GET"], looks * (NODES - 1), "GET", "<= 1"),
        compare("stores", "object: passes until balanced after a join", passes, MOST_PASSES, "passes", "<= 1"),
    ]


def _asked(fleet: ObjectFleet, passes: int) -> Counter[str]:
    fleet.bucket.asked.clear()
    fleet.passes(passes)
    return Counter(fleet.bucket.asked)

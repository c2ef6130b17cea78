"""All stores in one table: claims, commits and heartbeats per second, the slowest claims, requests per 1,000 leases.

Every server is a real one on this host, with nobody else on it; one process works on one lease at a time, then on a
hundred at a time to count requests. A request is an HTTP request where there are such, elsewhere a call of the store,
which is one transaction. Looks for work (LIST of a bucket, Query of an index) go by the look and not by the lease; they
are counted by themselves. The bars are about requests: what a bucket costs is paid by the request.
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
from holdfast.leases.lease import Key, Lease, Partition
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.leases.transitions import Advance
from holdfast.leases.world import host_world
from holdfast.leases.writes import Change
from holdfast.s3.client import client_of
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.store import DynamodbStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.object.folder import FolderObjects
from holdfast.stores.object.objects import Found
from holdfast.stores.object.s3 import S3TaggedObjects
from holdfast.stores.object.store import ObjectStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.faults import PlainStore
from tests.servers.databases import Mariadb, Postgresql
from tests.servers.dynamodb import DynamodbServer
from tests.servers.processes import MariadbServer, PostgresqlServer, running
from tests.servers.s3 import S3Server
from tests.servers.s3_roots import BUCKET, access

LEASES, BATCH = 200, 100
COUNTED = 1_000
NODES, IDLE_LEASES = 20, 1_000
MOST_REQUESTS = 4
MOST_PASSES = 5


LOOKS = ("Query", "ListObjectsV2", "find")


@dataclass(frozen=True)
class Subject:
    """A store; `on` makes a handle on it, and `counted` one whose requests are noted by name."""

    name: str
    on: Callable[[], Store]
    counted: Callable[[Counter[str]], Store]


class CountedCalls(PlainStore, ClaimingStore):
    """A store whose calls are its requests."""

    def __init__(self, inner: ClaimingStore, asked: Counter[str]) -> None:
        super().__init__(inner)
        self._claiming = inner
        self._asked = asked

    def claim(self, request: ClaimRequest) -> list[Lease]:
        self._asked["claim"] += 1
        return self._claiming.claim(request)

    def now(self) -> float:
        self._asked["now"] += 1
        return self.inner.now()

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        self._asked["get"] += 1
        return self.inner.get(keys)

    def find(self, query: Query) -> list[Lease]:
        self._asked["find"] += 1
        return self.inner.find(query)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self._asked["swap"] += 1
        return self.inner.swap(swaps)


@dataclass(frozen=True)
class Figures:
    claims: float
    commits: float
    heartbeats: float
    slowest_claim: float
    """99 of 100 are faster, in seconds."""
    requests: float
    """For 1,000 leases: take, commit, complete."""
    looks: float
    """Requests that found these leases."""


def run() -> list[Comparison]:
    with ExitStack() as stack:
        figures = {subject.name: measure(subject) for subject in subjects(stack)}
    _show(figures)
    per_lease = [
        compare("stores", f"{name}: requests per lease", figure.requests / COUNTED, MOST_REQUESTS, "requests", "<= 1")
        for name, figure in figures.items()
    ]
    return [*per_lease, *_object_fleet()]


def subjects(stack: ExitStack) -> Iterator[Subject]:
    """Every store, one after the other; its server runs from then on."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    memory = MemoryStore()
    yield _claiming("in_memory", lambda: memory)
    yield _claiming("sqlite", lambda: SqliteStore(folder / "leases.db"))
    postgresql = Postgresql(stack.enter_context(running(PostgresqlServer, fsync="on")))
    yield _claiming("postgresql", postgresql.make_store)
    mariadb = Mariadb(stack.enter_context(running(MariadbServer)))
    yield _claiming("mysql (MariaDB)", mariadb.make_store)
    dynamodb = stack.enter_context(running(DynamodbServer)).config(table_name="bench")
    yield Subject("dynamodb (local)", partial(DynamodbStore, dynamodb), partial(_noted_dynamodb, dynamodb))
    objects = folder / "objects"
    yield Subject("object in a folder", partial(_in_folder, objects), lambda asked: _in_folder(objects, asked))
    s3 = stack.enter_context(running(S3Server))
    s3.create_bucket(BUCKET)
    yield Subject("object on S3", lambda: _on_s3(s3.port), partial(_noted_s3, s3.port))


def _claiming(name: str, on: Callable[[], Store]) -> Subject:
    def counted(asked: Counter[str]) -> Store:
        store = on()
        assert isinstance(store, ClaimingStore)
        return CountedCalls(store, asked)

    return Subject(name, on, counted)


def _noted_dynamodb(config: DynamodbConfig, requests: Counter[str]) -> Store:
    store = DynamodbStore(config)
    store.open()
    _note_requests(store._client._connected(), requests)  # noqa: SLF001 - what is sent is seen there alone
    return store


def _on_s3(port: int) -> Store:
    return ObjectStore(S3TaggedObjects(replace(access(port), patience=10.0), "bench/"))


def _noted_s3(port: int, requests: Counter[str]) -> Store:
    # Another patience is another client: nobody else's requests are noted.
    far = replace(access(port), patience=11.0)
    _note_requests(client_of(far)._client, requests)  # noqa: SLF001 - as above
    return ObjectStore(S3TaggedObjects(far, "bench/"))


def _note_requests(client: Any, requests: Counter[str]) -> None:
    client.meta.events.register("before-parameter-build", lambda model, **_: requests.update([model.name]))


class CountedFolder(FolderObjects):
    """A folder as if it were a bucket."""

    def __init__(self, root: Path, asked: Counter[str]) -> None:
        super().__init__(root)
        self._asked = asked

    def tags(self, prefix: str) -> dict[str, str]:
        self._asked["ListObjectsV2"] += 1
        return super().tags(prefix)

    def read(self, name: str) -> Found | None:
        self._asked["GetObject"] += 1
        return super().read(name)

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        self._asked["PutObject"] += 1
        return super().write(name, data, tag)


def _in_folder(root: Path, requests: Counter[str] | None = None) -> Store:
    return ObjectStore(FolderObjects(root) if requests is None else CountedFolder(root, requests))


def measure(subject: Subject) -> Figures:
    store = subject.on()
    store.open()
    node = Worker(store, "one at a time")
    node.leases.create(Partition(f"p{number:05d}") for number in range(LEASES))
    spans: list[float] = []
    leases = [node.claim_one(spans) for _ in range(LEASES)]
    commits = _rate(lambda lease: node.commit([lease]), leases)
    heartbeats = _rate(lambda _: node.session.heartbeat(), range(LEASES))
    spans.sort()
    requests = _requests(subject)
    store.close()
    looks = sum(requests[name] for name in LOOKS)
    slowest = spans[len(spans) * 99 // 100]
    return Figures(LEASES / sum(spans), commits, heartbeats, slowest, requests.total() - looks, looks)


def _requests(subject: Subject) -> Counter[str]:
    """One node makes the leases, another works on them: what the other asks for 1,000 of them."""
    supplier = Worker(subject.on(), "supplier", "counted")
    supplier.leases.create(Partition(f"c{number:05d}") for number in range(COUNTED))
    requests: Counter[str] = Counter()
    node = Worker(subject.counted(requests), "a hundred at a time", "counted")
    requests.clear()
    for _ in range(COUNTED // BATCH):
        node.complete(node.commit(node.leases.claim(BATCH)))
    return requests


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
    for given in inputs:
        do(given)
    return len(inputs) / (time.perf_counter() - started)


def _show(figures: Mapping[str, Figures]) -> None:
    per_lease = ("requests per 1,000 leases", "and looks")
    table = Table("store", "claims/s", "commits/s", "heartbeats/s", "p99 of a claim", *per_lease)
    for name, figure in figures.items():
        rates = [f"{rate:,.0f}" for rate in (figure.claims, figure.commits, figure.heartbeats)]
        slowest = f"{figure.slowest_claim * 1e3:.1f} ms"
        table.add_row(name, *rates, slowest, f"{figure.requests:,.0f}", f"{figure.looks:,.0f}")
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
    before = fleet.bucket.requests["conflict"]
    passes = fleet.until_balanced()
    conflicts = fleet.bucket.requests["conflict"] - before
    looks, pages = 6 * NODES, -(-(IDLE_LEASES + NODES) // 1_000)
    print(f"{IDLE_LEASES} leases on {NODES} nodes, idle, per minute: {dict(idle)}; a join: {conflicts} conflicts")
    return [
        compare("stores", "object: idle PUT per node and heartbeat", idle["PUT"] / looks, 1, "requests", "<= 1"),
        compare("stores", "object: idle LIST per node and heartbeat", idle["LIST"] / looks, pages, "requests", "<= 1"),
        compare("stores", "object: idle GET of others' heartbeats", idle["GET"], looks * (NODES - 1), "GET", "<= 1"),
        compare("stores", "object: passes until balanced after a join", passes, MOST_PASSES, "passes", "<= 1"),
    ]


def _asked(fleet: ObjectFleet, passes: int) -> Counter[str]:
    fleet.bucket.requests.clear()
    fleet.passes(passes)
    return Counter(fleet.bucket.requests)

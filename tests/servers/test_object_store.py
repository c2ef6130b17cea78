"""The object store on a real S3 server: the behaviour suite, how many requests it takes, and answers that are lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from holdfast.errors import Refused, SchemaMismatch, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.discovery import Discovery
from holdfast.leases.lease import Key, Lease, Partition, Status
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.sharing import FairShare
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.transitions import Advance
from holdfast.stores.object.rows import name_of
from holdfast.stores.object.s3 import S3TaggedObjects
from holdfast.stores.object.store import ObjectStore
from holdfast.testing import OutageBehaviour
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.stores import StoreBehaviour
from holdfast.testing.worlds import TurnableClock, make_world
from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.s3 import S3Server
from tests.servers.s3_roots import BUCKET, S3Root, access

OK, CONFLICT, UNKNOWN = Outcome.OK, Outcome.CONFLICT, Outcome.UNKNOWN


@pytest.fixture(scope="module", autouse=True)
def _bucket(s3_server: S3Server) -> None:
    names = [bucket["Name"] for bucket in s3_server.client().list_buckets()["Buckets"]]
    if BUCKET not in names:
        s3_server.create_bucket(BUCKET)


@pytest.fixture
def root(s3_server: S3Server) -> S3Root:
    return S3Root(s3_server)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[HttpProxy]:
    with HttpProxy(s3_server.port) as proxy:
        yield proxy


def s3_store(prefix: str, port: int) -> ObjectStore:
    return ObjectStore(S3TaggedObjects(replace(access(port), patience=60.0), prefix))


class TestObjectStoreOnS3(StoreBehaviour):
    many = 160  # each lease takes three requests and more

    @pytest.fixture(autouse=True)
    def one_prefix(self, root: S3Root) -> None:
        self.root = root
        self.clock = TurnableClock()

    def make_store(self) -> Store:
        objects = S3TaggedObjects(access(self.root.server.port), self.root.prefix)
        return ObjectStore(objects, now=self.clock.monotonic)

    def child_factory(self) -> Callable[[], Store]:
        return partial(s3_store, self.root.prefix, self.root.server.port)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        client, name = self.root.server.client(), self.root.prefix + name_of(key)
        line, _, body = client.get_object(Bucket=BUCKET, Key=name)["Body"].read().partition(b"\n")
        client.put_object(Bucket=BUCKET, Key=name, Body=line + b"\n" + body[:20])


class TestObjectStoreOutages(OutageBehaviour):
    commit = b'"nonce"'

    @pytest.fixture(autouse=True)
    def one_prefix(self, root: S3Root) -> None:
        self.root, self.server_port = root, root.server.port

    def make_store(self, port: int) -> Store:
        return ObjectStore(S3TaggedObjects(replace(access(port), patience=1.0), self.root.prefix))


# --- requests --------------------------------------------------------------------------------------------------------


class Requests:
    """What a proxy has seen since it was last asked, by verb; a LIST is a GET of the bucket itself."""

    def __init__(self, proxy: HttpProxy) -> None:
        self._proxy = proxy

    def since(self) -> Counter[str]:
        lines, self._proxy.requests[:] = list(self._proxy.requests), []
        return Counter("LIST" if "list-type" in line else line.split()[0] for line in lines)


class Node:
    """The real core on a store, without the loop around it."""

    def __init__(self, name: str, store: Store) -> None:
        self.world = make_world(name, inline=True)
        timing = SessionTiming()
        self.session = Session(store, self.world, "$nodes", NodeInfo(name, name, (PIPELINE,)), timing)
        self.session.join()
        self.leases = Coordinator(store, self.world, self.session, PIPELINE, policy=ClaimPolicy())
        self.sharing = FairShare(self.leases)
        self.discovery = Discovery(
            self.leases, lambda _state: [Partition(f"{n:04d}") for n in range(40)], rerun_after=9e9
        )
        self.held: list[Lease] = []

    def pass_once(self) -> None:
        """What the loop does with every heartbeat."""
        self.session.heartbeat()
        self.held = self.leases.owned()
        self.leases.sweep()
        self.held += self.sharing.look(len(self.held), 1000).taken
        self.discovery.run()


def test_an_idle_fleet_costs_one_put_and_one_list_for_each_node_and_heartbeat(root: S3Root, proxy: HttpProxy) -> None:
    clocks = [TurnableClock(), TurnableClock()]
    nodes = []
    for number, clock in enumerate(clocks):
        store = s3_store(root.prefix, proxy.port)
        store._rows._monotonic = clock.monotonic
        store.open()
        nodes.append(Node(f"node {number}", store))
    requests = Requests(proxy)

    def beat() -> Counter[str]:
        for node, clock in zip(nodes, clocks, strict=True):
            clock.turn(10.0)
            node.pass_once()
        return requests.since()

    for _ in range(4):
        beat()
    assert [len(node.held) for node in nodes] == [20, 20]
    seen = beat()
    # The other node's session has moved: its heartbeat object is read, and nothing else.
    assert seen == {"PUT": 2, "LIST": 2, "GET": 2}


def test_a_lease_takes_four_requests_to_take_commit_and_complete(root: S3Root, proxy: HttpProxy) -> None:
    s3_store(root.prefix, root.server.port).add([make_row(f"{number:03d}") for number in range(25)])
    store = s3_store(root.prefix, proxy.port)
    node = Node("a", store)
    requests = Requests(proxy)
    requests.since()
    leases = node.leases.claim(25)
    advances = [(lease, _commit_of(lease)) for lease in leases]
    committed = [row for row in node.leases.write_each(advances) if isinstance(row, Lease)]
    done = node.leases.write(committed, _published_and_complete)
    assert {row.status for row in done if isinstance(row, Lease)} == {Status.COMPLETED}
    assert requests.since() == {"LIST": 1, "GET": 25, "PUT": 75}


def _commit_of(lease: Lease) -> Callable[[Lease], Lease]:
    return lambda row: transitions.commit(row, Advance("c", 1, {"files": [1]}), lease, 1.0)


def _published_and_complete(row: Lease, now: float) -> Lease:
    return transitions.complete(transitions.published(row, "c", now), now)


# --- answers that are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(Fault))
def test_a_write_whose_answer_is_lost_is_made_once_and_known_as_ours(
    root: S3Root, proxy: HttpProxy, fault: Fault
) -> None:
    store = s3_store(root.prefix, proxy.port)
    row = make_row("a")
    proxy.fail(fault, "PUT")
    assert store.add([row]) == [OK]
    proxy.fail(fault, "PUT")
    assert store.swap([Swap(0, touched(row, "mine"))]) == [OK]
    proxy.fail(fault, "PUT")
    assert store.swap([Swap(0, touched(row, "late"))]) == [CONFLICT]
    (found,) = s3_store(root.prefix, root.server.port).find(Query(PIPELINE))
    assert (found.version, found.ownership.write_id) == (1, "mine")


def test_a_write_that_never_gets_an_answer_is_unknown_and_then_read(root: S3Root, proxy: HttpProxy) -> None:
    store = s3_store(root.prefix, proxy.port)
    row = make_row("a")
    store.add([row])
    assert len(store.recent(60.0).find(Query(PIPELINE))) == 1
    proxy.fail(Fault.ANSWER_LOST, "PUT", times=4)
    assert store.swap([Swap(0, touched(row, "mine"))]) == [UNKNOWN]
    (found,) = store.recent(60.0).find(Query(PIPELINE))
    assert (found.version, found.ownership.write_id) == (1, "mine")


def test_a_conflict_that_cannot_be_looked_into_is_unknown(root: S3Root, proxy: HttpProxy) -> None:
    store = s3_store(root.prefix, proxy.port)
    row = make_row("a")
    store.add([row])
    proxy.fail(Fault.ANSWER_LOST, "PUT")
    proxy.fail(Fault.REFUSED, "GET", times=4)
    assert store.swap([Swap(0, touched(row, "mine"))]) == [UNKNOWN]


def test_a_server_that_is_away_is_unavailable_never_empty(root: S3Root) -> None:
    store = s3_store(root.prefix, root.server.port)
    store.add([make_row("a")])
    root.server.stop()
    try:
        for read in (
            lambda: store.find(Query(PIPELINE)),
            lambda: store.get([make_row("a").id]),
            lambda: store.count(PIPELINE),
            lambda: store.snapshot(PIPELINE, "$nodes"),
        ):
            with pytest.raises(StoreUnavailable, match=str(root.server.port)):
                read()
        with pytest.raises(StoreUnavailable, match=str(root.server.port)):
            store.swap([Swap(0, touched(make_row("a")))])
    finally:
        root.server.start()
    assert [row.key for row in store.find(Query(PIPELINE))] == ["a"]


# --- time, start-up --------------------------------------------------------------------------------------------------


def test_the_clock_is_the_servers(root: S3Root) -> None:
    store = s3_store(root.prefix, root.server.port)
    before = store.now()
    assert abs(before - time.time()) < 2.0
    assert store.now() > before


def test_a_store_is_made_once_and_not_made_if_that_is_forbidden(root: S3Root) -> None:
    objects = S3TaggedObjects(access(root.server.port), root.prefix)
    with pytest.raises(SchemaMismatch, match="there is no store in s3://lake/"):
        ObjectStore(objects, skip_table_creation=True).open()
    assert root.objects() == []
    for _ in range(2):
        ObjectStore(objects).open()
    ObjectStore(objects, skip_table_creation=True).open()
    assert root.objects() == ["store.json"], "a probe leaves nothing behind"


def test_a_bucket_that_is_not_there_and_wrong_keys_are_refused(root: S3Root) -> None:
    for wrong in (access(root.server.port, bucket="nowhere"), access(root.server.port, secret="wrong")):
        with pytest.raises(Refused, match="list, get and put"):
            ObjectStore(S3TaggedObjects(wrong, root.prefix)).open()


class Careless(BaseHTTPRequestHandler):
    """A server that takes every PUT, whatever its conditions say."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_GET(self) -> None:
        self._answer(200 if self.path in self.objects else 404, self.objects.get(self.path, b""))

    def do_DELETE(self) -> None:
        self._answer(204)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{hash(self.objects.get(self.path))}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_does_not_hold_conditional_writes_is_refused() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Careless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(Refused, match="does not honour conditional writes"):
            s3_store("x/", server.server_address[1]).open()
        server.shutdown()

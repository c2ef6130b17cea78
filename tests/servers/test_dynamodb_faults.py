"""DynamoDB on a bad day: it throttles, loses answers, goes away, or its index is behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from holdfast.errors import AnswerLost, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import FINISHED, Lease, Partition, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.transitions import Advance
from holdfast.stores.dynamodb import DynamodbConfig, client
from holdfast.testing import OutageBehaviour
from holdfast.testing.rows import PIPELINE, assigned_row, make_row, touched
from holdfast.testing.worlds import TurnableClock
from tests.servers.dynamodb import DynamodbServer, PolicedStore, fresh_table, opened_store, raw_client, refusal
from tests.servers.dynamodb_nodes import node_on
from tests.servers.http_proxy import Fault, HttpProxy

OK, CONFLICT, UNKNOWN = Outcome.OK, Outcome.CONFLICT, Outcome.UNKNOWN
THROTTLED = "ProvisionedThroughputExceededException"


@pytest.fixture
def config(dynamodb_server: DynamodbServer) -> Iterator[DynamodbConfig]:
    with fresh_table(dynamodb_server) as config:
        yield config


@pytest.fixture
def store(config: DynamodbConfig) -> Iterator[PolicedStore]:
    with opened_store(config) as store:
        yield store


class TestDynamodbOutages(OutageBehaviour):
    commit = b'"ConditionExpression"'
    hangs_up_after = None  # three tries of ten seconds

    @pytest.fixture(autouse=True)
    def one_table(self, config: DynamodbConfig, store: PolicedStore) -> None:
        self.config = config
        self.server_port = int((config.endpoint_url or "").rpartition(":")[2])

    def make_store(self, port: int) -> Store:
        return PolicedStore(self.config.model_copy(update={"endpoint_url": f"http://127.0.0.1:{port}"}))


def every_call(store: PolicedStore) -> Mapping[str, Callable[[], Any]]:
    row = make_row("a")
    return {
        "add": lambda: store.add([row, make_row("b")]),
        "get": lambda: store.get([row.id]),
        "find": lambda: store.find(Query(PIPELINE)),
        "find due": lambda: store.find(Query(PIPELINE, statuses=(Status.UNASSIGNED,), due=True)),
        "find owned": lambda: store.find(Query(PIPELINE, statuses=(Status.ASSIGNED,), owner="me")),
        "snapshot": lambda: store.snapshot(PIPELINE, "$nodes"),
        "swap": lambda: store.swap([Swap(0, touched(row))]),
        "count": lambda: store.count(PIPELINE),
        "remove": lambda: store.remove([row]),
    }


# --- throttling ------------------------------------------------------------------------------------------------------


def throttle(_name: str, _request: dict[str, Any]) -> None:
    raise refusal(THROTTLED, _name)


def test_a_throttled_call_never_reads_as_empty_and_is_never_half_an_answer(
    store: PolicedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([make_row("a")])
    monkeypatch.setattr(client, "PATIENCE", 0.2)
    store.intercept = throttle
    for name, call in every_call(store).items():
        with pytest.raises(StoreUnavailable, match="throttles") as caught:
            call()
        assert not isinstance(caught.value, AnswerLost), name
    store.intercept = lambda *_: None
    assert store.get([make_row("a").id]) == [make_row("a")]


def test_a_page_that_is_throttled_is_no_end_of_the_answer(store: PolicedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add([make_row(f"{number:03d}", state="x" * 300_000) for number in range(6)])
    monkeypatch.setattr(client, "PATIENCE", 0.2)

    def throttle_the_second_page(name: str, request: dict[str, Any]) -> None:
        if "ExclusiveStartKey" in request:
            raise refusal(THROTTLED, name)

    store.intercept = throttle_the_second_page
    for call in (lambda: store.find(Query(PIPELINE)), lambda: store.count(PIPELINE)):
        with pytest.raises(StoreUnavailable):
            call()
    store.intercept = lambda *_: None
    assert store.count(PIPELINE) == {Status.UNASSIGNED: 6}


def test_a_store_that_is_throttled_slows_down_and_gets_everything_done(store: PolicedStore) -> None:
    refused: list[float] = []

    def throttle_some(name: str, _request: dict[str, Any]) -> None:
        if name == "PutItem" and len(refused) < 12:
            refused.append(time.monotonic())
            raise refusal(THROTTLED, name)

    store.intercept = throttle_some
    started = time.monotonic()
    assert store.add([make_row(f"{number:03d}") for number in range(20)]) == [OK] * 20
    assert store.calls.count("PutItem") == 32
    # Eight at once are refused together; the rest has to wait for what that taught.
    assert refused[-1] - started > client._FIRST_PAUSE / 2


def test_rows_of_a_batch_that_stay_throttled_are_unknown_and_the_others_are_told(
    store: PolicedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.2)

    def throttle_b(name: str, request: dict[str, Any]) -> None:
        if name == "PutItem" and request["Item"]["key"]["S"] == "b":
            raise refusal(THROTTLED, name)

    store.intercept = throttle_b
    assert store.add([make_row("a"), make_row("b")]) == [OK, UNKNOWN]


# --- lost answers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(dynamodb_server: DynamodbServer) -> Iterator[HttpProxy]:
    with HttpProxy(dynamodb_server.port) as proxy:
        yield proxy


@pytest.fixture
def far(config: DynamodbConfig, store: PolicedStore, proxy: HttpProxy) -> Iterator[PolicedStore]:
    """A store behind the proxy; `store` has made the table."""
    assert store.get([]) == []
    far = PolicedStore(config.model_copy(update={"endpoint_url": f"http://127.0.0.1:{proxy.port}"}))
    far.open()
    yield far
    far.close()


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.DROPPED, Fault.REFUSED])
def test_a_write_without_an_answer_is_unknown_and_sent_once(
    far: PolicedStore, store: PolicedStore, proxy: HttpProxy, fault: Fault
) -> None:
    row = make_row("a")
    applied = fault is Fault.ANSWER_LOST
    proxy.fail(fault, "POST")
    before = len(proxy.requests)
    assert far.add([row]) == [UNKNOWN]
    assert len(proxy.requests) == before + 1
    assert store.get([row.id]) == [row if applied else None]
    store.add([row])
    proxy.fail(fault, "POST")
    assert far.swap([Swap(0, touched(row))]) == [UNKNOWN]
    assert store.get([row.id]) == [touched(row) if applied else row]
    proxy.fail(fault, "POST")
    (present,) = store.get([row.id])
    assert present is not None
    assert far.remove([present]) == [UNKNOWN]
    assert store.get([row.id]) == [None if applied else present]


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.DROPPED, Fault.REFUSED])
def test_a_commit_whose_answer_is_lost_is_made_exactly_once(far: PolicedStore, proxy: HttpProxy, fault: Fault) -> None:
    node = node_on(far)
    node.create([Partition("k")])
    (lease,) = node.claim(1)
    advance = Advance("commit 1", {"offset": 1}, {"files": [1]})
    proxy.fail(fault, "POST")
    (written,) = node.write([lease], lambda row, now: transitions.commit(row, advance, lease, now))
    assert isinstance(written, Lease), written
    assert (written.commit.sequence, written.token, written.version) == (1, 1, lease.version + 1)
    assert far.get([lease.id]) == [written]


def test_a_claim_whose_response_is_lost_is_found_afterwards(far: PolicedStore, proxy: HttpProxy) -> None:
    node = node_on(far)
    node.create([Partition("k")])
    lost: list[str] = []

    def lose_the_claim(name: str, _request: dict[str, Any]) -> None:
        if name == "PutItem" and not lost:
            lost.append(name)
            proxy.fail(Fault.ANSWER_LOST, "POST")

    far.intercept = lose_the_claim
    assert node.claim(1) == []
    assert [row.key for row in node.owned()] == ["k"]
    assert node.claim(1) == []


def test_a_read_without_an_answer_is_repeated_and_then_told(far: PolicedStore, proxy: HttpProxy) -> None:
    far.add([make_row("a")])
    proxy.fail(Fault.DROPPED, "POST", times=2)
    assert far.get([make_row("a").id]) == [make_row("a")]
    proxy.fail(Fault.DROPPED, "POST", times=3)
    with pytest.raises(StoreUnavailable):
        far.get([make_row("a").id])


def test_a_server_that_is_away_is_unavailable_and_then_works_again(
    store: PolicedStore, dynamodb_server: DynamodbServer
) -> None:
    store.add([make_row("a")])
    dynamodb_server.stop()
    try:
        for name, call in every_call(store).items():
            with pytest.raises(StoreUnavailable, match=str(dynamodb_server.port)) as caught:
                call()
            # A connection that was idle when the server went is only found dead when it is used.
            assert name in {"add", "swap", "remove"} or not isinstance(caught.value, AnswerLost)
    finally:
        dynamodb_server.start()
    assert [row.key for row in store.find(Query(PIPELINE))] == ["a"]


# --- processes that die ----------------------------------------------------------------------------------------------


def test_nodes_wait_for_a_server_that_crashes_and_lose_nothing(
    store: PolicedStore, config: DynamodbConfig, dynamodb_server: DynamodbServer
) -> None:
    total, nodes = 60, 3
    store.add([make_row(f"{number:03d}", ordinal=number) for number in range(total)])
    begun = threading.Barrier(nodes + 1, timeout=120)

    def work(number: int) -> list[Lease]:
        store = PolicedStore(config)
        node = node_on(store, f"node {number}")
        done = finish(node, node.claim(3))
        begun.wait()
        while any(status not in FINISHED for status in node.counts()):
            done += finish(node, node.claim(5) or node.owned())
        store.close()
        return done

    with ThreadPoolExecutor(nodes) as pool:
        results = [pool.submit(work, number) for number in range(nodes)]
        begun.wait()
        dynamodb_server.crash()
        dynamodb_server.start()
        done = [lease for result in results for lease in result.result()]
    assert len({lease.key for lease in done}) == len(done) == total
    rows = store.find(Query(PIPELINE))
    assert {(row.status, row.commit.sequence, row.token) for row in rows} == {(Status.COMPLETED, 1, 1)}


def finish(node: Coordinator, leases: list[Lease]) -> list[Lease]:
    """Commit and complete each of them; nobody else may have it."""
    advance = Advance("only one", {"done": True}, {})
    changes = [(lease, partial(transitions.commit, advance=advance, expected=lease, now=1.0)) for lease in leases]
    committed = [row for row in node.write_each(changes) if isinstance(row, Lease)]
    finished = [row for row in node.write(committed, transitions.complete) if isinstance(row, Lease)]
    assert len(finished) == len(leases)
    return finished


CLAIM_AND_HANG = """
import sys, time
from holdfast.stores.dynamodb import DynamodbConfig, build
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.world import host_world
store = build(DynamodbConfig.model_validate_json(sys.argv[1]))
store.open()
world = host_world(lambda event: None)
session = Session(store, world, "$nodes", NodeInfo("doomed", "doomed"), SessionTiming(timeout=1.0))
session.join()
print(len(Coordinator(store, world, session, "orders", policy=ClaimPolicy()).claim(5)), flush=True)
time.sleep(600)
"""


def test_the_leases_of_a_killed_process_are_taken_over_under_new_tokens(
    store: PolicedStore, config: DynamodbConfig
) -> None:
    heir = node_on(store, "heir")
    heir.create([Partition(f"k{number}") for number in range(5)])
    command = (sys.executable, "-c", CLAIM_AND_HANG, config.model_dump_json(exclude_none=True))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "5\n"
        doomed.kill()
    assert heir.claim(5) == []
    assert isinstance(heir.world.clock, TurnableClock)
    for _ in range(4):
        heir.world.clock.turn(0.5)
        heir.sweep()
    assert {(lease.token, lease.history.begun) for lease in heir.claim(5)} == {(2, False)}


# --- an index that is behind -----------------------------------------------------------------------------------------


def freeze_index(store: PolicedStore) -> None:
    """Whatever is asked of the index from now on is answered as of now."""
    inner, name = store._client.call, store._config.table_name
    request = {"TableName": name, "IndexName": "source-status"}
    entries: dict[str, list[Any]] = {}

    def call(verb: str, **arguments: Any) -> Mapping[str, Any]:
        if arguments.get("IndexName") is None:
            return inner(verb, **arguments)
        values = {name: value["S"] for name, value in arguments["ExpressionAttributeValues"].items()}
        if values[":shard"] not in entries:
            entries[values[":shard"]] = []
        then = entries[values[":shard"]]
        return {
            "Items": [item for item in then if values[":start"] <= item["partitionPriority"]["S"] <= values[":end"]]
        }

    for number in range(4):
        shard = f"{PIPELINE}||#{number}"
        condition = {
            "KeyConditionExpression": "sourceStatusCombinationKey = :shard",
            "ExpressionAttributeValues": {":shard": {"S": shard}},
        }
        entries[shard] = raw_client(store._config).query(**request, **condition)["Items"]
    store._client.call = call  # type: ignore[method-assign]


def test_what_the_index_still_shows_as_free_is_not_taken_from_its_owner(
    store: PolicedStore, config: DynamodbConfig
) -> None:
    late = PolicedStore(config)
    late.open()
    node_on(store).create([Partition("k1"), Partition("k2")])
    freeze_index(late)
    owner, other = node_on(store, "owner"), node_on(late, "other")
    (lease,) = owner.claim(1)
    assert [lease.key for lease in other.claim(9)] == ["k2"]
    assert other.claim(9) == []
    assert store.get([lease.id]) == [lease]
    late.close()


def test_what_the_index_does_not_show_yet_is_still_known_to_its_owner(store: PolicedStore) -> None:
    node = node_on(store)
    freeze_index(store)
    node.create([Partition("k")])
    (row,) = store.find(Query(PIPELINE))
    (lease,) = node.claim_rows([row])
    assert node.owned() == [lease]
    node.release([lease])
    assert node.owned() == []


def test_nothing_is_counted_or_shared_out_by_an_index_that_is_behind(store: PolicedStore) -> None:
    freeze_index(store)
    rows = [make_row("a"), assigned_row("b", "me"), make_row("c", status=Status.COMPLETED, due_at=None)]
    store.add(rows)
    assert store.count(PIPELINE) == {Status.UNASSIGNED: 1, Status.ASSIGNED: 1, Status.COMPLETED: 1}
    assert [row.key for row in store.snapshot(PIPELINE, "$nodes").leases] == ["a", "b"]


def test_a_stale_entry_of_a_dead_owner_does_not_free_what_a_living_one_has(
    store: PolicedStore, config: DynamodbConfig
) -> None:
    late = PolicedStore(config)
    late.open()
    dead, living, watcher = node_on(store, "dead"), node_on(store, "living"), node_on(late, "watcher")
    dead.create([Partition("k")])
    (lease,) = dead.claim(1)
    freeze_index(late)
    dead.release([lease])
    dead.session.leave()
    (taken,) = living.claim(1)
    watcher.sweep()
    assert store.get([taken.id]) == [taken]
    late.close()

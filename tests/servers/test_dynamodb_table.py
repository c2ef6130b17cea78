"""The table of the DynamoDB store: how it is made, what it may cost, who may use it, and what expires in it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RowUnreadable, SchemaMismatch, StoreError
from holdfast.leases import transitions
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Commit, Key, Lease, Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.query import Query
from holdfast.leases.session import KEEP_ENDED_SESSIONS, NodeInfo, Session, SessionTiming
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.token_floor import floor_of, read_floor
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.items import table_key
from holdfast.testing.rows import PIPELINE, assigned_row, make_row, touched
from holdfast.testing.worlds import TurnableClock, make_world
from tests.servers.dynamodb import POLICY, DynamodbServer, PolicedStore, raw_client

WEEK = 7 * 86_400.0


@pytest.fixture
def config(dynamodb_server: DynamodbServer) -> Iterator[DynamodbConfig]:
    config = dynamodb_server.config(table_name=f"leases-{uuid.uuid4().hex}", ttl="P7D")
    yield config
    client = raw_client(config)
    if config.table_name in client.list_tables()["TableNames"]:
        client.delete_table(TableName=config.table_name)


@pytest.fixture
def clock() -> TurnableClock:
    return TurnableClock()


@pytest.fixture
def store(config: DynamodbConfig, clock: TurnableClock) -> Iterator[PolicedStore]:
    store = PolicedStore(config, clock.monotonic)
    store.open()
    yield store
    store.close()


def item(store: PolicedStore, key: Key) -> dict[str, Any]:
    answer = raw_client(store._config).get_item(TableName=store._config.table_name, Key=table_key(key))
    found: dict[str, Any] = answer["Item"]
    return found


def expires_at(store: PolicedStore, key: Key) -> float | None:
    time = item(store, key).get("expirationTime")
    return None if time is None else float(time["N"])


def node_on(store: PolicedStore, name: str = "a") -> Coordinator:
    world = make_world(name)
    session = Session(store, world, "$nodes", NodeInfo(name, name, (PIPELINE,)), SessionTiming())
    session.join()
    return Coordinator(store, world, session, PIPELINE, policy=ClaimPolicy())


def completed(node: Coordinator, key: str) -> Lease:
    node.create([Partition(key)])
    (lease,) = node.claim(1)
    (done,) = node.write([lease], transitions.complete)
    assert isinstance(done, Lease)
    return done


# --- what expires ----------------------------------------------------------------------------------------------------


def test_only_completed_rows_without_receipts_expire_and_later_with_each_write(
    store: PolicedStore, clock: TurnableClock
) -> None:
    node = node_on(store)
    node.create([Partition("k")])
    free = Key(PIPELINE, "", "k")
    assert expires_at(store, free) is None
    (lease,) = node.claim(1)
    assert expires_at(store, free) is None
    (done,) = node.write([lease], transitions.complete)
    assert isinstance(done, Lease)
    assert expires_at(store, free) == int(clock.monotonic() + WEEK)
    clock.turn(1000.0)
    store.swap([Swap(done.version, touched(done))])
    assert expires_at(store, free) == int(clock.monotonic() + WEEK)
    Operator(store, make_world("op").new_id, PIPELINE).reopen("k")
    assert expires_at(store, free) is None
    pending = make_row("p", status=Status.COMPLETED, due_at=None, commit=Commit(receipts={"files": []}))
    failed = make_row("f", status=Status.FAILED, due_at=None)
    store.add([pending, failed])
    assert [expires_at(store, row.id) for row in (pending, failed)] == [None, None]


def test_ended_sessions_expire_and_the_books_of_a_pipeline_never(store: PolicedStore) -> None:
    node = node_on(store)
    completed(node, "k")
    node.session.leave()
    assert expires_at(store, Key("$nodes", "", node.session.id)) is not None
    assert expires_at(store, floor_of(PIPELINE)) is None
    books = [make_row("x", pipeline=f"{PIPELINE}/{book}", status=Status.COMPLETED) for book in ("$runs", "$discovery")]
    store.add(books)
    assert [expires_at(store, row.id) for row in books] == [None, None]


def test_without_ttl_nothing_expires(config: DynamodbConfig, clock: TurnableClock) -> None:
    store = PolicedStore(config.model_copy(update={"ttl": None}), clock.monotonic)
    store.open()
    done = completed(node_on(store), "k")
    assert expires_at(store, done.id) is None
    assert read_floor(store, PIPELINE) == 0
    store.close()


def test_a_row_made_anew_after_it_expired_never_starts_with_a_token_used_before(store: PolicedStore) -> None:
    node = node_on(store)
    done = completed(node, "k")
    for _ in range(3):
        raw_client(store._config).delete_item(TableName=store._config.table_name, Key=table_key(done.id))
        anew = completed(node, "k")
        # A late write of an earlier life finds another version.
        assert store.swap([Swap(done.version, touched(done))]) == [Outcome.CONFLICT]
        assert anew.token > done.token
        done = anew


def test_the_floor_is_raised_before_the_row_that_may_expire_and_seldom(store: PolicedStore) -> None:
    written: list[str] = []

    def note(name: str, request: dict[str, Any]) -> None:
        if name == "PutItem":
            status = request["Item"]["sourcePartitionStatus"]["S"]
            written.append("floor" if request["Item"]["pipeline"]["S"].endswith("$floor") else status)

    node = node_on(store)
    node.create([Partition(f"k{number}") for number in range(5)])
    store.intercept = note
    for _ in range(5):
        assert node.write(node.claim(1), transitions.complete)
    assert written.index("floor") < written.index("COMPLETED")
    assert written.count("floor") == 2  # made once, raised once
    assert read_floor(store, PIPELINE) == 100


def test_nothing_is_completed_while_the_floor_cannot_be_raised(store: PolicedStore) -> None:
    node = node_on(store)
    node.create([Partition("k")])
    (lease,) = node.claim(1)
    store.allowed = POLICY - {"GetItem"}
    done = transitions.stamped(lease, transitions.complete(lease, 1.0), "done")
    with pytest.raises(StoreError):
        store.swap([Swap(lease.version, done)])
    store.allowed = POLICY
    assert store.get([lease.id]) == [lease]


# --- permissions -----------------------------------------------------------------------------------------------------


def test_a_node_needs_no_permission_to_delete(store: PolicedStore, clock: TurnableClock) -> None:
    store.may_delete = False
    node_on(store, "long gone").session.leave()
    clock.turn(2 * KEEP_ENDED_SESSIONS)
    for name in ("a", "b"):
        node = node_on(store, name)
        node.sweep()
        completed(node, name)
        node.session.leave()
    assert "DeleteItem" in store.calls  # asked for, refused, and gone without


def test_a_missing_permission_is_named(store: PolicedStore) -> None:
    store.add([make_row("a")])
    store.may_delete = False
    with pytest.raises(StoreError, match="dynamodb:DeleteItem"):
        store.remove([make_row("a")])
    store.allowed = frozenset()
    with pytest.raises(StoreError, match="dynamodb:Query"):
        store.find(Query(PIPELINE))


# --- the server of these tests ---------------------------------------------------------------------------------------


def test_the_server_listens_on_loopback_only(dynamodb_server: DynamodbServer) -> None:
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = [line[1] for line in lines if line[3] == "0A" and line[1].endswith(f":{dynamodb_server.port:04X}")]
    assert listening
    assert all(address.partition(":")[0].endswith("0100007F") for address in listening)


# --- the table -------------------------------------------------------------------------------------------------------


def described(config: DynamodbConfig) -> Any:
    return raw_client(config).describe_table(TableName=config.table_name)["Table"]


def test_the_table_is_made_with_the_capacity_asked_for(config: DynamodbConfig) -> None:
    PolicedStore(config).open()
    made = described(config)
    (index,) = made["GlobalSecondaryIndexes"]
    for part in (made, index):
        capacity = part["ProvisionedThroughput"]
        assert (capacity["ReadCapacityUnits"], capacity["WriteCapacityUnits"]) == (10, 10)
    assert index["IndexName"] == "source-status"
    found = raw_client(config).describe_time_to_live(TableName=config.table_name)["TimeToLiveDescription"]
    assert found == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expirationTime"}


def test_a_table_can_be_paid_by_request(config: DynamodbConfig) -> None:
    PolicedStore(config.model_copy(update={"billing": "on_demand"})).open()
    assert described(config)["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_all_that_start_at_once_find_one_table(config: DynamodbConfig) -> None:
    stores = [PolicedStore(config) for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(PolicedStore.open, stores))
    assert stores[0].add([make_row("a")]) == [Outcome.OK]
    assert stores[3].get([make_row("a").id]) == [make_row("a")]


def test_nothing_is_created_where_that_is_forbidden(config: DynamodbConfig) -> None:
    careful = config.model_copy(update={"skip_table_creation": True})
    with pytest.raises(SchemaMismatch, match="no such table"):
        PolicedStore(careful).open()
    PolicedStore(config.model_copy(update={"ttl": None})).open()
    with pytest.raises(SchemaMismatch, match="TTL"):
        PolicedStore(careful).open()
    PolicedStore(config).open()
    PolicedStore(careful).open()


def table_of(config: DynamodbConfig, hash_key: str, range_key: str, **index: Any) -> None:
    names = (hash_key, range_key, "sourceStatusCombinationKey", "partitionPriority")
    schema = [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE") * 2, strict=True)]
    made: dict[str, Any] = {"Projection": {"ProjectionType": "ALL"}, "IndexName": "source-status", **index}
    raw_client(config).create_table(
        TableName=config.table_name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        KeySchema=schema[:2],
        GlobalSecondaryIndexes=[{"KeySchema": schema[2:], **made}],
    )


def test_a_table_of_data_prepper_can_be_used(config: DynamodbConfig) -> None:
    table_of(config, "sourceIdentifier", "sourcePartitionKey")
    store = PolicedStore(config)
    store.open()
    assert completed(node_on(store), "k").status is Status.COMPLETED


@pytest.mark.parametrize(
    ("keys", "index", "message"),
    [
        (("id", "sort"), {}, "keys of the table"),
        (("sourceIdentifier", "sourcePartitionKey"), {"IndexName": "another"}, "no index source-status"),
        (
            ("sourceIdentifier", "sourcePartitionKey"),
            {"Projection": {"ProjectionType": "KEYS_ONLY"}},
            "must project ALL",
        ),
    ],
)
def test_another_table_is_refused(config: DynamodbConfig, keys: tuple[str, str], index: Any, message: str) -> None:
    table_of(config, *keys, **index)
    with pytest.raises(SchemaMismatch, match=message):
        PolicedStore(config).open()


def test_no_key_of_the_index_is_hot_and_finished_rows_are_not_in_it(store: PolicedStore) -> None:
    rows = [make_row(f"object-{number}") for number in range(200)]
    store.add([*rows, make_row("done", status=Status.COMPLETED), assigned_row("n", "n", pipeline="$nodes")])
    shards = Counter(item(store, row.id)["sourceStatusCombinationKey"]["S"] for row in rows)
    assert len(shards) == 4
    assert max(shards.values()) < 80
    for key in (Key(PIPELINE, "", "done"), Key("$nodes", "", "n")):
        assert "sourceStatusCombinationKey" not in item(store, key)


def test_a_foreign_item_is_an_error_not_a_fresh_start(store: PolicedStore) -> None:
    key = Key(PIPELINE, "", "k")
    raw_client(store._config).put_item(TableName=store._config.table_name, Item={**table_key(key)})
    for read in (lambda: store.get([key]), lambda: store.find(Query(PIPELINE))):
        with pytest.raises(RowUnreadable, match="not written by holdfast"):
            read()
    assert store.add([make_row("k")]) == [Outcome.CONFLICT]


def test_a_lease_takes_four_requests_from_free_to_complete(store: PolicedStore) -> None:
    node = node_on(store)
    node.create([Partition(f"{number:02d}") for number in range(40)])
    before = len(store.calls)
    leases = node.claim(40)
    advance = transitions.Advance("only one", {"offset": 1}, {})
    committed = node.write_each(
        [(lease, lambda row, lease=lease: transitions.commit(row, advance, lease, 1.0)) for lease in leases]  # type: ignore[misc]
    )
    done = node.write([row for row in committed if isinstance(row, Lease)], transitions.complete)
    assert [row.status for row in done if isinstance(row, Lease)] == [Status.COMPLETED] * 40
    # Four queries of the index, and three requests for the floor, are shared by all.
    assert len(store.calls) - before <= 4 * 40 + 12

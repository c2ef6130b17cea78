"""Receipts of the DynamoDB store that are beside the table: in a folder, and on a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Refused, RowTooLarge, StoreUnavailable
from holdfast.leases import transitions
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Json, Lease, Partition, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Swap
from holdfast.leases.transitions import Advance
from holdfast.stores.dynamodb import DynamodbConfig, SpillConfig
from holdfast.testing.rows import PIPELINE, touched
from tests.servers.dynamodb import DynamodbServer, PolicedStore, fresh_table, opened_store, raw_client
from tests.servers.dynamodb_nodes import node_on
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.servers.s3_roots import BUCKET, S3Root

RECEIPTS: dict[str, Json] = {"files": {"files": [{"key": f"{number:06d}é"} for number in range(20_000)]}}
"""Half a megabyte: more than an item may have."""


@dataclass
class Spill:
    """A place to spill to, as settings name it, and what is there."""

    settings: dict[str, Any]
    objects: Callable[[], list[Path]]
    damage: Callable[[Path], object]


@pytest.fixture(params=["folder", "s3"])
def spill(request: pytest.FixtureRequest, tmp_path: Path) -> Spill:
    if request.param == "folder":
        return _files({"root": str(tmp_path)}, tmp_path)
    server: S3Server = request.getfixturevalue("s3_server")
    if BUCKET not in [bucket["Name"] for bucket in server.client().list_buckets()["Buckets"]]:
        server.create_bucket(BUCKET)
    root = S3Root(server)
    return _files(
        {"root": f"s3://{BUCKET}/{root.prefix}", "s3": reach(server)}, server.folder / "objects" / BUCKET / root.prefix
    )


def reach(server: S3Server, secret: str = SECRET_KEY) -> dict[str, Any]:
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": secret, "region": REGION, "path_style": True}
    return {**keys, "endpoint_url": f"http://127.0.0.1:{server.port}"}


def _files(settings: dict[str, Any], folder: Path) -> Spill:
    """The S3 server keeps its objects as files, too."""

    def objects() -> list[Path]:
        return [path for path in (folder / "_holdfast" / "receipts").rglob("*") if path.is_file()]

    return Spill(settings, objects, lambda path: path.write_bytes(path.read_bytes().replace(b"000007", b"000008")))


@pytest.fixture
def config(dynamodb_server: DynamodbServer, spill: Spill) -> Iterator[DynamodbConfig]:
    with fresh_table(dynamodb_server, spill=spill.settings) as config:
        yield config


@pytest.fixture
def store(config: DynamodbConfig) -> Iterator[PolicedStore]:
    with opened_store(config) as store:
        yield store


def commit(node: Coordinator, lease: Lease) -> Lease:
    advance = Advance(f"commit of {lease.key}", {"offset": 1}, RECEIPTS)
    (written,) = node.write([lease], lambda row, now: transitions.commit(row, advance, lease, now))
    assert isinstance(written, Lease), written
    return written


def complete(node: Coordinator, lease: Lease) -> Lease:
    (done,) = node.write(
        [lease], lambda row, now: transitions.complete(transitions.published(row, lease.commit.commit_id, now), now)
    )
    assert isinstance(done, Lease), done
    return done


def test_a_commit_of_any_size_is_made_taken_over_and_completed(
    store: PolicedStore, config: DynamodbConfig, spill: Spill
) -> None:
    first = node_on(store, "first")
    first.create([Partition("k")])
    committed = commit(first, *first.claim(1))
    assert len(spill.objects()) == 1
    heirs = PolicedStore(config)
    heirs.open()
    first.session.leave()
    heir = node_on(heirs, "heir")
    heir.sweep()
    (taken,) = heir.claim(1)
    assert taken.commit == committed.commit
    assert taken.commit.receipts == RECEIPTS
    assert len(spill.objects()) == 1, "the object is used again"
    assert store.find(Query(PIPELINE)) == [taken]
    assert complete(heir, taken).status is Status.COMPLETED
    assert spill.objects() == []
    heirs.close()


def test_many_rows_of_a_batch_have_an_object_each(store: PolicedStore, spill: Spill) -> None:
    node = node_on(store)
    node.create([Partition(f"k{number}") for number in range(12)])
    committed = [commit(node, lease) for lease in node.claim(12)]
    assert len(spill.objects()) == 12
    assert store.snapshot(PIPELINE, "$nodes").leases == tuple(sorted(committed, key=lambda row: row.key))
    for lease in committed:
        complete(node, lease)
    assert spill.objects() == []


def test_a_write_that_comes_too_late_leaves_the_object_of_the_row_alone(store: PolicedStore, spill: Spill) -> None:
    node = node_on(store)
    node.create([Partition("k")])
    (lease,) = node.claim(1)
    committed = commit(node, lease)
    late = transitions.commit(lease, Advance("late", {"offset": 9}, RECEIPTS), lease, 1.0)
    assert store.swap([Swap(lease.version, touched(late))]) == [Outcome.CONFLICT]
    assert store.get([lease.id]) == [committed]
    assert len(spill.objects()) == 2
    node.release([committed])
    (retaken,) = node.claim(1)
    complete(node, retaken)
    assert spill.objects() == [], "under a later token the late one goes, too"


def test_a_removed_row_leaves_no_object(store: PolicedStore, spill: Spill) -> None:
    node = node_on(store)
    node.create([Partition("k")])
    committed = commit(node, *node.claim(1))
    assert store.remove([committed]) == [Outcome.OK]
    assert spill.objects() == []


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_an_object_that_is_not_what_the_row_says_halts_the_partition(
    store: PolicedStore, config: DynamodbConfig, spill: Spill, how: str
) -> None:
    first = node_on(store, "first")
    first.create([Partition("k"), Partition("other")])
    commit(first, first.claim(1)[0])
    (path,) = spill.objects()
    path.unlink() if how == "gone" else spill.damage(path)
    first.session.leave()
    heirs = PolicedStore(config)
    heirs.open()
    heir = node_on(heirs, "heir")
    heir.sweep()
    assert [lease.key for lease in heir.claim(9)] == ["other"]
    statuses = {row.key: row.status for row in heirs.find(Query(PIPELINE))}
    assert statuses == {"k": Status.FAILED, "other": Status.ASSIGNED}
    heirs.close()


# --- limits ----------------------------------------------------------------------------------------------------------


def test_progress_beyond_the_limit_is_refused_before_anything_is_written(store: PolicedStore, spill: Spill) -> None:
    node = node_on(store)
    node.create([Partition("k")])
    (lease,) = node.claim(1)
    before = store.calls.count("PutItem")
    large = {"offset": "x" * store.max_body_bytes}
    with pytest.raises(RowTooLarge, match="the store's limit is 360000"):
        node.write([lease], lambda row, now: transitions.commit(row, Advance("c", large, RECEIPTS), lease, now))
    assert store.calls.count("PutItem") == before
    assert spill.objects() == []
    assert store.get([lease.id]) == [lease]


def test_without_a_place_larger_receipts_are_refused_and_the_setting_is_named(dynamodb_server: DynamodbServer) -> None:
    config = dynamodb_server.config(table_name=f"leases-{uuid.uuid4().hex}")
    store = PolicedStore(config)
    store.open()
    node = node_on(store)
    node.create([Partition("k")])
    (lease,) = node.claim(1)
    with pytest.raises(RowTooLarge, match="With the setting `spill`"):
        commit(node, lease)
    assert store.get([lease.id]) == [lease]
    store.close()
    raw_client(config).delete_table(TableName=config.table_name)


def test_a_place_that_does_not_let_us_in_is_refused_at_the_start(
    dynamodb_server: DynamodbServer, s3_server: S3Server, tmp_path: Path
) -> None:
    wrong = {"root": "s3://nowhere-to-be-found", "s3": reach(s3_server, secret="wrong")}
    config = dynamodb_server.config(table_name=f"leases-{uuid.uuid4().hex}", spill=wrong)
    with pytest.raises(Refused, match="list, get, put and delete"):
        PolicedStore(config).open()
    missing = config.model_copy(update={"spill": SpillConfig(root=str(tmp_path / "mount"))})
    with pytest.raises(StoreUnavailable, match="no folder"):
        PolicedStore(missing).open()
    raw_client(config).delete_table(TableName=config.table_name)

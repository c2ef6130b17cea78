"""The S3 bucket on a real server, in each way of staging."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial
from typing import Any

import pytest

from holdfast.buckets.bucket import Bucket, Published, StagedFile
from holdfast.buckets.s3 import S3Bucket
from holdfast.errors import Refused, Unavailable
from holdfast.flow.names import staging_folder, staging_key
from holdfast.leases.lease import Commit, Lease, Ownership, Status
from holdfast.s3 import client as s3_client
from holdfast.s3.access import Staging
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.buckets import KEY, NAME, BucketBehaviour, staged
from tests.servers.processes import running
from tests.servers.s3 import SECRET_KEY, S3Server
from tests.servers.s3_roots import BUCKET, PART, S3Root, access

CREATORS = 8
CONTESTED = 500


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running(S3Server) as s3:
        s3.create_bucket(BUCKET)
        yield s3
        # It would wait for clients that keep their connections.
        s3.crash()


@pytest.fixture
def root(server: S3Server) -> S3Root:
    return S3Root(server)


class S3Behaviour(BucketBehaviour):
    """Every test has a root of its own."""

    has_locks = False
    staging: Staging

    @pytest.fixture(autouse=True)
    def _fresh(self, root: S3Root) -> None:
        self.root = root

    def make_bucket(self) -> S3Bucket:
        return self.root.bucket(self.staging)

    def test_a_file_of_many_parts_is_published_as_it_was_written(self, bucket: Bucket) -> None:
        writer = bucket.stage(staging_key(NAME, 1, "b", "0"), KEY)
        data = bytes(range(256)) * 65536
        for start in range(0, len(data), 3_000_001):
            writer.write(memoryview(data)[start : start + 3_000_001])
        handle, size, sha256 = writer.close()
        file = StagedFile(handle, KEY, sha256, size)
        assert list(bucket.keys("")) == []
        assert bucket.has_staged([file]) == [True]
        assert bucket.publish([file]) == [Published.DONE]
        assert bucket.read(KEY) == data

    @pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1])
    def test_files_around_the_size_of_a_part(self, bucket: Bucket, size: int) -> None:
        file = staged(bucket, bytes(size))
        assert bucket.publish([file]) == [Published.DONE]
        assert bucket.read(KEY) == bytes(size)

    def test_what_dead_attempts_staged_is_found_and_goes_without_a_trace(self, bucket: Bucket) -> None:
        left = self.make_bucket().stage(staging_key(NAME, 1, "dead", "0"), KEY)
        left.write(bytes(2 * PART))
        # A part that arrives after the abort would be kept for the bucket's lifecycle rule.
        wait(left._sending)
        closed = staged(bucket, bytes(PART), batch="dead too")
        found = dict(bucket.staged_under(staging_folder(NAME)))
        assert len(found) == 2
        assert closed.handle in found.values()
        bucket.discard(list(found.values()))
        assert self.root.uploads() == self.root.objects() == []

    def test_a_zombie_that_was_swept_is_told_and_nothing_of_it_is_seen(self, bucket: Bucket) -> None:
        zombie = self.make_bucket().stage(staging_key(NAME, 1, "zombie", "0"), KEY)
        zombie.write(bytes(PART))
        wait(zombie._sending)
        bucket.discard([handle for _, handle in bucket.staged_under(staging_folder(NAME))])
        zombie.write(bytes(PART))
        with pytest.raises(Unavailable, match="aborted"):
            zombie.close()
        assert list(bucket.keys("")) == []

    def test_a_higher_token_sweeps_dead_attempts_and_nothing_that_a_receipt_names(self, bucket: Bucket) -> None:
        named = [staged(bucket, bytes(size), key=f"a/{size}", batch=f"b{size}") for size in (3, PART)]
        dead = [staged(bucket, bytes(size), key=f"a/{size}", batch=f"dead{size}") for size in (3, PART)]
        living = staged(bucket, b"x", token=2, batch="living")
        receipts = {"files": {"files": [{"staged": file.handle} for file in named]}}
        lease = Lease("p", "k", ownership=Ownership(Status.ASSIGNED, "me", 2), commit=Commit(1, 1, "", "c", receipts))
        FilesSink("files", bucket).sweep([(lease, NAME)])
        assert bucket.has_staged([*named, *dead, living]) == [True, True, False, False, True]
        assert bucket.publish(named) == [Published.DONE] * 2
        assert bucket.read(f"a/{PART}") == bytes(PART)

    def test_many_files_are_closed_side_by_side(self, bucket: Bucket) -> None:
        staged_keys = [staging_key(NAME, 1, "b", str(number)) for number in range(30)]
        writers = [bucket.stage(staged_key, f"a/{number}") for number, staged_key in enumerate(staged_keys)]
        contents = [bytes([number]) * (2 * PART + 1 if number < 10 else 5) for number in range(30)]
        for writer, content in zip(writers, contents, strict=True):
            writer.write(content)
        closed = bucket.close_all(writers)
        assert [size for _, size, _ in closed] == [len(content) for content in contents]
        files = [StagedFile(handle, f"a/{n}", sha256, size) for n, (handle, size, sha256) in enumerate(closed)]
        assert bucket.publish(files) == [Published.DONE] * 30
        assert [bucket.read(file.key) for file in files] == contents

    def test_a_probe_leaves_nothing_behind(self, bucket: Bucket) -> None:
        assert "conditional create holds" in bucket.probe().text
        assert self.root.uploads() == self.root.objects() == []


class TestMultipartBucket(S3Behaviour):
    staging: Staging = "multipart"

    def test_an_upload_that_is_shorter_than_what_was_closed_counts_as_gone(self, bucket: Bucket) -> None:
        file = staged(bucket, b"x")
        longer = StagedFile(file.handle, KEY, file.sha256, 2)
        assert bucket.has_staged([longer]) == [False]
        assert bucket.publish([longer]) == [Published.GONE]
        assert bucket.read(KEY) is None


class TestCopyBucket(S3Behaviour):
    staging: Staging = "copy"

    def test_of_two_processes_that_publish_to_one_key_exactly_one_wins(self, bucket: Bucket) -> None:
        """Not on this server: it ignores the condition of a copy, and the verdict says so."""
        assert "the key is looked at" in bucket.probe().text


def test_the_server_decides_how_files_are_staged_and_tasks_get_to_know(root: S3Root) -> None:
    bucket = root.bucket()
    assert bucket.probe().staging == "multipart"
    copied = pickle.loads(pickle.dumps(bucket))  # noqa: S301 - our own bytes
    assert copied._traits == bucket._traits is not None


def test_listings_of_many_pages(root: S3Root) -> None:
    bucket = root.bucket()
    bucket._objects.client.each(lambda number: bucket.create(f"many/{number:04d}", b""), range(1005))
    assert list(bucket.keys("many/")) == [f"many/{number:04d}" for number in range(1005)]


def test_tasks_that_use_the_bucket_are_done_several_at_a_time(root: S3Root) -> None:
    bucket = root.bucket()
    both = threading.Barrier(2, timeout=30)

    def create(key: str) -> bool:
        both.wait()
        return bucket.create(key, b"")

    assert bucket.run_all([partial(create, "first"), partial(create, "second")]) == [True, True]


def test_a_small_object_is_fetched_whole_in_the_version_that_was_asked_for(root: S3Root) -> None:
    bucket = root.bucket()
    bucket.create("small", b"all of it")
    client, key = bucket._objects.client, bucket._objects.full("small")
    etag = client.call("head_object", Key=key)["ETag"]
    assert client.small_object(key, etag) == b"all of it"
    assert client.small_object(key, '"another"') is None
    assert client.small_object(f"{key}-that-is-not-there", etag) is None


def test_secrets_are_not_shown(root: S3Root) -> None:
    assert SECRET_KEY not in repr(root.bucket()) + repr(access(1))


@pytest.mark.parametrize(
    ("bucket", "secret", "reason"),
    [("nowhere", SECRET_KEY, "NoSuchBucket"), (BUCKET, "wrong", "SignatureDoesNotMatch")],
)
def test_a_bucket_that_does_not_let_us_in_is_refused_at_start(
    server: S3Server, bucket: str, secret: str, reason: str
) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        S3Bucket(access(server.port, bucket, secret)).probe()
    assert secret not in str(caught.value)
    assert bucket in str(caught.value)


def test_the_client_of_a_parent_is_not_used_by_a_forked_child(root: S3Root) -> None:
    bucket = root.bucket("multipart")
    mine = staged(bucket, bytes(PART), key="mine", batch="mine")
    assert bucket.has_staged([mine] * 20) == [True] * 20
    forking = multiprocessing.get_context("fork")
    results = forking.Queue()
    child = forking.Process(target=_stage_and_tell, args=(bucket, results), daemon=True)
    child.start()
    inherited, file = results.get(timeout=60)
    child.join()
    assert inherited == []
    assert bucket.publish([file]) == [Published.DONE]
    assert bucket.read(KEY) == bytes(PART + 1)


def _stage_and_tell(bucket: Bucket, results: Any) -> None:
    inherited = list(s3_client._clients)
    results.put((inherited, staged(bucket, bytes(PART + 1))))


@pytest.mark.slow
def test_of_many_processes_that_create_the_same_keys_exactly_one_wins_each(root: S3Root) -> None:
    spawning = multiprocessing.get_context("spawn")
    barrier, results = spawning.Barrier(CREATORS), spawning.SimpleQueue()
    bucket = root.bucket()
    creators = [
        spawning.Process(target=_create_all, args=(bucket, number, barrier, results)) for number in range(CREATORS)
    ]
    for process in creators:
        process.start()
    winners = [(key, creator) for creator, keys in [results.get() for _ in creators] for key in keys]
    for process in creators:
        process.join()
    assert len(winners) == len(dict(winners)) == CONTESTED
    read = bucket._objects.client.each(bucket.read, [key for key, _ in winners])
    assert read == [str(creator).encode() for _, creator in winners]


def _create_all(bucket: Bucket, number: int, barrier: Any, results: Any) -> None:
    barrier.wait(120)
    keys = [f"contested/{key:03d}" for key in range(CONTESTED)]
    results.put((number, [key for key in keys if bucket.create(key, str(number).encode())]))

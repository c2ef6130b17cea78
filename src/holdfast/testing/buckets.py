"""The behaviour that every bucket must show. Subclass it to test your own.

class TestMyBucket(BucketBehaviour):
    def make_bucket(self) -> Bucket:
        return MyBucket(...)             # a new handle on one root; the root is empty when a test begins
"""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.buckets.bucket import Bucket, Published, StagedFile
from holdfast.errors import Refused
from holdfast.flow.batch import Name
from holdfast.flow.names import OWNER_KEY, file_key, manifest_key, staging_folder, staging_key

RACES = 150
KEY = "orders/1_0_00000000000000000000.txt"
NAME = Name("orders", "0")


class BucketBehaviour:
    """The guarantees of a bucket that the files sink relies on."""

    has_locks = True
    """Set to False for a bucket without real locks."""
    across_processes = True
    """Set to False for a bucket that only one process can see."""

    @abstractmethod
    def make_bucket(self) -> Bucket: ...

    @pytest.fixture
    def bucket(self) -> Bucket:
        return self.make_bucket()

    # --- create and read -------------------------------------------------------------------------------------------

    def test_an_object_is_created_once_and_never_changed(self, bucket: Bucket) -> None:
        assert bucket.read(OWNER_KEY) is None
        assert bucket.create(OWNER_KEY, b"first")
        assert not bucket.create(OWNER_KEY, b"second")
        assert not bucket.create(OWNER_KEY, b"first")
        assert self.make_bucket().read(OWNER_KEY) == b"first"

    def test_an_object_may_be_empty(self, bucket: Bucket) -> None:
        assert bucket.create(KEY, b"")
        assert bucket.read(KEY) == b""

    def test_a_part_of_an_object_is_read(self, bucket: Bucket) -> None:
        assert bucket.read_range(KEY, 0, 5) is None
        assert bucket.create(KEY, b"0123456789")
        assert bucket.read_range(KEY, 3, 4) == b"3456"
        assert bucket.read_range(KEY, 8, 4) == b"89"

    def test_a_folder_is_no_object(self, bucket: Bucket) -> None:
        bucket.create("a/b", b"")
        assert bucket.read("a") is None
        assert bucket.read("a/b/c") is None

    def test_keys_are_listed_by_prefix_in_order_with_hidden_ones(self, bucket: Bucket) -> None:
        keys = ["_holdfast/owner.json", "a/-", "a-/x", "a/b/c", "a0", "ab/%2E%2E=x", "b"]
        for key in reversed(keys):
            assert bucket.create(key, b"")
        assert list(bucket.keys("")) == sorted(keys)
        assert list(bucket.keys("a")) == ["a-/x", "a/-", "a/b/c", "a0", "ab/%2E%2E=x"]
        assert list(bucket.keys("a/")) == ["a/-", "a/b/c"]
        assert list(bucket.keys("a/b")) == ["a/b/c"]
        assert list(bucket.keys("nothing/here")) == []

    def test_names_made_from_hostile_data_are_kept_apart(self, bucket: Bucket) -> None:
        names = [Name(text, text) for text in ("..", ".", "", "a/b", "a%2Fb", "\0", "x" * 500, "_x", "é", "\n", "a|b")]
        keys = [file_key(name, 1, 0, "txt") for name in names] + [manifest_key(name, 1) for name in names]
        for number, key in enumerate(keys):
            assert bucket.create(key, str(number).encode())
        assert [bucket.read(key) for key in keys] == [str(number).encode() for number in range(len(keys))]
        assert sorted(bucket.keys("")) == sorted(keys)

    # --- move ------------------------------------------------------------------------------------------------------

    def test_a_moved_object_is_at_its_new_key_alone(self, bucket: Bucket) -> None:
        file = staged(bucket, b"some bytes")
        bucket.publish([file])
        assert bucket.move(KEY, "_holdfast/replaced/p/" + KEY)
        assert list(bucket.keys("")) == ["_holdfast/replaced/p/" + KEY]
        assert self.make_bucket().read("_holdfast/replaced/p/" + KEY) == b"some bytes"
        bucket.discard([file.handle])
        assert bucket.publish([file]) == [Published.GONE]

    def test_moving_may_be_repeated_also_after_half_of_it(self, bucket: Bucket) -> None:
        bucket.create(KEY, b"x")
        bucket.create("b/moved", b"x")
        for _ in range(2):
            assert bucket.move(KEY, "b/moved")
            assert list(bucket.keys("")) == ["b/moved"]
        assert not bucket.move("nothing", "b/nothing")

    def test_moving_overwrites_nothing(self, bucket: Bucket) -> None:
        bucket.create(KEY, b"mine")
        bucket.create("b/taken", b"somebody else's")
        with pytest.raises(Refused, match="another"):
            bucket.move(KEY, "b/taken")
        assert (bucket.read(KEY), bucket.read("b/taken")) == (b"mine", b"somebody else's")

    # --- stage and publish -----------------------------------------------------------------------------------------

    def test_what_is_staged_is_hidden_until_it_is_published(self, bucket: Bucket) -> None:
        file = staged(bucket, b"some bytes")
        assert bucket.read(KEY) is None
        assert list(bucket.keys("")) == []
        assert bucket.has_staged([file]) == [True]
        assert bucket.publish([file]) == [Published.DONE]
        assert bucket.read(KEY) == b"some bytes"
        assert list(bucket.keys("")) == [KEY]

    def test_closing_tells_size_and_digest(self, bucket: Bucket) -> None:
        writer = bucket.stage(staging_key(NAME, 1, "b", "0"), KEY)
        data = bytes(range(256)) * 5000
        assert writer.write(data[:7]) == 7
        assert writer.write(memoryview(data)[7:]) == len(data) - 7
        _, size, sha256 = writer.close()
        assert (size, sha256) == (len(data), hashlib.sha256(data).hexdigest())

    def test_publishing_may_be_repeated_also_when_the_staged_data_is_gone(self, bucket: Bucket) -> None:
        file = staged(bucket, b"x")
        assert bucket.publish([file, file]) == [Published.DONE] * 2
        assert self.make_bucket().publish([file]) == [Published.DONE]
        bucket.discard([file.handle])
        assert bucket.publish([file]) == [Published.DONE]
        assert bucket.read(KEY) == b"x"

    def test_what_is_gone_is_reported(self, bucket: Bucket) -> None:
        file = staged(bucket, b"x")
        bucket.discard([file.handle])
        assert bucket.has_staged([file]) == [False]
        assert bucket.publish([file]) == [Published.GONE]
        assert bucket.read(KEY) is None

    def test_another_object_at_the_key_is_reported_and_not_touched(self, bucket: Bucket) -> None:
        file = staged(bucket, b"mine")
        bucket.create(KEY, b"somebody else's")
        assert bucket.publish([file]) == [Published.FOREIGN]
        bucket.discard([file.handle])
        assert bucket.publish([file]) == [Published.FOREIGN]
        assert bucket.read(KEY) == b"somebody else's"

    def test_the_same_bytes_staged_by_another_try_are_as_good(self, bucket: Bucket) -> None:
        first, second = staged(bucket, b"same", batch="b1"), staged(bucket, b"same", batch="b2")
        assert bucket.publish([first, second]) == [Published.DONE] * 2

    def test_each_file_of_a_call_is_published_for_itself(self, bucket: Bucket) -> None:
        good, gone, taken = (staged(bucket, b"x", key=f"a/{n}", batch=f"b{n}") for n in range(3))
        bucket.discard([gone.handle])
        bucket.create(taken.key, b"other")
        assert bucket.publish([taken, gone, good]) == [Published.FOREIGN, Published.GONE, Published.DONE]

    def test_what_was_published_outlives_its_staging(self, bucket: Bucket) -> None:
        file = staged(bucket, b"x")
        bucket.publish([file])
        bucket.discard([file.handle])
        bucket.discard([file.handle])
        assert bucket.read(KEY) == b"x"
        assert list(bucket.staged_under(staging_folder(NAME))) == []

    def test_staged_objects_are_listed_by_folder(self, bucket: Bucket) -> None:
        files = {
            staging_key(NAME, token, batch, part): staged(bucket, b"x", token=token, batch=batch, part=part)
            for token, batch, part in [(1, "b1", "0"), (1, "b1", "1"), (12, "b2", "0")]
        }
        staged(bucket, b"x", name=Name("orders", "00"))
        found = dict(bucket.staged_under(staging_folder(NAME)))
        assert found.keys() == files.keys()
        bucket.discard([found[key] for key in list(found)[:2]])
        assert bucket.has_staged([files[key] for key in found]) == [False, False, True]

    def test_a_folder_can_be_used_again_after_everything_in_it_was_discarded(self, bucket: Bucket) -> None:
        file = staged(bucket, b"x")
        bucket.discard([file.handle])
        restaged = staged(bucket, b"y", batch="b2")
        assert bucket.publish([restaged]) == [Published.DONE]

    # --- processes -------------------------------------------------------------------------------------------------

    def test_a_pickled_bucket_stages_what_another_publishes(self, bucket: Bucket) -> None:
        if self.across_processes:
            file = staged(pickle.loads(pickle.dumps(bucket)), b"x")  # noqa: S301 - our own bytes
            assert bucket.publish([file]) == [Published.DONE]

    def test_of_two_processes_that_create_one_key_exactly_one_wins(self, bucket: Bucket) -> None:
        if not self.across_processes:
            return
        for key, winners in self._raced(_create, bucket).items():
            assert len(winners) == 1
            assert bucket.read(key) == winners[0].encode()

    def test_of_two_processes_that_publish_to_one_key_exactly_one_wins(self, bucket: Bucket) -> None:
        if not self.across_processes:
            return
        for key, winners in self._raced(_publish, bucket).items():
            assert len(winners) == 1
            assert bucket.read(key) == winners[0].encode()

    def _raced(self, attempt: Callable[[Bucket, str, str], bool], bucket: Bucket) -> dict[str, list[str]]:
        """By key, which of two concurrent processes won."""
        spawning = multiprocessing.get_context("spawn")
        barrier, results = spawning.Barrier(2), spawning.SimpleQueue()
        racers = [
            spawning.Process(target=_race, args=(attempt, bucket, racer, barrier, results)) for racer in ("one", "two")
        ]
        for process in racers:
            process.start()
        wins = dict([results.get() for _ in racers])
        for process in racers:
            process.join()
        return {key: [racer for racer, won in wins.items() if key in won] for key in _raced_keys()}

    def test_a_root_held_alone_keeps_everybody_else_out(self, bucket: Bucket) -> None:
        if not self.has_locks:
            return
        other = self.make_bucket()
        alone = bucket.lock(exclusive=True)
        assert alone is not None
        assert other.lock(exclusive=True) is None
        assert other.lock(exclusive=False) is None
        assert list(bucket.keys("")) == []
        alone.close()
        alone.close()
        shared, too = bucket.lock(exclusive=False), other.lock(exclusive=False)
        assert shared is not None
        assert too is not None
        assert self.make_bucket().lock(exclusive=True) is None
        shared.close()
        too.close()
        freed = other.lock(exclusive=True)
        assert freed is not None
        freed.close()


def staged(
    bucket: Bucket,
    data: bytes,
    *,
    key: str = KEY,
    name: Name = NAME,
    token: int = 1,
    batch: str = "b1",
    part: str = "0",
) -> StagedFile:
    """A staged object with these bytes."""
    writer = bucket.stage(staging_key(name, token, batch, part), key)
    writer.write(data)
    handle, _, sha256 = writer.close()
    return StagedFile(handle, key, sha256)


def _raced_keys() -> list[str]:
    return [f"race/{number:04d}" for number in range(RACES)]


def _race(attempt: Callable[[Bucket, str, str], bool], bucket: Bucket, racer: str, barrier: Any, results: Any) -> None:
    won = []
    for key in _raced_keys():
        barrier.wait(60)
        if attempt(bucket, key, racer):
            won.append(key)
    results.put((racer, won))


def _create(bucket: Bucket, key: str, racer: str) -> bool:
    return bucket.create(key, racer.encode())


def _publish(bucket: Bucket, key: str, racer: str) -> bool:
    file = staged(bucket, racer.encode(), key=key, batch=racer, part=key.replace("/", "-"))
    return bucket.publish([file]) == [Published.DONE]

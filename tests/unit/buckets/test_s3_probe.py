"""What the probe finds out about servers, and how files are staged on those that hold everything."""

from __future__ import annotations

import pytest

from holdfast.buckets import s3_writer
from holdfast.buckets.bucket import Published
from holdfast.buckets.s3 import S3Bucket
from holdfast.errors import BatchError, Refused
from holdfast.s3.access import SMALLEST_PART, Staging, Traits, split_root
from holdfast.testing.buckets import KEY, BucketBehaviour, staged
from tests.unit.buckets.fake_s3 import FakeS3

COMPLETE, COPY = "complete_multipart_upload", "copy_object"


def probed(server: FakeS3, staging: Staging = "auto") -> Traits:
    bucket = S3Bucket(server.access, "root/", staging)
    bucket.probe()
    assert (server.objects, server.uploads) == ({}, {})
    assert bucket._traits is not None
    return bucket._traits


def test_a_server_that_holds_everything_gets_the_fewest_requests() -> None:
    assert probed(FakeS3()) == Traits("mixed", conditional_complete=True, conditional_copy=True)


def test_what_is_asked_for_is_taken_where_it_holds() -> None:
    assert probed(FakeS3(), "multipart").staging == "multipart"
    assert probed(FakeS3(), "copy").staging == "copy"


def test_copies_that_may_overwrite_are_not_chosen() -> None:
    assert probed(FakeS3(ignoring=[COPY])) == Traits("multipart", conditional_complete=True, conditional_copy=False)
    assert probed(FakeS3(without=[COPY])).staging == "multipart"


def test_uploads_that_everybody_sees_are_not_used() -> None:
    assert probed(FakeS3(shows_uploads=True)).staging == "copy"
    assert probed(FakeS3(without=["create_multipart_upload"])).staging == "copy"
    with pytest.raises(Refused, match="'multipart'"):
        probed(FakeS3(shows_uploads=True), "multipart")


def test_completing_that_cannot_be_told_to_overwrite_nothing_is_said() -> None:
    server = FakeS3(ignoring=[COMPLETE, COPY])
    assert probed(server) == Traits("multipart", conditional_complete=False, conditional_copy=False)
    assert "before publishing the key is looked at" in S3Bucket(server.access).probe().text


def test_a_server_on_which_two_creates_win_is_refused() -> None:
    with pytest.raises(Refused, match="If-None-Match"):
        probed(FakeS3(ignoring=["put_object"]))


@pytest.mark.parametrize("ignoring", [[], [COMPLETE, COPY]])
@pytest.mark.parametrize("staging", ["auto", "multipart", "copy"])
def test_another_object_is_never_overwritten_not_even_without_conditions(staging: Staging, ignoring: list[str]) -> None:
    server = FakeS3(ignoring=ignoring)
    bucket = S3Bucket(server.access, "root/", staging)
    file = staged(bucket, b"mine")
    server.objects["root/" + KEY] = (b"theirs", {})
    assert bucket.publish([file]) == [Published.FOREIGN]
    assert bucket.read(KEY) == b"theirs"


@pytest.mark.parametrize(("staging", "requests"), [("auto", 3), ("multipart", 5), ("copy", 3)])
def test_how_many_requests_a_small_file_takes(staging: Staging, requests: int) -> None:
    server = FakeS3()
    bucket = S3Bucket(server.access, "root/", staging)
    bucket.probe()
    server.requests.clear()
    files = [staged(bucket, b"x", key=f"a/{number}", part=str(number)) for number in range(100)]
    assert all(bucket.has_staged(files))
    assert bucket.publish(files) == [Published.DONE] * 100
    bucket.discard([file.handle for file in files])
    assert server.requests.pop("delete_objects") == 1
    assert server.requests.total() == 100 * requests


def test_a_file_that_s3_cannot_take_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_writer, "MOST_PARTS", 2)
    monkeypatch.setattr(s3_writer, "LARGEST_COPY", SMALLEST_PART)
    for staging, reason in (("multipart", "more than 2 parts"), ("copy", "does not copy")):
        bucket = S3Bucket(FakeS3().access, "", staging, SMALLEST_PART)  # type: ignore[arg-type]
        with pytest.raises(BatchError, match=reason):
            staged(bucket, bytes(2 * SMALLEST_PART + 1))


@pytest.mark.parametrize(
    ("root", "split"),
    [("s3://lake", ("lake", "")), ("s3://lake/", ("lake", "")), ("s3://lake/a/b/", ("lake", "a/b/"))],
)
def test_roots(root: str, split: tuple[str, str]) -> None:
    assert split_root(root) == split


@pytest.mark.parametrize("root", ["s3://", "s3://A", "s3:///x", "s3://lake/../x", "s3://lake/a//b", "gs://lake/x"])
def test_what_is_no_root(root: str) -> None:
    with pytest.raises(ValueError, match=r"s3://|prefix"):
        split_root(root)


class TestMixedBucket(BucketBehaviour):
    """On a server that holds conditions on copies, which the real one of the server tests does not."""

    has_locks = False
    across_processes = False

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self.access = FakeS3().access

    def make_bucket(self) -> S3Bucket:
        bucket = S3Bucket(self.access, "root/", part_size=SMALLEST_PART)
        assert bucket.probe().staging == "mixed"
        return bucket

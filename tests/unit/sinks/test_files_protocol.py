"""The files sink on the node: nothing is overwritten, nothing is taken back, contradictions halt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.buckets.bucket import StagedFile
from holdfast.errors import Halt, Refused, StagedDataGone, Unavailable
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.manifest import decode_manifest
from holdfast.flow.names import manifest_key, staging_key
from holdfast.flow.sink import Publication
from holdfast.leases.lease import Commit, Lease, Ownership, Status
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.flows import MemoryBucket, stage_numbers

NAME = Name("numbers", "p")


def lease_with(token: int = 1, sequence: int = 1, commit_id: str = "c1", receipts: Any = None) -> Lease:
    ownership = Ownership(Status.ASSIGNED, "node", token)
    return Lease("pipe", "p", ownership=ownership, commit=Commit(sequence, 1, "", commit_id, receipts))


def committed(bucket: MemoryBucket, start: int = 0, end: int = 3, *, batch_id: str = "b1", **row: Any) -> Publication:
    """A commit whose numbers are staged and which nobody has published."""
    lease = lease_with(**row)
    file = stage_numbers(bucket, Batch(batch_id, lease, NAME, Cut(start, end)))
    receipt = {"from": start, "to": end, "token": lease.token, "files": [file]}
    return Publication(replace(lease, commit=replace(lease.commit, receipts={"files": receipt})), NAME, receipt)


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def sink(bucket: MemoryBucket) -> FilesSink:
    return FilesSink("files", bucket)


def test_a_commit_becomes_visible_with_its_manifest(sink: FilesSink, bucket: MemoryBucket) -> None:
    commit = committed(bucket)
    assert sink.publish([commit]) == [None]
    assert list(bucket.data().values()) == [b"0\n1\n2\n"]
    manifest = decode_manifest(bucket.visible[manifest_key(NAME, 1)])
    assert (manifest.commit_id, manifest.start, manifest.end) == ("c1", 0, 3)
    assert [file["key"] for file in manifest.files] == list(bucket.data())


def test_a_new_commit_is_published_with_three_calls_each_of_which_waits_for_the_one_before(
    sink: FilesSink, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = committed(bucket), list[str]()
    for verb in ("read", "has_staged", "create", "publish"):
        monkeypatch.setattr(bucket, verb, _counted(getattr(bucket, verb), verb, calls))
    assert sink.publish([commit]) == [None]
    assert calls == ["has_staged", "create", "publish"]


def _counted(call: Callable[..., Any], verb: str, calls: list[str]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        calls.append(verb)
        return call(*given)

    return counted


def test_what_another_node_publishes_while_we_look_is_not_taken_for_gone(
    sink: FilesSink, bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, look = committed(bucket), bucket.has_staged

    def published_before_the_answer(files: Sequence[StagedFile]) -> list[bool]:
        monkeypatch.setattr(bucket, "has_staged", look)
        assert FilesSink("files", bucket).publish([commit]) == [None]
        sink.discard_staged([commit])
        return look(files)

    monkeypatch.setattr(bucket, "has_staged", published_before_the_answer)
    assert sink.publish([commit]) == [None]
    assert list(bucket.data().values()) == [b"0\n1\n2\n"]


def test_publishing_may_be_repeated_by_anybody_also_when_the_staged_files_are_gone(
    sink: FilesSink, bucket: MemoryBucket
) -> None:
    commit = committed(bucket)
    assert sink.publish([commit, commit]) == [None, None]
    sink.discard_staged([commit])
    assert not bucket.staged
    assert sink.publish([commit]) == [None]
    assert len(bucket.data()) == 1


def test_nothing_is_visible_before_the_manifest(sink: FilesSink, bucket: MemoryBucket) -> None:
    commit = committed(bucket)
    bucket.create = lambda key, data: (_ for _ in ()).throw(Unavailable("down"))  # type: ignore[method-assign]
    (result,) = sink.publish([commit])
    assert isinstance(result, Unavailable)
    assert not bucket.data()


def test_a_foreign_object_at_a_committed_key_halts_and_is_not_touched(sink: FilesSink, bucket: MemoryBucket) -> None:
    commit = committed(bucket)
    bucket.visible[commit.receipt["files"][0]["key"]] = b"somebody else's"
    (result,) = sink.publish([commit])
    assert isinstance(result, Halt)
    assert list(bucket.data().values()) == [b"somebody else's"]


def test_a_manifest_of_another_commit_halts(sink: FilesSink, bucket: MemoryBucket) -> None:
    sink.publish([committed(bucket)])
    (result,) = sink.publish([committed(bucket, 0, 2, batch_id="b2", commit_id="c2")])
    assert isinstance(result, Halt)
    assert list(bucket.data().values()) == [b"0\n1\n2\n"]


def test_a_manifest_of_the_same_commit_with_other_files_halts(sink: FilesSink, bucket: MemoryBucket) -> None:
    sink.publish([committed(bucket)])
    (result,) = sink.publish([committed(bucket, 0, 2, batch_id="b2")])
    assert isinstance(result, Halt)


def test_a_manifest_that_cannot_be_read_is_no_witness(sink: FilesSink, bucket: MemoryBucket) -> None:
    bucket.visible[manifest_key(NAME, 1)] = b"{broken"
    (result,) = sink.publish([committed(bucket)])
    assert isinstance(result, Halt)


def test_staged_data_that_is_gone_before_the_manifest_asks_for_a_rebuild(sink: FilesSink, bucket: MemoryBucket) -> None:
    commit = committed(bucket)
    bucket.staged.clear()
    (result,) = sink.publish([commit])
    assert isinstance(result, StagedDataGone)
    assert manifest_key(NAME, 1) not in bucket.visible


def test_a_rebuild_may_differ_only_while_no_manifest_says_otherwise(sink: FilesSink, bucket: MemoryBucket) -> None:
    commit, other = committed(bucket), committed(bucket, 0, 2, batch_id="b2")
    assert sink.mend(commit, other.receipt) == other.receipt
    sink.publish([commit])
    with pytest.raises(Halt, match="other files"):
        sink.mend(commit, other.receipt)
    same = committed(bucket, batch_id="b3")
    assert sink.mend(commit, same.receipt)["files"] == same.receipt["files"]


def test_a_bucket_that_knows_more_than_the_store_is_told_when_the_lease_is_taken(
    sink: FilesSink, bucket: MemoryBucket
) -> None:
    sink.publish([committed(bucket)])
    ahead, in_step = sink.witness([(lease_with(sequence=0), NAME), (lease_with(sequence=1), NAME)])
    assert isinstance(ahead, Halt)
    assert in_step is None


def test_the_sweep_deletes_only_what_lower_tokens_staged_and_no_row_names(
    sink: FilesSink, bucket: MemoryBucket
) -> None:
    pending = committed(bucket, batch_id="pending", token=1)
    committed(bucket, batch_id="stale", token=1)
    committed(bucket, batch_id="mine", token=2)
    taken = replace(pending.lease, ownership=replace(pending.lease.ownership, token=2))
    sink.sweep([(taken, NAME)])
    kept = [staging_key(NAME, 1, "pending", "0"), staging_key(NAME, 2, "mine", "0")]
    assert sorted(bucket.staged) == sorted(kept)


def test_a_root_belongs_to_one_sink_of_one_pipeline(bucket: MemoryBucket) -> None:
    FilesSink("files", bucket).open("team|orders", durable=True)
    FilesSink("files", bucket).open("team|orders", durable=True)
    with pytest.raises(Refused, match=r"belongs to pipeline 'team\|orders'"):
        FilesSink("files", bucket).open("team|clicks", durable=True)
    with pytest.raises(Refused, match="sink 'files'"):
        FilesSink("files-2", bucket).open("team|orders", durable=True)


def test_a_store_that_forgets_is_refused_on_a_root_with_commits(sink: FilesSink, bucket: MemoryBucket) -> None:
    sink.open("orders", durable=False)
    sink.publish([committed(bucket)])
    with pytest.raises(Refused, match="sqlite"):
        sink.open("orders", durable=False)
    sink.open("orders", durable=True)

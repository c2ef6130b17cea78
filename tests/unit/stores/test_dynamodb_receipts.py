"""Receipts that are too large for a row, without a server: what is written, believed, used again and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.errors import Refused, RowTooLarge, RowUnreadable, StoreUnavailable, Unavailable
from holdfast.leases.lease import Commit, Key, Lease
from holdfast.stores.dynamodb import DynamodbConfig, SpillConfig, receipts
from holdfast.stores.dynamodb.items import Item, item_of
from holdfast.stores.dynamodb.receipts import MARK, SPILL_FROM, Outgoing, Receipts, reference_in
from holdfast.stores.dynamodb.spill_storage import SpillFolder, check_storage
from holdfast.testing.rows import assigned_row

CONFIG = SpillConfig(root="/spill")


class Memory:
    """A storage that may be away."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.away = False

    def create(self, key: str, data: bytes) -> bool:
        self._answer()
        return self.objects.setdefault(key, data) is data

    def read(self, key: str) -> bytes | None:
        self._answer()
        return self.objects.get(key)

    def keys(self, prefix: str) -> Iterator[str]:
        self._answer()
        return iter([key for key in sorted(self.objects) if key.startswith(prefix)])

    def delete(self, keys: Sequence[str]) -> None:
        self._answer()
        for key in keys:
            self.objects.pop(key, None)

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("no answer")


class Row:
    """One row of a table, written through `Receipts` as the store does."""

    def __init__(self, storage: Memory) -> None:
        self.storage = storage
        self.spill = Receipts(CONFIG, storage)
        self.item: Item | None = None
        self.written = 0

    def write(self, lease: Lease, by: Receipts | None = None) -> Lease:
        by = by or self.spill
        outgoing = by.outgoing(lease, None if self.item is None else lease.version - 1)
        item = item_of(outgoing.lease, None)
        self.written += outgoing.made is not None
        by.send(outgoing)
        old, self.item = self.item, item
        by.settle(lease, item, old)
        return lease

    def read(self, by: Receipts | None = None) -> Lease | None:
        assert self.item is not None
        return (by or self.spill).whole(self.item, lambda _: self.item)


@pytest.fixture
def storage() -> Memory:
    return Memory()


@pytest.fixture
def row(storage: Memory) -> Row:
    return Row(storage)


def committed(size: int, *, version: int = 0, token: int = 1, mark: str = "x") -> Lease:
    lease = assigned_row("k", "me", token=token, version=version)
    return replace(lease, commit=Commit(1, commit_id="c", receipts={"files": {"files": [mark * size], "token": token}}))


def later(lease: Lease, *, token: int | None = None) -> Lease:
    owned = replace(lease.ownership, version=lease.version + 1, token=lease.token if token is None else token)
    return replace(lease, ownership=owned)


def cleared(lease: Lease, *, token: int | None = None) -> Lease:
    return replace(later(lease, token=token), commit=replace(lease.commit, receipts=None))


def test_small_receipts_stay_in_the_row(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM - 100))
    assert storage.objects == {}
    assert row.read() == lease


def test_large_receipts_are_beside_the_row_and_come_back_exactly(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM, mark="é😀"))
    assert row.item is not None
    assert len(row.item["body"]["S"]) < 1_000
    assert len(storage.objects) == 1
    assert row.read() == lease
    assert row.read(Receipts(CONFIG, storage)) == lease


def test_receipts_go_beside_the_row_before_its_progress_has_no_room(row: Row, storage: Memory) -> None:
    lease = committed(90_000)
    row.write(replace(lease, progress=replace(lease.progress, state="x" * 300_000)))
    assert len(storage.objects) == 1


def test_progress_beyond_the_limit_is_refused_whatever_can_be_spilled(row: Row, storage: Memory) -> None:
    lease = committed(SPILL_FROM)
    with pytest.raises(RowTooLarge, match="360000"):
        row.write(replace(lease, progress=replace(lease.progress, state="x" * 360_000)))
    assert (row.item, storage.objects) == (None, {})


def test_receipts_beyond_all_reason_are_refused(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "LARGEST", 150_000)
    with pytest.raises(RowTooLarge, match="150000"):
        row.write(committed(150_000))


# --- cleared, used again ---------------------------------------------------------------------------------------------


def test_the_object_goes_when_the_receipts_are_cleared(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM))
    row.write(cleared(lease))
    assert storage.objects == {}


def test_a_row_that_is_written_with_the_same_receipts_keeps_its_object(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM))
    heir = Receipts(CONFIG, storage)
    assert row.read(heir) == lease
    taken = row.write(later(lease, token=2), heir)
    assert row.written == 1
    assert row.read(Receipts(CONFIG, storage)) == taken
    row.write(cleared(taken), heir)
    assert storage.objects == {}


def test_who_has_not_seen_the_row_of_that_version_makes_an_object_of_its_own(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM))
    (first,) = storage.objects
    row.write(later(lease), Receipts(CONFIG, storage))
    assert row.written == 2
    assert len(storage.objects) == 1
    assert first not in storage.objects


def test_an_object_that_was_known_long_ago_is_not_named_again(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM))
    heir = Receipts(CONFIG, storage)
    row.read(heir)
    committed_later = row.write(replace(later(row.write(cleared(lease))), commit=lease.commit))
    row.write(later(committed_later), heir)
    assert row.read(Receipts(CONFIG, storage)) == later(committed_later)


def test_an_object_whose_writer_is_fenced_goes_with_the_next_one_and_no_other(row: Row, storage: Memory) -> None:
    zombie, rival = Receipts(CONFIG, storage), Receipts(CONFIG, storage)
    lease = row.write(committed(SPILL_FROM, token=2))
    for late, by in ((committed(SPILL_FROM, token=1, mark="z"), zombie), (committed(SPILL_FROM, token=3), rival)):
        by.send(by.outgoing(late, 7))
    assert len(storage.objects) == 3
    row.write(cleared(lease))
    # The third may still be on its way into the row.
    assert [name.partition("/")[2][:20] for name in storage.objects] == [f"{3:020d}"]


def test_a_write_that_is_tried_again_and_again_makes_one_object(row: Row, storage: Memory) -> None:
    lease = row.write(assigned_row("k", "me"))
    commit = replace(later(lease), commit=committed(SPILL_FROM).commit)
    for _ in range(5):
        row.spill.send(row.spill.outgoing(commit, lease.version))
    assert len(storage.objects) == 1
    assert row.write(commit) == row.read()
    assert len(storage.objects) == 1


def test_objects_of_other_rows_are_left_alone(row: Row, storage: Memory) -> None:
    other = Row(storage)
    other.write(replace(committed(SPILL_FROM), key="other"))
    lease = row.write(committed(SPILL_FROM, token=5))
    row.write(cleared(lease))
    assert other.read(Receipts(CONFIG, storage)) is not None
    assert len(storage.objects) == 1


def test_a_place_that_is_away_keeps_the_row_from_being_written_and_from_being_read(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM))
    storage.away = True
    with pytest.raises(StoreUnavailable, match="no answer"):
        row.write(replace(later(lease), commit=committed(SPILL_FROM, mark="y").commit))
    with pytest.raises(StoreUnavailable):
        row.read(Receipts(CONFIG, storage))
    row.write(cleared(lease))
    storage.away = False
    # Nobody could delete it; it goes with the next one.
    assert len(storage.objects) == 1
    committed_later = row.write(committed(SPILL_FROM, version=2, token=2))
    row.write(cleared(committed_later))
    assert storage.objects == {}


# --- what is not believed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [None, b"", b"{}", b'{"files": {"files": [], "token": 1}}'])
def test_an_object_that_is_gone_or_another_makes_the_row_unreadable(
    row: Row, storage: Memory, found: bytes | None
) -> None:
    row.write(committed(SPILL_FROM))
    (name,) = storage.objects
    storage.objects = {} if found is None else {name: found}
    read = row.read(Receipts(CONFIG, storage))
    assert read is not None
    assert row.item is not None
    assert read.unreadable == row.item["body"]["S"]
    # Failing the partition leaves the row as it is, name and hash included.
    row.write(later(read))
    assert MARK in row.item["body"]["S"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a", f"{'0' * 32}/../{'0' * 20}-{'0' * 32}"])
def test_a_name_that_is_none_of_ours_is_never_looked_up(row: Row, storage: Memory, name: str) -> None:
    row.write(committed(SPILL_FROM))
    assert row.item is not None
    body = json.loads(row.item["body"]["S"])
    body["receipts"][MARK]["name"] = name
    row.item = {**row.item, "body": {"S": json.dumps(body)}}
    storage.away = True
    read = row.read(Receipts(CONFIG, storage))
    assert read is not None
    assert read.unreadable is not None


def test_receipts_that_are_cleared_while_they_are_looked_up_are_no_loss(row: Row, storage: Memory) -> None:
    lease = row.write(committed(SPILL_FROM))
    old = row.item
    assert old is not None
    done = row.write(cleared(lease))
    reader = Receipts(CONFIG, storage)
    assert reader.whole(old, lambda _: row.item) == done
    assert reader.whole(old, lambda _: None) is None


@pytest.mark.parametrize(("config", "message"), [(None, "no `spill`"), (SpillConfig(root="/other"), "/other")])
def test_a_node_that_does_not_know_the_place_says_so_and_halts_nothing(
    row: Row, config: SpillConfig | None, message: str
) -> None:
    row.write(committed(SPILL_FROM))
    stranger = Receipts(config, None if config is None else Memory())
    with pytest.raises(RowUnreadable, match=message) as caught:
        row.read(stranger)
    assert "/spill" in str(caught.value)


def test_without_a_place_nothing_is_spilled_or_asked_for() -> None:
    plain = Receipts(None)
    lease = committed(SPILL_FROM)
    assert plain.outgoing(lease, None) == Outgoing(lease)
    assert plain.request_options == {}


def test_a_body_that_only_mentions_the_mark_names_nothing() -> None:
    lease = replace(assigned_row("k", "me"), spec={"note": MARK})
    assert reference_in(item_of(lease, None)) is None
    assert Receipts(None).whole(item_of(lease, None), _nobody) == lease


def _nobody(_key: Key) -> Mapping[str, Any] | None:
    raise AssertionError("nothing is read again")


# --- settings, folders -----------------------------------------------------------------------------------------------


def test_settings_of_the_place() -> None:
    table = {"table_name": "leases", "region": "eu-central-1"}
    made = DynamodbConfig.model_validate({**table, "spill": {"root": "s3://lake/x", "s3": {"region": "eu-central-1"}}})
    assert made.spill is not None
    with pytest.raises(ValidationError, match="this root is a folder"):
        DynamodbConfig.model_validate({**table, "spill": {"root": "/x", "s3": {}}})


def test_a_folder_keeps_objects_and_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = SpillFolder(str(tmp_path))
    assert storage.create("a/1", b"one")
    assert not storage.create("a/1", b"two")
    assert (storage.read("a/1"), storage.read("a/2")) == (b"one", None)
    assert list(storage.keys("a/")) == ["a/1"]
    storage.delete(["a/1", "a/2"])
    assert list(storage.keys("")) == []
    assert not (tmp_path / "_holdfast/receipts/a").exists()


def test_a_folder_that_is_not_mounted_is_away_and_not_empty(tmp_path: Path) -> None:
    storage = SpillFolder(str(tmp_path / "mount"))
    for call in (lambda: storage.read("a/1"), lambda: storage.create("a/1", b""), lambda: list(storage.keys(""))):
        with pytest.raises(Unavailable, match="no folder"):
            call()
    with pytest.raises(StoreUnavailable, match="no folder"):
        check_storage(storage, str(tmp_path / "mount"))


def test_an_empty_folder_where_receipts_were_made_is_away_and_they_are_not_lost(tmp_path: Path) -> None:
    storage = SpillFolder(str(tmp_path))
    with pytest.raises(Unavailable, match="still mounted"):
        storage.read("a/1")


def test_a_storage_that_does_not_let_us_in_is_refused() -> None:
    from holdfast.s3.client import Denied

    class Closed(Memory):
        def keys(self, prefix: str) -> Iterator[str]:
            raise Denied(f"403 for {prefix}")

    with pytest.raises(Refused, match="list, get, put and delete"):
        Receipts(CONFIG, Closed()).open()

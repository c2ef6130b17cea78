"""The object store on a folder: the whole behaviour suite, then what only this store has."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from pydantic import ValidationError

from holdfast.errors import Refused, SchemaMismatch, SessionExpired, StoreError, StoreUnavailable
from holdfast.leases.lease import Key, Status
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.stores.object import HIDDEN, PLUGIN, ObjectConfig
from holdfast.stores.object.folder import FolderObjects
from holdfast.stores.object.marker import MARK
from holdfast.stores.object.objects import Found
from holdfast.stores.object.row_cache import RowCache
from holdfast.stores.object.rows import name_of
from holdfast.stores.object.store import ObjectStore
from holdfast.testing.rows import PIPELINE, make_row, touched
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from holdfast.testing.worlds import TurnableClock


def folder_store(root: Path) -> ObjectStore:
    return ObjectStore(FolderObjects(root))


class TestObjectStore(StoreBehaviour):
    many = 600  # each lease is synced to the disk when it is made and when it is claimed

    @pytest.fixture(autouse=True)
    def one_folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "store"
        self.clock = TurnableClock()

    def make_store(self) -> Store:
        return ObjectStore(FolderObjects(self.root), now=self.clock.monotonic)

    def child_factory(self) -> Callable[[], Store]:
        return partial(folder_store, self.root)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def test_who_has_just_come_ends_nobody_however_late_they_seem(self) -> None:
        a, b = self.member("a"), self.member("b")
        self.pass_time(3600.0)
        b.leases.sweep()
        a.session.heartbeat()
        for _ in range(6):
            b.world.clock.turn(2 * self.tick)
            b.leases.sweep()
        with pytest.raises(SessionExpired):
            a.session.heartbeat()

    def corrupt(self, store: Store, key: Key) -> None:
        path = self.root / name_of(key)
        line, _, body = path.read_bytes().partition(b"\n")
        path.write_bytes(line + b"\n" + body[:20])

    def corrupt_bytes(self, store: Store, key: Key, body: bytes) -> None:
        path = self.root / name_of(key)
        path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n" + body)


class ObjectMachine(StoreMachine):
    def make_store(self) -> Store:
        self.clock = TurnableClock()
        self.folder = tempfile.TemporaryDirectory()
        return ObjectStore(FolderObjects(self.folder.name), now=self.clock.monotonic)

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestObjectStoreAgainstTheModel = ObjectMachine.TestCase
TestObjectStoreAgainstTheModel.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> ObjectStore:
    return folder_store(root)


def mounted_store(mount: Path) -> ObjectStore:
    store: ObjectStore = PLUGIN.build(ObjectConfig(root=str(mount)))
    store.open()
    return store


def test_a_mount_that_vanishes_and_leaves_an_empty_folder_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    store, rows = mounted_store(mount), [make_row("a"), make_row("b")]
    store.add(rows)
    mount.rename(tmp_path / "elsewhere")
    mount.mkdir()
    calls: list[Callable[[], object]] = [
        lambda: store.get([rows[0].id]),
        lambda: store.find(Query(PIPELINE)),
        lambda: store.recent(0.001).find(Query(PIPELINE)),
        lambda: store.snapshot(PIPELINE, "$nodes"),
        lambda: store.count(PIPELINE),
        lambda: store.add([make_row("c")]),
        lambda: store.swap([Swap(0, touched(rows[0]))]),
        lambda: store.remove([rows[1]]),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="still mounted"):
            call()
    assert list(mount.iterdir()) == []
    mount.rmdir()
    (tmp_path / "elsewhere").rename(mount)
    assert store.find(Query(PIPELINE)) == rows


def test_a_mount_that_vanishes_under_a_write_leaves_it_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    store = mounted_store(mount)
    marker = mount / HIDDEN / MARK
    monkeypatch.setattr("holdfast.stores.object.folder.Folders.sync", lambda _: marker.unlink(missing_ok=True))
    assert store.add([make_row("a")]) == [Outcome.UNKNOWN]


def test_an_old_store_without_a_marker_is_read_and_gets_one(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    row, marker = make_row("a"), mount / HIDDEN / MARK
    mounted_store(mount).add([row])
    marker.unlink()
    assert mounted_store(mount).find(Query(PIPELINE)) == [row]
    assert marker.exists()


HOLD_A_LOCK = """
import signal, sys; from holdfast.stores.object.folder import FolderObjects
with FolderObjects(sys.argv[1])._locked(sys.argv[2]):
    print("locked", flush=True)
    signal.pause()
"""


def test_a_writer_that_hangs_holds_up_its_own_row_only_and_frees_it_when_it_dies(root: Path) -> None:
    rows = [make_row("a"), make_row("b")]
    store = ObjectStore(FolderObjects(root, patience=0.2))
    store.add(rows)
    command = [sys.executable, "-c", HOLD_A_LOCK, str(root), name_of(rows[0].id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        assert store.find(Query(PIPELINE)) == rows, "readers do not wait for writers"
        with pytest.raises(StoreUnavailable, match="a process that does not finish"):
            store.swap([Swap(0, touched(rows[0]))])
        assert store.swap([Swap(0, touched(row)) for row in rows]) == [Outcome.UNKNOWN, Outcome.OK]
        child.kill()
    assert store.swap([Swap(0, touched(rows[0]))]) == [Outcome.OK]


def test_tags_differ_however_fast_writes_follow_each_other(root: Path) -> None:
    objects = FolderObjects(root)
    tags = [objects.write("leases/p/r/k", b"same", None)]
    for _ in range(50):
        tags.append(objects.write("leases/p/r/k", b"same", tags[-1]))
        assert objects.tags("leases/") == {"leases/p/r/k": tags[-1]}
    assert len({tag.split(".")[0] for tag in tags}) == len(tags)


def test_a_full_disk_is_unavailable_and_nothing_is_written(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add([make_row("a")])

    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        store.swap([Swap(0, touched(make_row("a")))])
    monkeypatch.undo()
    assert store.find(Query(PIPELINE)) == [make_row("a")]


def test_an_object_that_is_no_row_is_shown_as_failed_and_left_alone(root: Path, store: ObjectStore) -> None:
    store.add([make_row("a"), make_row("b")])
    name = name_of(make_row("a").id)
    (root / name).write_bytes(b"precious notes")
    rows = store.find(Query(PIPELINE))
    assert [(row.key, row.status, row.unreadable) for row in rows] == [
        (f"?{name}", Status.FAILED, "precious notes"),
        ("b", Status.UNASSIGNED, None),
    ]
    assert store.add([make_row("a")]) == [Outcome.CONFLICT]
    assert store.swap([Swap(0, touched(make_row("a")))]) == [Outcome.CONFLICT]
    assert (root / name).read_bytes() == b"precious notes"


def test_the_clock_is_that_of_the_file_system(store: ObjectStore) -> None:
    before = store.now()
    assert abs(before - time.time()) < 1.0
    assert store.now() > before


# --- what is read ----------------------------------------------------------------------------------------------------


class Watched(FolderObjects):
    """Records its requests; a test may make it show an old listing."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lists = 0
        self.reads: list[str] = []
        self.stale: dict[str, str] | None = None

    def tags(self, prefix: str) -> dict[str, str]:
        self.lists += 1
        return super().tags(prefix) if self.stale is None else dict(self.stale)

    def read(self, name: str) -> Found | None:
        self.reads.append(name)
        return super().read(name)


@pytest.fixture
def watched(root: Path) -> Watched:
    return Watched(root)


def test_only_what_has_changed_is_read(watched: Watched, store: ObjectStore) -> None:
    rows = [make_row(key) for key in "abc"]
    store.add(rows)
    ours = ObjectStore(watched)
    assert ours.find(Query(PIPELINE)) == rows
    assert len(watched.reads) == 3
    assert ours.count(PIPELINE) == {Status.UNASSIGNED: 3}
    assert len(watched.reads) == 3
    store.swap([Swap(0, touched(rows[1]))])
    assert [row.version for row in ours.find(Query(PIPELINE))] == [0, 1, 0]
    assert watched.reads[3:] == [name_of(rows[1].id)]
    ours.swap([Swap(0, touched(rows[2]))])
    assert [row.version for row in ours.find(Query(PIPELINE))] == [0, 1, 1]
    assert len(watched.reads) == 4, "what we have written ourselves we know"


def test_recent_reads_are_served_by_one_listing_and_our_own_writes(watched: Watched, store: ObjectStore) -> None:
    clock = TurnableClock()
    ours = ObjectStore(watched, rows=RowCache(watched, clock.monotonic))
    recent = ours.recent(5.0)
    assert recent.find(Query(PIPELINE)) == []
    ours.add([make_row("mine")])
    store.add([make_row("yours")])
    clock.turn(4.0)
    assert [row.key for row in recent.find(Query(PIPELINE))] == ["mine"]
    assert recent.get([make_row("mine").id, make_row("yours").id]) == [make_row("mine"), None]
    assert [row.key for row in recent.snapshot(PIPELINE, "$nodes").leases] == ["mine"]
    assert (watched.lists, watched.reads) == (1, [])
    assert [row.key for row in ours.find(Query(PIPELINE))] == ["mine", "yours"], "others see all that was acknowledged"
    clock.turn(4.0)
    assert [row.key for row in recent.find(Query(PIPELINE))] == ["mine", "yours"]
    assert watched.lists == 3


def test_what_is_written_while_a_listing_is_made_is_in_it(watched: Watched) -> None:
    ours = ObjectStore(watched)
    listed = watched.tags

    def list_slowly(prefix: str) -> dict[str, str]:
        found = listed(prefix)
        ours.add([make_row("a")])
        return found

    watched.tags = list_slowly  # type: ignore[method-assign]
    assert [row.key for row in ours.recent(5.0).find(Query(PIPELINE))] == ["a"]


def test_a_read_that_is_overtaken_by_our_own_write_does_not_cover_it(watched: Watched) -> None:
    row = make_row("a")
    ours = ObjectStore(watched)
    ours.add([row])
    read = watched.read

    def read_slowly(name: str) -> Found | None:
        found = read(name)
        ours.swap([Swap(0, touched(row))])
        return found

    watched.read = read_slowly  # type: ignore[method-assign]
    assert ours.get([row.id]) == [row]
    watched.read = read  # type: ignore[method-assign]
    assert [found.version for found in ours.recent(5.0).find(Query(PIPELINE))] == [1]
    cached = ours._rows.cached(name_of(row.id))
    assert cached is not None
    assert cached.row.version == 1


def test_a_stale_listing_delays_and_breaks_nothing(watched: Watched, store: ObjectStore) -> None:
    rows = [make_row("a"), make_row("b")]
    store.add(rows)
    ours = ObjectStore(watched)
    watched.stale = FolderObjects.tags(watched, "leases/")
    ours.find(Query(PIPELINE))
    store.swap([Swap(0, touched(rows[0], "other"))])
    store.remove([rows[1]])
    assert [row.version for row in ours.find(Query(PIPELINE))] == [0, 0]
    assert ours.swap([Swap(0, touched(row, "mine")) for row in rows]) == [Outcome.CONFLICT] * 2
    assert [(row.version, row.ownership.write_id) for row in ours.find(Query(PIPELINE))] == [(1, "other")]
    assert store.add([rows[1]]) == [Outcome.OK]
    watched.stale = {}
    assert ours.add([rows[1]]) == [Outcome.CONFLICT]


def test_a_row_that_was_removed_is_not_deleted_by_a_late_request(root: Path, store: ObjectStore) -> None:
    row = make_row("a")
    store.add([row])
    late = folder_store(root)
    delete = late._objects.delete
    kept: list[tuple[str, str]] = []
    late._objects.delete = lambda name, tag: kept.append((name, tag))  # type: ignore[method-assign]
    assert late.remove([row]) == [Outcome.OK]
    assert store.find(Query(PIPELINE)) == store.get([]) == []
    assert store.get([row.id]) == [None]
    assert store.add([make_row("a", version=7)]) == [Outcome.OK]
    delete(*kept[0])
    assert store.find(Query(PIPELINE)) == [make_row("a", version=7)]


# --- start-up and settings -------------------------------------------------------------------------------------------


class Unlocked(FolderObjects):
    """A file system whose locks hold nobody up."""

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        yield

    def _replace(self, draft: Path, path: Path, tag: str | None) -> str:
        time.sleep(0.01)
        return super()._replace(draft, path, self.tags("").get(path.name) if tag else tag)


class Forgetful(FolderObjects):
    """Overwrites whatever is there."""

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        return super().write(name, data, self.tags("").get(name))


@pytest.mark.parametrize("kind", [Unlocked, Forgetful])
def test_a_place_that_does_not_hold_conditional_writes_is_refused(root: Path, kind: type[FolderObjects]) -> None:
    with pytest.raises(Refused, match="does not honour conditional writes"):
        ObjectStore(kind(root)).open()


class Repeating(FolderObjects):
    """The network delivers every write twice, and the answer to the second arrives."""

    def write(self, name: str, data: bytes, tag: str | None) -> str:
        super().write(name, data, tag)
        return super().write(name, data, tag)


def test_a_network_that_repeats_requests_does_not_keep_a_store_from_opening(root: Path) -> None:
    ObjectStore(Repeating(root)).open()
    assert json.loads((root / "store.json").read_text())["holdfast"] == "leases"


def test_a_store_is_made_by_open_unless_that_is_forbidden(root: Path) -> None:
    with pytest.raises(SchemaMismatch, match="there is no store in"):
        ObjectStore(FolderObjects(root), skip_table_creation=True).open()
    assert not root.exists()
    folder_store(root).open()
    ObjectStore(FolderObjects(root), skip_table_creation=True).open()
    assert FolderObjects(root).tags("probes/") == {}


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ({"holdfast": "leases", "version": 2, "oldest": 2}, "newer holdfast"),
        ({"landlord": "x"}, "does not belong to a holdfast store"),
    ],
)
def test_a_store_of_somebody_else_is_refused(root: Path, mark: dict[str, object], message: str) -> None:
    root.mkdir()
    (root / "store.json").write_text(json.dumps(mark))
    with pytest.raises(SchemaMismatch, match=message):
        folder_store(root).open()


def test_a_store_of_the_next_version_that_we_may_use_is_used(root: Path) -> None:
    root.mkdir()
    (root / "store.json").write_text('{"holdfast": "leases", "version": 2, "oldest": 1}')
    folder_store(root).open()


def test_the_plugin_builds_a_store_from_settings(tmp_path: Path) -> None:
    store = PLUGIN.build(ObjectConfig(root=str(tmp_path)))
    store.open()
    assert store.add([make_row("a")]) == [Outcome.OK]
    assert (store.durable, store.shared, store.has_clock) == (True, True, False)
    assert not store.charges_for_reads, "a folder costs nothing"
    assert {path.name for path in tmp_path.iterdir()} == {"_holdfast"}, "readers of the root see nothing of it"
    store.close()


def test_a_root_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no folder .*mount"):
        PLUGIN.build(ObjectConfig(root=str(tmp_path / "mount"))).open()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{}, {"root": ""}, {"root": "x", "s3": {}}, {"root": "s3://B/x"}, {"root": "x", "ttl": 1}]
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ObjectConfig.model_validate(wrong)

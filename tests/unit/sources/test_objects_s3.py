"""The source `objects` on S3, on the node: what it finds in which order, what it plans, what it leaves behind."""

from __future__ import annotations

import hashlib
import io
import itertools
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import IncompleteReadError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.errors import BatchError, Refused, Unavailable
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits
from holdfast.flow.source import AfterPublish, WeighsPartitions
from holdfast.leases.lease import Counts, History, Lease, Progress
from holdfast.sources.objects import PLUGIN, listing, prefix, read_ahead
from holdfast.sources.objects.bucket import BucketSource, partition_key
from holdfast.sources.objects.listing import Candidate, by_time, outermost
from holdfast.sources.objects.object_ref import S3Ref
from holdfast.sources.objects.prefix import PrefixSource
from holdfast.sources.objects.source import ObjectsSource
from holdfast.sources.objects.splits import Split
from tests.unit.sources.shelf import Shelf

DAY = 86_400.0


def keys(source: ObjectsSource, state: dict[str, Any] | None = None) -> list[str]:
    return [found.key for found in source.discover({} if state is None else state) if found is not None]


def leases(source: ObjectsSource) -> list[Lease]:
    return [Lease("orders", found.key, spec=found.spec) for found in source.discover({}) if found is not None]


def planned(source: ObjectsSource, lease: Lease, limits: Limits = Limits()) -> Any:
    (plan,) = source.plan([lease], limits)
    return plan


def at(lease: Lease, position: Any, *, dead: int = 0, attempts: int = 0) -> Lease:
    return replace(
        lease, progress=Progress(position=position, counts=Counts(dead=dead)), history=History(attempts=attempts)
    )


# --- which source --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "acts_after_publish", "has_weight"),
    [
        ({}, BucketSource, False, True),
        ({"after_success": "keep"}, BucketSource, False, True),
        ({"after_success": "delete"}, BucketSource, True, True),
        ({"delete_s3_objects_on_read": True}, BucketSource, True, True),
        ({"after_success": {"tag": {"done": "yes"}}}, BucketSource, True, True),
        ({"after_success": "delete", "partition_by": "prefix"}, PrefixSource, False, False),
    ],
)
def test_a_source_has_the_capabilities_that_its_settings_need_and_no_others(
    settings: dict[str, Any], kind: type[ObjectsSource], acts_after_publish: bool, has_weight: bool
) -> None:
    # Without work after publish a partition is completed in the same write as its publish.
    source = Shelf().source(**settings)
    assert isinstance(source, kind)
    assert isinstance(source, AfterPublish) == acts_after_publish
    assert isinstance(source, WeighsPartitions) == has_weight


# --- finding -------------------------------------------------------------------------------------------------------


def tidied(source: ObjectsSource, leases: Sequence[Lease]) -> Sequence[Unavailable | None]:
    assert isinstance(source, AfterPublish)
    return source.after_publish(leases)


def test_objects_are_found_page_by_page_and_named_by_bucket_and_key() -> None:
    shelf = Shelf()
    shelf.page = 2
    shelf.put("b", "a|b", "a/2", "a/1", "ü", "x y\n")
    assert keys(shelf.source()) == [f"landing|{key}" for key in ["a/1", "a/2", "a|b", "b", "x y\n", "ü"]]
    assert shelf.verbs["list_objects_v2"] == 3


def test_the_next_page_is_requested_when_the_last_one_is_used_up() -> None:
    shelf = Shelf()
    shelf.page = 10
    shelf.put(*(f"{number:03}" for number in range(100)))
    found = shelf.source().discover({})
    list(itertools.islice(found, 11))
    assert shelf.verbs["list_objects_v2"] == 2


def test_prefixes_suffixes_and_patterns_choose_what_is_read_and_holdfasts_own_is_never() -> None:
    shelf = Shelf()
    shelf.put("logs/a.jsonl", "logs/a.tmp", "logs/deep/b.jsonl", "other/c.jsonl", "logs/out/_holdfast/commits/1.json")
    shelf.put("logs/folder/", data=b"")
    chosen = {"include_prefix": ["logs/"], "exclude_suffix": [".tmp"]}
    assert keys(shelf.source(bucket=chosen)) == ["landing|logs/a.jsonl", "landing|logs/deep/b.jsonl"]
    assert keys(shelf.source(bucket=chosen, exclude=["**/deep/*"])) == ["landing|logs/a.jsonl"]
    assert keys(shelf.source(bucket={"include": ["*/c.*"]}, include=["nothing"])) == ["landing|other/c.jsonl"]
    assert {sent["Prefix"] for _, sent in shelf.requests} == {"logs/", ""}


def test_only_what_can_match_is_listed() -> None:
    shelf = Shelf()
    keys(shelf.source(include=["2024/0[12]/*.jsonl", "2023/**", "2024/01/x/*"]))
    assert [sent["Prefix"] for _, sent in shelf.requests] == ["2023/", "2024/0"]


def test_prefixes_that_overlap_are_listed_once() -> None:
    assert outermost(["a/b", "c", "a/", "a/b/c"]) == ["a/", "c"]


def test_several_buckets_are_read_each_by_its_own_settings() -> None:
    first = Shelf("first")
    second = Shelf("second", first.reach)
    first.put("a", "b")
    second.put("a", "b")
    config = PLUGIN.config(
        buckets=[{"bucket": "first", "include": ["a"]}, {"bucket": "second"}], s3=first.reach, exclude=["b"]
    )
    assert keys(PLUGIN.build(config)) == ["first|a", "second|a"]


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ({"start_time": "2026-01-02T00:00:00Z"}, ["2", "3"]),
        ({"end_time": "2026-01-02T00:00:00"}, ["1"]),
        ({"start_time": "2026-01-02T01:00:00+01:00", "end_time": "2026-01-03"}, ["2"]),
        ({"start_time": "2026-01-01", "range": "P1D"}, ["1"]),
        ({"end_time": "2026-01-04", "range": "24h"}, ["3"]),
    ],
)
def test_times_choose_by_when_an_object_was_modified(times: dict[str, Any], found: list[str]) -> None:
    shelf = Shelf()
    for day in (1, 2, 3):
        shelf.put(str(day), at=1_767_225_600 + (day - 1) * DAY)
    assert keys(shelf.source(**times)) == [f"landing|{key}" for key in found]
    assert keys(shelf.source(bucket=times, start_time="2030-01-01")) == [f"landing|{key}" for key in found]


def test_a_range_alone_ends_when_the_scan_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    shelf.put("old", at=1_000_000)
    shelf.put("young", at=1_000_000 + DAY)
    source = shelf.source(range="2d")
    monkeypatch.setattr("time.time", lambda: 1_000_000 + 2.5 * DAY)
    assert keys(source) == ["landing|young"]


def test_an_error_in_the_middle_of_the_listing_is_no_end_of_it() -> None:
    shelf = Shelf()
    shelf.page = 1
    shelf.put("a", "b")
    found = shelf.source().discover({})
    next(iter(found))
    shelf.away.add("list_objects_v2")
    with pytest.raises(Unavailable, match="down"):
        list(found)


def test_a_listing_that_chooses_nothing_for_long_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SIGN_OF_LIFE", 10)
    shelf = Shelf()
    shelf.put(*(f"{number}.tmp" for number in range(35)))
    assert list(shelf.source(bucket={"exclude_suffix": [".tmp"]}).discover({})) == [None] * 3


# --- order ---------------------------------------------------------------------------------------------------------


@given(times=st.lists(st.integers(0, 9), max_size=60), newest=st.booleans(), run=st.integers(1, 20))
def test_any_listing_is_ordered_by_time_in_runs_of_any_size(times: list[int], newest: bool, run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "SORT_RUN", run)
        patch.setattr(listing, "MAX_SORT_RUNS", 3)
        found = [Candidate(f"{number:02}|ü", {"n": number}, float(time)) for number, time in enumerate(times)]
        ordered = [candidate for candidate in by_time(iter(found), newest=newest) if candidate is not None]
    assert ordered == sorted(found, key=lambda c: (-c.modified if newest else c.modified, c.key))


def test_objects_are_taken_oldest_or_newest_first_over_all_buckets() -> None:
    first = Shelf("first")
    second = Shelf("second", first.reach)
    first.put("a", at=3)
    first.put("b", at=1)
    second.put("c", at=2)

    def found(order: str) -> list[str]:
        buckets = [{"bucket": "first"}, {"bucket": "second"}]
        return keys(PLUGIN.build(PLUGIN.config(buckets=buckets, s3=first.reach, order=order)))

    assert found("oldest") == ["first|b", "second|c", "first|a"]
    assert found("newest") == ["first|a", "second|c", "first|b"]
    assert found("name") == ["first|a", "first|b", "second|c"]


# --- identity ------------------------------------------------------------------------------------------------------

names = st.sampled_from(["ab", "a-b", "a.b"])
texts = st.text(alphabet='a|@%\0"/ü.', max_size=6)
etags = st.one_of(st.none(), st.text(alphabet='a|@%"-', max_size=4).map(lambda text: f'"{text}"'))


@given(first=st.tuples(names, texts, etags), other=st.tuples(names, texts, etags))
def test_different_objects_and_versions_have_different_keys(first: Any, other: Any) -> None:
    bare = [(bucket, key, etag and etag.strip('"')) for bucket, key, etag in (first, other)]
    assert (partition_key(*first) == partition_key(*other)) == (bare[0] == bare[1])
    assert "\0" not in partition_key(*first)


def test_without_reread_an_overwritten_object_keeps_its_key_and_its_name() -> None:
    shelf = Shelf()
    shelf.put("a|b", data=b"1")
    (before,) = leases(shelf.source())
    shelf.put("a|b", data=b"2")
    (after,) = leases(shelf.source())
    assert before.key == after.key == "landing|a|b"
    name = shelf.source().name(after)
    assert (name.stream, name.label) == ("landing", hashlib.sha256(b"a|b").hexdigest()[:32])


def test_with_reread_every_version_is_a_partition_of_its_own() -> None:
    shelf = Shelf()
    source = shelf.source(reread=True)
    shelf.put("a", data=b"1")
    (before,) = leases(source)
    shelf.put("a", data=b"2")
    (after,) = leases(source)
    assert before.key == f"landing@{hashlib.md5(b'1').hexdigest()}|a"  # noqa: S324
    assert before.key != after.key
    assert source.name(before) != source.name(after)


def test_the_version_is_the_partitions_incarnation() -> None:
    shelf = Shelf()
    shelf.put("a")
    (found,) = shelf.source().discover({})
    assert found is not None
    assert found.incarnation == shelf.items["a"].etag


def test_a_pipeline_that_has_read_a_folder_does_not_go_on_with_buckets(tmp_path: Any) -> None:
    state: dict[str, Any] = {}
    list(PLUGIN.build(PLUGIN.config(folder=tmp_path)).discover(state))
    with pytest.raises(Refused, match="another name"):
        list(Shelf().source().discover(state))


def test_a_row_of_other_settings_is_an_error_that_says_so(tmp_path: Any) -> None:
    shelf = Shelf()
    shelf.put("a/b")
    (lease,) = leases(shelf.source())
    prefix = shelf.source(partition_by="prefix", after_success="delete")
    prefix.name(lease)
    assert isinstance(planned(prefix, lease), BatchError)


# --- schedule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scan", "waits"),
    [
        ("once", [None]),
        ("follow", [30.0] * 4),
        ({"interval": "1h", "count": 3}, [3600.0, 3600.0, None]),
        ({"interval": "1h", "count": 1}, [None]),
        ({"interval": "1h"}, [3600.0] * 4),
    ],
)
def test_scans_are_repeated_as_often_as_set(scan: Any, waits: list[float | None]) -> None:
    source = Shelf().source(scan=scan)
    state: dict[str, Any] = {}
    for expected in waits:
        list(source.discover(state))
        assert source.next_scan_after(state) == expected
    assert source.may_end == (waits[-1] is None)


@pytest.mark.parametrize(
    ("settings", "within"),
    [
        ({"scan": "once"}, 0.0),
        ({"scan": "follow"}, float("inf")),
        ({"scan": "follow", "range": "7d"}, 7 * DAY),
        ({"scan": "follow", "start_time": "2026-01-01", "range": "7d"}, float("inf")),
        ({"scan": {"interval": "1h", "count": 3}}, 7200.0),
        ({"scan": "follow", "after_success": "delete"}, 0.0),
        ({"scan": "follow", "range": "1d", "bucket": {"range": "2d"}}, 2 * DAY),
    ],
)
def test_how_long_an_object_may_be_found_again(settings: dict[str, Any], within: float) -> None:
    assert Shelf().source(**settings).rediscovery_window == within


# --- planning ------------------------------------------------------------------------------------------------------


def test_small_objects_are_planned_without_a_single_request() -> None:
    shelf = Shelf()
    shelf.put(*(f"{number}.jsonl" for number in range(200)))
    source = shelf.source()
    found = leases(source)
    shelf.requests.clear()
    assert source.plan(found, Limits()) == [Cut({"offset": 0}, {"offset": 2}, last=True, size=2)] * 200
    assert not shelf.requests


def test_an_object_that_was_overwritten_before_it_was_read_is_read_as_it_is_now() -> None:
    shelf = Shelf()
    shelf.put("a", data=b"old\n")
    source = shelf.source()
    (lease,) = leases(source)
    shelf.put("a", data=b"newer\n")
    plan = planned(source, at(lease, None, attempts=1))
    version = [shelf.items["a"].etag, 6]
    assert plan == Cut({"offset": 0, "version": version}, {"offset": 6, "version": version}, last=True, size=6)
    (split,) = source.splits(Batch("b", lease, source.name(lease), plan))
    with split.ref.opened() as data:
        assert data.read() == b"newer\n"
    assert planned(source, at(lease, plan.end)) == Done()


def test_a_version_that_is_gone_before_it_was_read_is_left_to_its_successor_if_that_is_read_too() -> None:
    shelf = Shelf()
    shelf.put("a", data=b"old\n")
    source = shelf.source(reread=True)
    (lease,) = leases(source)
    shelf.put("a", data=b"newer\n")
    assert planned(source, at(lease, None, attempts=1)) == Done()
    assert "overwritten before it was read" in str(source.noticed())


def test_an_object_that_vanished_is_an_error_and_a_server_that_is_down_is_not() -> None:
    shelf = Shelf()
    shelf.put("a")
    source = shelf.source()
    (lease,) = leases(source)
    shelf.away.add("head_object")
    with pytest.raises(Unavailable):
        planned(source, at(lease, None, attempts=1))
    shelf.away.clear()
    del shelf.items["a"]
    assert "vanished" in str(planned(source, at(lease, None, attempts=1)))


# --- bytes ---------------------------------------------------------------------------------------------------------


def ref(shelf: Shelf, data: bytes, key: str = "a") -> S3Ref:
    shelf.put(key, data=data)
    return S3Ref(shelf.access, key, len(data), shelf.items[key].etag)


def test_bytes_are_read_ahead_in_ranges_that_grow_and_a_ref_can_be_sent_to_a_task() -> None:
    shelf = Shelf()
    data = bytes(range(256)) * 8192
    there = ref(shelf, data)
    sent = pickle.loads(pickle.dumps(there))  # noqa: S301
    assert (sent.path, sent.size) == ("s3://landing/a", len(data))
    with there.opened() as stream:
        parts = iter(lambda: stream.read(10_000), b"")
        assert b"".join(parts) == data
    assert shelf.verbs["get_object"] == 4
    assert all(sent["IfMatch"] == there.etag for _, sent in shelf.requests)


@given(steps=st.lists(st.tuples(st.integers(0, 60), st.integers(-1, 30)), max_size=12))
def test_bytes_anywhere_are_those_of_the_object(steps: list[tuple[int, int]]) -> None:
    shelf = Shelf()
    data = bytes(range(50))
    with ref(shelf, data).opened() as stream:
        for offset, size in steps:
            stream.seek(offset)
            assert stream.read(size) == (data[offset:] if size < 0 else data[offset : offset + size])


def test_a_large_object_is_fetched_in_one_request_when_it_is_read_at_once() -> None:
    shelf = Shelf()
    with ref(shelf, b"x" * 3_000_000).opened() as stream:
        assert len(stream.read(8 << 20)) == 3_000_000
    assert shelf.verbs["get_object"] == 1


class BreaksOff(io.BytesIO):
    """A connection that gives half of what it should."""

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(max(1, (size or 0) // 2))
        if not part:
            raise IncompleteReadError(actual_bytes=1, expected_bytes=2)
        return part


def test_a_connection_that_breaks_is_taken_up_where_it_broke() -> None:
    shelf = Shelf()
    broken: Iterator[bool] = itertools.cycle([True, False])
    there = ref(shelf, bytes(range(200)))
    shelf.body = lambda part: BreaksOff(part[:10]) if next(broken) else io.BytesIO(part)
    with there.opened() as stream:
        assert stream.read() == bytes(range(200))


def test_a_server_that_sends_nothing_is_unavailable_and_not_an_empty_object() -> None:
    shelf = Shelf()
    there = ref(shelf, b"x" * 100)
    shelf.body = lambda _part: io.BytesIO(b"")
    with there.opened() as stream, pytest.raises(Unavailable, match="fewer bytes"):
        stream.read()


def test_an_object_that_changes_while_it_is_read_is_an_error() -> None:
    shelf = Shelf()
    there = ref(shelf, b"x" * 1_000_000)
    with there.opened() as stream:
        stream.read(10)
        shelf.put("a", data=b"y" * 1_000_000)
        with pytest.raises(BatchError, match="changed since it was found"):
            stream.read()


def test_small_objects_are_fetched_several_at_a_time_and_an_error_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf, count = Shelf(), 2 * read_ahead.THREADS
    refs = [ref(shelf, f"{number}".encode(), f"k{number}") for number in range(count)]
    large = ref(shelf, b"x" * (read_ahead.SMALL_BYTES + 1), "large")
    del shelf.items["k3"]
    all_of_them, get_object = threading.Barrier(read_ahead.THREADS, timeout=30), shelf.get_object

    def when_all_have_asked(**arguments: Any) -> Any:
        if arguments["Key"] != "large":
            all_of_them.wait()
        return get_object(**arguments)

    monkeypatch.setattr(shelf, "get_object", when_all_have_asked)
    read: list[bytes] = []
    for (split,) in read_ahead.read_ahead([Split("b", r, 0, r.size) for r in [*refs, large]]):
        try:
            with split.ref.opened() as stream:
                read.append(stream.read())
        except BatchError as error:
            read.append(str(error).encode())
    assert read == [
        b"s3://landing/k3 has vanished since it was found" if number == 3 else str(number).encode()
        for number in range(count)
    ] + [b"x" * (read_ahead.SMALL_BYTES + 1)]


def test_many_tiny_objects_share_groups_and_one_that_is_gone_spoils_none_of_the_others() -> None:
    shelf, count = Shelf(), 4 * read_ahead.THREADS
    splits = [Split("b", ref(shelf, b"%d" % number, f"k{number}"), 0, 2) for number in range(count)]
    middling = Split("b", ref(shelf, b"x" * (read_ahead.TINY_BYTES + 1), "middling"), 0, 2)
    del shelf.items["k4"]
    mixed, groups, gone = [*splits[:5], middling, *splits[5:]], [], []
    for group in read_ahead.read_ahead(mixed):
        groups.append([split.ref.path for split in group])
        for split in group:
            try:
                assert len(split.ref.fetched()) == split.ref.size
            except BatchError:
                gone.append(split.ref.path)
    assert [len(group) for group in groups[:4]] == [2, 2, 1, 1]
    assert [path for group in groups for path in group] == [split.ref.path for split in mixed]
    assert gone == ["s3://landing/k4"]


# --- afterwards ----------------------------------------------------------------------------------------------------


def done(source: ObjectsSource, shelf: Shelf, **counts: int) -> list[Lease]:
    return [at(lease, {"offset": lease.spec["size"]}, **counts) for lease in leases(source)]


def test_objects_that_are_done_are_deleted_and_a_second_time_does_no_harm() -> None:
    shelf = Shelf()
    shelf.put("a", "b")
    source = shelf.source(delete_s3_objects_on_read=True)
    finished = done(source, shelf)
    assert tidied(source, finished) == [None, None]
    assert not shelf.items
    assert tidied(source, finished) == [None, None]


@pytest.mark.parametrize("without", [set(), {"delete_object"}])
def test_an_object_that_was_overwritten_since_is_not_deleted(without: set[str]) -> None:
    shelf = Shelf()
    shelf.without = without
    shelf.put("a", "b")
    source = shelf.source(after_success="delete")
    finished = done(source, shelf)
    shelf.put("a", data=b"newer")
    assert tidied(source, finished) == [None, None]
    assert list(shelf.items) == ["a"]
    assert "overwritten since" in str(source.noticed())


def test_an_object_with_dead_letters_is_not_deleted() -> None:
    shelf = Shelf()
    shelf.put("a")
    source = shelf.source(after_success="delete")
    assert tidied(source, done(source, shelf, dead=1)) == [None]
    assert list(shelf.items) == ["a"]
    assert "dead letters" in str(source.noticed())


def test_tags_are_added_to_those_that_are_there() -> None:
    shelf = Shelf()
    shelf.put("a")
    shelf.items["a"].tags = {"team": "x", "read": "no"}
    source = shelf.source(after_success={"tag": {"read": "yes"}})
    assert tidied(source, done(source, shelf)) == [None]
    assert shelf.items["a"].tags == {"team": "x", "read": "yes"}


def test_a_server_that_does_not_respond_is_reported_and_tried_once_and_nothing_is_taken_for_done() -> None:
    shelf = Shelf()
    shelf.put("a", "b", "c")
    source = shelf.source(after_success="delete")
    finished = done(source, shelf)
    shelf.away.add("delete_object")
    assert [type(away) for away in tidied(source, finished)] == [Unavailable] * 3
    assert shelf.verbs["delete_object"] == 1


# --- prefixes ------------------------------------------------------------------------------------------------------


def by_prefix(shelf: Shelf, **settings: Any) -> ObjectsSource:
    return shelf.source(partition_by="prefix", after_success="delete", **{"scan": {"interval": "1h"}, **settings})


def test_folders_of_a_depth_are_the_partitions_and_what_lies_above_them_too() -> None:
    shelf = Shelf()
    shelf.put("a/x/1", "a/y/2", "b/3", "4", "_holdfast/owner.json")
    assert keys(by_prefix(shelf)) == ["landing|", "landing|a/", "landing|b/"]
    assert keys(by_prefix(shelf, prefix_depth=2)) == [
        "landing|",
        "landing|a/",
        "landing|a/x/",
        "landing|a/y/",
        "landing|b/",
    ]


def read(source: ObjectsSource, lease: Lease) -> tuple[list[str], Lease]:
    """Paths of the objects of the next batch, and the lease after its commit."""
    plan = planned(source, lease)
    assert isinstance(plan, Cut)
    assert not plan.last
    splits = source.splits(Batch("b", lease, source.name(lease), plan))
    return [split.ref.path.removeprefix("s3://landing/") for split in splits], at(lease, plan.end)


def test_a_prefix_is_read_deleted_and_closed_until_the_next_scan_which_finds_only_what_is_new() -> None:
    shelf = Shelf()
    shelf.put("a/1", "a/2", "a/deep/3")
    source = by_prefix(shelf)
    lease = leases(source)[1]
    paths, lease = read(source, lease)
    assert paths == ["a/1", "a/2", "a/deep/3"]
    assert len(shelf.items) == 3
    assert planned(source, lease) == Close(3600.0)
    assert not shelf.items
    shelf.put("a/0")
    paths, lease = read(source, lease)
    assert paths == ["a/0"]
    assert planned(source, lease) == Close(3600.0)


def test_what_lies_above_a_prefix_is_read_without_what_is_below() -> None:
    shelf = Shelf()
    shelf.put("a/1", "2")
    source = by_prefix(shelf)
    paths, _ = read(source, leases(source)[0])
    assert paths == ["2"]


def test_records_of_all_objects_of_a_prefix_have_items_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "MAX_OBJECTS", 2)
    shelf = Shelf()
    shelf.put("a/1", "a/2", "a/3")
    source = by_prefix(shelf)
    lease, bases = leases(source)[1], []
    for _ in range(2):
        plan = planned(source, lease)
        bases += [split.base for split in source.splits(Batch("b", lease, source.name(lease), plan))]
        lease = at(lease, plan.end)
    assert bases == [0, 1 << 40, 2 << 40]


def test_an_object_that_was_overwritten_while_its_batch_was_out_is_read_again() -> None:
    shelf = Shelf()
    shelf.put("a/1", "a/2")
    source = by_prefix(shelf)
    _, lease = read(source, leases(source)[1])
    shelf.put("a/1", data=b"newer")
    paths, _ = read(source, lease)
    assert paths == ["a/1"]


def test_objects_with_dead_letters_are_kept_and_not_read_again() -> None:
    shelf = Shelf()
    shelf.put("a/1")
    source = by_prefix(shelf)
    _, lease = read(source, leases(source)[1])
    lease = at(lease, lease.progress.position, dead=1)
    assert planned(source, lease) == Close(3600.0)
    shelf.put("a/2")
    paths, after = read(source, lease)
    assert paths == ["a/2"]
    assert planned(source, at(after, after.progress.position, dead=1)) == Close(3600.0)
    assert list(shelf.items) == ["a/1"]


def test_a_prefix_that_is_scanned_once_is_done_and_one_with_a_count_is_closed_so_often() -> None:
    shelf = Shelf()
    shelf.put("a/1")
    for scan, end in [("once", Done()), ({"interval": "1h", "count": 3}, Close(3600.0, 3))]:
        source = by_prefix(shelf, scan=scan)
        assert planned(source, leases(source)[0]) == end


# --- settings ------------------------------------------------------------------------------------------------------

BUCKETS = {"buckets": [{"bucket": "landing"}]}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"folder": "/in", **BUCKETS},
        {"folder": "/in", "reread": True},
        {"folder": "/in", "after_success": "delete"},
        {"buckets": [{"bucket": "No"}]},
        {"buckets": [{"bucket": "landing/logs"}]},
        {"buckets": [{"bucket": "landing"}, {"bucket": "landing"}]},
        {**BUCKETS, "start_time": "soon"},
        {**BUCKETS, "start_time": "2026-01-02", "end_time": "2026-01-01"},
        {**BUCKETS, "start_time": "2026-01-01", "end_time": "2026-01-02", "range": "1d"},
        {**BUCKETS, "scan": {"interval": "0s"}},
        {**BUCKETS, "scan": {"count": 3}},
        {**BUCKETS, "after_success": {"tag": {}}},
        {**BUCKETS, "after_success": "delete", "delete_s3_objects_on_read": True},
        {**BUCKETS, "partition_by": "prefix"},
        {**BUCKETS, "partition_by": "prefix", "after_success": "delete", "order": "oldest"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PLUGIN.config(**wrong)

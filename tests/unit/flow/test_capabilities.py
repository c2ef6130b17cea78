"""A source with four verbs and a sink with three methods are enough, whatever positions and batches are like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.engine import Advanced, Staged
from holdfast.flow.sink import Publication, PublishResult, Sink
from holdfast.flow.source import PublishingListener, Source
from holdfast.flow.staging import Stager
from holdfast.leases.lease import Counts, Json, Lease, Partition, Status
from tests.unit.flow.rig import Fleet, TestNode


class KeyRanges(Source):
    """Key ranges of a table; a position is the last key that was read."""

    KEYS = ("ada", "bob", "cem", "dan")

    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:
        return [Partition("a-z", group="people", range_start="a", range_end="z", estimated_count=4)]

    def name(self, lease: Lease) -> Name:
        return Name("people", lease.key)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        return [self._next(lease.progress.position) for lease in leases]

    def _next(self, position: Json) -> Plan:
        after = position["after"] if position else ""
        page = [key for key in self.KEYS if key > after][:2]
        return Cut({"after": after}, {"after": page[-1]}, last=page[-1] == self.KEYS[-1]) if page else Done()

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        raise BatchError("not read through Spark here")


class Shards(KeyRanges):
    """Shards that go on for ever, in one long-lived batch each."""

    lives_long = True
    rediscover_after = 600.0

    def _next(self, position: Json) -> Plan:
        return Cut(position or 0, None)


class Listing(Sink):
    """A sink that lists what it has published."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.published: list[Json] = []

    def stager(self) -> Stager:
        raise NotImplementedError

    def receipt(self, parts: Sequence[Json]) -> Json:
        return {"parts": list(parts)}

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        self.published += [publication.receipt["parts"] for publication in publications]
        return [None] * len(publications)


def started(source: Source, sinks: list[Listing]) -> tuple[Fleet, TestNode]:
    fleet = Fleet({}, tuple(sink.name for sink in sinks))
    fleet.source = source  # type: ignore[assignment]
    by_name = {sink.name: sink for sink in sinks}
    return fleet, TestNode(fleet, sinks=lambda name, _bucket: by_name[name]).start()


def test_key_ranges_are_read_to_their_end() -> None:
    sink = Listing("index")
    fleet, node = started(KeyRanges(), [sink])
    for page in (["ada", "bob"], ["cem", "dan"]):
        batch = node.engine.batch_of("a-z")
        receipts = {"index": sink.receipt(page)}
        node.engine.report(Staged(batch.id, batch.cut.end, batch.cut.last, receipts, Counts(2, 2)))
        node.turn(2)
    row = fleet.row("a-z")
    assert sink.published == [["ada", "bob"], ["cem", "dan"]]
    assert (row.status, row.progress.position) == (Status.COMPLETED, {"after": "dan"})
    assert (row.order.range_start, row.order.range_end) == ("a", "z")


def test_a_shard_advances_without_receipts_and_without_sinks() -> None:
    fleet, node = started(Shards(), [])
    batch = node.engine.batch_of("a-z")
    for position in (3, 7):
        node.engine.report(Advanced(batch.id, position, counts=Counts(position, position)))
        node.turn()
    row = fleet.row("a-z")
    assert (row.progress.position, row.commit.sequence, row.commit.receipts) == (7, 2, None)
    assert node.engine.out == {batch.id: batch}
    assert not any(node.engine.cancelled)


class ListeningShards(Shards, PublishingListener):
    def __init__(self) -> None:
        self.heard: list[Json] = []

    def published(self, leases: Sequence[Lease]) -> None:
        self.heard += [lease.progress.position for lease in leases]


def test_a_source_hears_how_far_a_shard_has_got() -> None:
    source = ListeningShards()
    _, node = started(source, [])
    batch = node.engine.batch_of("a-z")
    node.engine.report(Advanced(batch.id, 3, counts=Counts(3, 3)))
    node.turn()
    assert source.heard == [3]


class ShardsOfATopic(Shards):
    """Shards whose batches begin at positions that say more than those in rows, as in Kafka."""

    def _next(self, position: Json) -> Plan:
        return Cut({"offset": 0 if position is None else position["offset"], "topic_id": "t"}, None)


def test_a_sign_of_life_is_not_a_commit_however_the_batch_names_the_position_at_which_it_begins() -> None:
    """Such a commit would have no receipts, and leave a gap among the manifests of sinks."""
    fleet, node = started(ShardsOfATopic(), [])
    batch = node.engine.batch_of("a-z")
    node.engine.report(Advanced(batch.id, batch.cut.start))
    node.turn()
    assert (fleet.row("a-z").commit.sequence, fleet.row("a-z").progress.position) == (0, None)
    for _ in range(2):
        node.engine.report(Advanced(batch.id, {"offset": 3}, counts=Counts()))
        node.turn()
    assert (fleet.row("a-z").commit.sequence, fleet.row("a-z").progress.position) == (1, {"offset": 3})
    node.loop.drain()
    node.engine.report(Staged(batch.id, {"offset": 3}, last=False, receipts={}, counts=Counts()))
    node.turn()
    node.loop.hand_back()
    before = fleet.row("a-z").commit.sequence

    node.session.leave()
    other = TestNode(fleet, "b").start()
    batch = other.engine.batch_of("a-z")
    other.engine.report(Advanced(batch.id, batch.cut.start))
    other.turn()
    assert (fleet.row("a-z").owner, fleet.row("a-z").commit.sequence) == (other.session.id, before)

"""How partitions end: settled with the source before they are complete, or closed until their next scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import Unavailable
from holdfast.events import BatchPublished, PartitionClosed, PartitionCompleted, PipelineFinished, Unreachable
from holdfast.flow.batch import Close, Limits
from holdfast.flow.sink import Publication, PublishResult, VisibleWhenStaged
from holdfast.flow.source import AfterPublish, PublishingListener
from holdfast.leases.lease import Json, Lease, Status
from holdfast.leases.operator import Operator
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode


class SettlingSource(NumbersSource, AfterPublish):
    """Notes what is visible when it is asked to tidy up, and refuses while it is away."""

    def __init__(self, sizes: dict[str, int], fleet: Fleet) -> None:
        super().__init__(sizes)
        self.fleet = fleet
        self.away = False
        self.settled: list[tuple[str, list[int]]] = []

    def after_publish(self, leases: Sequence[Lease]) -> list[Unavailable | None]:
        self.settled += [(lease.key, self.fleet.visible_of(lease.key)) for lease in leases]
        return [Unavailable("no answer") if self.away else None for _ in leases]


def settling(sizes: dict[str, int], **sinks: Any) -> tuple[Fleet, SettlingSource]:
    fleet = Fleet(sizes, **sinks)
    fleet.source = SettlingSource(sizes, fleet)
    return fleet, fleet.source


def test_the_source_settles_a_partition_when_all_of_it_is_visible_and_before_it_is_complete() -> None:
    fleet, source = settling({"p": 3})
    node = TestNode(fleet, limits=Limits(max_records=2)).start()
    for _ in range(2):
        assert not source.settled
        node.stage("p")
        node.turn()
    assert source.settled == [("p", [0, 1, 2])]
    assert fleet.row("p").status is Status.COMPLETED
    assert [event.key for event in fleet.emitted(PartitionCompleted)] == ["p"]


class Refusing(FilesSink):
    """A sink that cannot publish."""

    refuses = True

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [Unavailable("down")] * len(publications) if self.refuses else list(super().publish(publications))


def test_nothing_is_settled_while_a_sink_has_not_published() -> None:
    fleet, source = settling({"p": 3}, sinks=("files", "other"))
    sinks = {"files": FilesSink, "other": Refusing}
    node = TestNode(fleet, sinks=lambda name, bucket: sinks[name](name, bucket)).start()
    node.stage("p")
    node.turn(3)
    assert not source.settled
    assert fleet.row("p").status is Status.ASSIGNED


def test_a_source_that_is_away_is_asked_again_and_the_partition_waits() -> None:
    fleet, source = settling({"p": 3, "empty": 0})
    source.away = True
    node = TestNode(fleet).start()
    node.stage("p")
    node.turn()
    assert fleet.row("p").status is Status.ASSIGNED
    assert fleet.row("p").history.attempts == 0
    assert {event.what for event in fleet.emitted(Unreachable)} == {"source"}
    source.away = False
    fleet.clock.wait(10)
    node.turn()
    assert [fleet.row(key).status for key in ("p", "empty")] == [Status.COMPLETED] * 2


def test_a_node_that_dies_before_the_partition_is_noted_as_complete_is_followed_by_one_that_settles_it_again() -> None:
    fleet, source = settling({"p": 3})
    source.away = True
    dead = TestNode(fleet, "a").start()
    dead.stage("p")
    dead.turn()
    source.away = False
    fleet.clock.wait(60)
    TestNode(fleet, "b").start()
    assert source.settled == [("p", [0, 1, 2])] * 2
    assert fleet.row("p").status is Status.COMPLETED


class ClosingSource(NumbersSource):
    """Partitions with nothing to read now."""

    most: int | None = None

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Any]:
        return [Close(100.0, self.most) for _ in leases]


def closing(most: int | None) -> tuple[Fleet, TestNode]:
    fleet = Fleet({"p": 1})
    fleet.source = ClosingSource({"p": 1})
    fleet.source.most = most
    return fleet, TestNode(fleet).start()


def test_a_partition_that_is_closed_sleeps_until_it_reopens_and_the_pipeline_is_not_finished() -> None:
    fleet, node = closing(None)
    row = fleet.row("p")
    assert (row.status, row.history.closed_count) == (Status.CLOSED, 1)
    assert [event.reopen_at for event in fleet.emitted(PartitionClosed)] == [row.ownership.due_at]
    fleet.clock.wait(50)
    node.session.heartbeat()
    node.turn()
    assert fleet.row("p").history.closed_count == 1
    fleet.clock.wait(60)
    node.session.heartbeat()
    node.turn(2)
    assert fleet.row("p").history.closed_count == 2
    assert not node.loop.finished


def test_a_partition_that_was_closed_often_enough_is_complete() -> None:
    fleet, node = closing(2)
    fleet.clock.wait(110)
    node.session.heartbeat()
    node.turn(3)
    assert fleet.row("p").status is Status.COMPLETED
    assert fleet.emitted(PartitionCompleted)
    assert fleet.emitted(PipelineFinished)


class Showing(FilesSink, VisibleWhenStaged):
    """A sink whose staged data readers see at once, so that nobody asks it to publish."""

    def is_visible(self, receipt: Json) -> bool:
        return bool(receipt["files"])


class NeverAsked(Showing):
    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        raise AssertionError(publications)


class Hearing(NumbersSource, PublishingListener):
    """Notes what is reported to be visible."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self.heard: list[Any] = []

    def published(self, leases: Sequence[Lease]) -> None:
        self.heard += [(lease.key, lease.progress.position) for lease in leases]


def test_a_batch_that_every_sink_has_shown_is_committed_and_complete_in_one_write() -> None:
    fleet = Fleet({"p": 3})
    fleet.source = source = Hearing({"p": 3})
    node = TestNode(fleet, limits=Limits(max_records=2), sinks=NeverAsked).start()
    before = fleet.row("p").version
    node.stage("p")
    node.turn()
    assert fleet.row("p").version == before + 1
    assert fleet.row("p").commit.receipts is None
    node.stage("p")
    node.turn()
    assert fleet.row("p").version == before + 2
    assert fleet.row("p").status is Status.COMPLETED
    assert [event.key for event in fleet.emitted(PartitionCompleted)] == ["p"]
    assert [event.sequence for event in fleet.emitted(BatchPublished)] == [1, 2]
    assert [key for key, _ in source.heard] == ["p", "p"]


def test_a_source_settles_what_was_shown_before_it_is_complete() -> None:
    fleet, source = settling({"p": 3})
    source.away = True
    node = TestNode(fleet, sinks=NeverAsked).start()
    node.stage("p")
    node.turn()
    assert [key for key, _ in source.settled] == ["p"]
    assert fleet.row("p").status is Status.ASSIGNED
    source.away = False
    fleet.clock.wait(10)
    node.turn()
    assert fleet.row("p").status is Status.COMPLETED


def test_while_one_sink_has_still_to_publish_the_receipts_of_all_stay_in_the_row() -> None:
    fleet = Fleet({"p": 3}, sinks=("files", "other"))
    sinks = {"files": Showing, "other": Refusing}
    node = TestNode(fleet, sinks=lambda name, bucket: sinks[name](name, bucket)).start()
    node.stage("p")
    node.turn()
    assert set(fleet.row("p").commit.receipts or ()) == {"files", "other"}
    assert fleet.row("p").status is Status.ASSIGNED


def test_what_was_shown_under_a_lease_that_is_lost_is_told_to_nobody() -> None:
    fleet = Fleet({"p": 3})
    fleet.source = source = Hearing({"p": 3})
    node = TestNode(fleet, sinks=Showing).start()
    node.stage("p")
    Operator(fleet.store, lambda: "by-hand", PIPELINE).fail("p", "looks wrong")
    node.turn()
    assert source.heard == []
    assert fleet.emitted(BatchPublished) == []
    assert fleet.row("p").status is Status.FAILED

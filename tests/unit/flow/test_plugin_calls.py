"""An error that a plugin raises for one partition is that partition's: the node lives, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.errors import Interrupted, Unavailable
from holdfast.events import AttemptFailed, DiscoveryFailed, Notice, PartitionFailed, Unreachable
from holdfast.flow.batch import Batch
from holdfast.flow.pipeline import call_isolated
from holdfast.flow.sink import Publication, Sink, VisibleWhenStaged
from holdfast.flow.source import AfterPublish, CountsScans, PublishingListener, StagingListener
from holdfast.leases.lease import Json, Lease, Status
from holdfast.leases.transitions import RetryLimits
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import Fleet, TestNode

ONCE = RetryLimits(max_retries=0)


class Tidying(NumbersSource, AfterPublish):
    def after_publish(self, leases: Sequence[Lease]) -> list[Unavailable | None]:
        return [None] * len(leases)


class Hearing(NumbersSource, StagingListener, PublishingListener):
    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        raise NotImplementedError

    def published(self, leases: Sequence[Lease]) -> None:
        raise NotImplementedError


class Miscounting(NumbersSource, CountsScans):
    may_end = False

    def next_scan_after(self, state: dict[str, Any]) -> float | None:
        raise KeyError("scans")


class Dividing(FilesSink, VisibleWhenStaged):
    def is_visible(self, receipt: Any) -> bool:
        return bool(receipt["files"][0]["key"].startswith("_") or 1 / (receipt["to"] - 3))


def raising_for(key: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which raises whenever that partition is among what it is given."""

    def method(given: Any, *others: Any) -> Any:
        for argument in given if isinstance(given, Sequence) else [given]:
            lease: Any = argument[0] if isinstance(argument, tuple) else argument
            if (lease.lease if isinstance(lease, Publication) else lease).key == key:
                raise ZeroDivisionError("float division by zero")
        return original(given, *others)

    return method


def start_with(monkeypatch: pytest.MonkeyPatch, method: str, fleet: Fleet) -> TestNode:
    monkeypatch.setattr(fleet.source, method, raising_for("bad", getattr(fleet.source, method)))
    return TestNode(fleet, retries=ONCE).start()


@pytest.mark.parametrize(("method", "words"), [("plan", "could not be planned"), ("name", "could not be named")])
def test_a_partition_that_the_source_cannot_bear_fails_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, method: str, words: str
) -> None:
    fleet = Fleet({"a": 3, "bad": 3, "c": 3, "d": 3})
    node = start_with(monkeypatch, method, fleet)
    assert sorted(batch.lease.key for batch in node.engine.out.values()) == ["a", "c", "d"]
    row = fleet.row("bad")
    assert row.status is Status.FAILED
    assert words in str(row.history.last_error)
    assert "ZeroDivisionError: float division by zero" in str(row.history.last_error)
    assert [event.key for event in fleet.emitted(PartitionFailed)] == ["bad"]


def test_a_plan_that_fails_counts_attempts_with_a_backoff_like_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet({"a": 3, "bad": 3})
    monkeypatch.setattr(fleet.source, "plan", raising_for("bad", fleet.source.plan))
    node = TestNode(fleet, retries=RetryLimits(max_retries=2, backoff=1.0)).start()
    for _ in range(4):
        fleet.clock.wait(15)
        node.session.heartbeat()
        node.turn(2)
    assert [event.attempts for event in fleet.emitted(AttemptFailed)] == [1, 2, 3]
    assert fleet.row("bad").status is Status.FAILED
    assert [batch.lease.key for batch in node.engine.out.values()] == ["a"]


def test_a_partition_that_cannot_be_settled_waits_and_the_others_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet({"a": 0, "bad": 0, "c": 0})
    fleet.source = Tidying(fleet.source.sizes)
    start_with(monkeypatch, "after_publish", fleet)
    statuses = {key: fleet.row(key).status for key in fleet.source.sizes}
    assert statuses == {"a": Status.COMPLETED, "bad": Status.ASSIGNED, "c": Status.COMPLETED}
    assert fleet.emitted(Unreachable)


@pytest.mark.parametrize("method", ["witness", "publish"])
def test_a_partition_that_a_sink_cannot_bear_is_put_off_and_the_others_are_published(method: str) -> None:
    def broken(name: str, bucket: Any) -> Sink:
        sink = FilesSink(name, bucket)
        setattr(sink, method, raising_for("bad", getattr(sink, method)))
        return sink

    fleet = Fleet({"a": 2, "bad": 2, "c": 2})
    node = TestNode(fleet, sinks=broken).start()
    for batch in list(node.engine.out.values()):
        node.stage(batch.lease.key)
    node.turn(2)
    statuses = {key: fleet.row(key).status for key in fleet.source.sizes}
    assert statuses == {"a": Status.COMPLETED, "bad": Status.ASSIGNED, "c": Status.COMPLETED}
    assert any("float division by zero" in event.error for event in fleet.emitted(Unreachable))


def test_what_a_plugin_is_only_told_stops_nobody_when_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, bucket: Any) -> Sink:
        sink = FilesSink(name, bucket)

        def discard_staged(publications: Sequence[Publication]) -> None:
            raise KeyError("discard_staged")

        def sweep(taken: object) -> None:
            raise KeyError("sweep")

        monkeypatch.setattr(sink, "discard_staged", discard_staged)
        monkeypatch.setattr(sink, "sweep", sweep)
        return sink

    fleet = Fleet({"a": 2})
    fleet.source = Hearing(fleet.source.sizes)
    for method in ("staged", "published"):

        def failing(*_: object, method: str = method) -> None:
            raise KeyError(method)

        monkeypatch.setattr(fleet.source, method, failing)
    node = TestNode(fleet, sinks=broken).start()
    node.stage("a")
    node.turn(2)
    assert fleet.row("a").status is Status.COMPLETED
    messages = " ".join(event.message for event in fleet.emitted(Notice))
    assert all(f"KeyError: '{method}'" in messages for method in ("staged", "published", "discard_staged", "sweep"))


def test_a_receipt_that_a_sink_cannot_read_is_an_attempt_of_its_batch() -> None:
    def broken(name: str, bucket: Any) -> Sink:
        return Dividing(name, bucket)

    fleet = Fleet({"a": 2, "bad": 3})
    node = TestNode(fleet, retries=ONCE, sinks=broken).start()
    for key in ("a", "bad"):
        node.stage(key)
    node.turn(2)
    assert fleet.row("a").commit.sequence == 1
    assert fleet.row("bad").status is Status.FAILED
    assert "its commit could not be made: ZeroDivisionError" in str(fleet.row("bad").history.last_error)


def test_a_discovery_whose_end_fails_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet({"a": 2})

    fleet.source = Miscounting(fleet.source.sizes)
    node = TestNode(fleet).start()
    assert fleet.emitted(DiscoveryFailed)
    fleet.clock.wait(15)
    node.turn()
    assert node.engine.out, "what was found is worked on"


# --- call_isolated ---------------------------------------------------------------------------------------------------


def test_the_culprits_alone_get_the_error_and_are_found_in_halves() -> None:
    calls: list[list[int]] = []

    def call(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        if 5 in items:
            raise KeyError(5)
        return [item * 2 for item in items]

    results = call_isolated(call, range(8))
    assert [result for result in results if isinstance(result, int)] == [0, 2, 4, 6, 8, 12, 14]
    assert isinstance(results[5], KeyError)
    assert len(calls) == 7
    assert call_isolated(call, []) == []


def test_a_call_that_returns_too_little_is_an_error() -> None:
    (result,) = call_isolated(lambda items: [], ["a"])
    assert isinstance(result, ValueError)


@pytest.mark.parametrize("error", [Interrupted("stop"), Unavailable("away")])
def test_what_concerns_all_is_raised(error: Exception) -> None:
    def call(items: Sequence[str]) -> list[str]:
        raise error

    with pytest.raises(type(error)):
        call_isolated(call, ["a", "b"], Unavailable)

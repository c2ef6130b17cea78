from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from holdfast.errors import Interrupted, SourceUnavailable
from holdfast.events import DiscoveryFailed, DiscoveryFinished
from holdfast.leases import transitions
from holdfast.leases.discovery import Discovery, discovery_of
from holdfast.leases.lease import Lease, Partition, Status
from holdfast.testing.faults import Fault
from holdfast.testing.rows import PIPELINE
from tests.unit.leases.rig import Node, Rig


def pages(state: dict[str, Any]) -> Iterable[Partition]:
    """Two partitions per run, numbered by the shared state."""
    page = state.get("page", 0)
    state["page"] = page + 1
    return [Partition(f"{page}-{number}") for number in range(2)]


def discovery_row(rig: Rig) -> Lease:
    return rig.row("$discovery", discovery_of(PIPELINE).pipeline)


def finder(node: Node, supplier: Any = pages, rerun_after: float | None = 60.0) -> Discovery:
    return Discovery(node.leases, supplier, rerun_after=rerun_after)


def test_the_supplier_makes_partitions_in_its_own_order() -> None:
    rig = Rig()
    node = rig.node()
    assert finder(node).run()
    assert [lease.key for lease in node.leases.claim(9)] == ["0-0", "0-1"]
    assert node.world.seen(DiscoveryFinished) == [DiscoveryFinished(PIPELINE, 2, 2, exhausted=False)]


def test_the_global_state_is_shared_by_all_nodes() -> None:
    rig = Rig()
    a, b = rig.node("a"), rig.node("b")
    assert finder(a).run()
    rig.clock.turn(61.0)
    assert finder(b).run()
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 4}
    assert discovery_row(rig).progress.state == {"page": 2}


def test_the_supplier_sleeps_between_runs() -> None:
    rig = Rig()
    node = rig.node()
    discovery = finder(node)
    assert discovery.run()
    assert not discovery.run()
    rig.clock.turn(59.0)
    assert not discovery.run()
    rig.clock.turn(2.0)
    assert discovery.run()
    assert not discovery.exhausted


def test_a_row_that_the_store_has_lost_is_made_anew() -> None:
    rig = Rig()
    discovery = finder(rig.node())
    assert discovery.run()
    rig.table.remove([discovery_row(rig)])
    assert discovery.run()
    assert discovery_row(rig).progress.state == {"page": 1}


def test_one_node_at_a_time_runs_the_supplier() -> None:
    rig = Rig()
    a, b = rig.node("a"), rig.node("b")
    others: list[bool] = []

    def supplier(state: dict[str, Any]) -> Iterator[Partition]:
        others.append(finder(b, supplier).run())
        yield Partition("k")

    assert finder(a, supplier).run()
    assert others == [False]


def test_a_supplier_that_finds_everything_runs_once() -> None:
    rig = Rig()
    a, b = rig.node("a"), rig.node("b")
    assert finder(a, rerun_after=None).run()
    assert a.world.seen(DiscoveryFinished)[0].exhausted
    rig.clock.turn(1e6)
    b.session.heartbeat()
    other = finder(b, rerun_after=None)
    assert not other.run()
    assert other.exhausted


@pytest.mark.parametrize("error", [SourceUnavailable("bucket is away"), ValueError("bucket is away"), KeyError("x")])
def test_an_error_of_the_supplier_is_reported_and_tried_later_by_any_node(error: Exception) -> None:
    rig = Rig()
    a, b = rig.node("a"), rig.node("b")

    def failing(state: dict[str, Any]) -> Iterator[Partition]:
        state["page"] = 7
        yield Partition("0-0")
        raise error

    assert not finder(a, failing).run()
    assert [event.error for event in a.world.seen(DiscoveryFailed)] == [str(error)]
    assert discovery_row(rig).progress.state is None, "what it did before the error does not count"
    assert not finder(b).run(), "not at once"
    rig.clock.turn(5.1)
    assert finder(b).run()
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 2}


def test_a_failed_run_leaves_no_trace_in_the_depths_of_the_state() -> None:
    rig = Rig()
    node = rig.node()

    def deep(state: dict[str, Any]) -> Iterator[Partition]:
        cursor = state.setdefault("cursor", {"page": 0})
        cursor["page"] += 1
        yield Partition(f"page {cursor['page']}")
        if cursor["page"] == 2:
            raise SourceUnavailable("lost the connection")

    assert finder(node, deep).run()
    rig.clock.turn(61.0)
    assert not finder(node, deep).run()
    assert discovery_row(rig).progress.state == {"cursor": {"page": 1}}


def test_errors_long_ago_do_not_make_the_next_one_costlier() -> None:
    rig = Rig()
    node = rig.node()
    broken = True

    def moody(state: dict[str, Any]) -> Iterable[Partition]:
        if broken:
            raise SourceUnavailable("not now")
        return []

    for _ in range(4):
        assert not finder(node, moody).run()
        rig.pass_time(300.0, node)
    broken = False
    assert finder(node, moody).run()
    assert discovery_row(rig).history.attempts == 0
    rig.pass_time(61.0, node)
    broken = True
    finder(node, moody).run()
    assert (discovery_row(rig).ownership.due_at or 0.0) - rig.clock.monotonic() == pytest.approx(5.0)


def test_a_node_that_dies_in_the_middle_loses_nothing() -> None:
    rig = Rig()
    a, b = rig.node("a"), rig.node("b")

    def dying(state: dict[str, Any]) -> Iterator[Partition]:
        for number in range(600):
            yield Partition(f"{number:03d}")
        raise Interrupted("killed")

    with pytest.raises(Interrupted):
        finder(a, dying).run()
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 500}, "a supplier's partitions are not kept back"
    rig.pass_time(31.0, b)
    everything = [Partition(f"{number:03d}") for number in range(600)]
    assert finder(b, lambda state: everything).run()
    assert rig.table.count(PIPELINE) == {Status.UNASSIGNED: 600}
    assert b.world.seen(DiscoveryFinished)[0].created == 100


def test_a_claim_of_the_supplier_whose_answer_was_lost_is_used() -> None:
    rig = Rig()
    node = rig.node()
    rig.store.order("claim", Fault.ANSWER_LOST)
    assert finder(node).run()


def test_runs_have_a_supplier_each() -> None:
    assert discovery_of("p") != discovery_of("p", "r1")
    assert discovery_of("p").pipeline != "p"


def test_the_state_that_a_run_leaves_tells_when_the_next_one_is_due_and_which_was_the_last() -> None:
    rig = Rig()
    node = rig.node()
    discovery = Discovery(node.leases, pages, rerun_after=lambda state: 60.0 if state["page"] < 2 else None)
    ended = []
    for _ in range(2):
        assert discovery.run()
        ended.append(discovery.exhausted)
        rig.clock.turn(61.0)
    assert ended == [False, True]
    assert [event.exhausted for event in node.world.seen(DiscoveryFinished)] == [False, True]


def test_signs_of_life_make_no_partitions_and_keep_the_supplier_with_its_node() -> None:
    rig = Rig()
    a, b = rig.node("a"), rig.node("b")

    def slow(state: dict[str, Any]) -> Iterator[Partition | None]:
        for _ in range(10):
            rig.pass_time(200.0, a, b)
            assert not finder(b, lambda _state: []).run(), "another node runs the supplier meanwhile"
            yield None
        yield Partition("late")

    assert finder(a, slow).run()
    assert a.world.seen(DiscoveryFinished)[0].found == 1


def test_it_calls_back_whenever_partitions_were_added_and_at_the_end() -> None:
    rig = Rig()
    node = rig.node()
    seen: list[int] = []
    many = [Partition(f"{number:04d}") for number in range(1200)]
    discovery = Discovery(
        node.leases,
        lambda _state: many,
        rerun_after=None,
        added=lambda: seen.append(rig.table.count(PIPELINE)[Status.UNASSIGNED]),
    )
    assert discovery.run()
    assert seen == [500, 1000, 1200]


def test_a_partition_that_follows_others_is_added_once_they_are_complete() -> None:
    rig = Rig()
    node = rig.node()
    family = [Partition("parent"), Partition("other"), Partition("child", after=("parent", "other"))]
    discovery = finder(node, lambda _state: family)
    assert discovery.run()
    first, second = node.leases.claim(9)
    assert {first.key, second.key} == {"parent", "other"}
    for done in (first, second):
        rig.pass_time(61.0, node)
        assert discovery.run()
        assert node.leases.claim(9) == []
        node.leases.write([done], transitions.complete)
    rig.pass_time(61.0, node)
    assert discovery.run()
    assert [lease.key for lease in node.leases.claim(9)] == ["child"]

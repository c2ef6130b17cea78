"""Which leases a node gives away, when it has to give some."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from holdfast.flow.acquire import HandOff
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.engine import Engine, Staged
from holdfast.flow.holdings import Held, Holdings
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Lease, Status
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import Fleet, TestNode


class DrainedEngine:
    def __init__(self) -> None:
        self.drained: list[str] = []

    def drain(self, batches: list[str]) -> None:
        self.drained = batches


class Giving:
    """A node's leases: so many of each group, with a batch out where the group is busy."""

    def __init__(self, busy: str = "", **groups: int) -> None:
        self.engine = DrainedEngine()
        self.holdings = Holdings(cast("Engine", cast("Any", self.engine)))
        for group, count in groups.items():
            for number in range(count):
                lease = Lease("archive", f"{group}|{number}", group=group)
                held = Held(lease, Name(group, str(number)))
                self.holdings.add(held)
                if group == busy:
                    self.holdings.send(held, Batch(lease.key, lease, held.name, Cut(0, 1)), 0.0)
        self.hand_off = HandOff(cast("Coordinator", None), self.holdings)

    def given(self) -> Counter[str]:
        return Counter(held.lease.group for held in self.holdings if held.hand_to is not None)


def test_a_busy_topic_is_shared_too_not_only_those_that_nobody_writes_to() -> None:
    giving = Giving("hot", idle=4, hot=4, other=2)
    giving.hand_off.choose(["b"] * 4)
    assert giving.given() == {"idle": 2, "hot": 2}
    assert len(giving.engine.drained) == 2


def test_within_a_topic_those_at_rest_go_first() -> None:
    giving = Giving(orders=3)
    first, *_ = giving.holdings
    giving.holdings.send(first, Batch("out", first.lease, first.name, Cut(0, 1)), 0.0)
    giving.hand_off.choose(["b", "c"])
    assert first.hand_to is None
    assert giving.given() == {"orders": 2}


def test_what_was_chosen_before_stays_chosen() -> None:
    giving = Giving(orders=2, clicks=2)
    giving.hand_off.choose(["b"])
    (chosen,) = [held for held in giving.holdings if held.hand_to]
    giving.hand_off.choose(["b", "b"])
    assert chosen.hand_to == "b"
    assert giving.given() == {"orders": 1, "clicks": 1}
    giving.hand_off.choose([])
    assert not giving.given()


class Endless(NumbersSource):
    lives_long = True


class Replaced:
    """A generation that another one replaces."""

    def __init__(self) -> None:
        self.replaced = False

    def current(self) -> int | None:
        return None if self.replaced else 1

    def has_parsing_of(self, number: int) -> bool:
        return number == 1

    def seal(self, number: int) -> bool:
        return True


def test_a_node_of_a_former_generation_lets_endless_batches_finish_what_they_have_read() -> None:
    fleet = Fleet({"p": 9, "q": 9})
    fleet.source = Endless({"p": 9, "q": 9})
    generation = Replaced()
    node = TestNode(fleet, followed=generation)
    node.engine.endless = True
    node.start()
    first, second = list(node.engine.out.values())
    generation.replaced = True
    fleet.clock.wait(30.0)
    node.session.heartbeat()
    node.turn()
    assert sorted(node.engine.drained) == sorted([first.id, second.id])
    assert not node.engine.cancelled
    node.engine.report(Staged(first.id, 4, False, {}))
    node.turn()
    row, other = fleet.row(first.lease.key), fleet.row(second.lease.key)
    assert (row.status, row.progress.position, other.status) == (Status.UNASSIGNED, 4, Status.ASSIGNED)
    node.engine.report(Staged(second.id, 5, False, {}))
    node.turn()
    assert fleet.row(second.lease.key).status is Status.UNASSIGNED
    assert len(node.engine.rounds) == 1, "no batch begins again"

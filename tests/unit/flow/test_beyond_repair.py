"""A partition of which nothing more can be read: what was good of it is published, and it is FAILED at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import BeyondRepair
from holdfast.events import AttemptFailed, PartitionCompleted, PartitionFailed
from holdfast.flow.batch import Cut, Limits
from holdfast.leases.lease import Lease, Status
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import Fleet, TestNode


class Damaged(NumbersSource):
    """What is behind the last number cannot be read."""

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Any]:
        return [
            replace(plan, last=False) if isinstance(plan, Cut) else BeyondRepair("the rest is damaged")
            for plan in super().plan(leases, limits)
        ]


def test_what_is_beyond_repair_is_not_tried_again_and_what_was_good_is_published() -> None:
    sizes = {"none": 0, "some": 3}
    fleet = Fleet(sizes)
    fleet.source = Damaged(sizes)
    node = TestNode(fleet).start()
    node.stage("some")
    node.turn(2)
    assert fleet.visible() == [0, 1, 2]
    for key in sizes:
        assert fleet.row(key).status is Status.FAILED
        assert fleet.row(key).history.last_error == "the rest is damaged"
        assert fleet.row(key).commit.receipts is None
    assert [event.attempts for event in fleet.emitted(AttemptFailed)] == [1, 1]
    assert {event.key for event in fleet.emitted(PartitionFailed)} == set(sizes)
    assert not fleet.emitted(PartitionCompleted)

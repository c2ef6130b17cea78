"""How many dead letters a partition may have: it halts before it commits the batch that goes beyond."""

from __future__ import annotations

import pytest

from holdfast.events import BatchCommitted, DeadLettersBeyondTolerance, DeadLettersNearTolerance, PartitionHalted
from holdfast.flow.batch import Limits, Tolerance
from holdfast.flow.engine import Advanced, Staged
from holdfast.leases.lease import Counts, LetterWindow, Status
from holdfast.leases.operator import Operator
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode

TENTH = Tolerance(share=0.1, records=100)


def _reopen(fleet: Fleet) -> None:
    Operator(fleet.store, lambda: next(fleet.ids), PIPELINE).reopen("p")


def _next_turns(node: TestNode, times: int = 3) -> None:
    for _ in range(times):
        node.fleet.clock.wait(11)
        node.session.heartbeat()
        node.turn()


def test_a_batch_with_too_many_letters_is_not_committed_and_halts_its_partition_alone() -> None:
    fleet = Fleet({"p": 100, "q": 100})
    node = TestNode(fleet, tolerance=TENTH).start()
    node.stage("p", letters=11)
    node.stage("q", letters=10)
    node.turn(2)
    row = fleet.row("p")
    assert (row.status, row.progress.position, row.commit.sequence) == (Status.FAILED, None, 0)
    assert not fleet.visible_of("p")
    assert (fleet.row("q").status, fleet.visible_of("q")) == (Status.COMPLETED, list(range(100)))
    reason = str(row.history.halt_reason)
    assert row.history.last_error == reason
    for part in (
        "11 of 100 records",
        "10 are allowed",
        "dead_letters.tolerance: 0.1 of 100",
        "from 0 to 100",
        "not JSON",
    ):
        assert part in reason
    assert [event.key for event in fleet.emitted(PartitionHalted)] == ["p"]
    assert fleet.emitted(DeadLettersBeyondTolerance) == [
        DeadLettersBeyondTolerance(PIPELINE, "p", 11, 100, 10, "not JSON")
    ]


def test_what_was_not_committed_is_read_again_when_the_partition_is_reopened() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, tolerance=TENTH).start()
    node.stage("p", letters=100)
    node.turn()
    _reopen(fleet)
    mended = TestNode(fleet, "b", tolerance=TENTH).join()
    _next_turns(mended)
    mended.stage("p")
    mended.turn(2)
    assert (fleet.row("p").status, fleet.visible()) == (Status.COMPLETED, list(range(100)))
    assert fleet.row("p").history.halt_reason is None
    assert not fleet.buckets["files"].staged


def test_tiny_batches_are_counted_together_also_across_owners() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, limits=Limits(max_records=5), tolerance=TENTH).start()
    for _ in range(2):
        node.stage("p", letters=5)
        node.turn()
    assert fleet.row("p").progress.window == LetterWindow(10, 10)
    node.loop.hand_back()
    other = TestNode(fleet, "b", limits=Limits(max_records=5), tolerance=TENTH).join()
    _next_turns(other)
    other.stage("p", letters=1)
    other.turn()
    row = fleet.row("p")
    assert (row.status, row.progress.position) == (Status.FAILED, 10)
    assert fleet.visible() == list(range(10))


def test_a_window_that_is_full_ends_and_the_next_one_begins_empty() -> None:
    fleet = Fleet({"p": 400})
    node = TestNode(fleet, limits=Limits(max_records=60), tolerance=TENTH).start()
    windows = []
    for letters in (6, 6, 6, 6, 6):
        node.stage("p", letters=letters)
        node.turn()
        windows.append(tuple(fleet.row("p").progress.window))
    assert windows == [(60, 6), (0, 0), (60, 6), (0, 0), (60, 6)]
    assert len(fleet.emitted(BatchCommitted)) == 5


def test_letters_of_a_large_batch_are_judged_by_the_share_of_all_its_records() -> None:
    fleet = Fleet({"p": 1000, "q": 1000})
    node = TestNode(fleet, tolerance=TENTH).start()
    node.stage("p", letters=100)
    node.stage("q", letters=101)
    node.turn(2)
    assert (fleet.row("p").status, fleet.row("q").status) == (Status.COMPLETED, Status.FAILED)


def test_letters_before_it_was_reopened_do_not_count() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, limits=Limits(max_records=20), tolerance=TENTH).start()
    for _ in range(2):
        node.stage("p", letters=9)
        node.turn()
    assert fleet.row("p").status is Status.FAILED
    assert fleet.row("p").progress.window == LetterWindow(20, 9)
    _reopen(fleet)
    assert fleet.row("p").progress.window == LetterWindow()
    other = TestNode(fleet, "b", limits=Limits(max_records=20), tolerance=TENTH).join()
    _next_turns(other)
    other.stage("p", letters=9)
    other.turn()
    assert fleet.row("p").progress.position == 40


@pytest.mark.parametrize("tolerance", [None, Tolerance(share=1.0, records=1)])
def test_a_pipeline_may_tolerate_any_number_of_letters(tolerance: Tolerance | None) -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, tolerance=tolerance).start()
    node.stage("p", letters=100)
    node.turn(2)
    assert fleet.row("p").status is Status.COMPLETED


def test_a_pipeline_may_tolerate_no_letter_at_all() -> None:
    fleet = Fleet({"p": 5000, "q": 1})
    node = TestNode(fleet, tolerance=Tolerance(share=0.0)).start()
    node.stage("p", letters=1)
    node.stage("q")
    node.turn(2)
    assert (fleet.row("p").status, fleet.row("q").status) == (Status.FAILED, Status.COMPLETED)


def test_a_long_lived_batch_ends_when_its_letters_go_beyond() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, tolerance=TENTH).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Advanced(batch.id, 40, counts=Counts(40, 30, 0, 10)))
    node.turn()
    assert fleet.row("p").progress.position == 40
    node.engine.report(Advanced(batch.id, 41, counts=Counts(1, 0, 0, 1)))
    node.turn()
    assert (fleet.row("p").status, fleet.row("p").progress.position) == (Status.FAILED, 40)
    assert node.engine.cancelled == [batch.id]


def test_letters_that_come_near_the_tolerance_are_reported_while_the_partition_goes_on() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, limits=Limits(max_records=50), tolerance=TENTH).start()
    for letters in (5, 3):
        node.stage("p", letters=letters)
        node.turn(2)
    assert fleet.row("p").status is Status.COMPLETED
    assert fleet.emitted(DeadLettersNearTolerance) == [DeadLettersNearTolerance(PIPELINE, "p", 8, 100, 10)]


def test_a_share_is_not_rounded_against_the_user() -> None:
    assert [Tolerance(share, 100).allowed(100) for share in (0.29, 0.07, 0.1, 0.0, 1.0)] == [29, 7, 10, 0, 100]


def test_a_node_that_has_lost_the_lease_neither_halts_nor_alerts() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, tolerance=TENTH).start()
    Operator(fleet.store, lambda: next(fleet.ids), PIPELINE).release("p")
    node.stage("p", letters=100)
    node.loop._committer.commit(node.engine.poll(0))
    assert fleet.row("p").status is Status.UNASSIGNED
    assert not fleet.emitted(DeadLettersBeyondTolerance)


def test_letters_that_a_setting_has_asked_for_do_not_count() -> None:
    fleet = Fleet({"p": 100})
    node = TestNode(fleet, limits=Limits(max_records=50), tolerance=TENTH).start()
    for chosen, letters in ((50, 50), (30, 36)):
        batch = node.engine.batch_of("p")
        counts = Counts(50, 50 - letters, 0, letters)
        node.engine.report(Staged(batch.id, batch.cut.end, batch.cut.last, {}, counts, chosen_letters=chosen))
        node.turn()
    row = fleet.row("p")
    assert (row.status, row.progress.counts.dead) == (Status.COMPLETED, 86)
    assert row.progress.window == LetterWindow(20, 6)

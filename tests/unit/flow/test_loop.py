from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

from holdfast.errors import AnswerLost, Unavailable
from holdfast.events import (
    BatchCancelled,
    BatchPublished,
    PartitionHalted,
    PipelineFinished,
    RowsDropped,
    RowsSkipped,
    Unreachable,
)
from holdfast.flow.batch import Limits
from holdfast.flow.engine import Advanced, Failed, Staged
from holdfast.flow.sink import Publication, PublishResult
from holdfast.flow.source import UsesStoreClock
from holdfast.leases.lease import Counts, Lease, Partition, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import ClaimRequest
from holdfast.leases.transitions import RetryLimits
from holdfast.sinks.files.sink import FilesSink
from holdfast.stores.memory import MemoryStore
from holdfast.testing.flows import NumbersSource
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode


def test_a_partition_goes_from_found_to_completed_and_every_record_is_visible_once() -> None:
    fleet = Fleet({"p": 5})
    node = TestNode(fleet, limits=Limits(max_records=2)).start()
    for _ in range(3):
        node.stage("p")
        node.turn()
    assert fleet.visible() == [0, 1, 2, 3, 4]
    assert fleet.row("p").status is Status.COMPLETED
    assert fleet.row("p").progress.counts == Counts(5, 5)
    assert not fleet.buckets["files"].staged


def test_a_bounded_pipeline_is_finished_when_everything_is() -> None:
    fleet = Fleet({"p": 1})
    node = TestNode(fleet).start()
    finished = [node.loop.finished]
    node.stage("p")
    node.turn()
    finished.append(node.loop.finished)
    assert finished == [False, True]
    assert fleet.emitted(PipelineFinished) == [PipelineFinished(PIPELINE, completed=1, failed=0)]


def test_each_batch_is_committed_as_soon_as_it_is_reported_while_others_are_still_out() -> None:
    fleet = Fleet({"p": 3, "q": 3})
    node = TestNode(fleet).start()
    assert [len(batches) for batches in node.engine.rounds] == [2]
    node.stage("q")
    node.turn()
    assert fleet.row("q").status is Status.COMPLETED
    assert fleet.row("p").status is Status.ASSIGNED
    assert [batch.lease.key for batch in node.engine.out.values()] == ["p"]


def test_what_commits_that_are_published_together_leave_behind_is_deleted_in_one_go() -> None:
    class Counting(FilesSink):
        settled: ClassVar[list[int]] = []

        def discard_staged(self, publications: Sequence[Publication]) -> None:
            self.settled.append(len(publications))
            super().discard_staged(publications)

    fleet = Fleet({"p": 3, "q": 3, "r": 3})
    node = TestNode(fleet, sinks=Counting).start()
    for key in "pqr":
        node.stage(key)
    node.turn()
    assert Counting.settled == [3]
    assert not fleet.buckets["files"].staged


def test_a_batch_that_exceeds_its_limit_is_cancelled_and_counts_an_attempt() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, limits=Limits(timeout=20.0)).start()
    batch = node.engine.batch_of("p")
    fleet.clock.wait(21)
    node.turn()
    assert node.engine.cancelled == [batch.id]
    assert fleet.row("p").history.attempts == 1
    assert "longer than 20 s" in str(fleet.row("p").history.last_error)
    assert [event.key for event in fleet.emitted(BatchCancelled)] == ["p"]


def test_a_report_that_comes_after_its_batch_was_cancelled_changes_nothing() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, limits=Limits(timeout=20.0)).start()
    batch = node.engine.batch_of("p")
    fleet.clock.wait(21)
    node.turn()
    node.engine.report(Staged(batch.id, 3, last=True, receipts={}, counts=Counts(3, 3)))
    node.turn()
    assert fleet.row("p").progress.position is None


def test_rows_that_processors_have_dropped_are_told_with_the_commit() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Staged(batch.id, 3, last=True, receipts={}, dropped={"1-filter": 2, "3-sql": 1}))
    node.turn()
    assert [(event.processor, event.rows) for event in fleet.emitted(RowsDropped)] == [("1-filter", 2), ("3-sql", 1)]


def test_rows_that_a_format_has_skipped_are_told_with_the_commit() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Staged(batch.id, 3, last=True, receipts={"files": {"files": [], "skipped": 2}}))
    node.turn()
    assert [(event.sink, event.rows) for event in fleet.emitted(RowsSkipped)] == [("files", 2)]


def test_a_bad_partition_fails_alone_after_its_retries_with_its_error_on_the_row() -> None:
    fleet = Fleet({"bad": 3, "good": 3})
    node = TestNode(fleet, retries=RetryLimits(max_retries=2, backoff=5.0)).start()
    node.stage("good")
    for attempt in (1, 2, 3):
        node.engine.report(Failed(node.engine.batch_of("bad").id, "line 7 is not JSON"))
        node.turn()
        assert fleet.row("bad").history.attempts == attempt
        fleet.clock.wait(120)
        node.session.heartbeat()
        node.turn()
    assert fleet.row("bad").status is Status.FAILED
    assert fleet.row("bad").history.last_error == "line 7 is not JSON"
    assert fleet.row("good").status is Status.COMPLETED


def test_a_failed_batch_waits_longer_each_time_before_it_is_tried_again() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, retries=RetryLimits(backoff=100.0)).start()
    node.engine.report(Failed(node.engine.batch_of("p").id, "broken"))
    node.turn()
    first = (fleet.row("p").ownership.due_at or 0) - fleet.clock.time
    assert first == pytest.approx(100.0)
    fleet.clock.wait(101)
    node.session.heartbeat()
    node.turn()
    node.engine.report(Failed(node.engine.batch_of("p").id, "broken"))
    node.turn()
    assert (fleet.row("p").ownership.due_at or 0) - fleet.clock.time == pytest.approx(200.0)


def test_after_an_error_a_partition_is_tried_again_in_a_round_of_its_own() -> None:
    fleet = Fleet({"p": 3, "q": 3})
    node = TestNode(fleet, retries=RetryLimits(backoff=1.0)).start()
    for key in ("p", "q"):
        node.engine.report(Failed(node.engine.batch_of(key).id, "the job died"))
    node.turn()
    fleet.clock.wait(20)
    node.turn()
    assert [len(batches) for batches in node.engine.rounds] == [2, 1, 1]


def test_while_something_outside_is_down_the_lease_is_kept_and_no_attempt_counted() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    node.engine.report(Failed(node.engine.batch_of("p").id, "the cluster is down", unavailable=True))
    node.turn()
    row = fleet.row("p")
    assert (row.status, row.history.attempts) == (Status.ASSIGNED, 0)
    assert [(event.what, event.error) for event in fleet.emitted(Unreachable)] == [("sink", "the cluster is down")]
    assert len(node.engine.rounds) == 1
    fleet.clock.wait(6)
    node.turn()
    assert len(node.engine.rounds) == 2
    node.stage("p")
    node.turn()
    assert fleet.visible() == [0, 1, 2]


def test_a_batch_that_waited_in_vain_for_its_source_says_so() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    node.engine.report(Failed(node.engine.batch_of("p").id, "timed out", unavailable=True, what="source"))
    node.turn()
    assert [(event.what, event.error) for event in fleet.emitted(Unreachable)] == [("source", "timed out")]
    assert fleet.row("p").history.attempts == 0


def test_a_bucket_that_a_source_reads_and_that_does_not_respond_is_the_source_and_no_attempt() -> None:
    fleet = Fleet({"p": 3})
    source: Any = fleet.source
    planned = source.plan

    def plan(*_: Any) -> Any:
        raise Unavailable("the bucket does not respond")

    source.plan = plan
    node = TestNode(fleet).start()
    assert [(event.what, event.error) for event in fleet.emitted(Unreachable)] == [
        ("source", "the bucket does not respond")
    ]
    assert fleet.row("p").history.attempts == 0
    source.plan = planned
    fleet.clock.wait(10)
    node.turn()
    node.stage("p")
    node.turn()
    assert fleet.visible() == [0, 1, 2]


def test_batches_that_wait_for_the_same_thing_are_told_once_and_tried_again_together() -> None:
    fleet = Fleet({"p": 3, "q": 3, "r": 3})
    node = TestNode(fleet).start()
    for key in ("p", "q"):
        node.engine.report(Failed(node.engine.batch_of(key).id, "the cluster is down", unavailable=True))
    node.stage("r")
    node.turn()
    assert len(fleet.emitted(Unreachable)) == 1
    assert fleet.row("r").status is Status.COMPLETED
    fleet.clock.wait(6)
    node.turn()
    assert [len(batches) for batches in node.engine.rounds] == [3, 2]


def test_while_the_sink_is_down_the_lease_is_kept_and_the_commit_is_published_later() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    node.stage("p")
    fleet.buckets["files"].away = True
    node.turn(3)
    assert fleet.row("p").status is Status.ASSIGNED
    assert fleet.row("p").commit.receipts is not None
    assert fleet.emitted(Unreachable)
    fleet.buckets["files"].away = False
    fleet.clock.wait(5)
    node.turn()
    assert fleet.visible() == [0, 1, 2]
    assert fleet.row("p").status is Status.COMPLETED


class Crash(BaseException):
    """The process dies here."""


class CrashingSink(FilesSink):
    """Dies before it publishes, if it is the second of two."""

    def publish(self, publications: list[Publication]) -> list[PublishResult]:  # type: ignore[override]
        if self.name == "second" and publications:
            raise Crash
        return super().publish(publications)


def test_a_crash_between_the_publishes_of_two_sinks_is_finished_by_the_next_owner() -> None:
    fleet = Fleet({"p": 3}, sinks=("first", "second"))
    dying = TestNode(fleet, sinks=CrashingSink).start()
    dying.stage("p")
    with pytest.raises(Crash):
        dying.turn()
    assert (fleet.visible("first"), fleet.visible("second")) == ([0, 1, 2], [])

    fleet.clock.wait(31)
    heir = TestNode(fleet, "b").join()
    heir.turn(3)
    assert (fleet.visible("first"), fleet.visible("second")) == ([0, 1, 2], [0, 1, 2])
    assert fleet.row("p").status is Status.COMPLETED
    assert [event.rolled_forward for event in fleet.emitted(BatchPublished)] == [True]
    assert not heir.engine.rounds, "nothing is read again"


def test_receipts_for_a_sink_that_is_not_configured_any_more_halt_the_partition() -> None:
    fleet = Fleet({"p": 3}, sinks=("first", "second"))
    dying = TestNode(fleet, sinks=CrashingSink).start()
    dying.stage("p")
    with pytest.raises(Crash):
        dying.turn()
    del fleet.buckets["second"]
    fleet.clock.wait(31)
    TestNode(fleet, "b").join().turn(2)
    row = fleet.row("p")
    assert row.status is Status.FAILED
    assert "'second'" in str(row.history.halt_reason)
    assert row.commit.receipts is not None


def test_a_zombie_that_wakes_up_late_commits_nothing() -> None:
    fleet = Fleet({"p": 3})
    zombie = TestNode(fleet, limits=Limits(max_records=2)).start()
    fleet.clock.wait(31)
    heir = TestNode(fleet, "b").join()
    heir.turn(2)
    heir.stage("p")
    heir.turn()
    zombie.stage("p")
    zombie.turn()
    assert fleet.row("p").status is Status.COMPLETED
    assert fleet.visible() == [0, 1, 2]


def test_a_store_that_has_lost_commits_is_found_out_by_the_manifests_and_nothing_is_written() -> None:
    fleet = Fleet({"p": 4})
    node = TestNode(fleet, limits=Limits(max_records=2)).start()
    node.stage("p")
    node.turn()
    lost = Fleet({"p": 4})
    lost.buckets = fleet.buckets
    TestNode(lost, limits=Limits(max_records=3)).start()
    row = lost.row("p")
    assert row.status is Status.FAILED
    assert "has lost what came after" in str(row.history.halt_reason)
    assert [event.key for event in lost.emitted(PartitionHalted)] == ["p"]
    assert lost.visible() == [0, 1]


def test_staged_data_that_vanished_before_it_was_published_is_made_again() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    node.stage("p")
    fleet.buckets["files"].staged.clear()
    node.turn()
    assert node.engine.batch_of("p").restages == fleet.row("p").commit.commit_id
    node.stage("p")
    node.turn(2)
    assert fleet.visible() == [0, 1, 2]
    assert fleet.row("p").commit.sequence == 1


def test_a_partition_whose_owners_die_too_often_is_halted() -> None:
    fleet = Fleet({"p": 3})
    for life in range(4):
        TestNode(fleet, f"n{life}", retries=RetryLimits(max_takeovers=2)).start()
        fleet.clock.wait(31)
    row = fleet.row("p")
    assert row.status is Status.FAILED
    assert "its owner died 3 times" in str(row.history.halt_reason)


def test_takeovers_are_forgotten_when_the_position_moves() -> None:
    fleet = Fleet({"p": 30})
    for life in range(6):
        node = TestNode(fleet, f"n{life}", limits=Limits(max_records=2), retries=RetryLimits(max_takeovers=2)).start()
        node.stage("p")
        node.turn()
        fleet.clock.wait(31)
    assert fleet.row("p").status is Status.ASSIGNED
    assert fleet.visible() == list(range(12))


def test_a_lease_that_a_person_released_is_let_go_at_the_next_pass() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    Operator(fleet.store, lambda: "by-hand", PIPELINE).fail("p", "looks wrong")
    fleet.clock.wait(15)
    node.turn()
    assert node.engine.cancelled == [batch.id]
    assert fleet.row("p").status is Status.FAILED


def test_a_claim_whose_answer_was_lost_is_found_at_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).join()
    node.turn()
    claim = MemoryStore.claim

    def lost(store: MemoryStore, request: ClaimRequest) -> list[Lease]:
        claim(store, request)
        raise AnswerLost("the connection broke")

    monkeypatch.setattr(MemoryStore, "claim", lost)
    node.turn()
    monkeypatch.undo()
    assert not node.engine.rounds
    fleet.clock.wait(15)
    node.turn(2)
    assert node.engine.batch_of("p").lease.token == 1


def test_a_generation_is_switched_at_the_committed_position_and_older_nodes_let_go() -> None:
    fleet = Fleet({"p": 4})
    old = TestNode(fleet, limits=Limits(max_records=2)).start()
    old.stage("p")
    old.turn()
    old.loop.hand_back()
    new = TestNode(fleet, "b", generation=2, limits=Limits(max_records=1)).start()
    assert fleet.row("p").commit.generation == 2
    assert new.engine.batch_of("p").cut.start == 2
    new.loop.hand_back()
    fleet.clock.wait(15)
    old.turn()
    assert fleet.row("p").status is Status.UNASSIGNED
    assert (fleet.row("p").ownership.due_at or 0) > fleet.clock.time


def test_acknowledgements_without_receipts_move_the_position_and_keep_the_batch_out() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Advanced(batch.id, 3, ((5, 7),), Counts(5, 5)))
    node.turn()
    row = fleet.row("p")
    assert (row.progress.position, row.progress.acked, row.commit.receipts) == (3, ((5, 7),), None)
    assert batch.id in node.engine.out
    node.engine.report(Staged(batch.id, 10, last=True, receipts={}, counts=Counts(5, 5)))
    node.turn()
    assert fleet.row("p").status is Status.COMPLETED


def test_a_draining_lease_is_handed_back_only_when_its_work_is_in() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    node.loop.drain()
    assert node.engine.drained == [batch.id]
    node.turn(2)
    assert fleet.row("p").status is Status.ASSIGNED
    node.engine.report(Staged(batch.id, 4, last=False, receipts={}, counts=Counts(4, 4)))
    node.turn()
    assert not node.loop.busy
    node.loop.hand_back()
    row = fleet.row("p")
    assert (row.status, row.progress.position) == (Status.UNASSIGNED, 4)


def test_two_nodes_share_the_partitions_and_find_them_once() -> None:
    fleet = Fleet({f"p{i}": 1 for i in range(6)})
    nodes = [TestNode(fleet, name).join() for name in "ab"]
    for node in nodes * 2:
        node.turn()
    held = [{batch.lease.key for batch in node.engine.out.values()} for node in nodes]
    assert held[0] | held[1] == set(fleet.source.sizes)
    assert not held[0] & held[1]


def test_partitions_are_taken_while_others_are_still_being_looked_for() -> None:
    fleet = Fleet({f"p{number:04d}": 1 for number in range(600)})
    taken: list[int] = []

    class LongSearch(NumbersSource):
        def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
            for number, found in enumerate(super().discover(state)):
                if number == 550:
                    node.loop.turn([], lambda _name, _limit: None)
                    taken.append(len(node.coordinator.owned()))
                yield found

    fleet.source = LongSearch(fleet.source.sizes)
    node = TestNode(fleet).join()
    node.turn()
    assert taken == [50]


def test_a_source_tells_the_time_by_the_stores_clock() -> None:
    fleet = Fleet({"a": 3})
    fleet.store = MemoryStore(lambda: fleet.clock.time + 86_400.0)
    clocks: list[Callable[[], float]] = []

    class Clocked(NumbersSource, UsesStoreClock):
        def use_clock(self, now: Callable[[], float]) -> None:
            clocks.append(now)

    fleet.source = Clocked(fleet.source.sizes)
    node = TestNode(fleet).start()
    fleet.clock.time += 5.0
    assert [now() for now in clocks] == [node.coordinator.now()]

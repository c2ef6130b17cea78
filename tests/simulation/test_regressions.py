"""What the simulator, or reading the loop with its eyes, has found in the product: one small test for each mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import LeaseLost, SessionExpired
from holdfast.flow.batch import Limits
from holdfast.flow.engine import Advanced, Staged
from holdfast.flow.holdings import Held, Holdings
from holdfast.flow.run import Run, RunStatus, new_row
from holdfast.flow.runs import Runs
from holdfast.leases.lease import Counts, Key, Lease, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import Swap
from holdfast.leases.transitions import RetryLimits, complete, orphan, stamped
from holdfast.leases.writes import FencedWrites, ensure_rows
from holdfast.runs.driving import Driving
from holdfast.runs.letter_selection import fence
from holdfast.runs.rewind import RewindDriver
from holdfast.testing.flows import stage_numbers
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode


def test_two_reports_of_a_batch_in_one_poll_are_both_kept_and_the_lease_with_them() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Advanced(batch.id, 2, (), Counts(2, 2)))
    node.engine.report(Advanced(batch.id, 3, ((4, 5),), Counts(2, 2)))
    node.turn()
    progress = fleet.row("p").progress
    assert (progress.position, progress.acked, progress.counts.processed) == (3, ((4, 5),), 4)
    assert batch.id in node.engine.out
    assert not node.engine.cancelled


def test_a_long_lived_batch_whose_lease_is_lost_is_cancelled() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    fleet.clock.wait(31)
    TestNode(fleet, "b").start()
    node.engine.report(Advanced(batch.id, 2, (), Counts(2, 2)))
    node.turn()
    assert batch.id in node.engine.cancelled


def test_a_sign_of_life_puts_off_the_watchdog_and_writes_nothing() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet, limits=Limits(timeout=20.0)).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Advanced(batch.id, 1, (), Counts(1, 1)))
    node.turn()
    version = fleet.row("p").version
    for _ in range(5):
        fleet.clock.wait(15)
        node.session.heartbeat()
        node.engine.report(Advanced(batch.id, 1))
        node.turn()
    assert fleet.row("p").version == version
    assert not node.engine.cancelled


def test_a_drained_batch_keeps_what_is_acknowledged_beyond_its_end() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet).start()
    batch = node.engine.batch_of("p")
    node.engine.report(Staged(batch.id, 3, last=False, receipts={}, acked=((5, 7),)))
    node.turn()
    assert fleet.row("p").progress.acked == ((5, 7),)


def test_a_node_that_was_held_up_counts_no_attempt_for_its_batches() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, limits=Limits(timeout=20.0)).start()
    fleet.clock.wait(60)
    node.turn()
    assert fleet.row("p").history.attempts == 0


def test_a_rebuilt_batch_that_ends_early_is_refused_and_counts_an_attempt() -> None:
    fleet = Fleet({"p": 4})
    node = TestNode(fleet).start()
    node.stage("p")
    fleet.buckets["files"].staged.clear()
    node.turn()
    receipts = fleet.row("p").commit.receipts
    batch = node.engine.batch_of("p")
    short = replace(batch, cut=replace(batch.cut, end=2))
    node.engine.report(Staged(batch.id, 2, False, {"files": {"files": [stage_numbers(fleet.buckets["files"], short)]}}))
    node.turn()
    row = fleet.row("p")
    assert (row.commit.receipts, row.history.attempts) == (receipts, 1)


def test_a_sink_that_is_away_while_a_batch_is_rebuilt_only_puts_it_off() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    bucket = fleet.buckets["files"]
    node.stage("p")
    bucket.staged.clear()
    node.turn()
    node.stage("p")
    bucket.away = True
    node.turn()
    bucket.away = False
    fleet.clock.wait(5)
    node.turn()
    node.stage("p")
    node.turn(2)
    assert fleet.visible() == [0, 1, 2]
    assert fleet.row("p").status is Status.COMPLETED


def test_a_rebuild_leaves_alone_what_another_sink_has_published() -> None:
    fleet = Fleet({"p": 3}, sinks=("files", "others"))
    node = TestNode(fleet).start()
    node.stage("p")
    fleet.buckets["others"].staged.clear()
    node.turn()
    batch = node.engine.batch_of("p")
    assert fleet.visible("files") == [0, 1, 2]
    files = {sink: stage_numbers(bucket, batch) for sink, bucket in fleet.buckets.items()}
    # Another name, as a parser gives that is not the same every time: the first sink's manifest does not know it.
    files["files"]["key"] = "numbers/elsewhere.txt"
    receipts = {sink: {"files": [file]} for sink, file in files.items()}
    node.engine.report(Staged(batch.id, batch.cut.end, batch.cut.last, receipts, Counts(3, 3)))
    node.turn(2)
    assert (fleet.visible("files"), fleet.visible("others")) == ([0, 1, 2], [0, 1, 2])
    assert fleet.row("p").status is Status.COMPLETED


def test_a_lease_that_came_back_is_not_dropped_with_the_earlier_one() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    lease, name = fleet.row("p"), fleet.source.name(fleet.row("p"))
    holdings, earlier, later = Holdings(node.engine), Held(lease, name), Held(lease, name)
    holdings.add(earlier)
    holdings.add(later)
    holdings.drop(earlier)
    assert holdings.get("p") is later


def test_a_lease_found_on_a_pass_is_looked_at_as_one_that_was_claimed() -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet, retries=RetryLimits(max_takeovers=2)).start()
    row = fleet.row("p")
    _put(fleet, stamped(row, replace(row, history=replace(row.history, takeovers=3)), "by-hand"))
    node.loop.abandon()
    fleet.clock.wait(15)
    node.turn()
    assert "its owner died 3 times" in str(fleet.row("p").history.halt_reason)


@pytest.mark.parametrize("lost", ["version", "sequence"])
def test_nothing_is_derived_from_a_row_that_has_lost_writes(lost: str) -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).start()
    row = fleet.row("p")
    ahead = replace(row, commit=replace(row.commit, sequence=row.commit.sequence + 1))
    if lost == "version":
        ahead = replace(row, ownership=replace(row.ownership, version=row.version + 3))
    touched = stamped(row, row, "by-hand")
    _put(fleet, touched)
    (result,) = FencedWrites(fleet.store, node.world).apply(
        [(ahead, lambda held: orphan(held, 0.0, "node a", RetryLimits()))]
    )
    assert isinstance(result, LeaseLost)
    assert fleet.row("p") == touched


def test_a_heartbeat_of_a_session_that_was_left_says_nothing_of_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet({"p": 3})
    node = TestNode(fleet).join()
    began, now, store_now = node.session.id, fleet.clock.monotonic, fleet.store.now

    def joins_meanwhile() -> float:
        monkeypatch.setattr(fleet.store, "now", store_now)
        fleet.clock.wait(40)
        node.session.join()
        return now()

    monkeypatch.setattr(fleet.store, "now", joins_meanwhile)
    with pytest.raises(SessionExpired, match="was replaced by a new one"):
        node.session.heartbeat()
    assert node.session.id != began
    assert node.session.usable


def _put(fleet: Fleet, row: Lease) -> None:
    (before,) = fleet.store.get([Key(PIPELINE, "", row.key)])
    assert before is not None
    fleet.store.swap([Swap(before.version, row)])


def test_a_redrive_takes_a_partition_as_it_is_that_completes_while_it_is_fenced() -> None:
    fleet = Fleet({"p": 3})
    TestNode(fleet).start()
    seen = fleet.row("p")
    _put(fleet, stamped(seen, complete(seen, 0.0), "its-node"))
    rows = Operator(fleet.store, iter("abcdefgh").__next__, PIPELINE)
    fence(rows, seen, {}, "another redrive has begun")
    assert fleet.row("p").status is Status.COMPLETED


def test_a_run_that_a_node_of_an_earlier_version_left_half_made_is_failed_at_the_next_look() -> None:
    fleet = Fleet({})
    maker, driver = TestNode(fleet, "maker").join(), TestNode(fleet, "driver").join()
    row = new_row(PIPELINE, Run("r", RunStatus.INITIALIZING), "made")
    ensure_rows(fleet.store, maker.world, lambda: [row])
    Driving(driver.coordinator, "r", RewindDriver()).step()
    assert Runs(driver.coordinator).show("r").status is RunStatus.FAILED

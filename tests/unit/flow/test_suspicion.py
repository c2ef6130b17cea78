"""When a node ends with a batch out, the row of the batch's partition names both, until the partition moves on."""

from __future__ import annotations

import pytest

from holdfast.errors import StoreUnavailable, Unavailable
from holdfast.flow.batch import Limits
from holdfast.flow.engine import Report
from holdfast.leases.lease import Status
from holdfast.leases.transitions import RetryLimits
from tests.unit.flow.rig import Fleet, TestNode
from tests.unit.flow.test_blame import die, quiet_fleet

SIGNAL = "the Spark session is gone: its JVM was ended by signal 9 (Killed)"


def _ends(node: TestNode, error: Exception) -> None:
    """The node runs until a batch is out, and then its engine raises the error."""
    poll = node.engine.poll

    def broken(timeout: float) -> list[Report]:
        if node.engine.out:
            raise error
        return poll(timeout)

    node.engine.poll = broken  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        node.node.run()


def test_the_first_node_that_dies_is_named_once_the_next_batch_is_sent() -> None:
    fleet = Fleet({"p": 10})
    victim = TestNode(fleet, "a", limits=Limits(max_records=4)).start()
    victim.stage("p")
    victim.turn()
    die(fleet)
    TestNode(fleet, "b", limits=Limits(max_records=4)).start()
    assert fleet.row("p").history.last_error == (
        f"node a ({victim.session.id}) ended while it held this partition, perhaps by batch 2 (from 4 to 8); "
        "take-over 1 of 10 at this position"
    )


def test_later_ones_are_named_with_the_batch_that_was_out() -> None:
    fleet = Fleet({"p": 10})
    TestNode(fleet, "a").start()
    die(fleet)
    victim = TestNode(fleet, "b").start()
    die(fleet)
    TestNode(fleet, "c").join().turn()
    row = fleet.row("p")
    assert row.history.last_error == (
        f"node b ({victim.session.id}) ended while batch 1 (from its start to 10) was out; "
        "take-over 2 of 10 at this position"
    )
    assert row.history.takeovers == 2


def test_a_partition_that_is_halted_for_its_take_overs_names_the_last_node_and_batch() -> None:
    fleet = Fleet({"p": 3})
    strict = RetryLimits(max_takeovers=1)
    for name in ("a", "b", "c"):
        TestNode(fleet, name, retries=strict).start()
        die(fleet)
    row = fleet.row("p")
    assert row.status is Status.FAILED
    for part in ("its owner died 2 times since the last commit: node b", "batch 1 (from its start to 3) was out"):
        assert part in str(row.history.last_error)


def test_a_partition_without_a_batch_is_never_suspected() -> None:
    fleet = quiet_fleet("p")
    for life in range(4):
        TestNode(fleet, f"n{life}").start()
        die(fleet)
    assert fleet.row("p").history.last_error is None


def test_a_commit_ends_the_suspicion() -> None:
    fleet = Fleet({"p": 10})
    TestNode(fleet, "a").start()
    die(fleet)
    node = TestNode(fleet, "b").start()
    node.stage("p")
    node.turn()
    past = fleet.row("p").history
    assert (past.last_error, past.died, past.out, past.begun) == (None, None, None, None)


def test_a_node_that_outlives_its_jvm_records_its_exit_in_the_rows_of_the_batches_that_were_out() -> None:
    fleet = Fleet({"p": 10})
    fleet.source.lives_long = True
    node = TestNode(fleet, "a")
    _ends(node, Unavailable(SIGNAL))
    expected = (
        f"node a ({node.session.id}; {SIGNAL}) ended while batch 1 (from its start to 10) was out; "
        "take-over 1 of 10 at this position"
    )
    assert fleet.row("p").history.last_error == expected
    heir = TestNode(fleet, "b").start()
    row = fleet.row("p")
    assert (row.owner, row.history.takeovers, row.history.last_error) == (heir.session.id, 1, expected)


def test_partitions_at_rest_are_not_suspected_when_a_jvm_ends() -> None:
    fleet = Fleet({"p": 10, "q": 10})
    node = TestNode(fleet, "a", max_batches=1)
    node.engine._room = 1
    _ends(node, Unavailable(SIGNAL))
    accused = [key for key in "pq" if fleet.row(key).history.last_error is not None]
    assert len(accused) == 1


def test_a_node_whose_store_is_the_reason_ends_with_that_error() -> None:
    fleet = Fleet({"p": 10})
    node = TestNode(fleet, "a")
    swap = fleet.store.swap

    def away(changes: object) -> list[object]:
        if node.engine.out:
            raise StoreUnavailable("the store is away")
        return swap(changes)  # type: ignore[arg-type,return-value]

    fleet.store.swap = away  # type: ignore[method-assign,assignment]
    fleet.clock.interrupted = False
    poll = node.engine.poll

    def broken(timeout: float) -> list[Report]:
        if node.engine.out:
            fleet.clock.interrupted = True  # nobody waits for the store any more
            raise KeyError("the engine's mistake")
        return poll(timeout)

    node.engine.poll = broken  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        node.node.run()
    assert fleet.row("p").history.last_error is None


def test_a_long_reason_leaves_the_row_small() -> None:
    fleet = Fleet({"p": 10})
    _ends(TestNode(fleet, "a"), Unavailable("x" * 100_000))
    assert len(str(fleet.row("p").history.last_error)) < 1000

"""Suspects run apart from the innocent, in groups that are halved until the culprit is alone."""

from __future__ import annotations

from holdfast.flow.batch import Cut, Name
from holdfast.flow.holdings import Held
from holdfast.flow.plan import grouped
from holdfast.leases.lease import Status
from holdfast.leases.transitions import RetryLimits
from holdfast.testing.rows import assigned_row
from tests.unit.flow.rig import PIPELINE, Fleet, TestNode

CUT = Cut(0, 1)


def sizes(*pasts: tuple[int, int], most: int = 16, limits: RetryLimits = RetryLimits()) -> list[int]:
    """Sizes of the rounds of partitions with so many take-overs and attempts."""
    planned = [
        (Held(assigned_row(f"p{n}", "me", takeovers=takeovers, attempts=attempts), Name("s", f"p{n}")), CUT)
        for n, (takeovers, attempts) in enumerate(pasts)
    ]
    return [len(group) for group in grouped(planned, most, limits)]


def test_those_above_suspicion_share_a_round() -> None:
    assert sizes(*[(0, 0)] * 10, *[(1, 0)] * 6) == [16]


def test_suspects_are_halved_with_each_take_over() -> None:
    assert sizes(*[(2, 0)] * 16) == [8, 8]
    assert sizes(*[(3, 0)] * 16) == [4, 4, 4, 4]
    assert sizes(*[(4, 0)] * 5) == [2, 2, 1]
    assert sizes(*[(9, 0)] * 3) == [1, 1, 1]


def test_the_innocent_come_second_and_never_share_a_round_with_suspects() -> None:
    assert sizes((2, 0), (3, 0), (0, 0), (0, 0), (0, 0)) == [1, 3, 1]


def test_one_whose_own_batch_failed_runs_alone() -> None:
    assert sizes((0, 1), (0, 1), (0, 0)) == [1, 1, 1]


def test_one_that_the_next_death_would_halt_runs_alone_however_large_rounds_are() -> None:
    assert sizes(*[(10, 0)] * 3, most=1 << 20) == [1, 1, 1]
    assert sizes(*[(2, 0)] * 3, limits=RetryLimits(max_takeovers=2)) == [1, 1, 1]


def carry_out(node: TestNode, culprit: str) -> bool:
    """Stage one round after the other until the culprit is out, which kills the node. False if it never was."""
    while node.engine.out:
        if any(batch.lease.key == culprit for batch in node.engine.out.values()):
            return True
        for batch in list(node.engine.out.values()):
            node.stage(batch.lease.key)
        node.turn(2)
    return False


def test_a_culprit_among_many_is_halted_in_few_jobs_and_nobody_else_is() -> None:
    number = 64
    fleet = Fleet({f"p{n:02}": 1 for n in range(number)})
    fleet.source.lives_long = True
    jobs = deaths = 0
    while True:
        node = TestNode(fleet, f"n{deaths}").start()
        died = carry_out(node, "p13")
        jobs += len(node.engine.rounds)
        if not died:
            break
        fleet.clock.wait(31)
        deaths += 1
    assert deaths == RetryLimits().max_takeovers + 1
    assert jobs < number, "not one job for each suspect"
    assert [key for key in fleet.source.sizes if fleet.row(key).status is not Status.COMPLETED] == ["p13"]
    assert fleet.row("p13").status is Status.FAILED


def test_nothing_is_out_beside_those_that_may_kill_the_node() -> None:
    fleet = Fleet({"culprit": 1, "slow": 1})
    fleet.source.lives_long = True
    for life in range(12):
        node = TestNode(fleet, f"n{life}").start()
        while node.engine.out and not any(batch.lease.key == "culprit" for batch in node.engine.out.values()):
            node.stage("slow")
            node.turn(2)
        fleet.clock.wait(31)
    assert fleet.row("culprit").status is Status.FAILED
    assert fleet.row("slow").status is Status.COMPLETED


def test_a_suspect_waits_until_what_is_out_has_ended_and_then_has_the_node_for_itself() -> None:
    fleet = Fleet({"innocent": 2})
    node = TestNode(fleet).start()
    suspect = assigned_row("suspect", node.session.id, takeovers=2, begun=False, spec={"size": 1}, pipeline=PIPELINE)
    fleet.store.add([suspect])
    fleet.clock.wait(15)
    node.session.heartbeat()
    node.turn()
    assert [batch.lease.key for batch in node.engine.out.values()] == ["innocent"]
    node.stage("innocent")
    node.turn(2)
    assert [batch.lease.key for batch in node.engine.out.values()] == ["suspect"]

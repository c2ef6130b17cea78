"""Sessions in a store without a clock: whoever was watched for a whole timeout and did not move has ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.errors import SessionExpired
from holdfast.events import NodeExpired
from holdfast.leases.lease import Lease, Partition, Status
from holdfast.leases.session import nodes_of
from holdfast.leases.session_watch import UNREADABLE_TIMEOUT, SessionWatch
from holdfast.testing.rows import assigned_row, touched
from tests.unit.leases.rig import Node, Rig

TIMEOUT = 30.0


def session(name: str, *, heartbeat_at: float = 5000.0) -> Lease:
    return assigned_row(name, name, due_at=heartbeat_at + TIMEOUT, state={"last_heartbeat": heartbeat_at})


def keys(rows: list[Lease]) -> list[str]:
    return [row.key for row in rows]


def test_a_session_has_ended_when_it_did_not_move_for_its_whole_timeout() -> None:
    seen, rows = SessionWatch(), [session("a"), session("b")]
    silent = []
    for now in range(0, 40, 10):
        rows = [rows[0], touched(rows[1])]
        silent.append(keys(seen.silent(rows, float(now))))
    assert silent == [[], [], [], ["a"]]


def test_a_newcomer_watches_for_a_whole_timeout_before_it_ends_anybody() -> None:
    seen, rows = SessionWatch(), [session("a", heartbeat_at=-1e9)]
    assert seen.silent(rows, 1e9) == []
    assert seen.silent(rows, 1e9 + 10) == []


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_time_in_which_nobody_looked_does_not_count(jump: float) -> None:
    seen, rows = SessionWatch(), [session("a")]
    seen.silent(rows, 0.0)
    assert seen.silent(rows, jump) == []
    assert seen.silent(rows, jump + 10.0) == []
    silent = [seen.silent(rows, jump + 10.0 * step) for step in range(2, 5)]
    assert keys(silent[-1]) == ["a"]


def test_a_session_that_comes_back_is_watched_from_the_start() -> None:
    seen, rows = SessionWatch(), [session("a")]
    for now in (0.0, 10.0, 20.0):
        seen.silent(rows, now)
    assert seen.silent([], 25.0) == []
    assert seen.silent(rows, 30.0) == []


@pytest.mark.parametrize("row", [assigned_row("a", "a", state=None), assigned_row("a", "a", state={}, due_at=None)])
def test_a_row_that_does_not_say_its_timeout_is_not_ended_at_once(row: Lease) -> None:
    seen = SessionWatch()
    silent = [seen.silent([row], now) for now in (0.0, UNREADABLE_TIMEOUT / 2, UNREADABLE_TIMEOUT)]
    assert [keys(rows) for rows in silent] == [[], [], ["a"]]


class Clockless(Rig):
    """As a rig, on a store whose time says nothing of sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.store.has_clock = False

    def sweeps(self, seconds: float, node: Node) -> None:
        """The node's clock goes on, and it looks after the others."""
        for _ in range(10):
            self.node_clock.turn(seconds / 10)
            node.session.heartbeat()
            node.leases.sweep()


def test_a_dead_node_loses_its_leases_by_the_clock_of_the_one_who_looks() -> None:
    rig = Clockless()
    dead, watcher = rig.node("dead"), rig.node("watcher")
    dead.leases.create([Partition("k")])
    dead.leases.claim(1)
    rig.clock.turn(1e6)
    watcher.leases.sweep()
    assert watcher.world.seen(NodeExpired) == []
    rig.sweeps(TIMEOUT, watcher)
    assert [event.session for event in watcher.world.seen(NodeExpired)] == [dead.session.id]
    assert [lease.token for lease in watcher.leases.claim(1)] == [2]
    with pytest.raises(SessionExpired):
        dead.session.heartbeat()


def test_a_node_that_moves_at_the_last_moment_wins_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Clockless()
    late, watcher = rig.node("late"), rig.node("watcher")
    look, judged = watcher.session.watch.silent, list[str]()

    def it_moves_before_it_is_ended(rows: Sequence[Lease], now: float) -> list[Lease]:
        silent = look(rows, now)
        judged.extend(keys(silent))
        if silent:
            late.session.heartbeat()
        return silent

    monkeypatch.setattr(watcher.session.watch, "silent", it_moves_before_it_is_ended)
    rig.sweeps(1.2 * TIMEOUT, watcher)
    assert judged == [late.session.id]
    assert rig.row(late.session.id, nodes_of("")).status is Status.ASSIGNED
    assert watcher.world.seen(NodeExpired) == []

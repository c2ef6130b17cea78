from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import Interrupted, LeaseLost, LeaseMissing, StoreUnavailable
from holdfast.events import Unreachable
from holdfast.leases import transitions
from holdfast.leases.lease import Lease
from holdfast.leases.store import Swap
from holdfast.leases.transitions import Advance, RetryLimits
from holdfast.leases.writes import Change, FencedWrites, ensure_rows
from holdfast.stores.memory import MemoryStore
from holdfast.testing.faults import Fault, LossyStore
from holdfast.testing.rows import assigned_row, make_row, touched
from holdfast.testing.worlds import make_world

WORLD_NAME = "w"


class Desk:
    """Fenced writes on a store whose answers can be lost."""

    def __init__(self, *rows: Lease, patience: float | None = None) -> None:
        self.store = LossyStore(MemoryStore())
        self.store.add(rows)
        self.world = make_world(WORLD_NAME)
        self.writes = FencedWrites(self.store, self.world, patience)

    def row(self, key: str = "k") -> Lease:
        (row,) = self.store.inner.get([make_row(key).id])
        assert row is not None
        return row

    def somebody_writes(self, row: Lease) -> None:
        current = self.row(row.key)
        self.store.inner.swap([Swap(current.version, touched(replace(row, ownership=row.ownership), "somebody"))])


def saving(state: object) -> Change:
    return lambda row: transitions.save_state(row, state, 1.0)


HELD = assigned_row("k", "me")


def test_a_change_is_written_under_the_next_version_and_an_id_of_its_own() -> None:
    desk = Desk(HELD)
    (written,) = desk.writes.apply([(HELD, saving("s"))])
    assert written == desk.row()
    assert (desk.row().version, desk.row().progress.state) == (1, "s")
    assert desk.row().ownership.write_id.endswith(WORLD_NAME)


def test_a_change_that_alters_nothing_writes_nothing() -> None:
    desk = Desk(HELD)
    desk.store.order("swap", Fault.AWAY)
    assert desk.writes.apply([(HELD, lambda row: row)]) == [HELD]
    assert desk.row().version == 0


def test_an_empty_batch_sends_nothing() -> None:
    assert Desk().writes.apply([]) == []


def test_a_row_touched_by_others_under_the_same_token_is_changed_again() -> None:
    desk = Desk(HELD)
    desk.somebody_writes(transitions.orphan(HELD, 77.0, "node a", RetryLimits()))
    advance = Advance("c1", 5, {"files": [1]})
    (written,) = desk.writes.apply([(HELD, lambda row: transitions.commit(row, advance, HELD, 2.0))])
    assert isinstance(written, Lease)
    assert (written.commit.sequence, written.ownership.due_at, written.version) == (1, 77.0, 2)


@pytest.mark.parametrize("other", [{"token": 2}, {"owner": "you"}, {"token": 2, "owner": "you"}])
def test_another_token_or_owner_means_the_lease_is_lost(other: dict[str, object]) -> None:
    desk = Desk(HELD)
    desk.somebody_writes(replace(HELD, ownership=replace(HELD.ownership, **other)))  # type: ignore[arg-type]
    before = desk.row()
    (lost,) = desk.writes.apply([(HELD, saving("late"))])
    assert isinstance(lost, LeaseLost)
    assert desk.row() == before


def test_a_row_that_is_gone_is_told_apart() -> None:
    (lost,) = Desk().writes.apply([(HELD, saving("s"))])
    assert isinstance(lost, LeaseMissing)


def test_a_change_that_the_row_does_not_allow_lets_go_of_the_lease() -> None:
    desk = Desk(make_row("k"))
    (lost,) = desk.writes.apply([(make_row("k"), saving("s"))])
    assert isinstance(lost, LeaseLost)
    assert "UNASSIGNED" in str(lost)


def test_each_change_of_a_batch_fares_for_itself() -> None:
    rows = [assigned_row(key, "me") for key in "abcd"]
    desk = Desk(*rows)
    desk.somebody_writes(replace(rows[1], ownership=replace(rows[1].ownership, token=9)))
    desk.store.inner.remove([rows[2]])
    results = desk.writes.apply([(row, saving(row.key)) for row in rows])
    assert [type(result) for result in results] == [Lease, LeaseLost, LeaseMissing, Lease]
    assert desk.row("a").progress.state == "a"
    assert desk.row("d").progress.state == "d"


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("then", [None, *Fault])
def test_a_lost_answer_is_resolved_by_the_write_id(fault: Fault, then: Fault | None) -> None:
    desk = Desk(HELD)
    desk.store.order("swap", fault, then)
    advance = Advance("c1", 5, {"files": [1]})
    (written,) = desk.writes.apply([(HELD, lambda row: transitions.commit(row, advance, HELD, 2.0))])
    assert written == desk.row()
    assert (desk.row().commit.sequence, desk.row().version) == (1, 1)
    desk.store.deliver()
    assert desk.row() == written, "a request that arrives late is refused by its version"


def test_an_answer_that_is_lost_before_somebody_takes_the_lease_is_not_guessed_at() -> None:
    desk = Desk(HELD)
    desk.store.order("swap", Fault.REQUEST_LOST)
    desk.store.order("get", Fault.AWAY)
    taken = replace(HELD, ownership=replace(HELD.ownership, owner="you", token=2))
    desk.world.clock.on_wait = lambda: desk.somebody_writes(taken)
    (lost,) = desk.writes.apply([(HELD, saving("late"))])
    assert isinstance(lost, LeaseLost)


def test_a_store_that_is_away_is_asked_again_with_growing_pauses() -> None:
    desk = Desk(HELD)
    desk.store.order("swap", *[Fault.AWAY] * 9)
    desk.writes.apply([(HELD, saving("s"))])
    wanted = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    for pause, middle in zip(desk.world.clock.waits, wanted, strict=True):
        assert 0.8 * middle <= pause <= 1.2 * middle
    assert [event.retry_in for event in desk.world.seen(Unreachable)] == desk.world.clock.waits


def test_patience_ends_with_the_error_of_the_store() -> None:
    desk = Desk(HELD, patience=3.0)
    desk.store.order("swap", *[Fault.AWAY] * 99)
    started = desk.world.clock.monotonic()
    with pytest.raises(StoreUnavailable):
        desk.writes.apply([(HELD, saving("s"))])
    assert 0.0 < desk.world.clock.monotonic() - started <= 3.0


def test_a_process_that_must_stop_waits_no_longer() -> None:
    desk = Desk(HELD)
    desk.store.order("swap", *[Fault.AWAY] * 99)
    desk.world.clock.interrupt_after(2)
    with pytest.raises(Interrupted):
        desk.writes.apply([(HELD, saving("s"))])


# --- adding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, *Fault])
def test_rows_are_added_surely_and_counted_once(fault: Fault | None) -> None:
    desk = Desk(make_row("there", write_id="of another"))
    desk.store.order("add", fault)
    rows = [make_row(key, write_id="mine") for key in ("a", "there", "b")]
    assert ensure_rows(desk.store, desk.world, lambda: rows) == 2
    desk.store.deliver()
    assert {desk.row(key).ownership.write_id for key in "ab"} == {"mine"}
    assert desk.row("there").ownership.write_id == "of another"


def test_a_row_that_has_lost_writes_is_not_derived_from_although_token_and_owner_are_the_same() -> None:
    older = assigned_row("k", "me", version=3)
    desk = Desk(older)
    held = assigned_row("k", "me", version=5)
    (result,) = desk.writes.apply([(held, lambda row: transitions.save_state(row, "new", 0.0))])
    assert isinstance(result, LeaseLost)
    assert desk.row().progress.state is None

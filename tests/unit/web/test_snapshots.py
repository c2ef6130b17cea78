"""Snapshots for viewers: taken once for all of them, and no more often than their cost allows."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from holdfast.leases.columns import OutlineRow
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import PIPELINE, make_row
from holdfast.web import snapshots as module
from holdfast.web.pace import Pace
from holdfast.web.readings import Readings
from holdfast.web.snapshots import Snapshots


class Clock:
    """A clock that is turned by hand, or by a store that takes its time."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class SlowStore(MemoryStore):
    """Each outline takes so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = seconds
        self.looks: list[str] = []
        self.beside: Callable[[], None] = lambda: None
        """Called while an outline is made."""

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        self.looks.append(pipeline)
        self.clock.now += self.seconds
        self.beside()
        return super().outline(pipeline, run)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def kept(clock: Clock, seconds: float) -> tuple[SlowStore, Snapshots]:
    store = SlowStore(clock, seconds)
    store.open()
    store.add([make_row("a"), make_row("b", pipeline="other")])
    return store, Snapshots(store, Pace(2.0, 40.0))


def test_a_snapshot_is_taken_again_when_its_cost_allows_it(clock: Clock) -> None:
    store, snapshots = kept(clock, 0.5)
    for after in (0.0, 1.0, 18.9):
        clock.now += after
        snapshots.get(PIPELINE)
    assert store.looks == [PIPELINE]
    clock.now += 0.2
    snapshots.get(PIPELINE)
    assert store.looks == [PIPELINE] * 2


def test_a_small_pipeline_is_followed_closely_beside_a_large_one(clock: Clock) -> None:
    store, snapshots = kept(clock, 0.5)
    snapshots.get(PIPELINE)
    store.seconds = 0.0
    snapshots.get("other")
    clock.now += 2.1
    snapshots.get(PIPELINE)
    snapshots.get("other")
    assert store.looks == [PIPELINE, "other", "other"]


def test_after_an_action_everything_is_seen(clock: Clock) -> None:
    store, snapshots = kept(clock, 0.0)
    assert len(snapshots.get(PIPELINE).keys) == 1
    store.add([make_row("c")])
    assert len(snapshots.get(PIPELINE).keys) == 1
    snapshots.forget()
    assert len(snapshots.get(PIPELINE).keys) == 2


def test_a_snapshot_that_was_taken_beside_an_action_is_taken_anew_after_it(clock: Clock) -> None:
    store, snapshots = kept(clock, 0.0)
    store.beside = snapshots.forget
    snapshots.get(PIPELINE)
    store.beside = lambda: None
    store.add([make_row("c")])
    assert len(snapshots.get(PIPELINE).keys) == 2


def test_a_read_knows_how_long_it_waited_for_snapshots_and_how_old_they_are(clock: Clock) -> None:
    _, snapshots = kept(clock, 0.5)
    with snapshots.used() as first:
        snapshots.get(PIPELINE)
    assert (first.seconds, first.oldest) == (0.5, 100.0)
    clock.now += 3.0
    with snapshots.used() as second:
        snapshots.get("other")
        snapshots.get(PIPELINE)
    assert (second.seconds, second.oldest) == (0.5, 100.0)


def test_what_is_made_of_a_snapshot_without_all_rows_is_not_what_a_reading_costs(clock: Clock) -> None:
    _, snapshots = kept(clock, 0.0)
    snapshots.get(PIPELINE)
    readings = Readings()
    readings.attach(snapshots)

    def read() -> None:
        snapshots.get(PIPELINE)
        time.sleep(0.01)

    snapshots._of(PIPELINE, "").taken_by.complete = False
    assert readings._timed(read)[1] == 0.0
    snapshots._of(PIPELINE, "").taken_by.complete = True
    assert readings._timed(read)[1] >= 0.01
    readings.close()

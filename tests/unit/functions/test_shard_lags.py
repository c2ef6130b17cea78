"""Lags of shards that a node handles: measured from the position that workers have reported."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from holdfast.errors import SourceUnavailable
from holdfast.events import Event, LagMeasured
from holdfast.flow.batch import Batch
from holdfast.flow.shards import Lag, ReportsLags
from holdfast.functions.shard_lags import ShardLags
from holdfast.functions.slot_state import Shard
from holdfast.leases.lease import Lease


class Stream(ReportsLags):
    """A stream whose shards end at 10."""

    def __init__(self) -> None:
        self.away = False
        self.meanwhile: list[Any] = []

    def lags(self, leases: Sequence[Lease]) -> list[Lag]:
        if self.away:
            raise SourceUnavailable("away")
        for action in self.meanwhile:
            action()
        return [Lag(10 - lease.progress.position["offset"], 1500) for lease in leases]


class Desk:
    def __init__(self) -> None:
        self.stream, self.running, self.events = Stream(), list[Shard](), list[Event]()
        self.lags = ShardLags(self.stream, lambda: self.running, threading.Condition(), self.events.append)

    def hold(self, key: str, offset: int) -> None:
        self.running.append(Shard(f"batch {key}", key, 0, {"offset": offset}))
        self.lags.add([cast("Batch", SimpleNamespace(lease=Lease("site|orders", key)))])

    def measured(self) -> list[Event]:
        self.lags.measure()
        found, self.events[:] = list(self.events), []
        return found


def test_the_lag_of_each_shard_is_measured_from_the_position_that_its_worker_has_reported() -> None:
    desk = Desk()
    desk.hold("orders|0", 4)
    desk.hold("orders|1", 10)
    assert desk.measured() == [
        LagMeasured("site|orders", "orders|0", 6, 1.5),
        LagMeasured("site|orders", "orders|1", 0, 1.5),
    ]
    desk.running[0].position = {"offset": 9}
    assert desk.measured()[0] == LagMeasured("site|orders", "orders|0", 1, 1.5)


def test_a_shard_that_was_handed_over_meanwhile_is_not_reported_and_a_stream_that_is_away_is_tried_later() -> None:
    desk = Desk()
    desk.hold("orders|0", 4)
    desk.stream.meanwhile.append(desk.running.clear)
    assert desk.measured() == []
    desk.hold("orders|0", 4)
    desk.stream.meanwhile.clear()
    desk.stream.away = True
    assert desk.measured() == []
    desk.stream.away = False
    assert len(desk.measured()) == 1

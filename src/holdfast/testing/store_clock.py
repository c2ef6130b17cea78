"""What a store must do with time: return its server's, and keep times to the microsecond. Part of `StoreBehaviour`."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store
from holdfast.testing.rows import PIPELINE, make_row
from holdfast.testing.store_setting import StoreSetting

HOUR, DAY = 3600.0, 86400.0


class ClockBehaviour(StoreSetting):
    """Times are the store's own and are never cut short."""

    def test_time_is_that_of_the_server_and_not_of_this_process(self) -> None:
        before = self.store.now()
        with wall_clock_turned(self.store, DAY):
            moments = [self.store.now(), self.another_store().now()]
        assert all(abs(moment - before) < HOUR for moment in moments), (
            "now() follows the clock of this process; it must be the server's, which all nodes share"
        )

    def test_now_tells_fractions_of_a_second(self) -> None:
        moments = [self.store.now()]
        for _ in range(4):
            self.pass_time(self.tick)
            moments.append(self.store.now())
        steps = [later - earlier for earlier, later in pairwise(moments)]
        assert min(steps) >= 0.9 * self.tick, f"now() went on by {steps} while {self.tick} s passed each time"

    def test_due_times_are_kept_to_the_microsecond(self) -> None:
        second = float(int(self.store.now())) - 10.0
        due_at = {"c": second + 1e-6, "b": second + 2e-6, "a": second + 3e-6}
        self.store.add([make_row(key, status=Status.CLOSED, due_at=moment) for key, moment in due_at.items()])
        found = self.store.find(Query(PIPELINE, statuses=(Status.CLOSED,), due=True))
        assert [(row.key, row.ownership.due_at) for row in found] == list(due_at.items())


@contextmanager
def wall_clock_turned(store: Store, seconds: float) -> Iterator[None]:
    """Shift the clock of this process for the modules of the store's package.

    Drivers keep the real clock: a request that is signed with a wrong time would be refused.
    """
    package = type(store).__module__.partition(".")[0]
    fakes = _turned_clocks(seconds)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package and name != __name__:
                for attribute, value in list(vars(module).items()):
                    if id(value) in fakes:
                        patch.setattr(module, attribute, fakes[id(value)])
        yield


def _turned_clocks(seconds: float) -> dict[int, Any]:
    """Shifted replacements of the functions and modules that return the wall clock, by the id of the original."""
    by = dt.timedelta(seconds=seconds)

    class TurnedDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return dt.datetime.now(tz) + by

        @classmethod
        def utcnow(cls) -> Any:
            return dt.datetime.now(dt.UTC).replace(tzinfo=None) + by

    turned = {"time": lambda: time.time() + seconds, "time_ns": lambda: time.time_ns() + int(seconds * 1e9)}
    return {
        id(time): _module_like(time, turned),
        id(dt): _module_like(dt, {"datetime": TurnedDatetime}),
        id(time.time): turned["time"],
        id(time.time_ns): turned["time_ns"],
        id(dt.datetime): TurnedDatetime,
    }


def _module_like(module: ModuleType, changes: dict[str, Any]) -> ModuleType:
    made = ModuleType(module.__name__)
    vars(made).update({**vars(module), **changes})
    return made

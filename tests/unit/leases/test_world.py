from __future__ import annotations

import threading
import time

import pytest

from holdfast.errors import Interrupted
from holdfast.events import Event, Notice
from holdfast.leases.world import HostClock, host_world
from holdfast.testing.worlds import make_world


def test_being_asked_to_stop_ends_a_wait_at_once() -> None:
    clock = HostClock()
    threading.Timer(0.05, lambda: clock.ask_to_stop(within=60.0)).start()
    started = time.monotonic()
    clock.wait(30.0)
    assert time.monotonic() - started < 10.0


def test_waits_go_on_while_there_is_time_to_stop_and_raise_afterwards() -> None:
    clock = HostClock()
    clock.ask_to_stop(within=0.1)
    clock.wait(0.05)
    clock.wait(30.0)
    with pytest.raises(Interrupted):
        clock.wait(0.01)


def test_the_real_world_has_unique_ids_threads_and_jitter() -> None:
    seen: list[Event] = []
    world = host_world(seen.append)
    assert world.new_id() != world.new_id()
    world.spawn(lambda: world.emit(Notice("from a thread"))).join(10.0)
    assert seen == [Notice("from a thread")]
    spans = [world.jittered(10.0) for _ in range(200)]
    assert min(spans) >= 8.0
    assert max(spans) <= 12.0
    assert max(spans) - min(spans) > 1.0


def test_a_fake_world_runs_nothing_by_itself() -> None:
    world = make_world("a")
    done: list[str] = []
    world.spawn(lambda: done.append("spawned")).join(1.0)
    world.clock.wait(5.0)
    assert (done, world.clock.waits) == ([], [5.0])
    world.spawned[0]()
    assert done == ["spawned"]
    assert world.new_id() != world.new_id()
    assert not {world.new_id()[:12]} & {make_world("b").new_id()[:12]}


def test_a_fake_world_may_run_work_on_the_spot() -> None:
    done: list[str] = []
    make_world(inline=True).spawn(lambda: done.append("spawned"))
    assert done == ["spawned"]

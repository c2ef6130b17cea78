"""What becomes of a function on a real Spark session when handlers, workers, tasks or the driver fail."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.flow.engine import Failed, Staged
from holdfast.functions.slot_state import SlotRules
from tests.spark.function_setting import BUSY, Setting

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "death",
    ["os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)", "os._exit(3)"],
    ids=["kill", "fault", "exit"],
)
def test_a_worker_that_dies_is_replaced_and_nothing_is_skipped(setting: Setting, death: str) -> None:
    setting.stream(2)
    setting.put(0, 50)
    setting.put(1, 50)
    setting.start(
        f"def handler(context, event):\n    if event.shard_id == 1 and event.offset == 20 and once('died'):\n"
        f"        {death}\n    note(context, event)\n    time.sleep(0.01)",
        workers=2,
        worker_allocation="static",
    )
    setting.assign(0, 1)
    setting.wait(lambda: setting.committed == {0: {"offset": 50}, 1: {"offset": 50}})
    # The other worker goes on; the shard of the one that died goes on at the last position that was reported.
    assert setting.offsets(0) == list(range(50))
    assert len({call.pid for call in setting.calls() if call.shard == 0}) == 1
    again = setting.offsets(1)
    assert again[:20] == list(range(20))
    assert again[20] <= 20
    assert again[20:] == list(range(again[20], 50))


def test_a_record_that_kills_every_worker_fails_its_shard_and_no_other(setting: Setting) -> None:
    setting.stream(2)
    setting.put(0, 200)
    setting.put(1, 5)
    setting.start(
        "def handler(context, event):\n    if event.shard_id == 1 and event.offset == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    note(context, event)\n    time.sleep(0.01)"
    )
    _, bad = setting.assign(0, 1)
    setting.wait(lambda: setting.ended(bad) and setting.committed.get(0) == {"offset": 200})
    failed = next(report for report in setting.reports if isinstance(report, Failed))
    assert failed.batch_id == bad
    assert "record 3" in failed.error


def test_a_handler_that_hangs_is_ended_and_delays_the_other_shards_of_its_worker_little(setting: Setting) -> None:
    setting.stream(2)
    setting.put(0, 3)
    setting.put(1, 1)
    setting.start(
        "def handler(context, event):\n    note(context, event)\n"
        "    if event.shard_id == 1 and once('hung'):\n        time.sleep(1000)",
        timeout="500ms",
    )
    setting.assign(0, 1)
    setting.wait(lambda: 1 in {call.shard for call in setting.calls()})
    setting.put(0, 1)
    setting.wait(lambda: setting.committed == {0: {"offset": 4}, 1: {"offset": 1}})
    hung = next(call for call in setting.calls() if call.shard == 1)
    after = next(call for call in setting.calls() if call.at > hung.at and call.pid != hung.pid)
    assert after.at - hung.at < 0.5 + 1.5 + BUSY
    assert setting.offsets(1) == [0, 0]


def test_workers_of_a_driver_whose_session_is_not_renewed_stop_by_themselves(setting: Setting) -> None:
    setting.longest_grant = 1.0
    setting.stream(1)
    setting.put(0, 10_000)
    setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.002)")
    setting.assign(0)
    setting.wait(lambda: len(setting.calls()) > 10)
    setting.usable_until = time.monotonic()
    end = setting.usable_until + setting.longest_grant
    setting.wait(lambda: time.monotonic() > end + 1.0)
    assert setting.calls()[-1].at < end + 0.05
    handled = len(setting.calls())
    setting.usable_until = float("inf")
    setting.wait(lambda: len(setting.calls()) > handled + 10)
    assert setting.is_in_order(0)


def test_workers_of_a_driver_that_is_stopped_end_with_their_grant(setting: Setting) -> None:
    """As far as workers see: no grant comes any more, although the connection is there."""
    setting.longest_grant = 1.0
    setting.stream(1)
    setting.put(0, 10_000)
    engine = setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.002)")
    setting.assign(0)
    setting.wait(lambda: len(setting.calls()) > 10)
    with engine._changed:  # nothing is answered while this is held
        stopped = time.monotonic()
        while time.monotonic() < stopped + 2.0:
            time.sleep(0.05)
    # Between the end of the grant and the first one after the pause nothing was handled.
    times = [call.at for call in setting.calls()]
    assert max(later - earlier for earlier, later in itertools.pairwise([*times, time.monotonic()])) > 0.8
    assert not any(stopped + setting.longest_grant + 0.05 < at < stopped + 2.0 for at in times)
    setting.wait(lambda: len(setting.calls()) > len(times) + 10)
    assert setting.is_in_order(0)


def test_a_revoked_shard_is_given_to_nobody_before_its_worker_has_let_go(setting: Setting) -> None:
    setting.stream(1)
    setting.put(0, 3)
    setting.start(
        "def handler(context, event):\n    note(context, event)\n    time.sleep(0.5)\n    note(context, event)",
        workers=2,
    )
    ids = setting.assign(0)
    setting.wait(lambda: len(setting.calls()) == 1)
    setting.engines[-1].cancel(ids)
    setting.assign(0)
    setting.wait(lambda: len(setting.calls()) >= 8)
    assert setting.offsets(0)[:8] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert not setting.ended(*ids)


def test_a_worker_that_leaks_is_replaced_between_two_records_and_nothing_comes_twice(setting: Setting) -> None:
    setting.stream(2)
    for shard in range(2):
        setting.put(shard, 100)
    limit = 400 << 20
    setting.start(
        "kept = []\ndef handler(context, event):\n    note(context, event)\n    time.sleep(0.02)\n"
        f"    if event.offset == 10 and once('leaked'):\n        kept.append(b'x' * {limit})",
        SlotRules(max_rss=limit),
    )
    setting.assign(0, 1)
    setting.wait(lambda: setting.committed == {0: {"offset": 100}, 1: {"offset": 100}})
    assert all(setting.is_in_order(shard) for shard in range(2))
    leaked, *others = dict.fromkeys(call.pid for call in setting.calls())
    assert len(others) == 1, "it is replaced once"
    setting.wait(lambda: not _lives(leaked))


@pytest.mark.parametrize("orphans", [False, True])
def test_a_worker_whose_task_spark_ends_is_replaced_and_never_works_beside_the_next(
    setting: Setting, *, orphans: bool
) -> None:
    setting.stream(2)
    for shard in range(2):
        setting.put(shard, 10_000)
    setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.01)", workers=2)
    setting.assign(0, 1)
    setting.wait(lambda: all(len(setting.offsets(shard)) > 10 for shard in range(2)))
    before = {call.pid for call in setting.calls()}
    # Without the process that has forked them, Spark cannot end workers any more.
    for daemon in {_parent(pid) for pid in before} if orphans else ():
        os.kill(daemon, signal.SIGKILL)
    setting.spark.sparkContext.cancelAllJobs()
    setting.wait(lambda: all(_by_others(setting, shard, before) > 10 for shard in range(2)))
    for shard in range(2):
        calls = [call for call in setting.calls() if call.shard == shard]
        pids = [pid for pid, _ in itertools.groupby(call.pid for call in calls)]
        assert len(pids) == len(set(pids)), "two workers handled a shard at the same time"
        assert all(later.offset <= earlier.offset + 1 for earlier, later in itertools.pairwise(calls))
    setting.wait(lambda: not any(map(_lives, before)))


def _parent(pid: int) -> int:
    return int(_status(pid)[1])


def _lives(pid: int) -> bool:
    try:
        return _status(pid)[0] not in "ZX"
    except OSError:
        return False


def _status(pid: int) -> list[str]:
    """State, parent and more of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _by_others(setting: Setting, shard: int, pids: set[int]) -> int:
    return sum(call.shard == shard and call.pid not in pids for call in setting.calls())


def test_a_handler_that_does_not_return_in_time_is_ended_when_its_shard_is_handed_over(setting: Setting) -> None:
    setting.stream(2)
    setting.put(0, 5)
    setting.put(1, 1)
    setting.start(
        "def handler(context, event):\n    note(context, event)\n"
        "    if event.shard_id == 0 and event.offset == 3 and once('blocks'):\n"
        "        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n        time.sleep(1000)",
        workers=2,
        worker_allocation="static",
    )
    handed_over, _ = setting.assign(0, 1)
    setting.wait(lambda: setting.offsets(0) == [0, 1, 2, 3] and setting.committed.get(1) == {"offset": 1})
    setting.engines[-1].drain([handed_over])
    setting.wait(lambda: setting.ended(handed_over))
    staged = setting.reports[-1]
    assert isinstance(staged, Staged)
    assert staged.end["offset"] <= 3
    # The record comes again, with those that were not reported before it; the other worker was left alone.
    setting.assign(0)
    setting.put(1, 1)
    setting.wait(lambda: setting.committed == {0: {"offset": 5}, 1: {"offset": 2}})
    assert setting.offsets(0)[4:] == list(range(staged.end["offset"], 5))
    assert len({call.pid for call in setting.calls() if call.shard == 1}) == 1

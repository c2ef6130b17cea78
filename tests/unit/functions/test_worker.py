"""Calls of handlers: order, acks, errors, batches, async handlers, drain. No server, no waiting."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.functions.events import QualifiedOffset
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import ShardCalls
from holdfast.functions.watchdog import CallWatchdog
from holdfast.functions.worker import FunctionWorker
from tests.unit.functions.rig import EPOCH_2026, Numbers, Rec, rig

STATIC = {"worker_allocation": "static"}
RECORDS = "def handler(context, event):\n    context.user_data.seen.append((event.shard_id, event.offset))\n"
BAD = """
def handler(context, event):
    context.user_data.seen.append(event.offset)
    if event.body == b"bad":
        raise ValueError("no good")
"""


def test_records_are_handled_in_order_and_acked(tmp_path: Path) -> None:
    with rig(tmp_path, RECORDS) as site:
        site.assign(0, 1)
        site.feed_offsets(5, 6, 9)
        site.feed_offsets(2, 3, shard=1)
        site.settle()
        assert site.row() == (10, ())
        assert site.row(1) == (4, ())
        assert [offset for shard, offset in site.seen if shard == 0] == [5, 6, 9]
        counts = site.taken["0"].counts
        assert (counts.processed, counts.succeeded, counts.failed, counts.dead) == (3, 3, 0, 0)


def test_shards_without_records_cost_nothing_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(tmp_path, RECORDS) as site:
        site.assign(*range(20))
        site.feed_offsets(5, shard=7)
        turns, turn = list[str](), site.worker.caller._turn

        def counted(shard: ShardCalls, until: float) -> int:
            turns.append(shard.id)
            return turn(shard, until)

        monkeypatch.setattr(site.worker.caller, "_turn", counted)
        assert [site.worker.step(), site.worker.step()] == [1, 0]
        assert (turns, site.seen) == (["7"], [(7, 5)])


def test_nothing_new_reports_nothing(tmp_path: Path) -> None:
    with rig(tmp_path, RECORDS) as site:
        site.assign(0)
        site.feed_offsets(0)
        site.settle()
        site.row()
        site.taken.clear()
        with pytest.raises(KeyError):
            site.row()


def test_records_that_the_row_has_as_acked_are_not_handled(tmp_path: Path) -> None:
    with rig(tmp_path, RECORDS) as site:
        site.assign(0, acked=((2, 4),))
        site.feed_offsets(0, 1, 2, 3, 4)
        site.settle()
        assert [offset for _, offset in site.seen] == [0, 1, 4]
        assert site.row() == (5, ())


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_record_that_fails_is_tried_again_before_any_later_one(tmp_path: Path) -> None:
    code = """
def handler(context, event):
    context.user_data.seen.append(event.offset)
    if event.offset == 1 and context.user_data.seen.count(1) < 3:
        raise ValueError("not yet")
"""
    with rig(tmp_path, code, on_error={"backoff": "1s"}) as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2)
        site.worker.step()
        assert (site.seen, site.row()) == ([0, 1], (1, ()))
        site.worker.step()
        assert site.seen == [0, 1], "the pause is not over"
        assert site.worker.wake_at() == 1001.0
        site.settle()
        assert site.seen == [0, 1, 1, 1, 2]
        assert site.time[0] == 1003.0, "the second pause is twice as long"
        assert site.row() == (3, ())


def test_a_pause_of_one_shard_does_not_keep_back_another(tmp_path: Path) -> None:
    with rig(tmp_path, BAD) as site:
        site.assign(0, 1)
        site.feed(Rec(0, b"bad"), Rec(1))
        site.feed(Rec(7), Rec(8), shard=1)
        site.worker.step()
        assert site.seen == [0, 7, 8]


def test_after_the_last_retry_the_record_is_a_dead_letter_and_the_shard_goes_on(tmp_path: Path) -> None:
    with rig(tmp_path, BAD, on_error={"max_retries": 2}) as site:
        site.assign(0)
        site.feed(Rec(0), Rec(1, b"bad"), Rec(2))
        site.settle()
        assert site.seen == [0, 1, 1, 1, 2]
        assert (site.row(), site.letters) == ((3, ()), [(1, 3)])
        (letter,) = site.taken["0"].letters
        assert letter.error.startswith("ValueError: no good\nTraceback")
        assert site.taken["0"].counts.dead == 1


def test_with_the_policy_stop_the_shard_stops_at_the_record(tmp_path: Path) -> None:
    with rig(tmp_path, BAD, on_error={"max_retries": 1, "after_retries": "stop"}) as site:
        site.assign(0, 1)
        site.feed(Rec(0), Rec(1, b"bad"), Rec(2))
        site.feed_offsets(5, shard=1)
        site.settle()
        assert site.row() == (1, ())
        assert "offset 1 failed 2 times: ValueError: no good" in str(site.worker.shards["0"].stopped)
        assert site.seen.count(2) == 0
        assert site.row(1) == (6, ()), "the other shard goes on"


@pytest.mark.parametrize("age", [1, 100])
def test_a_record_that_fails_is_not_tried_again_when_it_is_too_old(tmp_path: Path, age: int) -> None:
    with rig(tmp_path, BAD, on_error={"max_retries": None, "backoff": "4s", "max_record_age": "60s"}) as site:
        site.assign(0)
        site.feed(Rec(0, b"bad", timestamp=EPOCH_2026 - age * 1000))
        site.settle()
        assert site.row() == (1, ())
        assert len(site.seen) == (6 if age == 1 else 1)


@pytest.mark.parametrize(
    "line",
    [
        "sys.exit(3)",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "raise asyncio.CancelledError",
        "raise GeneratorExit",
        "return context.Response(status_code=503, body='later')",
        "return (500, 'broken')",
        "return object().missing",
    ],
)
@pytest.mark.parametrize("settings", [{}, {"timeout": "60s"}, {"ack": "enable", **STATIC}], ids=repr)
def test_everything_that_fails_is_an_error_like_any_other(tmp_path: Path, line: str, settings: dict[str, str]) -> None:
    for keyword in ("def", "async def"):
        code = f"import asyncio, sys\n{keyword} handler(context, event):\n    {line}\n"
        with rig(tmp_path, code, on_error={"max_retries": 1}, **settings) as site:
            site.assign(0)
            site.feed_offsets(0, 1)
            site.settle()
            assert (site.row(), site.letters) == ((2, ()), [(0, 2), (1, 2)])


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_handler_that_acked_and_then_failed_is_not_called_again_for_the_record(tmp_path: Path, keyword: str) -> None:
    code = """
import asyncio, nuclio
KEYWORD handler(context, event):
    context.user_data.seen.append(event.offset)
    ack = context.platform.explicit_ack(nuclio.QualifiedOffset.from_event(event))
    WAIT
    raise ValueError
"""
    wait = "asyncio.get_event_loop().run_until_complete(ack)" if keyword == "def" else "await ack"
    code = code.replace("KEYWORD", keyword).replace("WAIT", wait)
    with rig(tmp_path, code, ack="enable", **STATIC) as site:
        site.assign(0)
        site.feed_offsets(0, 1)
        site.settle()
        assert (site.seen, site.row(), site.letters) == ([0, 1], (2, ()), [])
        assert site.time[0] == 1000.0, "there is nothing to wait for"


def test_dead_letters_that_nobody_takes_pause_the_shard(tmp_path: Path) -> None:
    with rig(tmp_path, BAD, on_error={"max_retries": 0}) as site:
        site.assign(0)
        site.feed(*(Rec(offset, b"bad") for offset in range(1500)))
        site.settle()
        assert (site.row(), len(site.letters)) == ((1000, ()), 1000)
        site.settle()
        assert (site.row(), len(site.letters)) == ((1500, ()), 1500)


# --- acks ------------------------------------------------------------------------------------------------------------

COLLECT = """
def handler(context, event):
    context.user_data.seen.append(event.offset)
"""


def test_a_full_window_pauses_only_its_shard_until_an_ack_comes(tmp_path: Path) -> None:
    with rig(tmp_path, COLLECT, ack="explicit_only", max_unacked=2, **STATIC) as site:
        site.assign(0, 1)
        site.feed_offsets(0, 1, 2)
        site.feed_offsets(10, shard=1)
        site.settle()
        assert site.seen == [0, 1, 10]
        assert site.worker.shards["0"].blocked
        site.worker.acknowledge(QualifiedOffset("users/test", 0, 0))
        site.settle()
        assert (site.seen, site.row()) == ([0, 1, 10, 2], (1, ()))


def test_an_ack_of_a_shard_that_is_elsewhere_is_forwarded(tmp_path: Path) -> None:
    with rig(tmp_path, COLLECT, ack="explicit_only", **STATIC) as site:
        site.assign(0)
        elsewhere = QualifiedOffset("users/test", 5, 17)
        site.worker.acknowledge(elsewhere)
        assert site.forwarded == [elsewhere]


def test_an_ack_of_a_shard_that_is_elsewhere_raises_if_it_cannot_be_forwarded(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("def handler(context, event): pass\n")
    worker = FunctionWorker(FunctionConfig(handler=str(path), ack="enable", worker_allocation="static"))
    with pytest.raises(UsageError, match="shard 5 of users/test is not handled"):
        worker.acknowledge(QualifiedOffset("users/test", 5, 17))
    worker.close()


def test_acks_may_come_from_other_threads_while_the_handler_runs(tmp_path: Path) -> None:
    code = """
import asyncio, nuclio, threading
def handler(context, event):
    offset = nuclio.QualifiedOffset.from_event(event)
    if event.offset != 1:
        thread = threading.Thread(target=lambda: asyncio.run(context.platform.explicit_ack(offset)))
        thread.start()
        thread.join()
"""
    with rig(tmp_path, code, ack="explicit_only", **STATIC) as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2)
        site.settle()
        assert site.row() == (1, ((2, 3),))


def test_early_acks_beyond_the_bound_are_logged_and_their_records_come(tmp_path: Path) -> None:
    with rig(tmp_path, COLLECT, ack="explicit_only", max_unacked=2, **STATIC) as site:
        site.assign(0)
        for offset in (10, 20, 30):
            site.worker.acknowledge(QualifiedOffset("users/test", 0, offset))
        site.feed_offsets(20, 30)
        site.settle()
        assert site.seen == [30]
        assert [line["message"] for line in site.log] == ["Too many early acks"]


def test_explicit_acks_are_an_error_while_they_are_off(tmp_path: Path) -> None:
    code = """
import nuclio
async def handler(context, event):
    await context.platform.explicit_ack(nuclio.QualifiedOffset.from_event(event))
"""
    with rig(tmp_path, code, on_error={"max_retries": 0}) as site:
        site.assign(0)
        site.feed_offsets(0)
        site.settle()
        assert site.row() == (1, ())
        assert "explicit acks are off" in site.taken["0"].letters[0].error


def test_random_acks_and_failures_never_skip_a_record(tmp_path: Path) -> None:
    """Whatever is acked and fails: after a restart from the row exactly the unacked records come again."""
    code = """
import random
dice = random.Random(0)
def handler(context, event):
    context.user_data.seen.append(event.offset)
    if dice.random() < 0.1:
        raise ValueError
"""
    dice, acked, total = random.Random(1), set[int](), 300
    row: tuple[Any, Any] = (0, ())
    for _round in range(60):
        if len(acked) == total:
            break
        with rig(tmp_path, code, ack="explicit_only", max_unacked=40, on_error={"max_retries": None}, **STATIC) as site:
            start, ranges = row
            site.assign(0, start=start, acked=ranges)
            site.feed_offsets(*range(start, total))
            for _ in range(5):
                site.settle()
                out = [offset for offset in site.seen if offset not in acked]
                for offset in dice.sample(out, (len(out) + 1) // 2):
                    site.worker.acknowledge(QualifiedOffset("users/test", 0, offset))
                    acked.add(offset)
            assert not any(_was(ranges, start, offset) for offset in site.seen)
            site.worker.step()
            row = site.row()
            covered = set(range(row[0])) | {offset for first, end in row[1] for offset in range(first, end)}
            assert covered == acked
    assert len(acked) == total


def _was(ranges: Any, start: int, offset: int) -> bool:
    return offset < start or any(first <= offset < end for first, end in ranges)


# --- batches ---------------------------------------------------------------------------------------------------------

BATCH = """
def handler(context, events):
    context.user_data.seen.append([event.offset for event in events])
    if any(event.body == b"bad" for event in events):
        raise ValueError("bad record in the batch")
"""


def test_a_batch_waits_until_it_is_full_or_its_time_is_over(tmp_path: Path) -> None:
    with rig(tmp_path, BATCH, batch={"size": 3, "timeout": "5s"}) as site:
        site.assign(0)
        site.feed_offsets(0, 1)
        site.worker.step()
        assert site.seen == []
        assert site.worker.wake_at() == 1005.0
        site.feed_offsets(2, 3)
        site.worker.step()
        assert site.seen == [[0, 1, 2]]
        site.time[0] += 4.9
        site.worker.step()
        assert site.seen == [[0, 1, 2]]
        site.time[0] += 0.1
        site.worker.step()
        assert (site.seen, site.row()) == ([[0, 1, 2], [3]], (4, ()))


def test_a_batch_that_fails_is_tried_again_whole_and_then_given_up_whole(tmp_path: Path) -> None:
    with rig(tmp_path, BATCH, batch={"size": 2}, on_error={"max_retries": 1}) as site:
        site.assign(0)
        site.feed(Rec(0), Rec(1, b"bad"), Rec(2), Rec(3))
        site.settle()
        assert site.seen == [[0, 1], [0, 1], [2, 3]]
        assert (site.row(), site.letters) == ((4, ()), [(0, 2), (1, 2)])


def test_bisect_finds_the_record_that_fails(tmp_path: Path) -> None:
    with rig(tmp_path, BATCH, batch={"size": 8}, on_error={"max_retries": 1, "bisect": True}) as site:
        site.assign(0)
        site.feed(*(Rec(offset, b"bad" if offset == 5 else b"") for offset in range(8)))
        site.settle()
        assert site.seen == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [5], [6, 7]]
        assert (site.row(), site.letters) == ((8, ()), [(5, 2)])


@pytest.mark.parametrize(
    "result",
    [
        "[event for event in events if event.offset in failing]",
        "{'batchItemFailures': [{'itemIdentifier': str(event.offset)} for event in events if event.offset in failing]}",
        "{'batchItemFailures': [{'itemIdentifier': event.id} for event in events if event.offset in failing]}",
        "type(events)(event for event in events if event.offset in failing)",
        "[events.reverse(), [event for event in events if event.offset in failing]][1]",
        "[event for event in renamed(events) if event.key in failing]",
        "[Response(event) for event in renamed(events) if event.key in failing]",
        "[Response(event) for event in taken(renamed(events)) if event.key in failing]",
        "{'batchItemFailures': [{'itemIdentifier': event.id} for event in renamed(events) if event.key in failing]}",
    ],
)
def test_only_the_records_that_the_handler_reports_are_tried_again(tmp_path: Path, result: str) -> None:
    code = f"""
class Response:
    status_code = 500

    def __init__(self, event):
        self.event_id = event.id

def renamed(events):
    for event in events:
        event.key = event.offset
        event.id, event.offset = f"order-{{event.key}}", None
    return events

def taken(events):
    return [events.pop() for _ in list(events)]

def handler(context, events):
    context.user_data.seen.append([event.offset for event in events])
    failing = {{1, 2}} if len(context.user_data.seen) == 1 else {{2}}
    return {result}
"""
    with rig(tmp_path, code, batch={"size": 4}, on_error={"max_retries": 2}) as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2, 3, 4)
        site.worker.step()
        assert site.row() == (1, ((3, 4),))
        site.settle()
        assert site.seen == [[0, 1, 2, 3], [1, 2], [2], [4]]
        assert (site.row(), site.letters) == ((5, ()), [(2, 3)])


def test_a_response_by_an_id_that_the_handler_has_assigned_keeps_its_record_from_being_acknowledged(
    tmp_path: Path,
) -> None:
    code = """
class Response:
    status_code, headers = 200, {"x-nuclio-stream-no-ack": True}

    def __init__(self, event_id):
        self.event_id = event_id

def handler(context, events):
    event = events[1]
    event.id = "order-1"
    return [Response(event.id)]
"""
    with rig(tmp_path, code, batch={"size": 3}, ack="enable", worker_allocation="static") as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2)
        site.settle()
        assert site.row() == (1, ((2, 3),))


def test_an_event_of_another_shard_is_not_an_event_of_the_batch(tmp_path: Path) -> None:
    code = """
first = []

def handler(context, events):
    first.extend(events)
    return first[:1]
"""
    with rig(tmp_path, code, batch={"size": 1}, on_error={"max_retries": 0}) as site:
        site.assign(0, 1)
        site.feed_offsets(0, shard=0)
        site.feed_offsets(0, shard=1)
        site.settle()
        assert len([line for line in site.log if "not an event of the batch" in str(line)]) == 1


def test_a_failure_that_is_not_in_the_batch_fails_the_batch(tmp_path: Path) -> None:
    code = "def handler(context, events):\n    return {'batchItemFailures': [{'itemIdentifier': 'x'}]}\n"
    with rig(tmp_path, code, batch={"size": 2}, on_error={"max_retries": 0}) as site:
        site.assign(0)
        site.feed_offsets(0, 1)
        site.settle()
        assert (site.row(), site.letters) == ((2, ()), [(0, 1), (1, 1)])


# --- async handlers --------------------------------------------------------------------------------------------------

ASYNC = """
import asyncio
running = {}
async def handler(context, event):
    assert running.setdefault(event.shard_id, 0) == 0, "two of one shard"
    running[event.shard_id] += 1
    context.user_data.seen.append(sum(running.values()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running[event.shard_id] -= 1
"""


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (10, 4)])
def test_async_handlers_run_at_once_but_in_order_per_shard(tmp_path: Path, concurrency: int, most: int) -> None:
    with rig(tmp_path, ASYNC, concurrency=concurrency) as site:
        site.assign(0, 1, 2, 3)
        for shard in range(4):
            site.feed_offsets(0, 1, 2, shard=shard)
        site.settle()
        assert max(site.seen) == most
        assert [site.row(shard) for shard in range(4)] == [(3, ())] * 4
        assert not any(line["message"] == "Handler failed" for line in site.log)


def test_an_async_handler_that_takes_too_long_is_cancelled_and_tried_again(tmp_path: Path) -> None:
    code = """
import asyncio
async def handler(context, event):
    context.user_data.seen.append(event.offset)
    if len(context.user_data.seen) == 1:
        await asyncio.Event().wait()
"""
    with rig(tmp_path, code, timeout="10ms") as site:
        site.assign(0)
        site.feed_offsets(0, 1)
        site.settle()
        assert (site.seen, site.row()) == ([0, 0, 1], (2, ()))
        assert any("took longer than 0.01 s" in line["more"] for line in site.log)


def test_a_task_that_an_async_handler_left_running_goes_on_between_records(tmp_path: Path) -> None:
    code = """
import asyncio
async def later(context, event):
    for _ in range(5):
        await asyncio.sleep(0)
    context.user_data.seen.append(event.offset)
async def handler(context, event):
    context.user_data.task = asyncio.create_task(later(context, event))
"""
    with rig(tmp_path, code) as site:
        site.assign(0)
        site.feed_offsets(7)
        for _ in range(20):
            site.worker.step()
        assert site.seen == [7]


# --- drain, drop, close ----------------------------------------------------------------------------------------------

CALLBACKS = """
import nuclio
kept = []
def init_context(context):
    context.user_data.seen = []
    async def drain():
        context.user_data.seen.append("drain")
        for offset in kept:
            await context.platform.explicit_ack(offset)
    context.platform.set_drain_callback(drain)
    context.platform.set_termination_callback(lambda: context.user_data.seen.append("termination"))
def handler(context, event):
    kept.append(nuclio.QualifiedOffset.from_event(event))
"""


def test_acks_of_the_drain_callback_count_and_unhandled_records_are_left(tmp_path: Path) -> None:
    with rig(tmp_path, CALLBACKS, ack="explicit_only", read_batch_size=2, **STATIC) as site:
        site.assign(0)
        site.feed_offsets(0, 1, 2, 3)
        site.worker.step()
        settled = [site.worker.shards["0"].settled]
        site.worker.drain(["0"])
        assert [*settled, site.worker.shards["0"].settled] == [False, True]
        site.settle()
        assert site.row() == (2, ())
        site.worker.close()
        assert site.seen == ["drain", "termination"]


@pytest.mark.parametrize("callback", ["sys.exit", "interrupt"])
def test_a_callback_that_fails_or_exits_ends_nothing(tmp_path: Path, callback: str) -> None:
    code = """
import sys
def init_context(context):
    context.platform.set_drain_callback(CALLBACK)
    context.platform.set_termination_callback(lambda: 1 / 0)
def handler(context, event): pass
def interrupt():
    raise KeyboardInterrupt
"""
    code = code.replace("CALLBACK", callback)
    with rig(tmp_path, code) as site:
        site.assign(0)
        site.worker.drain(["0"])
        site.worker.close()
        site.worker.close()
        assert [line["level"] for line in site.log] == ["error", "error"]


def test_a_retry_is_not_begun_while_draining_and_its_record_is_not_committed(tmp_path: Path) -> None:
    with rig(tmp_path, BAD) as site:
        site.assign(0)
        site.feed(Rec(0), Rec(1, b"bad"), Rec(2))
        site.worker.step()
        site.worker.drain(["0"])
        site.settle()
        assert (site.seen, site.row()) == ([0, 1], (1, ()))


def test_a_dropped_shard_is_neither_handled_nor_reported(tmp_path: Path) -> None:
    with rig(tmp_path, RECORDS) as site:
        site.assign(0)
        site.feed_offsets(0)
        site.worker.drop("0")
        site.feed_offsets(1)
        site.settle()
        assert site.seen == []
        with pytest.raises(KeyError):
            site.row()


def test_no_record_begins_after_the_grant_is_over(tmp_path: Path) -> None:
    for acks in ({}, {"ack": "enable", **STATIC}):
        with rig(tmp_path, RECORDS, **acks) as site:
            site.assign(0)
            site.feed_offsets(0, 1, 2)
            assert site.worker.step(until=1000.0) == 0
            assert site.worker.step(until=1001.0) == 3


def test_with_care_the_offset_is_reported_before_each_call(tmp_path: Path) -> None:
    with rig(tmp_path, RECORDS) as site:
        reported: list[tuple[str, int]] = []
        site.worker.caller.began = lambda shard, offset: reported.append((shard, offset))
        site.assign(0)
        site.feed_offsets(4, 5)
        site.settle()
        assert reported == [("0", 4), ("0", 5)]


# --- timeout ---------------------------------------------------------------------------------------------------------


def test_the_watchdog_is_armed_twice_per_second_and_gives_each_call_its_time() -> None:
    armed: list[float] = []
    watchdog = CallWatchdog(5.0, armed.append, lambda: armed.append(0.0))
    for now in (0.0, 0.1, 0.4, 0.5, 0.6, 1.2):
        watchdog.begin(now)
    watchdog.end()
    watchdog.end()
    assert armed == [6.0, 6.0, 6.0, 0.0]


HANGING = """
import re, sys
from holdfast.functions.events import EventOrigin
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.worker import FunctionWorker
from tests.unit.functions.rig import Rec
worker = FunctionWorker(FunctionConfig(handler=sys.argv[1], timeout=0.05))
worker.assign("0", EventOrigin("s", 0), 0)
worker.feed("0", [Rec(0)])
worker.step()
"""


@pytest.mark.parametrize(
    "hang",
    [
        "re.match('(a*)*$', 'a' * 40 + 'b')",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(1000)",
    ],
    ids=["with the GIL held", "with signals blocked"],
)
def test_a_handler_that_hangs_ends_the_process_with_its_traceback(tmp_path: Path, hang: str) -> None:
    path = tmp_path / "hanging.py"
    path.write_text(f"import re, signal, time\ndef handler(context, event):\n    {hang}\n")
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert 'hanging.py", line 3 in handler' in done.stderr


def test_acks_of_other_nodes_are_confirmed_with_the_progress_that_contains_them(tmp_path: Path) -> None:
    with rig(
        tmp_path, "def handler(context, event):\n    pass", ack="explicit_only", worker_allocation="static"
    ) as worker:
        worker.assign(0)
        worker.feed(Rec(0), Rec(1), Rec(2))
        worker.worker.step()
        shard = worker.worker.shards["0"]
        shard.ack_elsewhere(((0, 2), (7, 8)))
        progress = shard.progress(Numbers())
        assert progress is not None
        assert (progress.position, progress.acked, progress.forwarded) == (2, ((7, 8),), ((0, 2), (7, 8)))
        assert shard.progress(Numbers()) is None
        shard.ack_elsewhere(((0, 1),))
        again = shard.progress(Numbers())
        assert again is not None, "an ack that comes again is confirmed again, or its row would keep it"
        assert again.forwarded == ((0, 1),)

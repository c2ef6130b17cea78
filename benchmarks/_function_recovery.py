"""How long a shard of a function stands still: when its worker dies, when its node leaves, and when its node dies."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise

from benchmarks._function_fleet import FunctionFleet, fleet, until
from benchmarks._function_site import engine, ground, polled, session
from benchmarks.harness import Comparison, compare
from holdfast.flow.engine import Advanced
from holdfast.functions.engine import FunctionEngine

BENCH = "functions"
KILLS = 10
SHARDS = 12
RATE = 1200
"""Records per second of the fleet: each shard gets one every 10 ms."""
HAND_OFFS = 3
SESSION_TIMEOUT = 10.0


def worker_killed() -> list[Comparison]:
    """Seconds from a worker's SIGKILL until its shards are handled again."""
    pauses, put = [], 0
    with (
        session() as spark,
        ground(1 << 30) as made,
        engine(spark, made, "delay", commit_interval="200ms") as running,
    ):
        for kill in range(KILLS + 1):
            for _ in range(20):
                made.append(0, str(time.time()).encode())
            put += 20
            # Repeated deaths at one position would fail the shard, as they should.
            _wait_for_position(running, put)
            workers = [int(file.name.removeprefix("notes-")) for file in made.folder.glob("notes-*")]
            made.forget()
            killed = time.time()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            made.append(0, str(time.time()).encode())
            put += 1
            made.wait(1, polled(running))
            if kill:
                pauses.append(min(at for *_, at in made.notes()) - killed)
    case = f"handled again after SIGKILL of a worker, longest of {KILLS}, to 1.5 s"
    return [compare(BENCH, case, max(pauses), 1.5, "s", "<= 1")]


def _wait_for_position(running: FunctionEngine, offset: int) -> None:
    """Wait until the worker has reported that all records of the first shard before this one are handled."""
    until(
        lambda: any(
            isinstance(report, Advanced) and report.batch_id == "b0" and report.position == {"offset": offset}
            for report in running.poll(0.05)
        ),
        f"position {offset}",
    )


def nodes() -> list[Comparison]:
    """Seconds from the last record that a node has handled of a shard until the next one is handled by another."""
    with fleet(SHARDS, "handled") as made, made.producing(RATE):
        made.start("stays")
        left = [pause for number in range(HAND_OFFS) for pause in _left(made, f"leaves-{number}")]
        killed = _killed(made)
    leaves = f"pause of a shard whose node leaves, longest of {len(left)}, to 1 s"
    dies = f"pause of a shard whose node is killed, longest of {len(killed)}, to session_timeout"
    return [
        compare(BENCH, leaves, max(left), 1.0, "s", "<= 1"),
        compare(BENCH, dies, max(killed), SESSION_TIMEOUT, "s", "<= 1.5"),
    ]


def _left(made: FunctionFleet, name: str) -> list[float]:
    """The pauses of the shards of a node that leaves."""
    before = _shared_with(made, name)
    made.stop(name)
    return _pauses(made, before)


def _killed(made: FunctionFleet) -> list[float]:
    before = _shared_with(made, "dies")
    made.kill("dies")
    return _pauses(made, before)


def _shared_with(made: FunctionFleet, name: str) -> dict[int, int]:
    """Start a node, and return which process has handled the last record of each of its shards."""
    made.start(name)
    made.wait_for_shares()
    shared_at = time.time() + 1.0
    until(lambda: _all_handled_since(made, shared_at), "records of every shard")
    owned = set(made.processes_of(name))
    return {shard: lines[-1][1] for shard, lines in made.notes().items() if lines[-1][1] in owned}


def _all_handled_since(made: FunctionFleet, since: float) -> bool:
    notes = made.notes()
    return len(notes) == SHARDS and all(lines[-1][0] > since for lines in notes.values())


def _pauses(made: FunctionFleet, before: dict[int, int]) -> list[float]:
    """Seconds between the last record that each of these processes handled of a shard, and the next record."""
    if len(before) != SHARDS // 2:
        raise RuntimeError(f"the node had shards {sorted(before)}")
    until(lambda: all(lines[-1][1] != before.get(shard) for shard, lines in made.notes().items()), "other owners")
    notes = made.notes()
    return [
        next(after - at for (at, who), (after, other) in pairwise(notes[shard]) if who == process != other)
        for shard, process in before.items()
    ]

"""Blows in the middle of stage, commit and publish, on the stores without a database of ours.

python -m tests.soak.crashes dynamodb|folder|s3

A blow is kill -9, or a stop that lasts until others own all that the node had. The node strikes itself at the very
place that is asked for, so that every blow meets its phase. Two nodes at a time are struck, two others carry on.
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.soak.crash_grounds import CrashGround, crash_ground
from tests.soak.fleet import Fleet, LightNode
from tests.soak.hazards import order_of
from tests.soak.orders import PULL, SHARE, Load, Orders
from tests.soak.output import miscounted
from tests.soak.soak import Verdict

NODES = 4
PLACES = ("after stage", "before commit", "after commit", "before publish", "after publish")
BLOWS = (signal.SIGKILL, signal.SIGSTOP)
TIMEOUT, HEARTBEAT = 1.5, 0.5
WITHIN = 45.0
LOOK_EVERY = 0.05


def crash(ground: CrashGround, folder: Path, points: Sequence[str], broken: str = "") -> Verdict:
    """Strike at every place with every blow, let the fleet finish, and judge what readers see."""
    strikes = folder / "strikes"
    strikes.mkdir()
    load = Load(time.monotonic(), seconds=600.0, pulled_per_second=1.0, shared=8, notice=str(folder / "ended"))
    orders = Orders(
        ground.plugin,
        ground.settings,
        str(folder),
        load,
        0,
        TIMEOUT,
        HEARTBEAT,
        aimed=str(strikes),
        hiccup=0.0,
        broken=broken,
    )
    fleet = Fleet(orders, NODES, random.Random(0))
    try:
        fleet.start()
        for at in points:
            _strike(ground, fleet, strikes, at)
        require(lambda: all(_held(ground, [f":{node.pid}:"]) for node in fleet.nodes), "all nodes are there again")
        struck_after = time.monotonic() - load.began
        load.end_soon()
        done = comes_true(lambda: _is_done(ground, load), WITHIN)
        fleet.stop(15.0)
    finally:
        fleet.kill()
    wrong = fleet.errors + miscounted(folder, load.in_the_end())
    if not done:
        wrong.append(f"not all is done: {[row for row in ground.rows() if row.status != 'COMPLETED']}")
    return Verdict(wrong, {**_figures(folder, load), "struck_after": round(struck_after, 1)})


def _strike(ground: CrashGround, fleet: Fleet, strikes: Path, at: str) -> None:
    for sign in BLOWS:
        order_of(strikes, at, sign).touch()
    killed, stopped = [struck_node(fleet, order_of(strikes, at, sign)) for sign in BLOWS]
    gone = [f":{node.pid}:" for node in (killed, stopped)]
    killed.start()
    require(lambda: not _held(ground, gone), f"others take over from those struck {at}")
    stopped.signal(signal.SIGCONT)


def struck_node(fleet: Fleet, order: Path) -> LightNode:
    """The node that took that order; its process is dead or stands still."""
    require(lambda: bool(list(order.parent.glob(f"{order.name} struck *"))), f"somebody takes the order {order.name}")
    (taken,) = order.parent.glob(f"{order.name} struck *")
    pid = int(taken.name.rpartition(" ")[2])
    (node,) = [node for node in fleet.nodes if node.pid == pid]
    require(lambda: node.frozen or not node.running, f"{order.name} is done")
    return node


def _held(ground: CrashGround, marks: list[str]) -> bool:
    """Whether a session of these processes lives, or a partition is still theirs."""
    return any(mark in row.owner for row in ground.rows() if row.status == "ASSIGNED" for mark in marks)


def _is_done(ground: CrashGround, load: Load) -> bool:
    rows = [row for row in ground.rows() if row.pipeline in (PULL, SHARE)]
    wanted = sum(len(items) for items in load.in_the_end().values())
    return len(rows) == wanted and all(row.status == "COMPLETED" for row in rows)


def require(what: Callable[[], bool], description: str) -> None:
    if not comes_true(what, WITHIN):
        raise AssertionError(f"not within {WITHIN} s: {description}")


def comes_true(what: Callable[[], bool], within: float) -> bool:
    give_up_at = time.monotonic() + within
    while not what():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(LOOK_EVERY)
    return True


def _figures(folder: Path, load: Load) -> dict[str, float]:
    logs = [log.read_text() for log in folder.glob("*.log")]
    return {
        "blows": len(list((folder / "strikes").glob("* struck *"))),
        "items": sum(sum(items.values()) for items in load.in_the_end().values()),
        "fenced_off": sum(log.count("PartitionLost(") for log in logs),
        "sessions_ended": sum(log.count("NodeExpired(") for log in logs),
        "spilled_and_left": len([path for path in (folder / "spilled").rglob("*-*") if path.is_file()]),
        "seconds": round(time.monotonic() - load.began, 1),
    }


def main(arguments: list[str]) -> int:
    """Exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.crashes")
    parser.add_argument("store", choices=("dynamodb", "folder", "s3"))
    parser.add_argument("--broken", default="", help="a guard that the nodes lack, to see that it is missed")
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES, help="where to strike (default: all)")
    options = parser.parse_args(arguments)
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="holdfast-crashes-", dir=fast))
    with crash_ground(options.store, folder) as site:
        verdict = crash(site, folder, options.places, options.broken)
    print(json.dumps({"wrong": verdict.wrong[:20], "figures": verdict.figures}))
    if options.broken or not verdict.wrong:
        shutil.rmtree(folder)
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

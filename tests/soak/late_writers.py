"""A node that stops in the middle of a commit, and writes it after others have taken over all that it had.

python -m tests.soak.late_writers sqlite|postgresql|mysql|object [--broken fence]

The node stops itself at that very place, so that the fence is needed in every run, whatever the machine does.
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.crashes import HEARTBEAT, NODES, TIMEOUT, WITHIN, comes_true, require, struck_node
from tests.soak.fleet import Fleet
from tests.soak.grounds import Ground, ground
from tests.soak.hazards import order_of
from tests.soak.oracle import ASSIGNED, judge
from tests.soak.orders import Load, Orders
from tests.soak.soak import Verdict, judged, make_tables, wait_until_done

STORES = ("sqlite", "postgresql", "mysql", "object")
SIGNS = ("token goes down", "somebody else than the owner")
"""What the oracle reports of a late write that was not refused."""


def write_late(store: str, folder: Path, broken: str) -> Verdict:
    """Let one commit come late. An intact fleet then finishes its work; a broken one runs until it is found out."""
    with ground(store, folder, seed=0) as site:
        make_tables(site)
        load = Load(time.monotonic(), seconds=600.0, pulled_per_second=1.0, shared=8, notice=str(folder / "ended"))
        strikes = folder / "strikes"
        strikes.mkdir()
        reach = (site.plugin, site.settings(), str(folder), load, 0, TIMEOUT, HEARTBEAT)
        fleet = Fleet(Orders(*reach, aimed=str(strikes), hiccup=0.0, broken=broken), NODES, random.Random(0))
        try:
            fleet.start()
            _delay_a_commit(site, fleet, strikes)
            if broken:
                comes_true(lambda: bool(_late_writes(site, load)), WITHIN)
            load.end_soon()
            if not broken:
                wait_until_done(site, fleet, load, WITHIN)
                fleet.stop(15.0)
        finally:
            fleet.kill()
        return Verdict(_late_writes(site, load), {}) if broken else judged(site, folder, load, fleet)


def _delay_a_commit(site: Ground, fleet: Fleet, strikes: Path) -> None:
    order = order_of(strikes, "before commit", signal.SIGSTOP)
    order.touch()
    node = struck_node(fleet, order)
    mark = f":{node.pid}:"
    require(lambda: not _is_held(site, mark), "others take over from the node that stands still")
    node.signal(signal.SIGCONT)


def _is_held(site: Ground, mark: str) -> bool:
    """Whether a session of that process lives, or a partition is still its own."""
    latest = {(version.pipeline, version.key): version for version in site.history()}
    return any(row.status == ASSIGNED and mark in (row.owner or "") for row in latest.values())


def _late_writes(site: Ground, load: Load) -> list[str]:
    return [wrong for wrong in judge(site.history(), load.in_the_end()) if any(sign in wrong for sign in SIGNS)]


def main(arguments: list[str]) -> int:
    """Exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.late_writers")
    parser.add_argument("store", choices=STORES)
    parser.add_argument("--broken", default="", help="a guard that the nodes lack, to see that it is missed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-late-") as folder:
        verdict = write_late(options.store, Path(folder), options.broken)
    print(json.dumps({"wrong": verdict.wrong[:20], "figures": verdict.figures}))
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

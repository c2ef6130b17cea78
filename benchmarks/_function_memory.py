"""Memory of a worker over 10 minutes of 1,000 records per second: the last minute beside the second one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks._function_fleet import fleet, until
from benchmarks.harness import Comparison, compare

BENCH = "functions"
SHARDS = 8
RATE = 1000
MINUTES = 10


def memory() -> list[Comparison]:
    # This handler notes the first record of each shard, and with it the process of the worker.
    with fleet(SHARDS, "edges") as made:
        made.start("a")
        made.wait_for_shares()
        with made.producing(RATE):
            until(lambda: len(made.notes()) == SHARDS, "first records")
            (worker,) = {process for lines in made.notes().values() for _, process in lines}
            _most(worker)
            first = _most(worker)
            for _ in range(MINUTES - 3):
                _most(worker)
            last = _most(worker)
    case = f"memory of a worker in minute {MINUTES} at {RATE}/s, to minute 2"
    return [compare(BENCH, case, last, first, "MB", "<= 1.1")]


def _most(process: int) -> float:
    """The most memory in one minute, in MB; raises if the process has ended."""
    end, most = time.monotonic() + 60.0, 0
    while time.monotonic() < end:
        time.sleep(1.0)
        most = max(most, int(Path(f"/proc/{process}/statm").read_text().split()[1]))
    return most * os.sysconf("SC_PAGE_SIZE") / 1e6

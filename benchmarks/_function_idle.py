"""What 1,000 shards without records cost on two nodes: CPU time and writes to the store.

A heartbeat per node and nothing per shard is the bound for writes: 20 per minute and node, by default. CPU time is that
of all processes of the nodes: drivers, JVMs and workers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks._function_fleet import FunctionFleet, fleet
from benchmarks.harness import Comparison, compare

BENCH = "functions"
SHARDS = 1000
SECONDS = 60.0
SETTLED_AFTER = 30.0
"""Seconds for Spark's own start to be over."""
HEARTBEATS = 2 * 20.0
"""Of two nodes in a minute."""
CORES = 0.25
"""What two idle nodes may take of one core."""


def idle() -> list[Comparison]:
    with fleet(SHARDS, "nothing") as made:
        for name in ("a", "b"):
            made.start(name)
        made.wait_for_shares()
        time.sleep(SETTLED_AFTER)
        spent, writes = _cpu(made), made.writes()
        time.sleep(SECONDS)
        spent, writes = _cpu(made) - spent, made.writes() - writes
    name = f"{SHARDS} idle shards on 2 nodes"
    return [
        compare(BENCH, f"{name}, writes to the heartbeats", writes, HEARTBEATS, "per minute", "<= 1.25"),
        compare(BENCH, f"{name}, CPU to a quarter of a core", spent / SECONDS, CORES, "cores", "<= 1"),
    ]


def _cpu(made: FunctionFleet) -> float:
    """Seconds of CPU time of all processes so far."""
    ticks = 0
    for process in made.processes():
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")

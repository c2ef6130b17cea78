"""Milliseconds from the append of a record to the call of its handler, at 500 records per second over 8 shards.

By the clock of the host. The plain loop reads with the same settings and sizes, without leases, acks or commits. It
runs beside ours on a stream of its own, and a process that does nothing else appends to both, for a second each in
turns: so other work on the machine strikes both alike. One stall of a process would decide the 99th percentile of
half a minute, so that the median of five parts counts.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks._function_loops import producer
from benchmarks._function_site import SHARDS, Ground, engine, ground, loop, polled, session
from benchmarks.harness import Comparison, compare
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running

BENCH = "functions"
RATE = 500
PARTS, SECONDS = 5, 5
"""Parts of the records, and how many seconds of them make one."""
WARM_UP = 3
"""Seconds whose records are not counted: the worker or its peer begins, and the broker compiles its code."""
TURNS = WARM_UP + PARTS * SECONDS
"""Seconds for which records are appended for each of those who are compared."""
PEERS = ("quix", "bytewax")


def latency() -> list[Comparison]:
    with session() as spark, running(KafkaServer) as kafka:
        return [*_latency(spark, None), *_latency(spark, kafka)]


def _latency(spark: Any, kafka: KafkaServer | None) -> list[Comparison]:
    ours, plain = _side_by_side(spark, kafka)
    theirs = {"a plain loop": plain}
    for peer in PEERS:
        with ground(RATE, kafka) as made:
            if made.has(peer):
                theirs[peer] = _alone(made, peer)
    name, found = "stream" if kafka is None else "Kafka", list[Comparison]()
    for at, percent, limit, ratio in ((0, "p50", 5.0, "<= 1.5"), (1, "p99", 25.0, "<= 2")):
        case = f"{name}: {percent} at {RATE}/s"
        found.append(compare(BENCH, f"{case}, to {limit:g} ms", ours[at], limit, "ms", "<= 1"))
        for who, figures in theirs.items():
            bar = ratio if figures is plain else "<= inf"
            found.append(compare(BENCH, f"{case}, to {who}", ours[at], figures[at], "ms", bar))
    return found


def _side_by_side(spark: Any, kafka: KafkaServer | None) -> list[tuple[float, float]]:
    with (
        ground(RATE, kafka) as our_own,
        engine(spark, our_own, "delay") as workers,
        ground(RATE, kafka) as other,
        loop(other, "plain", "delay", RATE * TURNS + SHARDS),
    ):
        return _delays([our_own, other], polled(workers))


def _alone(ground: Ground, peer: str) -> tuple[float, float]:
    with loop(ground, peer, "delay", RATE * TURNS + SHARDS):
        return _delays([ground], lambda: time.sleep(0.05))[0]


def _delays(compared: Sequence[Ground], meanwhile: Callable[[], None]) -> list[tuple[float, float]]:
    """p50 and p99 of each in milliseconds."""
    # One record of each shard is waited for first: whoever reads them has then begun.
    for each in compared:
        for shard in range(SHARDS):
            each.append(shard, str(time.time()).encode())
        each.wait(SHARDS, meanwhile)
    command = producer([each.target for each in compared], rate=RATE, turns=TURNS, shards=SHARDS)
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            meanwhile()
    finally:
        process.kill()
        process.wait()
    for each in compared:
        each.wait(RATE * TURNS + SHARDS, meanwhile)
    return [_percentiles(each) for each in compared]


def _percentiles(ground: Ground) -> tuple[float, float]:
    """Medians of the parts."""
    notes = sorted(ground.notes(), key=lambda note: note[3])[SHARDS:]
    delays, size = [delay * 1000 for _, _, delay, _ in notes[WARM_UP * RATE :]], SECONDS * RATE
    parts = [sorted(delays[start : start + size]) for start in range(0, PARTS * size, size)]
    return statistics.median(map(statistics.median, parts)), statistics.median(part[size * 99 // 100] for part in parts)

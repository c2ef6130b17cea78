"""Milliseconds from the append of a record to the call of its handler, at 500 records per second over 8 shards.

By the clock of the host. The plain loop reads with the same settings and sizes, without leases, acks or commits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks._function_site import SHARDS, Ground, engine, ground, loop, polled, session
from benchmarks.harness import Comparison, compare
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running

BENCH = "functions"
RATE = 500
SECONDS = 5
ROUNDS = 3
"""Ours and the plain loop take turns so often, and the medians count."""
WARM_UP = RATE
"""Records that are not counted: in their second the worker or its peer begins."""
PEERS = ("quix", "bytewax")


def latency() -> list[Comparison]:
    with session() as spark, running(KafkaServer) as kafka:
        return [*_latency(spark, None), *_latency(spark, kafka)]


def _latency(spark: Any, kafka: KafkaServer | None) -> list[Comparison]:
    figures: dict[str, list[tuple[float, float]]] = {"ours": [], "plain": []}
    for number in range(ROUNDS):
        figures["ours"].append(_ours(spark, kafka))
        for peer in ("plain", *PEERS) if number == 0 else ("plain",):
            with ground(RATE * SECONDS, kafka) as made:
                if made.has(peer):
                    figures.setdefault(peer, []).append(_theirs(made, peer))
    name = "stream" if kafka is None else "Kafka"
    middle = {who: [statistics.median(values) for values in zip(*found, strict=True)] for who, found in figures.items()}
    ours, found = middle.pop("ours"), list[Comparison]()
    for at, percent, limit, ratio in ((0, "p50", 5.0, "<= 1.5"), (1, "p99", 25.0, "<= 2")):
        case = f"{name}: {percent} at {RATE}/s"
        found.append(compare(BENCH, f"{case}, to {limit:g} ms", ours[at], limit, "ms", "<= 1"))
        for peer, theirs in middle.items():
            bar = ratio if peer == "plain" else "<= inf"
            who = "a plain loop" if peer == "plain" else peer
            found.append(compare(BENCH, f"{case}, to {who}", ours[at], theirs[at], "ms", bar))
    return found


def _ours(spark: Any, kafka: KafkaServer | None) -> tuple[float, float]:
    with ground(RATE * SECONDS, kafka) as made, engine(spark, made, "delay") as running:
        return _delays(made, polled(running))


def _theirs(ground: Ground, peer: str) -> tuple[float, float]:
    with loop(ground, peer, "delay", RATE * SECONDS):
        return _delays(ground, lambda: time.sleep(0.05))


def _delays(ground: Ground, meanwhile: Callable[[], None]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    # One record of each shard is waited for first: whoever reads them has then begun.
    for shard in range(SHARDS):
        ground.append(shard, str(time.time()).encode())
    ground.wait(SHARDS, meanwhile)
    start, number = time.monotonic(), RATE * SECONDS - SHARDS
    for count in range(number):
        time.sleep(max(0.0, start + count / RATE - time.monotonic()))
        ground.append(count % SHARDS, str(time.time()).encode())
        if count % RATE == 0:
            meanwhile()
    ground.wait(RATE * SECONDS, meanwhile)
    notes = sorted(ground.notes(), key=lambda note: note[3])
    delays = sorted(delay for _, _, delay, _ in notes[WARM_UP:])
    return statistics.median(delays) * 1000, delays[int(len(delays) * 0.99)] * 1000

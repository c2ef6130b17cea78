"""Functions on Spark workers beside loops over the same records: records per second of a handler that does nothing.

What is counted is CPU time of the process that calls the handler, so that other work on the machine does not decide.
Acks and commits are on. The plain loops read with the same sizes and settings; one makes the same event for each
record, one that of Nuclio's SDK, and one has the records as the client returns them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks._function_loops import READ
from benchmarks._function_site import SHARDS, Ground, engine, ground, loop, polled, session
from benchmarks.harness import Comparison, compare, interleaved
from tests.servers.kafka import KafkaServer
from tests.servers.processes import running

BENCH = "functions"
RECORDS = 60_000
"""Records of each shard."""
REPEATED = 3
PEERS = {"bytewax": 2.0, "quix": 4.0}
"""By name, how many times as fast functions must be."""


def throughput() -> list[Comparison]:
    with session() as spark, running(KafkaServer) as kafka:
        return [*_throughput(spark, None), *_throughput(spark, kafka)]


def _throughput(spark: Any, kafka: KafkaServer | None) -> list[Comparison]:
    with ground(RECORDS, kafka) as made:
        made.fill()
        cases: dict[str, Callable[[], float]] = {
            "ours": partial(_ours, spark, made, "edges", {}),
            "batch": partial(_ours, spark, made, "batch", {"batch": {"size": READ}}),
        }
        cases |= {kind: partial(_theirs, made, "plain", kind) for kind in ("edges", "nuclio", "raw")}
        cases |= {peer: partial(_theirs, made, peer, "edges") for peer in PEERS if made.has(peer)}
        figures = dict(zip(cases, interleaved([*cases.values()], REPEATED), strict=True))
        two, one = (_wall(spark, made, workers) for workers in (2, 1))
    return [*_compared(made.name, figures), _two_workers(made.name, two, one)]


def _compared(name: str, figures: dict[str, float]) -> list[Comparison]:
    def speed(case: str, ours: str, peer: str, bar: float) -> Comparison:
        return compare(BENCH, f"{name}: {case}", 1e9 / figures[ours], 1e9 / figures[peer], "records/CPU s", bar)

    return [
        speed("one worker, to a loop with the same event", "ours", "edges", 0.65),
        speed("one worker, to a loop with nuclio_sdk.Event", "ours", "nuclio", 1.5),
        speed("batch handler, to a loop over raw records", "batch", "raw", 0.8),
        *(speed(f"one worker, to {peer}", "ours", peer, bar) for peer, bar in PEERS.items() if peer in figures),
    ]


def _two_workers(name: str, two: float, one: float) -> Comparison:
    total = RECORDS * SHARDS
    return compare(BENCH, f"{name}: two workers, to one (wall clock)", total / two, total / one, "records/s", 0)


def _ours(spark: Any, ground: Ground, handler: str, settings: dict[str, Any]) -> float:
    ground.forget()
    with engine(spark, ground, handler, **settings) as made:
        ground.wait(2 * SHARDS, polled(made))
    return ground.nanoseconds()


def _theirs(ground: Ground, peer: str, kind: str) -> float:
    ground.forget()
    with loop(ground, peer, kind, RECORDS * SHARDS):
        ground.wait(2 * SHARDS, lambda: time.sleep(0.05))
    return ground.nanoseconds()


def _wall(spark: Any, ground: Ground, workers: int) -> float:
    ground.forget()
    with engine(spark, ground, "edges", workers=workers) as made:
        ground.wait(2 * SHARDS, polled(made))
    times = [at for *_, at in ground.notes()]
    return max(times) - min(times)

"""Cases of the archive's benchmark that need whole nodes: two against one, delay, memory, requests."""

from __future__ import annotations

import gzip
import json
import statistics
import threading
import time

import numpy as np

from benchmarks._archive_fleet import (
    BUCKET,
    TOPIC,
    Works,
    committed,
    line,
    memory,
    nodes,
    published,
    settings,
    shares,
    until,
    works,
)
from benchmarks.harness import Comparison, compare

LATENCY = 0.05
PARTITIONS = 128
SMALL = 400
WARMING = 4
"""Waves for each node before it counts: so each has had as many tasks."""
MEASURED = 3
RATE = 10_000
SECONDS = 60
PLACES = 10_000
EACH = 10
MEGABYTE = 1 << 20


def cases() -> list[Comparison]:
    """All of them."""
    two, single = _caught_up(2), _caught_up(1)
    with works() as where:
        where.kafka.create_topic(TOPIC, partitions=4)
        delay = _delay(where)
        requests = _requests_per_million(where)
    with works() as where:
        where.kafka.create_topic(TOPIC, partitions=1)
        used = _explosion(where)
    return [
        compare("archive", "two nodes against one, bucket with 50 ms", single, two, "seconds", 1.7),
        compare(
            "archive", "p99 from produce to visible, 10,000/s, max_age 5 s, of 10 s", delay, 10.0, "seconds", "<= 1"
        ),
        compare("archive", f"driver with {PLACES} places, MB of 1 GB", used["driver"], 1024, "MB", "<= 1"),
        compare("archive", f"Python worker with {PLACES} places, MB of 1 GB", used["worker"], 1024, "MB", "<= 1"),
        compare("archive", "requests to the bucket per million messages", requests, 10_000, "requests", "<= 1"),
    ]


def _caught_up(number: int) -> float:
    """Seconds in which that many nodes make a wave of messages visible.

    They hold their shares before, and their code is compiled: waves without latency went through them.
    """
    with works() as where:
        where.kafka.create_topic(TOPIC, partitions=PARTITIONS)
        config = settings(where, "waves", {"upload": {"max_records": SMALL, "max_age": "1s"}}, "local[1]")
        with nodes(config, number):
            until(lambda: shares(where, "waves") == [PARTITIONS // number] * number)
            for wave in range(number * WARMING):
                _one_wave(where, wave)
            where.proxy.delay = LATENCY
            return statistics.median(_one_wave(where, number * WARMING + wave) for wave in range(MEASURED))


def _one_wave(where: Works, before: int) -> float:
    """Seconds until it is visible; so many waves were there before."""
    _produce_some(where)
    began = time.monotonic()
    until(lambda: published(where, "waves") == (before + 1) * PARTITIONS * SMALL)
    return time.monotonic() - began


def _produce_some(where: Works) -> None:
    """All at once: what nodes can do before the last message is there would not be seen."""
    producer = where.kafka.producer()
    for number in range(SMALL):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, line(n=number), partition=partition)
    producer.flush()


def _delay(where: Works) -> float:
    """The delay that 99 of 100 messages keep."""
    config = settings(
        where, "delay", {"upload": {"max_age": "5s"}}, "local[2]", format={"text": {"compression": "gzip"}}
    )
    with nodes(config, 1):
        where.kafka.produce(TOPIC, [line(at=time.time())])
        until(lambda: committed(where, "delay", 4) == 1)
        stop, seen = threading.Event(), _Seen(where, "delay")
        watching = threading.Thread(target=seen.watch, args=(stop,), daemon=True)
        watching.start()
        produced = _produce_evenly(where)
        until(lambda: seen.messages > produced)
        stop.set()
        watching.join()
    return float(np.percentile(np.concatenate(seen.delays), 99))


def _produce_evenly(where: Works) -> int:
    producer = where.kafka.producer()
    began, sent = time.time(), 0
    while (passed := time.time() - began) < SECONDS:
        while sent < passed * RATE:
            producer.produce(TOPIC, line(at=time.time(), pad="x" * 100), partition=sent % 4)
            sent += 1
        producer.poll(0.01)
    producer.flush()
    return sent


class _Seen:
    """Lists the bucket again and again, as a reader would, and notes when each message became visible."""

    def __init__(self, where: Works, name: str) -> None:
        self.delays: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self.messages = 0
        self._client = where.s3.client()
        self._prefix = f"{name}/{TOPIC}/"
        self._known: set[str] = set()

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            listed = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self._prefix)
            now, keys = time.time(), [entry["Key"] for page in listed for entry in page.get("Contents", ())]
            for key in set(keys) - self._known:
                self._known.add(key)
                data = gzip.decompress(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                made = np.array([json.loads(text)["at"] for text in data.splitlines()])
                self.delays.append(now - made)
                self.messages += len(made)


def _requests_per_million(where: Works) -> float:
    """Requests to the bucket for messages that wait already, with default sizes."""
    config = settings(where, "requests", {"upload": {"max_age": "1s"}}, "local[2]")
    ends = sum(where.kafka.offsets(TOPIC, partition)[1] for partition in range(4))
    before = len(where.proxy.requests)
    with nodes(config, 1):
        until(lambda: committed(where, "requests", 4) >= ends)
    return (len(where.proxy.requests) - before) / ends * 1_000_000


def _explosion(where: Works) -> dict[str, float]:
    """Megabytes at the highest while one partition's messages go to ten thousand places."""
    # A commit has at most a thousand files, so that many places are mixed at a time and then come the next.
    spread = (portion * 1000 + number % 1000 for portion in range(PLACES // 1000) for number in range(1000 * EACH))
    where.kafka.produce(TOPIC, [line(c=city, pad="x" * 300) for city in spread])
    parse = [{"parse": {"names": {"c": {"json": {"field": "c"}}}}}]
    config = settings(where, "places", {"upload": {"max_age": "1s"}}, "local[2]", processors=parse, format="jsonl")
    most: dict[str, float] = {"driver": 0.0, "worker": 0.0}
    with nodes(config, 1) as (node,):

        def done() -> bool:
            for what, size in memory([node.pid]).items():
                most[what] = max(most[what], size / MEGABYTE)
            return published(where, "places") == EACH * PLACES

        until(done, patience=600)
    return most

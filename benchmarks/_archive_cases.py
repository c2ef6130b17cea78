"""Cases of the archive's benchmark that need whole nodes: two against one, delay, memory, requests."""

from __future__ import annotations

import gzip
import json
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
    settings,
    shares,
    until,
    works,
)
from benchmarks.harness import Comparison, compare

LATENCY = 0.05
PARTITIONS = 48
SMALL = 400
RATE = 10_000
SECONDS = 60
PLACES = 10_000
MEGABYTE = 1 << 20


def cases() -> list[Comparison]:
    """All of them."""
    with works(LATENCY) as where:
        where.kafka.create_topic(TOPIC, partitions=PARTITIONS)
        two, one = _caught_up(where, "two", 2), _caught_up(where, "one", 1)
    with works() as where:
        where.kafka.create_topic(TOPIC, partitions=4)
        delay = _delay(where)
        requests = _requests_per_million(where)
    with works() as where:
        where.kafka.create_topic(TOPIC, partitions=1)
        used = _explosion(where)
    return [
        compare("archive", "two nodes against one, bucket with 50 ms", one, two, "seconds", 1.7),
        compare(
            "archive", "p99 from produce to visible, 10,000/s, max_age 5 s, of 10 s", delay, 10.0, "seconds", "<= 1"
        ),
        compare("archive", f"driver with {PLACES} places, MB of 1 GB", used["driver"], 1024, "MB", "<= 1"),
        compare("archive", f"Python worker with {PLACES} places, MB of 1 GB", used["worker"], 1024, "MB", "<= 1"),
        compare("archive", "requests to the bucket per million messages", requests, 10_000, "requests", "<= 1"),
    ]


def _caught_up(where: Works, name: str, number: int) -> float:
    """Seconds in which that many nodes make what was produced visible; they hold their shares and are warm before."""
    config = settings(where, name, {"upload": {"max_age": "1s"}}, "local[1]")
    with nodes(config, number):
        _produce_some(where)
        _until_visible(where, name)
        until(lambda: shares(where, name) == [PARTITIONS // number] * number)
        _produce_some(where)
        began = time.monotonic()
        _until_visible(where, name)
        return time.monotonic() - began


def _until_visible(where: Works, name: str) -> None:
    ends = sum(where.kafka.offsets(TOPIC, one)[1] for one in range(PARTITIONS))
    until(lambda: committed(where, name, PARTITIONS) >= ends)


def _produce_some(where: Works) -> None:
    for partition in range(PARTITIONS):
        where.kafka.produce(TOPIC, [line(n=number) for number in range(SMALL)], partition=partition)


def _delay(where: Works) -> float:
    """The delay that 99 of 100 messages keep."""
    config = settings(
        where, "delay", {"upload": {"max_age": "5s"}}, "local[2]", format={"text": {"compression": "gzip"}}
    )
    with nodes(config, 1):
        stop, seen = threading.Event(), _Seen(where, "delay")
        watching = threading.Thread(target=seen.watch, args=(stop,), daemon=True)
        watching.start()
        produced = _produce_evenly(where)
        until(lambda: seen.messages >= produced)
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
            now, keys = time.time(), [one["Key"] for page in listed for one in page.get("Contents", ())]
            for key in set(keys) - self._known:
                self._known.add(key)
                data = gzip.decompress(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                made = np.array([json.loads(text)["at"] for text in data.splitlines()])
                self.delays.append(now - made)
                self.messages += len(made)


def _requests_per_million(where: Works) -> float:
    """Requests to the bucket for messages that wait already, with default sizes."""
    config = settings(where, "requests", {"upload": {"max_age": "1s"}}, "local[2]")
    ends = sum(where.kafka.offsets(TOPIC, one)[1] for one in range(4))
    before = len(where.proxy.requests)
    with nodes(config, 1):
        until(lambda: committed(where, "requests", 4) >= ends)
    return (len(where.proxy.requests) - before) / ends * 1_000_000


def _explosion(where: Works) -> dict[str, float]:
    """Megabytes at the highest while one partition's messages go to ten thousand places."""
    where.kafka.produce(TOPIC, [line(c=number % PLACES, pad="x" * 300) for number in range(20 * PLACES)])
    parse = [{"parse": {"names": {"c": {"json": {"field": "c"}}}}}]
    config = settings(where, "places", {"upload": {"max_age": "1s"}}, "local[2]", processors=parse, format="jsonl")
    most: dict[str, float] = {"driver": 0.0, "worker": 0.0}
    with nodes(config, 1) as (node,):

        def done() -> bool:
            for what, size in memory([node.pid]).items():
                most[what] = max(most[what], size / MEGABYTE)
            return committed(where, "places", 1) >= 20 * PLACES

        until(done, patience=600)
    return most

"""A stream with records, workers on Spark that handle them, and what handlers have noted."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._function_loops import HANDLERS, KAFKA_SETTINGS, READ, program
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.shards import ReaderFactory
from holdfast.functions.engine import FunctionEngine, FunctionParts
from holdfast.functions.settings import FunctionConfig
from holdfast.leases.lease import Lease
from holdfast.sources.kafka.shard_reader import KafkaReaderFactory
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings
from holdfast.sources.stream.stream import shard_id as stream_shard
from tests.servers.kafka import KafkaServer

SHARDS = 8
BODY = b"x" * 150
PATIENCE = 120.0


class Ground(ABC):
    """A stream in a folder of its own, and what the handlers have noted there."""

    name: str
    """What figures are called by."""

    def __init__(self, folder: Path, records: int) -> None:
        self.folder, self.records = folder, records
        (folder / "handlers.py").write_text(HANDLERS)
        self.environment = {"BENCH_FOLDER": str(folder), "BENCH_RECORDS": str(records)}

    @property
    @abstractmethod
    def reader(self) -> ReaderFactory: ...

    @abstractmethod
    def shard(self, number: int) -> str:
        """The id of a shard."""

    @abstractmethod
    def fill(self) -> None:
        """Append `records` records to each shard."""

    @abstractmethod
    def append(self, shard: int, body: bytes) -> None: ...

    @property
    @abstractmethod
    def target(self) -> dict[str, str]:
        """Where a producer in another process appends."""

    @abstractmethod
    def command(self, peer: str, kind: str, total: int) -> list[str] | None:
        """What runs a plain loop or a peer; None if it cannot be had."""

    def has(self, peer: str) -> bool:
        """Whether the peer can be had here."""
        return self.command(peer, "edges", 0) is not None

    # --- notes ---------------------------------------------------------------------------------------------------

    def notes(self) -> list[tuple[int, int, float, float]]:
        """Shard, offset, what was measured, and when."""
        lines = [line for file in self.folder.glob("notes-*") for line in file.read_text().splitlines()]
        rows = [line.split() for line in lines]
        return [(int(row[0]), int(row[1]), float(row[2]), float(row[3])) for row in rows if len(row) == 4]

    def forget(self) -> None:
        for file in self.folder.glob("notes-*"):
            file.unlink()

    def wait(self, number: int, meanwhile: Callable[[], None]) -> None:
        give_up = time.monotonic() + PATIENCE
        while len(self.notes()) < number:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{len(self.notes())} of {number} notes")
            meanwhile()

    def nanoseconds(self) -> float:
        """CPU time for each record, of the processes that called the handler."""
        by_process = [
            [float(line.split()[2]) for line in file.read_text().splitlines()] for file in self.folder.glob("notes-*")
        ]
        spent = sum(max(times) - min(times) for times in by_process)
        return spent / (self.records * SHARDS) * 1e9


class StreamGround(Ground):
    """An embedded stream."""

    name = "stream"

    def __init__(self, folder: Path, records: int) -> None:
        super().__init__(folder, records)
        self._stream = Stream.create(folder, "s", StreamSettings(SHARDS))

    @property
    def reader(self) -> ReaderFactory:
        return EmbeddedReaderFactory(self.folder, "s", self._stream.id)

    def shard(self, number: int) -> str:
        return stream_shard("s", number)

    def fill(self) -> None:
        for shard in range(SHARDS):
            for start in range(0, self.records, READ):
                self._stream.append(shard, [NewRecord(BODY)] * min(READ, self.records - start))

    def append(self, shard: int, body: bytes) -> None:
        self._stream.append(shard, [NewRecord(body)])

    @property
    def target(self) -> dict[str, str]:
        return {"folder": str(self.folder)}

    def command(self, peer: str, kind: str, total: int) -> list[str] | None:
        given = {"folder": str(self.folder), "stream": self._stream.id, "shards": SHARDS, "kind": kind, "total": total}
        return program("stream", **given) if peer == "plain" else None


class KafkaGround(Ground):
    """A topic on a real broker."""

    name = "Kafka"

    def __init__(self, folder: Path, records: int, kafka: KafkaServer) -> None:
        super().__init__(folder, records)
        self._kafka, self._topic = kafka, f"bench-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(self._topic, SHARDS)
        self._producer = kafka.producer(linger_ms=0)

    @property
    def reader(self) -> ReaderFactory:
        return KafkaReaderFactory({"bootstrap.servers": self._kafka.bootstrap})

    def shard(self, number: int) -> str:
        return f"{self._topic}|{number}"

    def fill(self) -> None:
        for shard in range(SHARDS):
            self._kafka.produce(self._topic, (BODY for _ in range(self.records)), partition=shard)

    def append(self, shard: int, body: bytes) -> None:
        self._producer.produce(self._topic, body, partition=shard)
        self._producer.poll(0)

    @property
    def target(self) -> dict[str, str]:
        return {"brokers": self._kafka.bootstrap, "topic": self._topic}

    def command(self, peer: str, kind: str, total: int) -> list[str] | None:
        given = {"folder": str(self.folder), "topic": self._topic, "shards": SHARDS, "kind": kind, "total": total}
        given |= {"brokers": self._kafka.bootstrap, "settings": dict(KAFKA_SETTINGS), "group": uuid.uuid4().hex}
        return program("kafka" if peer == "plain" else peer, **given)


@contextmanager
def ground(records: int, kafka: KafkaServer | None = None) -> Iterator[Ground]:
    """Shards of an embedded stream, or of a new topic, that have no records yet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        made = StreamGround(path, records) if kafka is None else KafkaGround(path, records, kafka)
        os.environ.update(made.environment)
        yield made


@contextmanager
def engine(spark: Any, ground: Ground, handler: str, **settings: Any) -> Iterator[FunctionEngine]:
    """Workers that have the shards of the stream from the start."""
    given = {"handler": f"{ground.folder}/handlers.py:{handler}", "read_batch_size": READ, **settings}
    given["environment"] = ground.environment
    config = FunctionConfig.model_validate(given)
    made = FunctionEngine(spark, FunctionParts(ground.reader, config), lambda: 8.0)
    cut = Cut({"offset": 0}, None)
    try:
        leases = [Lease("p", ground.shard(number)) for number in range(SHARDS)]
        made.submit("p", [Batch(f"b{n}", lease, Name("s", str(n)), cut) for n, lease in enumerate(leases)])
        yield made
    finally:
        made.close()


def polled(made: FunctionEngine) -> Callable[[], None]:
    """What takes the reports of workers while something is waited for."""

    def poll() -> None:
        made.poll(0.05)

    return poll


@contextmanager
def loop(ground: Ground, peer: str, kind: str, total: int) -> Iterator[None]:
    """A plain loop or a peer in a process of its own; the loop ends after `total` records."""
    command = ground.command(peer, kind, total)
    if command is None:
        raise ValueError(f"there is no {peer} for {ground.name}")
    (ground.folder / "ready").unlink(missing_ok=True)
    process = subprocess.Popen(command)
    try:
        while not (ground.folder / "ready").exists():
            if process.poll() is not None:
                raise RuntimeError(f"{peer} has ended with {process.returncode}")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def session() -> Iterator[Any]:
    """Spark with room for two workers, as a node that runs functions starts it."""
    from holdfast.spark.session import start_session, stop_session
    from holdfast.spark.worker_daemon import PRELOAD

    spark = start_session("functions", {f"spark.executorEnv.{PRELOAD}": "holdfast.functions.engine"}, "local[3]")
    try:
        yield spark
    finally:
        stop_session(spark)

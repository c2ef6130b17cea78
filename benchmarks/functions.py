"""Functions on Spark workers beside plain loops over the same stream, in one run and with the same handler.

Throughput is counted in CPU time of the process that calls the handler, so that other work on the machine does not
decide. Latency is from the append to the call of the handler, by the clock of the host. The plain loop reads the shards
with the same reader and the same sizes; it has no leases, no acks, no commits and no supervision.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.functions.engine import FunctionEngine, FunctionParts
from holdfast.functions.settings import FunctionConfig
from holdfast.leases.lease import Lease
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings, shard_id

BENCH = "functions"
SHARDS = 8
RECORDS = 60_000
"""Records of each shard in a measurement of throughput."""
READ = 500
REPEATED = 3
RATE = 500
SECONDS = 10
KILLS = 5
PATIENCE = 120.0
HANDLERS = """
import os, time
from pathlib import Path

FOLDER = Path(os.environ["BENCH_FOLDER"])
LAST = int(os.environ["BENCH_RECORDS"]) - 1
lines = None

def note(text):
    global lines
    if lines is None:
        lines = open(FOLDER / f"notes-{os.getpid()}", "a", buffering=1)
    lines.write(text + "\\n")

def edges(context, event):
    offset = event.offset
    if offset == 0 or offset == LAST:
        note(f"{event.shard_id} {offset} {time.process_time()} {time.time()}")

def batch(context, events):
    for event in (events[0], events[-1]):
        edges(context, event)

def delay(context, event):
    note(f"{event.shard_id} {event.offset} {time.time() - float(event.body)} {time.time()}")
"""
LOOP = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import handlers
from holdfast.functions.events import EventOrigin
from holdfast.functions.nuclio import event_class
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import shard_id

folder, stream_id, kind, shards, read, total = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7])
from pathlib import Path
reader = EmbeddedReaderFactory(Path(folder), "s", stream_id).open()
origins = {}
for number in range(shards):
    reader.add(shard_id("s", number), {"offset": 0})
    origins[shard_id("s", number)] = EventOrigin("s", number)
new_event, left = event_class(), total
class Raw:
    __slots__ = ("offset", "shard_id")
(Path(folder) / "ready").touch()
while left:
    records = reader.fetch(read, 0.05)
    left -= len(records)
    if kind == "raw":
        for record in (records[:1] + records[-1:]) if records else ():
            event = Raw()
            event.offset, event.shard_id = record.offset, origins[record.shard].shard_id
            handlers.edges(None, event)
        for record in records:
            pass
    elif kind == "nuclio":
        import nuclio_sdk
        trigger = nuclio_sdk.TriggerInfo("stream", "stream")
        for record in records:
            handlers.edges(None, nuclio_sdk.Event(
                body=record.body, trigger=trigger, timestamp=record.timestamp, offset=record.offset,
                shard_id=origins[record.shard].shard_id, headers=dict(record.headers), topic="s"))
    else:
        call = getattr(handlers, kind)
        for record in records:
            call(None, new_event(record, origins[record.shard]))
"""


class Ground:
    """A stream in a folder of its own, and what the handlers have noted."""

    def __init__(self, folder: Path, records: int) -> None:
        self.folder, self.records = folder, records
        self.stream = Stream.create(folder, "s", StreamSettings(SHARDS))
        (folder / "handlers.py").write_text(HANDLERS)
        (folder / "loop.py").write_text(LOOP)
        self.environment = {"BENCH_FOLDER": str(folder), "BENCH_RECORDS": str(records)}

    def fill(self) -> None:
        body = b"x" * 150
        for shard in range(SHARDS):
            for start in range(0, self.records, READ):
                self.stream.append(shard, [NewRecord(body)] * min(READ, self.records - start))

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


@contextmanager
def ground(records: int) -> Iterator[Ground]:
    with tempfile.TemporaryDirectory() as folder:
        made = Ground(Path(folder), records)
        os.environ.update(made.environment)
        yield made


@contextmanager
def engine(spark: Any, ground: Ground, handler: str, **settings: Any) -> Iterator[FunctionEngine]:
    """Workers that have the shards of the stream from the start."""
    given = {"handler": f"{ground.folder}/handlers.py:{handler}", "read_batch_size": READ, **settings}
    given["environment"] = ground.environment
    config = FunctionConfig.model_validate(given)
    reader = EmbeddedReaderFactory(ground.folder, "s", ground.stream.id)
    made = FunctionEngine(spark, FunctionParts(reader, config), lambda: 8.0)
    cut = Cut({"offset": 0}, None)
    try:
        leases = [Lease("p", shard_id("s", shard)) for shard in range(SHARDS)]
        made.submit("p", [Batch(f"b{n}", lease, Name("s", str(n)), cut) for n, lease in enumerate(leases)])
        yield made
    finally:
        made.close()


@contextmanager
def loop(ground: Ground, kind: str, total: int) -> Iterator[subprocess.Popen[bytes]]:
    """A plain loop in a process of its own."""
    arguments = [str(ground.folder), ground.stream.id, kind, str(SHARDS), str(READ), str(total)]
    (ground.folder / "ready").unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, str(ground.folder / "loop.py"), *arguments])
    try:
        while not (ground.folder / "ready").exists():
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


# --- throughput -------------------------------------------------------------------------------------------------------


def _ours(spark: Any, ground: Ground, handler: str, settings: dict[str, Any]) -> float:
    ground.forget()
    with engine(spark, ground, handler, **settings) as made:
        ground.wait(2 * SHARDS, lambda: _polled(made))
    return ground.nanoseconds()


def _polled(made: FunctionEngine) -> None:
    made.poll(0.05)


def _plain(ground: Ground, kind: str) -> float:
    ground.forget()
    with loop(ground, kind, ground.records * SHARDS) as process:
        process.wait(PATIENCE)
    return ground.nanoseconds()


def throughput(spark: Any) -> list[Comparison]:
    found = []
    with ground(RECORDS) as made:
        made.fill()
        ours = partial(_ours, spark, made, "edges", {})
        batches = partial(_ours, spark, made, "batch", {"batch": {"size": READ}})
        cases = [
            ours,
            partial(_plain, made, "edges"),
            partial(_plain, made, "nuclio"),
            batches,
            partial(_plain, made, "raw"),
        ]
        single, same, nuclio, batch, raw = interleaved(cases, REPEATED)
        found.append(_speed("one worker, to a loop with the same event", single, same, 0.65))
        found.append(_speed("one worker, to a loop with nuclio_sdk.Event", single, nuclio, 1.5))
        found.append(_speed("batch handler, to a loop over raw records", batch, raw, 0.8))
        two = _wall(spark, made, {"workers": 2})
        one = _wall(spark, made, {})
        found.append(compare(BENCH, "two workers, to one (wall clock)", one, two, "s", 0))
    return found


def _speed(case: str, ours: float, peer: float, bar: float) -> Comparison:
    return compare(BENCH, case, 1e9 / ours, 1e9 / peer, "records/CPU s", bar)


def _wall(spark: Any, ground: Ground, settings: dict[str, Any]) -> float:
    ground.forget()
    with engine(spark, ground, "edges", **settings) as made:
        ground.wait(2 * SHARDS, lambda: _polled(made))
    times = [at for _, _, _, at in ground.notes()]
    return max(times) - min(times)


# --- latency ----------------------------------------------------------------------------------------------------------


def latency(spark: Any) -> list[Comparison]:
    """p50 and p99 at `RATE` records per second, without the first seconds."""
    with ground(RATE * SECONDS) as made, engine(spark, made, "delay") as running:
        ours = _delays(made, lambda: _polled(running))
    with ground(RATE * SECONDS) as made, loop(made, "delay", RATE * SECONDS):
        plain = _delays(made, lambda: time.sleep(0.05))
    return [
        compare(BENCH, "latency p50 at 500/s, to 5 ms", ours[0], 5.0, "ms", "<= 1"),
        compare(BENCH, "latency p99 at 500/s, to 25 ms", ours[1], 25.0, "ms", "<= 1"),
        compare(BENCH, "latency p50 at 500/s, to a plain loop", ours[0], plain[0], "ms", "<= 1.5"),
        compare(BENCH, "latency p99 at 500/s, to a plain loop", ours[1], plain[1], "ms", "<= 2"),
    ]


def _delays(ground: Ground, meanwhile: Callable[[], None]) -> tuple[float, float]:
    # The first record waits for the worker to start, and is left out with the records of its second.
    ground.stream.append(0, [NewRecord(str(time.time()).encode())])
    ground.wait(1, meanwhile)
    start, number = time.monotonic(), RATE * SECONDS - 1
    for count in range(number):
        time.sleep(max(0.0, start + count / RATE - time.monotonic()))
        ground.stream.append(count % SHARDS, [NewRecord(str(time.time()).encode())])
        if count % RATE == 0:
            meanwhile()
    ground.wait(number, meanwhile)
    delays = sorted(delay for _, _, delay, at in ground.notes() if at > time.time() - SECONDS)
    return statistics.median(delays) * 1000, delays[int(len(delays) * 0.99)] * 1000


# --- recovery ---------------------------------------------------------------------------------------------------------


def recovery(spark: Any) -> list[Comparison]:
    """Seconds from a worker's SIGKILL until its shards are handled again, the longest of a few."""
    pauses = []
    with ground(1 << 30) as made, engine(spark, made, "delay", commit_interval="200ms") as running:
        for kill in range(KILLS + 1):
            for _ in range(20):
                made.stream.append(0, [NewRecord(str(time.time()).encode())])
            made.wait(1, lambda: _polled(running))
            # Before the kill: the next worker may note something at once.
            workers = [int(file.name.removeprefix("notes-")) for file in made.folder.glob("notes-*")]
            made.forget()
            killed = time.time()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            made.stream.append(0, [NewRecord(str(time.time()).encode())])
            made.wait(1, lambda: _polled(running))
            if kill:
                pauses.append(min(at for *_, at in made.notes()) - killed)
    return [
        compare(
            BENCH,
            f"handled again after SIGKILL of a worker, longest of {KILLS}, to 1.5 s",
            max(pauses),
            1.5,
            "s",
            "<= 1",
        )
    ]


def run() -> list[Comparison]:
    from holdfast.spark.session import start_session, stop_session

    spark = start_session("functions", {}, "local[3]")
    try:
        return [*latency(spark), *throughput(spark), *recovery(spark)]
    finally:
        stop_session(spark)

"""The embedded stream beside SQLite as a queue: appends and reads per second, in batches and one at a time.

Both survive the end of the process (`durability: process`, WAL with `synchronous=NORMAL`), hold the same columns, and
give the reader the same objects. The reader of the queue keeps its position in the same database, a commit per batch,
as a queue must; that of the stream has its position in a lease, so the last case shows the queue without that write.
Records have 150 bytes. Seconds are those of CPU time, so that other work on the machine does not decide; nobody waits
for the disk here but SQLite, at its checkpoints.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import starmap
from pathlib import Path

from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.shards import StreamRecord
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReader, EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings

BODY = b"x" * 150
BATCH = 500
BATCHES = 100
SINGLES = 2000
REPETITIONS = 7
SHARD = "bench|0"

INSERT = "INSERT INTO queue (timestamp, key, headers, body) VALUES (?, ?, ?, ?)"
SELECT = "SELECT 'bench|0', offset, timestamp, key, headers, body FROM queue WHERE offset > ? ORDER BY offset LIMIT ?"


class Queue:
    """What a program would write by hand on SQLite."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "CREATE TABLE queue (offset INTEGER PRIMARY KEY, timestamp INTEGER, key BLOB, headers BLOB, body BLOB)"
        )
        self._db.execute("CREATE TABLE position (name TEXT PRIMARY KEY, next INTEGER)")
        self._db.execute("INSERT INTO position VALUES ('reader', 0)")

    def append(self, bodies: Sequence[bytes]) -> None:
        now = int(time.time() * 1000)
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(INSERT, [(now, None, None, body) for body in bodies])
        self._db.execute("COMMIT")

    def fetch(self, after: int, limit: int, *, keeps_position: bool) -> list[StreamRecord]:
        records = [*starmap(StreamRecord, self._db.execute(SELECT, (after, limit)))]
        if keeps_position:
            self._db.execute("UPDATE position SET next = ? WHERE name = 'reader'", (records[-1].offset,))
        return records

    def close(self) -> None:
        self._db.close()


def run() -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        stream = Stream.create(root, "bench", StreamSettings(1, retention=None))
        with closing(stream), closing(Queue(root / "queue.db")) as queue:
            return [*_appends(stream, queue), *_reads(root, stream, queue)]


def _appends(stream: Stream, queue: Queue) -> list[Comparison]:
    records, bodies = [NewRecord(BODY)] * BATCH, [BODY] * BATCH
    ours, peer, our_single, peer_single = interleaved(
        [
            lambda: BATCH * _rate(BATCHES, lambda: stream.append(0, records)),
            lambda: BATCH * _rate(BATCHES, lambda: queue.append(bodies)),
            lambda: _rate(SINGLES, lambda: stream.append(0, records[:1])),
            lambda: _rate(SINGLES, lambda: queue.append(bodies[:1])),
        ],
        REPETITIONS,
    )
    return [
        compare("streams", f"append in batches of {BATCH}, against SQLite", ours, peer, "records/CPU s", 4.0),
        compare("streams", "append one at a time, against SQLite", our_single, peer_single, "records/CPU s", 1.0),
    ]


def _reads(root: Path, stream: Stream, queue: Queue) -> list[Comparison]:
    ours, peer, lean = interleaved(
        [
            lambda: _read_stream(root, stream),
            lambda: _read_queue(queue, keeps_position=True),
            lambda: _read_queue(queue, keeps_position=False),
        ],
        REPETITIONS,
    )
    return [
        compare("streams", f"read in batches of {BATCH}, against SQLite", ours, peer, "records/CPU s", 4.0),
        compare("streams", "read in batches, SQLite without a position", ours, lean, "records/CPU s", 1.0),
    ]


def _read_stream(root: Path, stream: Stream) -> float:
    with closing(EmbeddedReaderFactory(root, "bench", stream.id).open()) as reader:
        reader.add(SHARD, {"offset": 0})
        return BATCH * _rate(BATCHES, lambda: _fetch(reader))


def _fetch(reader: EmbeddedReader) -> None:
    count = len(reader.fetch(BATCH, 1.0))
    assert count == BATCH


def _read_queue(queue: Queue, *, keeps_position: bool) -> float:
    position = 0

    def fetch() -> None:
        nonlocal position
        records = queue.fetch(position, BATCH, keeps_position=keeps_position)
        assert len(records) == BATCH
        position = records[-1].offset

    return BATCH * _rate(BATCHES, fetch)


def _rate(times: int, work: Callable[[], object]) -> float:
    """How often per second of CPU time."""
    started = time.process_time()
    for _ in range(times):
        work()
    return times / (time.process_time() - started)

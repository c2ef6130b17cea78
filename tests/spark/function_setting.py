"""A stream and an engine of functions on a real Spark session, and what its handlers saw.

Each handler appends a line per call to a file; what it saw is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.events import Event
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.engine import Advanced, Report, Staged
from holdfast.flow.sink import Sink
from holdfast.functions.engine import FunctionEngine, FunctionParts
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.slot_state import SlotRules
from holdfast.leases.lease import Lease, Progress
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.function.sink import output_sinks
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings, shard_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 60.0
BUSY = 5.0
"""Seconds that a machine may take longer than a quiet one to start a Python process."""
HEAD = """
import ctypes, os, signal, time
from pathlib import Path

FOLDER = Path({folder!r})

def note(context, event):
    line = f"{{event.shard_id}} {{event.offset}} {{context.worker_id}} {{os.getpid()}} {{time.monotonic()}}\\n"
    with open(FOLDER / "handled", "a") as file:
        file.write(line)

def once(name):
    try:
        os.close(os.open(FOLDER / name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False
"""


@dataclass(frozen=True)
class Call:
    shard: int
    offset: int
    worker: int
    pid: int
    at: float


@dataclass
class Setting:
    """A stream, an engine and what was reported."""

    spark: SparkSession
    folder: Path
    engines: list[FunctionEngine] = field(default_factory=list)
    usable_until: float = float("inf")
    longest_grant: float = 8.0
    reports: list[Report] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    committed: dict[int, Any] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)

    def stream(self, shards: int) -> Stream:
        self._stream = Stream.create(self.folder, "s", StreamSettings(shards))
        return self._stream

    def put(self, shard: int, number: int) -> None:
        self._stream.append(shard, [NewRecord(b"record") for _ in range(number)])

    def start(
        self, handler: str, rules: SlotRules | None = None, files: FilesSink | None = None, **config: Any
    ) -> FunctionEngine:
        source = self.folder / f"handlers{len(self.engines)}.py"
        source.write_text(HEAD.format(folder=str(self.folder)) + handler)
        settings = FunctionConfig.model_validate({"handler": str(source), "commit_interval": "100ms", **config})
        reader = EmbeddedReaderFactory(self.folder, "s", self._stream.id)
        usable = lambda: min(self.usable_until - time.monotonic(), self.longest_grant)  # noqa: E731
        sinks: dict[str, Sink] = {} if files is None else {"files": files}
        output = output_sinks(sinks, {"value": "string"}) if sinks else None
        parts = FunctionParts(reader, settings, drain_within=2.0, sinks=sinks, output=output)
        engine = FunctionEngine(self.spark, parts, usable, self.events.append, rules)
        self.engines.append(engine)
        return engine

    def assign_again(self, shard: int, start: int, end: int) -> str:
        """Let the rows of a commit be staged once more."""
        lease, cut = Lease("p", shard_id("s", shard)), Cut({"offset": start}, {"offset": end})
        batch = Batch(f"again-{start}-{end}", lease, Name("s", str(shard)), cut, restages="commit")
        self.batches[batch.id] = shard
        self.engines[-1].submit("p", [batch])
        return batch.id

    def assign(self, *shards: int, acked: tuple[tuple[int, int], ...] = ()) -> list[str]:
        batches = []
        for shard in shards:
            position = self.committed.get(shard, {"offset": 0})
            lease = Lease("p", shard_id("s", shard), progress=Progress(position, acked))
            batches.append(Batch(f"batch-{len(self.batches)}", lease, Name("s", str(shard)), Cut(position, None)))
            self.batches[batches[-1].id] = shard
        self.engines[-1].submit("p", batches)
        return [batch.id for batch in batches]

    def calls(self) -> list[Call]:
        file = self.folder / "handled"
        lines = file.read_text().splitlines() if file.exists() else []
        rows = [line.split() for line in lines]
        return [Call(int(row[0]), int(row[1]), int(row[2]), int(row[3]), float(row[4])) for row in rows]

    def offsets(self, shard: int) -> list[int]:
        return [call.offset for call in self.calls() if call.shard == shard]

    def is_in_order(self, shard: int) -> bool:
        """Whether every record was handled once, and in order."""
        offsets = self.offsets(shard)
        return offsets == list(range(len(offsets)))

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < deadline, (self.reports[-3:], self.events, self.calls()[-3:])
            for report in self.engines[-1].poll(0.05):
                self.learn(report)

    def learn(self, report: Report) -> None:
        self.reports.append(report)
        if isinstance(report, Advanced):
            self.committed[self.batches[report.batch_id]] = report.position
        elif isinstance(report, Staged):
            self.committed[self.batches[report.batch_id]] = report.end

    def ended(self, *ids: str) -> bool:
        return set(ids) <= {report.batch_id for report in self.reports if not isinstance(report, Advanced)}

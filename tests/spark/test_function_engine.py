"""The engine of functions on a real Spark session: order, acks, hand-over, and workers that die or hang.

Each handler appends a line per call to a file; what it saw is what counts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.buckets.local import LocalBucket
from holdfast.events import Event
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.engine import Advanced, Failed, Report, Staged
from holdfast.flow.sink import Sink
from holdfast.formats.jsonl import Jsonl
from holdfast.functions.engine import FunctionEngine, FunctionParts
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.slot_state import SlotRules
from holdfast.leases.lease import Lease, Progress
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.staging import FilesStager
from holdfast.sinks.function.sink import output_sinks
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings, shard_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

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


@pytest.fixture
def setting(spark: SparkSession, tmp_path: Path) -> Iterator[Setting]:
    made = Setting(spark, tmp_path)
    yield made
    for engine in made.engines:
        engine.close()


def test_records_of_a_shard_are_handled_in_order_and_committed(setting: Setting) -> None:
    setting.stream(4)
    for shard in range(4):
        setting.put(shard, 100)
    # However long a worker takes to come up, it gets its share.
    setting.start("handler = note", SlotRules(patience=PATIENCE), workers=2)
    setting.assign(0, 1, 2, 3)
    setting.wait(lambda: setting.committed == {shard: {"offset": 100} for shard in range(4)})
    assert all(setting.offsets(shard) == list(range(100)) for shard in range(4))
    assert {call.worker for call in setting.calls()} == {0, 1}
    counts = [report.counts.succeeded for report in setting.reports if isinstance(report, Advanced)]
    assert sum(counts) == 400


def test_a_drained_shard_ends_with_the_record_in_hand_and_the_next_owner_goes_on_there(setting: Setting) -> None:
    setting.stream(1)
    setting.put(0, 1000)
    setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.02)")
    ids = setting.assign(0)
    setting.wait(lambda: len(setting.calls()) > 5)
    asked = time.monotonic()
    setting.engines[-1].drain(ids)
    setting.wait(lambda: setting.ended(*ids))
    assert time.monotonic() - asked < 1.5
    staged = setting.reports[-1]
    assert isinstance(staged, Staged)
    assert staged.end == {"offset": len(setting.calls())}
    setting.assign(0)
    handled = len(setting.calls())
    setting.wait(lambda: len(setting.calls()) > handled + 5)
    assert setting.is_in_order(0)


def test_explicit_acks_out_of_order_move_the_position_along_the_prefix(setting: Setting) -> None:
    setting.stream(1)
    setting.put(0, 6)
    setting.start(
        """
import asyncio
from holdfast.functions.events import QualifiedOffset
kept = []
def handler(context, event):
    note(context, event)
    kept.append(QualifiedOffset.from_event(event))
    if event.offset == 5:
        for index in (4, 2, 0):
            asyncio.get_event_loop().run_until_complete(context.platform.explicit_ack(kept[index]))
""",
        ack="explicit_only",
        worker_allocation="static",
    )
    ids = setting.assign(0)
    setting.wait(lambda: setting.committed.get(0) == {"offset": 1})
    progress = setting.reports[-1]
    assert isinstance(progress, Advanced)
    assert progress.acked == ((2, 3), (4, 5))
    setting.engines[-1].cancel(ids)
    setting.assign(0, acked=progress.acked)
    setting.wait(lambda: len(setting.calls()) == 9)
    assert setting.offsets(0)[6:] == [1, 3, 5]


@pytest.mark.parametrize(
    "death",
    ["os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)", "os._exit(3)"],
    ids=["kill", "fault", "exit"],
)
def test_a_worker_that_dies_is_replaced_and_nothing_is_skipped(setting: Setting, death: str) -> None:
    setting.stream(2)
    setting.put(0, 50)
    setting.put(1, 50)
    setting.start(
        f"def handler(context, event):\n    if event.shard_id == 1 and event.offset == 20 and once('died'):\n"
        f"        {death}\n    note(context, event)\n    time.sleep(0.01)",
        workers=2,
        worker_allocation="static",
    )
    setting.assign(0, 1)
    setting.wait(lambda: setting.committed == {0: {"offset": 50}, 1: {"offset": 50}})
    # The other worker goes on; the shard of the one that died goes on at the last position that was reported.
    assert setting.offsets(0) == list(range(50))
    assert len({call.pid for call in setting.calls() if call.shard == 0}) == 1
    again = setting.offsets(1)
    assert again[:20] == list(range(20))
    assert again[20] <= 20
    assert again[20:] == list(range(again[20], 50))


def test_a_record_that_kills_every_worker_fails_its_shard_and_no_other(setting: Setting) -> None:
    setting.stream(2)
    setting.put(0, 200)
    setting.put(1, 5)
    setting.start(
        "def handler(context, event):\n    if event.shard_id == 1 and event.offset == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n    note(context, event)\n    time.sleep(0.01)"
    )
    _, bad = setting.assign(0, 1)
    setting.wait(lambda: setting.ended(bad) and setting.committed.get(0) == {"offset": 200})
    failed = next(report for report in setting.reports if isinstance(report, Failed))
    assert failed.batch_id == bad
    assert "record 3" in failed.error


def test_a_handler_that_hangs_is_ended_and_delays_the_other_shards_of_its_worker_little(setting: Setting) -> None:
    setting.stream(2)
    setting.put(0, 3)
    setting.put(1, 1)
    setting.start(
        "def handler(context, event):\n    note(context, event)\n"
        "    if event.shard_id == 1 and once('hung'):\n        time.sleep(1000)",
        timeout="500ms",
    )
    setting.assign(0, 1)
    setting.wait(lambda: 1 in {call.shard for call in setting.calls()})
    setting.put(0, 1)
    setting.wait(lambda: setting.committed == {0: {"offset": 4}, 1: {"offset": 1}})
    hung = next(call for call in setting.calls() if call.shard == 1)
    after = next(call for call in setting.calls() if call.at > hung.at and call.pid != hung.pid)
    assert after.at - hung.at < 0.5 + 1.5 + BUSY
    assert setting.offsets(1) == [0, 0]


def test_workers_of_a_driver_whose_session_is_not_renewed_stop_by_themselves(setting: Setting) -> None:
    setting.longest_grant = 1.0
    setting.stream(1)
    setting.put(0, 10_000)
    setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.002)")
    setting.assign(0)
    setting.wait(lambda: len(setting.calls()) > 10)
    setting.usable_until = time.monotonic()
    end = setting.usable_until + setting.longest_grant
    setting.wait(lambda: time.monotonic() > end + 1.0)
    assert setting.calls()[-1].at < end + 0.05
    handled = len(setting.calls())
    setting.usable_until = float("inf")
    setting.wait(lambda: len(setting.calls()) > handled + 10)
    assert setting.is_in_order(0)


def test_workers_of_a_driver_that_is_stopped_end_with_their_grant(setting: Setting) -> None:
    """As far as workers see: no grant comes any more, although the connection is there."""
    setting.longest_grant = 1.0
    setting.stream(1)
    setting.put(0, 10_000)
    engine = setting.start("def handler(context, event):\n    note(context, event)\n    time.sleep(0.002)")
    setting.assign(0)
    setting.wait(lambda: len(setting.calls()) > 10)
    with engine._changed:  # nothing is answered while this is held
        stopped = time.monotonic()
        while time.monotonic() < stopped + 2.0:
            time.sleep(0.05)
    # Between the end of the grant and the first one after the pause nothing was handled.
    times = [call.at for call in setting.calls()]
    assert max(later - earlier for earlier, later in itertools.pairwise([*times, time.monotonic()])) > 0.8
    assert not any(stopped + setting.longest_grant + 0.05 < at < stopped + 2.0 for at in times)
    setting.wait(lambda: len(setting.calls()) > len(times) + 10)
    assert setting.is_in_order(0)


def test_a_revoked_shard_is_given_to_nobody_before_its_worker_has_let_go(setting: Setting) -> None:
    setting.stream(1)
    setting.put(0, 3)
    setting.start(
        "def handler(context, event):\n    note(context, event)\n    time.sleep(0.5)\n    note(context, event)",
        workers=2,
    )
    ids = setting.assign(0)
    setting.wait(lambda: len(setting.calls()) == 1)
    setting.engines[-1].cancel(ids)
    setting.assign(0)
    setting.wait(lambda: len(setting.calls()) >= 8)
    assert setting.offsets(0)[:8] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert not setting.ended(*ids)


RETURNING = """
import holdfast

def handler(context, event):
    note(context, event)
    return holdfast.Records([f'{{"row": {event.offset}}}'])
"""


def staged_items(report: Report) -> list[tuple[int, int]]:
    assert isinstance(report, Advanced | Staged)
    return [(file["first"], file["last"]) for file in report.receipts["files"]["files"]]


def test_a_shard_reports_its_next_rows_when_the_last_ones_are_published(setting: Setting) -> None:
    files = FilesSink("files", bucket := LocalBucket(setting.folder / "out"), FilesStager(bucket, Jsonl()))
    setting.stream(1)
    setting.put(0, 3)
    engine = setting.start(RETURNING, files=files)
    ids = setting.assign(0)
    setting.wait(lambda: bool(setting.committed))
    setting.put(0, 2)
    setting.wait(lambda: len(setting.calls()) == 5)
    (first,) = setting.reports
    assert isinstance(first, Advanced)
    assert staged_items(first) == [(0, first.position["offset"] - 1)]

    def is_through() -> bool:
        engine.published(ids)
        return bool(setting.committed[0] == {"offset": 5})

    setting.wait(is_through)
    staged = [item for report in setting.reports for item in staged_items(report)]
    assert [item for start, end in staged for item in range(start, end + 1)] == [0, 1, 2, 3, 4]


def test_rows_of_a_commit_that_are_lost_are_made_again_from_its_records(setting: Setting) -> None:
    files = FilesSink("files", bucket := LocalBucket(setting.folder / "out"), FilesStager(bucket, Jsonl()))
    setting.stream(1)
    setting.put(0, 9)
    setting.start(RETURNING, files=files, ack="explicit_only", worker_allocation="static")
    again = setting.assign_again(0, 2, 5)
    setting.wait(lambda: setting.ended(again))
    staged = setting.reports[-1]
    assert isinstance(staged, Staged)
    assert (staged.end, staged_items(staged), setting.offsets(0)) == ({"offset": 5}, [(2, 4)], [2, 3, 4])

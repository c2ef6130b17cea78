"""The loop of a worker: how often it reads and reports, and what it says about its stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SourceUnavailable
from holdfast.flow.shards import Lag, ReaderFactory, RecordsMissing, ShardReader, ShardReport, StreamRecord
from holdfast.flow.staging import Stager, Staging
from holdfast.functions import messages, task
from holdfast.functions.channel import Address
from holdfast.functions.messages import Up, decode_up
from holdfast.functions.output import OutputSinks
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.task import TaskSettings, WorkerTask
from holdfast.leases.lease import Json
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import Stream, StreamSettings, shard_id

HANDLER = "def handler(context, event):\n    pass\n"
LINE = re.compile(
    r'"message":"Got event","more":"shard_id=(\d+) \|\| body=shard-\1-record-(\d+) \|\| worker_id=0"', re.ASCII
)
OUTPUT = ["p", "s/0", "s", "0", 1, 1, ""]
EACH = 0.001
"""Seconds that a read takes by the test's clock."""


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeStream(ShardReader):
    """A shard that always has more records. A reader and its factory."""

    clock: Clock
    reads: list[tuple[float, int]] = field(default_factory=list)
    """Time and limit."""
    next: int = 0
    away: bool = False
    reported: list[ShardReport] = field(default_factory=list)

    def open(self) -> FakeStream:
        return self

    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        self.reads.append((self.clock.now, limit))
        self.clock.now += EACH
        if self.away:
            raise SourceUnavailable("broker:9092 does not respond")
        first, self.next = self.next, self.next + limit
        return [StreamRecord("s/0", offset, 0, None, (), b"") for offset in range(first, self.next)]

    def add(self, shard: str, position: Json) -> None:
        pass

    def remove(self, shard: str) -> None:
        pass

    pause = resume = remove

    def close(self) -> None:
        pass

    def reports(self) -> list[ShardReport]:
        reports, self.reported = self.reported, []
        return reports

    def lag(self, shard: str) -> Lag:
        return Lag(None, None)

    def position_at(self, offset: int) -> Json:
        return offset

    def position_after(self, offset: int) -> Json:
        return offset + 1


@dataclass
class FakeChannel:
    clock: Clock
    sent: list[tuple[float, Up]] = field(default_factory=list)

    def send(self, payload: bytes) -> None:
        self.sent.append((self.clock.now, decode_up(payload)))

    def all(self, kind: type[Up]) -> list[tuple[float, Any]]:
        return [(at, message) for at, message in self.sent if isinstance(message, kind)]


@dataclass
class Worker:
    task: WorkerTask
    stream: FakeStream
    channel: FakeChannel
    clock: Clock

    def work(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.task._turn()


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    tasks: list[WorkerTask] = []

    def started(
        handler: str = HANDLER, reader: ReaderFactory | None = None, sinks: OutputSinks | None = None, **config: Any
    ) -> Worker:
        (tmp_path / "handler.py").write_text(handler)
        clock = Clock()
        monkeypatch.setattr("holdfast.functions.task.time.sleep", clock.sleep)
        monkeypatch.setattr(task, "boot_time", clock)
        stream, channel = FakeStream(clock), FakeChannel(clock)
        settings = FunctionConfig.model_validate({"handler": str(tmp_path / "handler.py"), **config})
        given = TaskSettings(Address("h", 1, b"s"), 0, 1, reader or stream, settings, sinks=sinks)
        made = WorkerTask(given, channel)  # type: ignore[arg-type]
        tasks.append(made)
        made.until = float("inf")
        if reader is None:
            made._obey(messages.Assign("batch", "s/0", 0, spec={"stream": "s", "number": 0, "output": OUTPUT}))
        return Worker(made, stream, channel, clock)

    yield started
    for made in tasks:
        made._worker.close()


def test_reads_are_as_large_as_the_setting_and_follow_each_other_without_a_pause(start: Start) -> None:
    worker = start(read_batch_size=7)
    worker.work(1.0)
    assert {limit for _, limit in worker.stream.reads} == {7}
    assert len(worker.stream.reads) > 500


def test_two_reads_are_a_polling_interval_apart(start: Start) -> None:
    worker = start(polling_interval="250ms")
    worker.work(2.0)
    times = [at for at, _ in worker.stream.reads]
    assert len(times) >= 7
    assert all(0.25 <= later - earlier < 0.3 for earlier, later in pairwise(times))


def test_a_worker_obeys_its_driver_between_two_reads(start: Start) -> None:
    worker = start(polling_interval="1h")
    worker.work(1.0)
    worker.task._inbox.append(messages.Drain("batch", 1.0))
    worker.work(0.1)
    ((_, drained),) = worker.channel.all(messages.Drained)
    assert drained.position == worker.stream.next
    assert len(worker.stream.reads) == 1


def test_progress_is_reported_within_a_commit_interval_and_not_for_each_record(start: Start) -> None:
    worker = start(commit_interval="2s")
    worker.work(10.0)
    reports = worker.channel.all(messages.Progress)
    assert 9 <= len(reports) <= 11
    assert all(later - earlier >= 1.0 for (earlier, _), (later, _) in pairwise(reports))
    worker.work(2.0)
    assert worker.channel.all(messages.Progress)[-1][1].position > reports[-1][1].position


def test_a_worker_says_that_its_stream_is_away_and_that_it_is_back_once_each(start: Start) -> None:
    worker = start()
    worker.stream.away = True
    worker.work(1.0)
    worker.stream.away = False
    worker.work(1.0)
    assert [note.text for _, note in worker.channel.all(messages.Notice)] == [
        "the shards wait for their stream: broker:9092 does not respond",
        "the stream responds",
    ]
    assert worker.task._held


def test_a_gap_that_does_not_halt_the_shard_is_said(start: Start) -> None:
    worker = start()
    worker.stream.reported.append(RecordsMissing("s/0", 3, 2**190, halted=False))
    worker.work(0.1)
    assert [lost for _, lost in worker.channel.all(messages.Lost)] == [messages.Lost("s/0", 3, 2**190)]
    assert worker.task._held


def documented(language: str) -> str:
    """The block of Nuclio's example in that language."""
    page = (Path(__file__).parents[3] / "docs/how-to/write-a-function.md").read_text()
    section = page.split("## Nuclio's example")[1]
    return section.split(f"```{language}\n")[1].split("```")[0]


def test_nuclios_example_logs_every_record_of_every_shard_in_order(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """32 shards with 10 records each; the handler sleeps for five seconds of the test's clock."""
    stream = Stream.create(tmp_path, "users.test-stream-0", StreamSettings(32, 86_400.0))
    for shard in range(32):
        stream.append(shard, [NewRecord(f"shard-{shard}-record-{number}".encode()) for number in range(1, 11)])
    factory = EmbeddedReaderFactory(tmp_path, stream.name, stream.id)
    worker = start(documented("python"), factory)
    for shard in range(32):
        spec = {"stream": stream.name, "number": shard}
        worker.task._obey(messages.Assign(f"b{shard}", shard_id(stream.name, shard), {"offset": 0}, spec=spec))
    worker.work(320 * 5.0 + 60)
    logged = LINE.findall("".join(capfd.readouterr()))
    assert len(logged) == 320
    for shard in range(32):
        assert [int(number) for found, number in logged if int(found) == shard] == list(range(1, 11))
    last = {message.id: message.position for _, message in worker.channel.all(messages.Progress)}
    assert last == {f"b{shard}": {"offset": 10} for shard in range(32)}


class Broken(Stager):
    """A sink that cannot stage the rows of any handler."""

    def columns(self, fields: Any) -> Any:
        return {}

    def begin(self) -> Staging:
        raise RuntimeError("no such column")


def test_a_shard_that_stops_with_rows_that_cannot_be_staged_ends_once(start: Start) -> None:
    code = (
        "import holdfast\n\n\ndef handler(context, event):\n"
        "    if event.offset:\n        raise ValueError('no')\n    return holdfast.Records([{'id': 1}])\n"
    )
    sinks = OutputSinks({"id": "long"}, {"files": (Broken(), ("id",))})
    worker = start(code, sinks=sinks, on_error={"max_retries": 0, "after_retries": "stop"}, commit_interval="1h")
    worker.task._report_at = float("inf")
    worker.work(1.0)
    ((_, failed),) = worker.channel.all(messages.Failed)
    assert "no such column" in failed.error

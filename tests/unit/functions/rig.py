"""A worker on handlers that a test writes, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.flow.shards import Headers, StreamRecord
from holdfast.functions.caller import WorkerClock
from holdfast.functions.events import EventOrigin, QualifiedOffset, TriggerInfo
from holdfast.functions.settings import FunctionConfig
from holdfast.functions.shard_calls import ShardProgress
from holdfast.functions.watchdog import CallWatchdog
from holdfast.functions.worker import FunctionWorker

EPOCH_2026 = 1_767_225_600_000


def Rec(  # noqa: N802 (reads as the record that it makes)
    offset: int,
    body: bytes | None = b"",
    headers: Headers = (),
    key: bytes | None = None,
    timestamp: int = EPOCH_2026,
) -> StreamRecord:
    return StreamRecord("0", offset, timestamp, key, headers, body)


class Numbers:
    """Positions that are the offset of the next record."""

    def position_at(self, offset: int) -> int:
        return offset

    def position_after(self, offset: int) -> int:
        return offset + 1


@dataclass
class Rig:
    """A worker and what it has done."""

    worker: FunctionWorker
    time: list[float]
    log: list[Mapping[str, str]]
    forwarded: list[QualifiedOffset]
    taken: dict[str, ShardProgress] = field(default_factory=dict)
    letters: list[tuple[int, int]] = field(default_factory=list)
    """Offset and attempts of dead records."""

    def assign(self, *shards: int, start: int = 0, acked: Sequence[tuple[int, int]] = ()) -> None:
        for shard in shards:
            origin = EventOrigin("users/test", shard, TriggerInfo("stream", "t"))
            self.worker.assign(str(shard), origin, start, acked)

    def feed(self, *records: StreamRecord, shard: int = 0) -> None:
        self.worker.feed(str(shard), records)

    def feed_offsets(self, *offsets: int, shard: int = 0) -> None:
        self.feed(*(Rec(offset, f"shard-{shard}-record-{offset}".encode()) for offset in offsets), shard=shard)

    def settle(self, limit: int = 200) -> None:
        """Step, and turn the clock to the next time that something is due, until nothing is."""
        for _ in range(limit):
            self.worker.step()
            due = self.worker.wake_at()
            if due is None:
                return
            self.time[0] = max(self.time[0], due)
        raise AssertionError("the worker does not come to rest")

    def row(self, shard: int = 0) -> tuple[Any, Any]:
        """Position and acked ranges, as the row of the lease would have them."""
        for progress in self.worker.progress(Numbers()):
            self.taken[progress.id] = progress
            self.letters += [(letter.record.offset, letter.attempts) for letter in progress.letters]
        progress = self.taken[str(shard)]
        return progress.position, progress.acked

    @property
    def seen(self) -> list[Any]:
        """What the handler has put into `context.user_data.seen`."""
        return list(self.worker.function.context.user_data.seen)


SEEN = """
def init_context(context):
    context.user_data.seen = []
"""


@contextmanager
def rig(folder: Path, code: str, **settings: Any) -> Iterator[Rig]:
    """A worker on this handler; it is closed at the end."""
    path = folder / f"handler_{len(list(folder.iterdir()))}.py"
    path.write_text(code if "init_context" in code else SEEN + code)
    config = FunctionConfig.model_validate({"handler": str(path), **settings})
    time, log, forwarded = [1000.0], list[Mapping[str, str]](), list[QualifiedOffset]()
    worker = FunctionWorker(
        config,
        write_log=log.append,
        forward=forwarded.append,
        clock=WorkerClock(lambda: time[0], lambda: EPOCH_2026 / 1000 + time[0] - 1000),
        watchdog=CallWatchdog(config.timeout, lambda _: None, lambda: None),
    )
    try:
        yield Rig(worker, time, log, forwarded)
    finally:
        worker.close()

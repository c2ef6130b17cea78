"""Reads shards of an embedded stream inside a task: the `ShardReader` of the source `stream`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from holdfast.errors import BatchError, Halt, SourceUnavailable
from holdfast.flow.shards import Lag, RecordsMissing, ShardFailed, ShardReader, ShardReport, StreamRecord
from holdfast.leases.lease import Json
from holdfast.sources.stream.cursor import Cursor, Gap
from holdfast.sources.stream.ends import Ends
from holdfast.sources.stream.stream import Stream, shard_folder, shard_id, shard_number

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.005
"""Seconds between two looks at the ends of the shards: the longer nothing comes, the fewer."""
SLOWS_AFTER = 1.0
"""Seconds without a record after which the pauses become longer."""
CHECK_EVERY = 1.0
"""Seconds after which the reader looks whether the stream still exists."""


@dataclass
class _Reading:
    """One shard that is being read: where it is, and what was read and not fetched yet."""

    cursor: Cursor
    waiting: list[StreamRecord] = field(default_factory=list)
    fetched: int = 0
    """How many of the waiting records were fetched."""
    stopped: bool = False

    def has_more(self) -> bool:
        return bool(self.waiting) or (not self.stopped and self.cursor.is_behind())

    def take(self, limit: int) -> list[StreamRecord]:
        taken = self.waiting
        if self.fetched or len(taken) > limit:
            taken = taken[self.fetched : self.fetched + limit]
        self.fetched += len(taken)
        if self.fetched >= len(self.waiting):
            self.waiting, self.fetched = [], 0
        return taken

    @property
    def next(self) -> int:
        """The offset of the next record to fetch."""
        return self.waiting[self.fetched].offset if self.waiting else self.cursor.next


@dataclass(frozen=True)
class EmbeddedReaderFactory:
    """Opens readers of one stream. A `ReaderFactory`."""

    folder: Path
    name: str
    id: str
    """The id of the stream: another stream of the same name is not read."""
    on_loss: str = "halt"

    def open(self) -> EmbeddedReader:
        return EmbeddedReader(self)


class EmbeddedReader(ShardReader):
    """Reads shards of one stream on this host."""

    def __init__(self, factory: EmbeddedReaderFactory, clock: Callable[[], float] = time.monotonic) -> None:
        self._factory, self._clock = factory, clock
        self._ends: Ends | None = None
        self._added: dict[str, Json] = {}
        self._readings: dict[str, _Reading] = {}
        self._paused: set[str] = set()
        self._reports: list[ShardReport] = []
        self._picture = b""
        self._checked_at, self._last_record_at = clock(), clock()

    def add(self, shard: str, position: Json) -> None:
        self.remove(shard)
        self._added[shard] = position

    def remove(self, shard: str) -> None:
        self._added.pop(shard, None)
        self._readings.pop(shard, None)
        self._paused.discard(shard)

    def pause(self, shard: str) -> None:
        self._paused.add(shard)

    def resume(self, shard: str) -> None:
        if shard in self._paused:
            self._paused.discard(shard)
            self._picture = b""

    def fetch(self, limit: int, timeout: float) -> list[StreamRecord]:
        found = [records for _, records in self.fetch_by_shard(limit, timeout)]
        return found[0] if len(found) == 1 else [*chain.from_iterable(found)]

    def fetch_by_shard(self, limit: int, timeout: float) -> list[tuple[str, list[StreamRecord]]]:
        deadline = self._clock() + timeout
        while True:
            ends = self._opened()
            self._begin()
            picture = ends.picture()
            records = self._collected(limit) if picture != self._picture else []
            now = self._clock()
            if records:
                self._last_record_at = now
                return records
            # Nothing was left before this picture was taken.
            self._picture = picture
            if now - self._checked_at >= CHECK_EVERY:
                self._check(now)
            if self._reports or now >= deadline:
                return []
            idle = now - self._last_record_at
            pause = SHORTEST_PAUSE if idle < SLOWS_AFTER else LONGEST_PAUSE
            time.sleep(max(0.0, min(pause, deadline - now)))

    def reports(self) -> list[ShardReport]:
        reports, self._reports = self._reports, []
        return reports

    def lag(self, shard: str) -> Lag:
        reading = self._readings.get(shard)
        if reading is None or self._ends is None:
            return Lag(None, None)
        end = self._ends.get(shard_number(shard))
        return Lag(None if end is None else max(0, end - reading.next), None)

    def position_at(self, offset: int) -> Json:
        return {"offset": offset}

    def position_after(self, offset: int) -> Json:
        return {"offset": offset + 1}

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
        self._ends = None
        self._readings.clear()

    # --- the stream ------------------------------------------------------------------------------------------------

    def _opened(self) -> Ends:
        if self._ends is None:
            self._check(self._clock())
            self._ends = Ends(self._factory.folder / self._factory.name, writable=False)
        return self._ends

    def _check(self, now: float) -> None:
        """Check that this is still the same stream. Raises `SourceUnavailable` if the stream cannot be opened."""
        stream = Stream.open(self._factory.folder, self._factory.name)
        self._checked_at = now
        if stream.id != self._factory.id:
            for shard in [*self._added, *(shard for shard, reading in self._readings.items() if not reading.stopped)]:
                self._fail(shard, f"stream {self._factory.name} was deleted and created again", halt=True)
            self._added.clear()

    def _begin(self) -> None:
        """Begin to read the shards that were added."""
        if not self._added:
            return
        added, self._added = self._added, {}
        stream, ends = self._factory.folder / self._factory.name, self._opened()
        for shard, position in added.items():
            offset = position.get("offset") if isinstance(position, dict) else None
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                self._fail(shard, f"the position {position!r} is not an offset")
            elif (number := _number_in(self._factory.name, shard, ends.shards)) is None:
                self._fail(shard, f"{shard!r} is not a shard of stream {self._factory.name}")
            else:
                cursor = Cursor(shard_folder(stream, number), shard, number, ends, offset)
                self._readings[shard] = _Reading(cursor)
                self._picture = b""

    def _fail(self, shard: str, error: str, *, halt: bool = False) -> None:
        if shard in self._readings:
            self._readings[shard].stopped = True
        self._reports.append(ShardFailed(shard, error, halt))

    # --- records ---------------------------------------------------------------------------------------------------

    def _collected(self, limit: int) -> list[tuple[str, list[StreamRecord]]]:
        """Records of all shards that have some, beginning with an equal share of each."""
        reading = ((shard, found) for shard, found in self._readings.items() if shard not in self._paused)
        ready = [shard for shard, found in reading if found.has_more()]
        records: list[tuple[str, list[StreamRecord]]] = []
        while ready and limit > 0:
            share = max(1, limit // len(ready))
            served = {shard: self._taken(shard, share) for shard in ready[:limit]}
            for shard, taken in served.items():
                if taken:
                    records.append((shard, taken))
                    limit -= len(taken)
                    # A shard that was served comes last the next time.
                    self._readings[shard] = self._readings.pop(shard)
            ready = [shard for shard in ready if served.get(shard, True) and self._readings[shard].has_more()]
        return records

    def _taken(self, shard: str, limit: int) -> list[StreamRecord]:
        reading = self._readings[shard]
        if not reading.waiting and not reading.stopped:
            self._fill(shard, reading)
        return reading.take(limit)

    def _fill(self, shard: str, reading: _Reading) -> None:
        try:
            while isinstance(found := reading.cursor.read(), Gap):
                reading.stopped = self._factory.on_loss == "halt"
                self._reports.append(RecordsMissing(shard, found.start, found.end, reading.stopped))
                if reading.stopped:
                    return
                reading.cursor.skip(found)
            reading.waiting = found
        except (BatchError, Halt) as error:
            self._fail(shard, str(error), halt=isinstance(error, Halt))
        except OSError as error:
            raise SourceUnavailable(f"{shard} cannot be read: {os.strerror(error.errno or 0)}") from error


def _number_in(name: str, shard: str, shards: int) -> int | None:
    number = shard_number(shard)
    return number if 0 <= number < shards and shard == shard_id(name, number) else None

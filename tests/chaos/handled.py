"""What handlers have noted, and whether it is right: order per shard, no gap, nothing twice without a reason.

A handler appends a line to the file of its shard when it begins a record, ends it and has acknowledged it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

HANDLER = """
import asyncio
import os
import random
import time

import nuclio

FOLDER = os.environ["HANDLED"]
FIRST_ACKS = 4


def note(kind, shard, offset):
    with open(f"{FOLDER}/{shard}", "ab", buffering=0) as file:
        file.write(f"{kind} {offset} {os.getpid()} {time.time():.3f}\\n".encode())


def init_context(context):
    context.user_data.kept = {}

    async def acknowledge_all():
        for kept in context.user_data.kept.values():
            await acknowledge(context, kept)

    context.platform.set_drain_callback(acknowledge_all)


async def handler(context, event):
    note("begin", event.shard_id, event.offset)
    await asyncio.sleep(0.005)
    kept = context.user_data.kept.setdefault(event.shard_id, [])
    kept.append(nuclio.QualifiedOffset.from_event(event))
    note("end", event.shard_id, event.offset)
    if len(kept) >= FIRST_ACKS:
        await acknowledge(context, kept)


async def acknowledge(context, kept):
    random.shuffle(kept)
    while kept:
        offset = kept.pop()
        await context.platform.explicit_ack(offset)
        note("ack", offset.partition, offset.offset)
"""
"""Keeps some records of each shard, and acknowledges them in any order."""


@dataclass(frozen=True, slots=True)
class Line:
    kind: str
    offset: int
    process: int
    at: float


@dataclass(frozen=True, slots=True)
class Committed:
    """How far a shard was committed when its file had so many lines."""

    lines: int
    position: int
    acked: Sequence[tuple[int, int]] = ()

    def covers(self, offset: int) -> bool:
        return offset < self.position or any(start <= offset < end for start, end in self.acked)


@dataclass
class Handled:
    """The lines of all shards, and what was done to the processes that wrote them."""

    folder: Path
    struck: set[int] = field(default_factory=set)
    """Processes that were killed or stood still: what they had in hand may be handled again."""
    commits: dict[int, list[Committed]] = field(default_factory=dict)

    def lines(self, shard: int, last: int | None = None) -> list[Line]:
        """All lines of a shard, or only the whole ones among so many bytes at the end."""
        file = self.folder / str(shard)
        data = file.read_bytes() if file.exists() else b""
        if last is not None and len(data) > last:
            data = data[-last:].partition(b"\n")[2]
        words = (line.split() for line in data.decode().splitlines())
        return [Line(kind, int(offset), int(process), float(at)) for kind, offset, process, at in words]

    def note_committed(self, positions: Mapping[int, tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Note what is committed now: none of it may be begun from now on."""
        for shard, (position, acked) in positions.items():
            # Counted after the position was read, so that only later lines are judged by it.
            lines = len(self.lines(shard))
            self.commits.setdefault(shard, []).append(Committed(lines, position, acked))

    def workers(self, shard: int) -> set[int]:
        return {line.process for line in self.lines(shard)}

    def wrong(self, shard: int, records: int) -> Iterator[str]:
        """What is wrong with a shard that has so many records."""
        lines = self.lines(shard)
        yield from self._out_of_order(shard, lines)
        yield from self._after_commit(shard, lines)
        missing = set(range(records)) - {line.offset for line in lines if line.kind == "end"}
        if missing:
            yield f"shard {shard}: {len(missing)} of {records} records were not handled, the first is {min(missing)}"

    def _out_of_order(self, shard: int, lines: Sequence[Line]) -> Iterator[str]:
        last: dict[int, Line] = {}
        highest = -1
        for line in lines:
            if line.kind != "begin":
                continue
            earlier = last.get(line.offset)
            if line.offset > highest + 1:
                yield f"shard {shard}: {line.offset} was begun after {highest}"
            if earlier is not None and earlier.process not in self.struck:
                yield (
                    f"shard {shard}: {line.offset} was begun by {line.process} at {line.at}, and before by "
                    f"{earlier.process} at {earlier.at}, to which nothing was done"
                )
            highest, last[line.offset] = max(highest, line.offset), line

    def _after_commit(self, shard: int, lines: Sequence[Line]) -> Iterator[str]:
        for committed in self.commits.get(shard, ()):
            later = (line for line in lines[committed.lines :] if line.kind == "begin")
            line = next((line for line in later if committed.covers(line.offset)), None)
            if line is not None:
                yield f"shard {shard}: {line.offset} was begun by {line.process} at {line.at} after it was committed"

    def repeated(self, shard: int) -> int:
        begun = [line.offset for line in self.lines(shard) if line.kind == "begin"]
        return len(begun) - len(set(begun))

    def pauses(self, shard: int) -> list[float]:
        """Seconds between the last record of a process that was not struck and the next one, by another process."""
        lines = [line for line in self.lines(shard) if line.kind != "ack"]
        return [
            after.at - before.at
            for before, after in pairwise(lines)
            if before.process != after.process and before.process not in self.struck
        ]

"""The list of a phase's partitions, stored as a whole before a row of them is added.

Two calls of a driver may find different partitions, for example because a table has changed. If rows of both were
mixed, ranges would overlap or leave gaps. So a driver first stores its list under its own token, and then names the
list in the run's row, which is fenced. Rows are only added from a list that the run's row names: every node that adds
them, however late, adds the same ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

from holdfast.errors import LeaseLost, Refused
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Json, Key, Lease, Ownership, Partition, Progress, Status
from holdfast.leases.store import SMALLEST_BODY
from holdfast.leases.writes import ensure_rows, until_answered

CHUNK_BYTES = SMALLEST_BODY // 2
"""Bytes of partitions in one row of the list, unless a single partition is larger."""


class PartitionLimits(NamedTuple):
    """How many partitions a run may have."""

    per_group: int = 10_000
    in_all: int = 50_000


LIMITS = PartitionLimits()


class PartitionList:
    """Lists of partitions of one run. Blocks while the store does not respond; every call may be repeated."""

    def __init__(self, coordinator: Coordinator, limits: PartitionLimits = LIMITS) -> None:
        """`coordinator` is that of the run."""
        self._coordinator = coordinator
        self._limits = limits

    def write(self, partitions: Iterable[Partition], token: int, existing: Counter[str]) -> Json:
        """Store the partitions in the order of claim, and return the reference to the list for the run's row.

        `existing` has the number of partitions of each group. Raises `Refused` if there are too many.
        """
        ordered = sorted(self._bounded(partitions, Counter(existing)), key=_by_claim)
        name = f"{token}-{self._coordinator.world.new_id()}"
        chunks = 0
        for chunk in _chunks([asdict(partition) for partition in ordered]):
            self._write_chunk(self._key(name, chunks), chunk)
            chunks += 1
        return {"list": name, "chunks": chunks}

    def add_rows(self, pending: Json) -> None:
        """Add the rows of all partitions of that list. Raises `LeaseLost` if another driver has added them all."""
        self._coordinator.create(self._read(pending))

    def remove(self, pending: Json) -> None:
        """Remove the list, once the run's row does not name it any more."""
        store, world = self._coordinator.store, self._coordinator.world
        rows = until_answered(world, "store", lambda: store.get(self._keys(pending)))
        until_answered(world, "store", lambda: store.remove([row for row in rows if row is not None]))

    def _bounded(self, partitions: Iterable[Partition], groups: Counter[str]) -> Iterator[Partition]:
        limits = self._limits
        for partition in partitions:
            groups[partition.group] += 1
            if groups[partition.group] > limits.per_group:
                raise Refused(
                    f"group {partition.group!r} has more than {limits.per_group} partitions; make them larger"
                )
            if groups.total() > limits.in_all:
                raise Refused(f"the run has more than {limits.in_all} partitions; make them larger")
            yield partition

    def _write_chunk(self, key: Key, chunk: Sequence[Json]) -> None:
        coordinator = self._coordinator
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=coordinator.world.new_id())
        row = Lease(key.pipeline, key.key, key.run, ownership=never_due, progress=Progress(state=chunk))
        ensure_rows(coordinator.store, coordinator.world, lambda: [row])

    def _read(self, pending: Json) -> Iterator[Partition]:
        store, world = self._coordinator.store, self._coordinator.world
        for key in self._keys(pending):
            (row,) = until_answered(world, "store", partial(store.get, [key]))
            if row is None:
                raise LeaseLost(
                    f"the list {pending['list']} of run {self._coordinator.run!r} is gone: it was added already"
                )
            for fields in row.progress.state:
                yield Partition(**fields)

    def _keys(self, pending: Json) -> list[Key]:
        return [self._key(pending["list"], number) for number in range(pending["chunks"])]

    def _key(self, name: str, number: int) -> Key:
        return Key(f"{self._coordinator.pipeline}/$lists", self._coordinator.run, f"{name}/{number:05d}")


def _chunks(partitions: Iterable[Json]) -> Iterator[list[Json]]:
    chunk: list[Json] = []
    size = 0
    for partition in partitions:
        length = len(json.dumps(partition))
        if chunk and size + length > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(partition)
        size += length
    if chunk:
        yield chunk


def _by_claim(partition: Partition) -> tuple[int, int, str, int]:
    """The order of claim of a run: by priority, then the largest first, so that the last ones are short."""
    return (-partition.priority, -partition.work_units, partition.group, partition.index or 0)

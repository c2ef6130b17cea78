"""A source for `holdfast run`: the numbers from 0 up to a limit, in partitions of a fixed size.

The node discovers, plans, commits and publishes; a source only says which partitions there are, where the next batch of
each ends, and how a batch is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from pydantic import Field

from holdfast import (
    BATCH_COLUMN,
    FAULT_COLUMN,
    ITEM_COLUMN,
    Batch,
    BatchError,
    Cut,
    Done,
    Lease,
    Limits,
    Name,
    Options,
    Partition,
    Plugin,
    PositiveCount,
    Source,
    Wait,
)

BYTES_PER_NUMBER = 8


class RangesConfig(Options):
    """How many numbers there are, and how many of them are one partition."""

    up_to: PositiveCount = Field(description="The first number that is not there any more.")
    partition_size: PositiveCount = Field(1_000_000, description="Numbers in one partition.")


class Ranges(Source):
    """One complete discovery finds everything, so that the pipeline finishes."""

    def __init__(self, config: RangesConfig) -> None:
        self._config = config

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        state["up_to"] = self._config.up_to
        size, up_to = self._config.partition_size, self._config.up_to
        for start in range(0, up_to, size):
            # The spec is kept in the row: a change of the settings later does not move the borders.
            yield Partition(f"{start:020d}", spec={"start": start, "end": min(start + size, up_to)})

    def name(self, lease: Lease) -> Name:
        return Name("numbers", lease.key)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        return [self._next(lease, limits) for lease in leases]

    def _next(self, lease: Lease, limits: Limits) -> Cut | Done:
        position = lease.progress.position
        start = lease.spec["start"] if position is None else position
        end = lease.spec["end"]
        if start >= end:
            return Done()
        count = limits.max_bytes // BYTES_PER_NUMBER
        if limits.max_records is not None:
            count = min(count, limits.max_records)
        cut = min(end, start + max(count, 1))
        return Cut(start, cut, last=cut == end, size=(cut - start) * BYTES_PER_NUMBER)

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:  # noqa: ARG002
        # Imported here, so that `holdfast validate` and `--help` load no Spark.
        from pyspark.sql import functions as sql

        def rows(batch_id: str, start: int, end: int) -> Any:
            return spark.range(start, end, numPartitions=1).select(
                sql.lit(batch_id).alias(BATCH_COLUMN),
                sql.col("id").alias(ITEM_COLUMN),
                sql.lit(None).cast("string").alias(FAULT_COLUMN),
                sql.col("id").alias("number"),
            )

        frames = [rows(batch.id, batch.cut.start, batch.cut.end) for batch in batches]
        # Before a node joins, its pipelines are analysed on the columns of a read without batches.
        return reduce(lambda frame, other: frame.union(other), frames or [rows("", 0, 0)])


PLUGIN = Plugin("ranges", RangesConfig, Ranges, "Numbers from 0 up to a limit.")

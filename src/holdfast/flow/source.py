"""The source: which partitions there are, where the next batch of each ends, and how a batch is read.

Discovering and planning happen on the node and must not need Spark. Reading is lazy, stateless and repeatable: the same
batch may be read by another node after this one died.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Wait
from holdfast.leases.lease import Lease, Partition

BATCH_COLUMN = "_batch"
"""Id of the batch that a row belongs to."""
ITEM_COLUMN = "_item"
"""Where the record begins in its partition: an offset that grows within the partition and names the record."""
FAULT_COLUMN = "_fault"
"""Null for good rows. Else JSON: {"kind": "record" | "batch", "reason": …, "raw": …}, see `holdfast.flow.deadletter`.

Kind "record": this record cannot be handled and belongs to the dead letters. Kind "batch": all of the batch failed."""
SYSTEM_COLUMNS = (BATCH_COLUMN, ITEM_COLUMN, FAULT_COLUMN)


class DirectRead(Protocol):
    """A read that needs no Spark expression: each task makes its rows as Arrow record batches by itself. Picklable.

    Where nothing between source and sinks needs Spark either, rows are then staged by the process that read them, which
    saves the way through the JVM and back.
    """

    @property
    def tasks(self) -> int:
        """How many tasks share the rows."""

    @property
    def schema(self) -> Any:
        """All columns, system columns first, as Spark's `StructType`."""

    def rows(self, task: int) -> Iterator[Any]:
        """The record batches of that task; called in the task. `_batch` may be dictionary-encoded."""


class Source(ABC):
    """One pipeline's source. Every method may be called again with the same arguments."""

    rediscover_after: float | None = None
    """Seconds after which `discover` should run again; None if one complete run finds everything."""

    lives_long: bool = False
    """Whether partitions go on for ever and are shared fairly; else nodes pull the next free one."""

    def open(self) -> None:
        """Check that the source is there and is what the settings say. Raises `SourceUnavailable` or `Refused`."""

    @abstractmethod
    def discover(self, state: dict[str, Any]) -> Iterable[Partition]:
        """Yield partitions in the order in which they should be taken, also those that exist already.

        Runs on one node at a time. `state` is JSON shared by all nodes; changes to it are kept when the iteration
        ends. Raises `SourceUnavailable`; then all of it is tried again later.
        """

    @abstractmethod
    def name(self, lease: Lease) -> Name:
        """How the partition is called in output names. Pure."""

    @abstractmethod
    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        """For each lease, where its next batch ends, starting at its position.

        Answers a `BatchError` (not raised) for a partition that cannot be read as it is. Raises `SourceUnavailable`.
        """

    @abstractmethod
    def read(self, spark: Any, batches: Sequence[Batch]) -> Any:
        """One lazy DataFrame over all batches: the system columns and the source's own.

        An error of one batch becomes a row of that batch with a fault, never a failed job.
        """

    def direct(self, spark: Any, batches: Sequence[Batch]) -> DirectRead | None:  # noqa: ARG002 - most have none
        """The same rows as `read`, without the frame; None if this source has no such way."""
        return None

"""The source: which partitions there are, where the next batch of each ends, and how a batch is read.

A source has four verbs: discover, name, plan and read. What only some sources can do is a capability: an interface of
its own, which a source also implements and for which the loop asks by type. Discovering and planning happen on the node
and must not need Spark. Reading is lazy, stateless and repeatable: the same batch may be read by another node after
this one died.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.errors import Unavailable
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.letter import Rebuilder
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.leases.source_coordinator import SourceCoordinator

BATCH_COLUMN = "_batch"
"""The batch that a row belongs to: its id, or its number among the batches that `read` was given."""
ITEM_COLUMN = "_item"
"""Where the record begins in its partition: an offset that grows within the partition and names the record."""
FAULT_COLUMN = "_fault"
"""Null for good rows. Else JSON: {"kind": …, "reason": …, "raw": …}, see `holdfast.flow.fault`.

Kind "record": this record cannot be handled and belongs to the dead letters. Kind "batch": all of the batch failed.
Kind "unavailable": it failed because the source does not answer, which counts no attempt. Kind "damage": a dead letter,
and the partition ends FAILED, see `SalvagesDamage`. Kind "cut": no record, but where the batch is cut short."""
SYSTEM_COLUMNS = (BATCH_COLUMN, ITEM_COLUMN, FAULT_COLUMN)
SIZE_COLUMN = "_size"
"""Optional: bytes of the record, of which a batch holds at most `Limits.max_bytes`. It is gone when sinks see the row.

A source that gives it reads each batch in one task and in order: the batch is cut short where it is full."""
OUTPUT_FOLDER_COLUMN = "_place"
"""Optional: partition names of the record, joined by `/`, as a parser found them. Sinks of files keep places apart."""
OPTIONAL_COLUMNS = (SIZE_COLUMN, OUTPUT_FOLDER_COLUMN)


class TaskRows(Protocol):
    """Rows that tasks make themselves, as Arrow record batches, without a Spark expression. Picklable.

    Where nothing between source and sinks needs Spark either, rows are staged by the process that read them, which
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

    found_again_within: float = 0.0
    """Seconds for which `discover` may yield a complete partition again: if the store forgets its row before that, it
    is read again."""

    def open(self) -> None:
        """Check that the source is there and is what the settings say. Raises `Unavailable` or `Refused`."""

    def close(self) -> None:
        """Give back what was opened. May be called again; never raises."""

    @abstractmethod
    def discover(self, state: dict[str, Any]) -> Iterable[Partition | None]:
        """Yield partitions in the order in which they should be taken, also those that exist already.

        Runs on one node at a time, in a thread of its own. `state` is JSON shared by all nodes; changes to it are kept
        when the iteration ends. None is a sign of life, for where the search goes on for minutes and finds nothing.
        Raises `Unavailable`; then all of it is tried again later.
        """

    @abstractmethod
    def name(self, lease: Lease) -> Name:
        """How the partition is called in output names. Pure."""

    @abstractmethod
    def plan(self, leases: Sequence[Lease], limits: Limits) -> Sequence[Plan]:
        """For each lease, where its next batch ends, starting at its position.

        Returns (does not raise) a `BatchError` for a partition that cannot be read as it is, and a `Halt` where going
        on would lose or mix up data. Raises `Unavailable`. Any other error is an attempt of the partition for
        which it is raised: the call is made again for halves of the leases until that one is alone.
        """

    @abstractmethod
    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        """The rows of all batches, the system columns first: a lazy DataFrame, or `TaskRows`.

        `columns` are the only data columns that are needed; None means all. It is given to sources with `FixedColumns`
        alone, and more columns than these do no harm. A read that can have no faults may leave out the column of
        faults. An error of one batch becomes a row of that batch with a fault, never a failed job.
        """


# --- capabilities: what a source may also be -----------------------------------------------------------------------


class FixedColumns(ABC):
    """The data columns are known before anything is read, so that `read` can leave out those that nobody needs."""

    @abstractmethod
    def columns(self) -> Any:
        """The data columns as Spark's `StructType`. Does not block."""


class CountsScans(ABC):
    """Discovery runs a number of times, or as often as its own state says."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """Whether there may be a last discovery."""

    @abstractmethod
    def next_scan_after(self, state: dict[str, Any]) -> float | None:
        """Seconds after which to discover again, once a discovery has ended with this state; None means never."""


class CutsShort(ABC):
    """A batch may end before its planned end: at the item where the sinks or the limits stopped it."""

    @abstractmethod
    def cut_short(self, batch: Batch, item: int) -> Json:
        """The position after a batch that was cut short before that item. Pure."""


class OffsetPositions(CutsShort):
    """Positions are `{"offset": item}`: the next item to read, whatever the batch."""

    def position(self, item: int) -> Json:
        """The position whose next record is that item. Pure."""
        return {"offset": item}

    def cut_short(self, batch: Batch, item: int) -> Json:  # noqa: ARG002 - the item is enough
        return self.position(item)


class SalvagesDamage(ABC):
    """Rows with the fault `damage` are dead letters, and what is good in their batch is committed and published."""

    @abstractmethod
    def damaged(self, end: Json, reason: str) -> Json:
        """The position after a batch that ended there with damage. Pure; may be called twice.

        A later plan then returns `BeyondRepair` instead of `Done`.
        """


class AfterPublish(ABC):
    """Something is to be done where the data came from before a partition is complete, such as deleting an object.

    Such a source plans `Done` for what it has read.
    """

    @abstractmethod
    def after_publish(self, leases: Sequence[Lease]) -> Sequence[Unavailable | None]:
        """Everything of these partitions is visible in all sinks; those for which this returns None are complete.

        Blocks. Called again for the others, and by another node if this one dies before it is recorded.
        """


class HearsOfStaging(ABC):
    """Later plans learn from what was staged."""

    @abstractmethod
    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        """A batch of this node was staged up to `end`: so many rows and bytes. Pure bookkeeping."""


class HearsOfPublishing(ABC):
    """Others are told how far the output is, such as a consumer group."""

    @abstractmethod
    def published(self, leases: Sequence[Lease]) -> None:
        """Everything before the positions of these leases is visible. Never raises, never waits."""


class KnowsExtents(ABC):
    """How much is there can be told, so that output folders can be declared final."""

    @abstractmethod
    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        """For each lease the next offset to read, and the first one that is not there yet; None where it is unknown.

        What is there and cannot be read yet counts, too: folders that it may belong to must stay open. Called by a
        thread of its own. Raises `Unavailable`.
        """


class Rebuilds(ABC):
    """Dead letters can be sent through the pipeline again."""

    @abstractmethod
    def rebuilder(self) -> Rebuilder:
        """How rows are made of the records that dead letters keep. Needs no Spark."""


class WeighsPartitions(ABC):
    """Partitions may be so small that a node should hold more of them."""

    @abstractmethod
    def is_light(self, leases: Sequence[Lease]) -> bool:
        """Whether all of these together are so little to read that a node may well hold twice as many. Pure."""


class MayChange(ABC):
    """What is being read may go away or become something else, unseen by the reader."""

    @abstractmethod
    def doubts(self, batches: Sequence[Batch]) -> Mapping[str, str]:
        """By id, which of these batches may hold other data than was planned, and why. They are not committed.

        Called while a job runs and when it has ended, by a thread of the engine. Raises `Unavailable`.
        """


class ReadsByConnector(ABC):
    """Spark reads it through a connector, whose errors are Spark's."""

    connectors: tuple[str, ...] = ()
    """Connectors that Spark needs, as `holdfast.spark.shipping` names them."""

    @abstractmethod
    def is_away(self, error: str) -> bool:
        """Whether an error of Spark's own, all of its text, says that the source does not respond. Pure."""


class UsesStoreClock(ABC):
    """It compares times with those of the store."""

    @abstractmethod
    def use_clock(self, now: Callable[[], float]) -> None:
        """Use this clock from now on: seconds since 1970 by the store's clock, whatever the host's says.

        It may be read once the node has joined, and does not block.
        """


class UsesSourceCoordination(ABC):
    """It shares more work among nodes than its batches, such as the pages of a large listing.

    It is given a coordinator with partitions of its own, which are kept beside the pipeline's and which no loop takes.
    """

    @abstractmethod
    def use_coordinator(self, coordinator: SourceCoordinator) -> None:
        """Keep the coordinator; called once, before the node joins. Does not block.

        Any thread may use it. `acquire_next` raises `SessionExpired` before the node has joined, while it is taken for
        dead, and after it has left; what is held is handed back when the node stops.
        """

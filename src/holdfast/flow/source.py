"""The source: which partitions there are, where the next batch of each ends, and how a batch is read.

A source has four methods: discover, name, plan and read. A feature that only some sources have is a capability: a
separate interface that a source may also implement and that the loop finds by type. Discovering and planning happen on
the node and must not need Spark. Reading is lazy and stateless: another node may read the same batch after this one has
died.

Positions are JSON that only the source understands: an offset, a key of a table. A second read of a batch should return
the same rows. If it may not, as with a live table, sinks must overwrite by identity (`VisibleWhenStaged`); a sink that
publishes staged files halts rather than mix two reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.errors import Unavailable
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.letter import Rebuilder, RecordReader
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.split import Split

BATCH_COLUMN = "_batch"
"""The batch of a row: its id, or its index among the batches that `read` was given."""
ITEM_COLUMN = "_item"
"""A number that grows within the partition and names the record: the offset at which it begins, or an integer key. A
source whose keys are not numbers uses the row's number in its batch, and has the key among its data columns."""
FAULT_COLUMN = "_fault"
"""Null for good rows. Else JSON: {"kind": …, "reason": …, "raw": …}, see `holdfast.flow.fault`.

Kind "record": this record cannot be processed and becomes a dead letter. Kind "batch": the whole batch failed. Kind
"unavailable": it failed because the source does not respond, which counts no attempt. Kind "damage": a dead letter, and
the partition ends FAILED, see `SalvagesDamage`. Kind "cut": not a record, but where the batch is cut short; `raw` is
the position of the next batch as JSON, unless the source has `CutsShort`."""
SYSTEM_COLUMNS = (BATCH_COLUMN, ITEM_COLUMN, FAULT_COLUMN)
SIZE_COLUMN = "_size"
"""Optional: bytes of the record; a batch holds at most `Limits.max_bytes`. Sinks do not get this column.

A source with this column reads each batch in one task and in order: the batch is cut short where it is full."""
OUTPUT_FOLDER_COLUMN = "_place"
"""Optional: the output folder of the record: partition names that a parser found, joined by `/`."""
OPTIONAL_COLUMNS = (SIZE_COLUMN, OUTPUT_FOLDER_COLUMN)


class TaskRows(Protocol):
    """Rows that tasks make themselves, as Arrow record batches, without a Spark expression. Picklable.

    Where nothing between source and sinks needs Spark either, rows are staged by the process that read them, which
    saves the transfer to the JVM and back.
    """

    @property
    def tasks(self) -> int:
        """Number of tasks that share the rows."""

    @property
    def schema(self) -> Any:
        """All columns, system columns first, as Spark's `StructType`."""

    def rows(self, task: int) -> Iterator[Any]:
        """The record batches of that task; called in the task. `_batch` may be dictionary-encoded."""


class Source(ABC):
    """The source of one pipeline. Every call may be repeated."""

    rediscover_after: float | None = None
    """Seconds between two runs of `discover`; None if one complete run finds everything."""

    lives_long: bool = False
    """Whether partitions never end and are shared fairly; otherwise nodes pull the next free partition."""

    rediscovery_window: float = 0.0
    """Seconds for which `discover` may yield a complete partition. If the store deletes its row before that, the
    partition is read a second time."""

    task_modules: Collection[str] = ()
    """Modules that tasks import only when they read. Workers on the node's host begin with them."""

    def open(self) -> None:
        """Check that the source exists and matches the settings. Raises `Unavailable` or `Refused`."""

    def close(self) -> None:
        """Close what was opened. May be repeated; never raises."""

    @abstractmethod
    def discover(self, state: dict[str, Any]) -> Iterable[Partition | None]:
        """Yield partitions in the order in which they should be taken, also those that exist already.

        Runs on one node at a time, in a thread of its own. `state` is JSON shared by all nodes; changes to it are saved
        when the iteration ends. None may be yielded as a sign of life, if the search finds nothing for minutes. Raises
        `Unavailable`; the whole search is then repeated later.
        """

    @abstractmethod
    def name(self, lease: Lease) -> Name:
        """The name of the partition in output names. Pure."""

    @abstractmethod
    def plan(self, leases: Sequence[Lease], limits: Limits) -> Sequence[Plan]:
        """For each lease, where its next batch ends, starting at its position.

        Returns (does not raise) a `BatchError` for a partition that cannot be read as it is, and a `Halt` where going
        on would lose or mix up data. Raises `Unavailable`. Any other error counts as an attempt of the partition for
        which it is raised: the call is repeated for halves of the leases until that partition is alone.
        """

    @abstractmethod
    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        """The rows of all batches, the system columns first: a lazy DataFrame, or `TaskRows`.

        `columns` are the only data columns that are needed; None means all. Only sources with `FixedColumns` are given
        it, and they may return more columns. Without batches there are no rows, and the columns are the same: that is
        how a pipeline is analysed before its node joins. A read without faults may leave out the column of faults. An
        error of one batch becomes a row of that batch with a fault, never a failed job.
        """


# --- capabilities: what a source may also be -----------------------------------------------------------------------


class FixedColumns(ABC):
    """The data columns are known before anything is read, so that `read` can leave out unneeded ones."""

    @abstractmethod
    def columns(self) -> Any:
        """The data columns as Spark's `StructType`. Does not block."""


class CountsScans(ABC):
    """Discovery runs a fixed number of times, or as often as its state requires."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """Whether there may be a last discovery."""

    @abstractmethod
    def next_scan_after(self, state: dict[str, Any]) -> float | None:
        """Seconds from the end of a discovery with this state until the next one; None means never."""


class CutsShort(ABC):
    """A batch may end before its planned end: at the item where the sinks or the limits stopped it."""

    @abstractmethod
    def cut_short(self, batch: Batch, item: int) -> Json:
        """The position after a batch that was cut short before that item. Pure."""


class OffsetPositions(CutsShort):
    """Positions are `{"offset": item}`: the next item to read, regardless of the batch."""

    def position(self, item: int) -> Json:
        """The position whose next record is that item. Pure."""
        return {"offset": item}

    def cut_short(self, batch: Batch, item: int) -> Json:  # noqa: ARG002 - the item is enough
        return self.position(item)


class SalvagesDamage(ABC):
    """Rows with the fault `damage` are dead letters, and the good rows of their batch are committed and published."""

    @abstractmethod
    def damaged(self, end: Json, reason: str) -> Json:
        """The position after a batch that ended at `end` with damage. Pure; may be called twice.

        A later plan then returns `BeyondRepair` instead of `Done`.
        """


class AfterPublish(ABC):
    """The source acts on its data before a partition is complete, for example by deleting an object.

    Such a source plans `Done` for what it has read.
    """

    @abstractmethod
    def after_publish(self, leases: Sequence[Lease]) -> Sequence[Unavailable | None]:
        """Called when these partitions are visible in all sinks. A partition whose result is None is complete.

        Blocks. The call is repeated for the others, and by another node if this node dies before the result is
        recorded.
        """


class StagingListener(ABC):
    """The source is notified of staged batches, for later plans."""

    @abstractmethod
    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        """Note that a batch of this node was staged up to `end`, with that many rows and bytes. Does not block."""


class PublishingListener(ABC):
    """The source reports how far the output is, for example to a consumer group."""

    @abstractmethod
    def published(self, leases: Sequence[Lease]) -> None:
        """Note that everything before the positions of these leases is visible. Never raises, never waits."""


class ReportsExtents(ABC):
    """The source reports how much there is to read, so that output folders can be declared final."""

    @abstractmethod
    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        """For each lease the next offset to read, and the end of the log; None where that is unknown.

        Records that exist and cannot be read yet count too: output folders that they may belong to must stay open.
        Called from a thread of its own. Raises `Unavailable`.
        """


class Rebuilds(ABC):
    """Dead letters can be redriven."""

    @abstractmethod
    def rebuilder(self) -> Rebuilder:
        """Makes rows from the records that dead letters keep. Needs no Spark."""


class RereadsRecords(ABC):
    """Single records can be read a second time, so that dead letters hold them whole, as the source has them."""

    @abstractmethod
    def record_reader(self, rows: Any) -> RecordReader:
        """Reads records of the batches for which `read` has returned `rows`. Does not block."""


class WeighsPartitions(ABC):
    """Partitions may be so small that a node should hold more of them."""

    @abstractmethod
    def is_light(self, leases: Sequence[Lease]) -> bool:
        """Whether these partitions are so small that a node may hold twice as many. Pure."""


class MayChange(ABC):
    """The data may be deleted or replaced during a read without the reader noticing."""

    @abstractmethod
    def doubts(self, batches: Sequence[Batch]) -> Mapping[str, str]:
        """By id, the batches that may hold other data than was planned, and why. They are not committed.

        Called while a job runs and when it has ended, by a thread of the engine. Raises `Unavailable`.
        """


class ReadsByConnector(ABC):
    """Spark reads the source through a connector, whose errors are errors of Spark."""

    connectors: tuple[str, ...] = ()
    """Connectors that Spark needs, as `holdfast.spark.shipping` names them."""

    @abstractmethod
    def is_away(self, error: str) -> bool:
        """Whether the full text of a Spark error means that the source does not respond. Pure."""


class SplitsPartitions(ABC):
    """What is left of a partition can be shared with new partitions, so that other nodes help with it.

    The `state` of rows belongs to the loop then: such a source plans no `Cut.state`.
    """

    @abstractmethod
    def split(self, lease: Lease) -> Split | None:
        """What the owner keeps of the rest after the lease's position, and what becomes new partitions.

        None if too little is left. Blocks; the result may be left unused. Raises `Unavailable` or `BatchError`.
        """


class UsesStoreClock(ABC):
    """The source compares times with those of the store."""

    @abstractmethod
    def use_clock(self, now: Callable[[], float]) -> None:
        """Use this clock from now on: seconds since 1970 by the store's clock, regardless of the host's clock.

        It may be read once the node has joined, and does not block.
        """


class UsesSourceCoordination(ABC):
    """The source shares more work among nodes than its batches, such as the pages of a large listing.

    It is given a coordinator with partitions of its own, kept beside those of the pipeline; no loop claims them.
    """

    @abstractmethod
    def use_coordinator(self, coordinator: SourceCoordinator) -> None:
        """Keep the coordinator; called once, before the node joins. Does not block.

        Any thread may use it. `acquire_next` raises `SessionExpired` before the node has joined, after its session has
        expired, and after it has left; leases are handed back when the node stops.
        """

"""The source: which partitions there are, where the next batch of each ends, and how a batch is read.

Discovering and planning happen on the node and must not need Spark. Reading is lazy, stateless and repeatable: the same
batch may be read by another node after this one died.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.errors import SourceUnavailable
from holdfast.events import Event
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.letters import Rebuilder
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.leases.source_coordinator import SourceCoordinator

BATCH_COLUMN = "_batch"
"""The batch that a row belongs to: its id, or its number among the batches that `read` was given."""
ITEM_COLUMN = "_item"
"""Where the record begins in its partition: an offset that grows within the partition and names the record."""
FAULT_COLUMN = "_fault"
"""Null for good rows. Else JSON: {"kind": …, "reason": …, "raw": …}, see `holdfast.flow.deadletter`.

Kind "record": this record cannot be handled and belongs to the dead letters. Kind "batch": all of the batch failed.
Kind "unavailable": it failed because the source does not answer, which counts no attempt. Kind "damage": a dead letter,
and the partition ends FAILED, see `Source.damaged`. Kind "cut": no record, but where the batch is cut short."""
SYSTEM_COLUMNS = (BATCH_COLUMN, ITEM_COLUMN, FAULT_COLUMN)
SIZE_COLUMN = "_size"
"""Optional: bytes of the record, of which a batch holds at most `Limits.max_bytes`. It is gone when sinks see the row.

A source that gives it reads each batch in one task and in order: the batch is cut short where it is full."""
PLACE_COLUMN = "_place"
"""Optional: partition names of the record, joined by `/`, as a parser found them. Sinks of files keep places apart."""
OPTIONAL_COLUMNS = (SIZE_COLUMN, PLACE_COLUMN)


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

    found_again_within: float = 0.0
    """Seconds for which `discover` may yield a complete partition again: if the store forgets its row before that, it
    is read again."""

    settles: bool = False
    """Whether `settle` is called before a partition is complete. Such a source plans `Done` for what it has read."""

    changes_unseen: bool = False
    """Whether what is being read may go away or become something else: `doubts` is asked while a job runs, too."""

    connectors: tuple[str, ...] = ()
    """Connectors that Spark needs to read it, as `holdfast.spark.jars` knows them."""

    def open(self) -> None:
        """Check that the source is there and is what the settings say. Raises `SourceUnavailable` or `Refused`."""

    def keep_time(self, now: Callable[[], float]) -> None:
        """Tell times by this clock from now on: seconds since 1970 by the store's, whatever the host's says.

        It may be asked once the node has joined, and does not block.
        """

    @abstractmethod
    def discover(self, state: dict[str, Any]) -> Iterable[Partition | None]:
        """Yield partitions in the order in which they should be taken, also those that exist already.

        Runs on one node at a time, in a thread of its own. `state` is JSON shared by all nodes; changes to it are kept
        when the iteration ends. None is a sign of life, for where the search goes on for minutes and finds nothing.
        Raises `SourceUnavailable`; then all of it is tried again later.
        """

    @property
    def may_end(self) -> bool:
        """Whether there may be a last discovery."""
        return self.rediscover_after is None

    def again_after(self, state: dict[str, Any]) -> float | None:  # noqa: ARG002 - most do not count
        """Seconds after which to discover again, asked when a discovery has ended with this state; None: never."""
        return self.rediscover_after

    @abstractmethod
    def name(self, lease: Lease) -> Name:
        """How the partition is called in output names. Pure."""

    @abstractmethod
    def plan(self, leases: Sequence[Lease], limits: Limits) -> Sequence[Plan]:
        """For each lease, where its next batch ends, starting at its position.

        Answers (not raises) a `BatchError` for a partition that cannot be read as it is, and a `Halt` where going on
        would lose or mix up data. Raises `SourceUnavailable`. Any other error is an attempt of the partition for which
        it is raised: the call is made again for halves of the leases until that one is alone.
        """

    def is_light(self, leases: Sequence[Lease]) -> bool:  # noqa: ARG002 - most cannot tell
        """Whether all of these together are so little to read that a node may well hold twice as many. Pure."""
        return False

    def position(self, item: int) -> Json:
        """The position whose next record is that item. Pure; needed only where batches are cut short."""
        return {"offset": item}

    def cut_short(self, batch: Batch, item: int) -> Json:  # noqa: ARG002 - most need the item alone
        """The position after a batch that was cut short before that item. Pure."""
        return self.position(item)

    def damaged(self, end: Json, reason: str) -> Json:  # noqa: ARG002 - most never say so
        """The position after a batch that ended there with a row whose fault is `damage`. Pure; may be called twice.

        What is good is committed and published; a later plan then answers `BeyondRepair` in place of `Done`.
        """
        return end

    @abstractmethod
    def read(self, spark: Any, batches: Sequence[Batch]) -> Any:
        """One lazy DataFrame over all batches: the system columns and the source's own.

        An error of one batch becomes a row of that batch with a fault, never a failed job.
        """

    def narrowed(self, spark: Any, batches: Sequence[Batch], wanted: frozenset[str]) -> Any | None:  # noqa: ARG002
        """The same rows as `read`, with no more than these data columns, where that saves work; None where not.

        Rows that never have a fault when they are read may come without that column.
        """
        return None

    def direct(self, spark: Any, batches: Sequence[Batch]) -> DirectRead | None:  # noqa: ARG002 - most have none
        """The same rows as `read`, without the frame; None if this source has no such way."""
        return None

    def doubts(self, batches: Sequence[Batch]) -> Mapping[str, str]:  # noqa: ARG002 - most cannot change unseen
        """Which of these that were read, by id, may hold other data than was planned, and why. They are not committed.

        Called by a thread of the engine. Raises `SourceUnavailable`.
        """
        return {}

    def is_away(self, error: str) -> bool:  # noqa: ARG002 - most tell it by a fault
        """Whether an error of Spark's own, all of its text, says that the source did not answer. Pure."""
        return False

    def rebuilder(self) -> Rebuilder | None:
        """How rows are made again of the records that dead letters keep; None if this source cannot. Needs no Spark."""
        return None

    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        """A batch of this node was staged up to `end`: so many rows and bytes. Pure bookkeeping for later plans."""

    def settle(self, leases: Sequence[Lease]) -> Sequence[SourceUnavailable | None]:
        """Everything of these partitions is visible in all sinks; they are complete when this has answered None.

        For what is to be done where the data came from. Blocks. Called again for what was answered otherwise, and by
        another node if this one dies before it is noted. Only asked where `settles`.
        """
        return [None] * len(leases)

    def published(self, leases: Sequence[Lease]) -> None:
        """Everything before the positions of these leases is visible. Never raises, never waits."""

    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        """For each lease the next offset to read, and the first one that is not there yet; None where it cannot tell.

        What is there and cannot be read yet counts, too: places that it may belong to must stay open. Called by a
        thread of its own. Raises `SourceUnavailable`.
        """
        return [None] * len(leases)

    def noticed(self) -> list[Event]:
        """What people should hear of since the last call, such as lag. Does not block."""
        return []

    def close(self) -> None:
        """Give back what was opened. May be called again; never raises."""


class UsesSourceCoordination(ABC):
    """What a source also is that shares more work among nodes than its batches, such as the pages of a large listing.

    It is handed a coordinator with partitions of its own, which are kept beside the pipeline's and which no loop takes.
    """

    @abstractmethod
    def use_coordinator(self, coordinator: SourceCoordinator) -> None:
        """Keep the coordinator; called once, before the node joins. Does not block.

        Any thread may use it. `acquire_next` raises `SessionExpired` before the node has joined, while it is taken for
        dead, and after it has left; what is held is handed back when the node stops.
        """

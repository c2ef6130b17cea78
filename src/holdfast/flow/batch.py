"""A batch: the rows of one partition from a start position to an end position, as one attempt of one node.

A batch belongs to the lease under which it was planned. Its id is new for every attempt, so that files staged by
different attempts cannot be confused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import BatchError, Halt
from holdfast.leases.lease import Json, Lease, LetterWindow


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one batch. After `timeout` seconds it is cancelled, which counts as an attempt."""

    max_bytes: int = 256 * 1024 * 1024
    max_records: int | None = None
    timeout: float = 3600.0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How many records of a partition may become dead letters before it is halted.

    Records are counted in windows, from commit to commit: a window ends with the commit that gives it `records` or
    more, and the next one begins empty. Of a window with fewer records, the same number of letters is allowed as of a
    full one, so that neither tiny batches nor a large one can go beyond the share unnoticed.
    """

    share: float = 0.1
    """The part of the records that may be letters; with 1 a partition is never halted."""
    records: int = 1000

    def allowed(self, records: int) -> int:
        """How many letters a window of that many records may have."""
        # Without the margin, 29 % of 100 would be less than 29.
        return int(self.share * max(records, self.records) + 1e-6)

    def next_window(self, window: LetterWindow) -> LetterWindow:
        """The window with which the next commit begins; `window` is how the last commit has left it."""
        return window if window.records < self.records else LetterWindow()


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a partition in output names: for Kafka topic and partition, for an object bucket and hash."""

    stream: str
    label: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the next batch of a partition ends, as the source plans it; `end` is exclusive."""

    start: Json
    end: Json
    last: bool = False
    """Whether this is the last batch: the partition is complete when it is published."""
    size: int = 0
    """Estimated bytes, to balance the tasks of a round."""
    max_bytes: int | None = None
    """Bytes at which the batch is cut short; None: never. Needs the source's size column."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Items [from, to) that the source has lost for ever; receipt and manifest record them."""
    max_records: int | None = None
    """Records after which the source itself cuts the batch short, with a row whose fault is `cut`; None: never."""
    state: Json = None
    """The state of the row from this batch's commit on, for later plans of the source; None: unchanged."""


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to read now; plan again after that many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """Everything of this partition has been read; it is complete."""


@dataclass(frozen=True, slots=True)
class Close:
    """There is nothing to read for a long time: the partition is closed until it is due; any node may take it then."""

    seconds: float
    most: int | None = None
    """The partition is complete when it has been closed this many times."""


Plan: TypeAlias = Cut | Wait | Done | Close | BatchError | Halt
"""A source's plan for the next batch of a partition."""


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    lease: Lease
    name: Name
    cut: Cut
    restages: str | None = None
    """The id of a pending commit whose staged data is gone and is staged once more from the same range."""
    planned_at: float | None = None
    """The store's time when the batch was planned. What a sink decides by it must be stored in its receipt."""

    def next_start(self, row: Lease) -> Json:
        """Where the next commit of this batch begins: at its start, or where its last commit in this row has ended."""
        is_first = row.commit.sequence == self.lease.commit.sequence
        return self.cut.start if is_first else row.progress.position

    def until(self, sink: str, max_ahead: float | None) -> float | None:
        """The latest time that may be in the names of that sink's folders or indexes; None if there is no limit.

        It is `until` in the receipt, so that a batch that is staged again keeps the limit of its first attempt.
        """
        if self.restages is not None:
            return ((self.lease.commit.receipts or {}).get(sink) or {}).get("until")
        return None if self.planned_at is None or max_ahead is None else self.planned_at + max_ahead


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How far one task got with a batch: how many rows it has staged, and the first item that it did not stage."""

    rows: int
    end: int | None
    """None if all of its rows were staged."""
    reads: bool = False
    """Whether the task read in order and staged nothing, so that no other task got the rows that it left."""


def common_end(tasks: Sequence[TaskEnd]) -> int | None:
    """The item at which a batch ends if some of its tasks have cut it short; None if none has.

    Everything before it is staged, and nothing from it on. Raises `BatchError` if there is no such item.
    """
    ends = [task.end for task in tasks if task.end is not None]
    if any(task.end is not None and not task.reads for task in tasks):
        holding = sum(not task.reads and (task.rows > 0 or task.end is not None) for task in tasks)
        if holding > 1:
            raise BatchError(
                f"the batch must be cut short, but its rows are in {holding} tasks, and other tasks may have staged "
                "rows after the cut. Keep the rows of a batch in one task, without joins and repartitioning; or raise "
                "max_files of the sink, or lower max_bytes of the source's batches"
            )
    return min(ends, default=None)

"""Staging in the engine's tasks: the input of a sink there, and its results.

A sink's `Stager` is made on the node and pickled into every task. A task may run several times, also at the same time;
only the attempt whose result the engine returns counts, so staged files have names that are unique to their attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Name
from holdfast.flow.fault import COLUMNS, ROW, Fault
from holdfast.flow.letter import RecordReader
from holdfast.leases.lease import Json


@dataclass(frozen=True)
class StagedBatch:
    """The part of a batch that tasks need. Without slots, which make pickling slow."""

    id: str
    pipeline: str
    key: str
    name: Name
    token: int
    generation: int
    max_bytes: int | None = None
    """Where the batch may be cut short; None: it must be staged as it was planned."""
    incarnation: str = ""
    """Which incarnation of its key is read, such as an object's ETag."""
    changed: bool = False
    """Whether processors have changed the rows, so that they are not the records as they were read."""
    max_receipt_bytes: int | None = None
    """Bytes that the receipt of one sink may take in the row; None: any number."""
    several_rows: bool = False
    """Whether processors may make several rows of a record, so that one of them may fail and another not."""
    whole_records: bool = False
    """Whether all rows that processors make of a record come to one task."""
    reader: RecordReader | None = field(default=None, compare=False)
    """Reads records from the source a second time, for dead letters; None if the source cannot do that."""

    def raw_form(self, *, is_value: bool) -> str | None:
        """The form in which a sink keeps a row that it refuses: the source's `value`, or all columns."""
        return ROW if self.changed else None if is_value else COLUMNS


def staged_batch(
    batch: Batch,
    *,
    changed: bool = False,
    max_receipt_bytes: int | None = None,
    several_rows: bool = False,
    reader: RecordReader | None = None,
) -> StagedBatch:
    """The part of a batch that tasks need; see the fields of `StagedBatch`."""
    lease = batch.lease
    generation = lease.commit.generation
    most = None if batch.restages is not None else batch.cut.max_bytes
    incarnation = lease.commit.incarnation
    return StagedBatch(
        batch.id,
        lease.pipeline,
        lease.key,
        batch.name,
        lease.token,
        generation,
        most,
        incarnation,
        changed,
        max_receipt_bytes,
        several_rows,
        reader=reader,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """How much a batch may still add to its commit in one sink."""

    files: int
    size: int | None
    """Bytes of the receipt that are left; None: any number."""
    is_open: Callable[[str], bool]
    """Whether rows of an output folder need no further file."""
    entry_size: Callable[[str], int]
    """Bytes that another file of an output folder takes in the receipt, at most."""


class Staging(ABC):
    """One sink in one attempt of one task. Used by one thread; batches may come in any order and mixed.

    `write` and `bury` raise `Unavailable`, or anything else if this batch cannot be staged; the batch has then
    failed, and `abandon` follows.
    """

    @abstractmethod
    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        """Stage good rows of one output folder: the columns that the stager named, and each row's item.

        Returns how many of them this sink cannot hold and has kept as dead letters.
        """

    def room(self, batch: StagedBatch) -> Room | None:  # noqa: ARG002 - most have no bound
        """How much may be added to this batch; None: no limit. A batch that may be cut short is cut at that limit."""
        return None

    def expect(self, batch: StagedBatch, output_folders: Collection[str]) -> None:
        """Announce the output folders of the next rows: files that `room` has reported as open stay open for them."""

    @abstractmethod
    def bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        """Keep records that cannot be processed as dead letters, each with its item."""

    @abstractmethod
    def finish(self, batch: StagedBatch) -> Json:
        """Make durable what was staged for the batch. Returns this task's part of the receipt, for `Sink.receipt`."""

    def late_unfit(self, batch: StagedBatch) -> int:  # noqa: ARG002 - most find out in `write`
        """How many rows became dead letters after `write` had returned; called once, after `finish`."""
        return 0

    def chosen_letters(self, batch: StagedBatch) -> int:  # noqa: ARG002 - most letters are errors
        """How many rows are dead letters because a setting says so, and not because of an error.

        The tolerance of the pipeline does not count them. Called once, after `finish`.
        """
        return 0

    def letter_reason(self, batch: StagedBatch) -> str | None:  # noqa: ARG002 - a help for people
        """Why one of the batch's rows became a dead letter; None if that is not known. Called once, after `finish`."""
        return None

    @abstractmethod
    def abandon(self, batch: StagedBatch) -> None:
        """Delete everything staged for a batch that failed before its receipt was reported. Never raises."""

    def feed(self, others: Mapping[str, Staging]) -> None:
        """Take the stagings of the sinks in `Stager.feeds`: `finish` writes to them, and is called before theirs.

        Called once, before anything is staged.
        """

    def close(self) -> None:
        """End threads and close connections at the end of the task. Never raises."""


class RefusesRecords(Staging):
    """A staging that knows beforehand which rows it will refuse; all rows of their records become dead letters.

    For sinks in which a row that is written twice exists twice.
    """

    @abstractmethod
    def refusals(self, batch: StagedBatch, rows: Any, output_folder: str = "") -> Any | None:
        """Why `write` would refuse rows, as an Arrow array with null for good rows; None if all rows are good."""

    @abstractmethod
    def withhold(self, batch: StagedBatch, items: Any, rows: Any, reasons: Any, output_folder: str = "") -> int:
        """Keep these rows, which are all rows of their records, as dead letters with these reasons.

        Returns their number.
        """


class Stager(ABC):
    """How one sink stages. Picklable."""

    bounded: bool = False
    """Whether a receipt may have many entries, so that it must be kept from outgrowing its row."""
    feeds: Collection[str] = ()
    """Sinks of the same pipeline whose rows come from this one, and not from the frame: a handler makes them."""
    task_modules: Collection[str] = ()
    """Modules that tasks import only when they stage. Workers on the node's host begin with them."""

    @abstractmethod
    def columns(self, fields: Any) -> Mapping[str, Any]:
        """Called on the node: the columns that `Staging.write` needs, made from the data columns `fields`.

        `fields` is Spark's `StructType`. A value is a Spark expression, or None for the unchanged data column of that
        name. Raises `Refused` when such data cannot be staged.
        """

    def plain_columns(self, fields: Any) -> Mapping[str, Any] | None:
        """Like `columns`, for rows that are not in Spark. Returns None if a column needs an expression."""
        wanted = self.columns(fields)
        return wanted if all(made is None for made in wanted.values()) else None

    def warm_up(self) -> None:
        """Called in a task before there is work: load modules that every task needs. Sends no request, never raises."""

    @abstractmethod
    def begin(self) -> Staging:
        """Called in a task, once per attempt."""


class ChecksColumns(ABC):
    """A capability of stagers whose settings name columns, such as a template of an index."""

    @abstractmethod
    def check_columns(self, fields: Any) -> None:
        """Raise `Refused` if the settings name a column that is not among `fields`, Spark's `StructType`. Pure."""


def receipt_files(parts: Sequence[Json]) -> list[Json]:
    """The files that the tasks of a batch have staged, ordered by key. Raises `BatchError` if two have the same key."""
    files = sorted((file for part in parts for file in part["files"]), key=lambda file: str(file["key"]))
    for file, following in pairwise(files):
        if file["key"] == following["key"]:
            raise BatchError(
                f"two files of this batch would have the key {file['key']}: a processor has spread the rows of a "
                "record over several tasks or files; keep the rows of a record together"
            )
    return files

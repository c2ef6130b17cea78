"""Events about batches and output folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.events.event import Event, Level

DURATION_BOUNDS = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Upper bounds, in seconds, of the buckets of durations."""


@dataclass(frozen=True, slots=True)
class PipelineProgressed(Event):
    """How far a pipeline is, from time to time: partitions and records of all nodes, the rate of this node."""

    pipeline: str
    completed: int
    partitions: int
    records: int
    rate: float
    """Records per second that this node has committed since the last event."""
    lag: int | None
    """Records that wait, where the source measures that."""
    seconds_left: float | None
    """Until all partitions are complete, at the present speed; None if that is not known."""
    errors: int
    """Failed attempts on this node."""
    failed: int
    dead: int
    nodes: int


@dataclass(frozen=True, slots=True)
class RoundSubmitted(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    batches: int


@dataclass(frozen=True, slots=True)
class BatchCommitted(Event):
    """The fenced write that decides a batch has been applied."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    sequence: int
    records: int
    dead: int
    size: int = 0
    """Bytes of the records, if the source reports them."""
    seconds: float | None = None
    """From sending the batch to Spark until it was committed; None for a batch that goes on."""


@dataclass(frozen=True, slots=True)
class StepFinished(Event):
    """A step of the loop that had something to do has ended: `plan`, `commit` or `publish`."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    step: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HandlerCalled(Event):
    """Records that a worker's handler has handled since the last event, by how long they took."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    records: tuple[int, ...]
    """Records up to each of `DURATION_BOUNDS` and beyond the one before it; the last number is of those beyond all."""
    seconds: float
    """What all of them took."""


@dataclass(frozen=True, slots=True)
class DeadLettersNearTolerance(Event):
    """More than half of the dead letters that `dead_letters.tolerance` allows were committed in the present window."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    letters: int
    records: int
    """Records of the window, the letters included."""
    allowed: int


@dataclass(frozen=True, slots=True)
class DeadLettersBeyondTolerance(Event):
    """A batch with more dead letters than `dead_letters.tolerance` allows was not committed; its partition halts."""

    level: ClassVar[Level] = "error"
    pipeline: str
    key: str
    letters: int
    records: int
    """Records of the window with the batch, the letters included."""
    allowed: int
    reason: str | None
    """Why one of the records became a dead letter, if known."""


@dataclass(frozen=True, slots=True)
class RowsDropped(Event):
    """Rows without a fault that a processor left out, in a committed batch or in others of its Spark job."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    processor: str
    """The processor's index in the pipeline, and its name."""
    rows: int


@dataclass(frozen=True, slots=True)
class DocumentsIndexed(Event):
    """A batch's documents were sent to a search index: counts of outcomes and requests."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    sink: str
    documents: int
    """Acknowledged, conflicts included."""
    conflicts: int
    """Documents that were already there, in this version or a later one."""
    dead: int
    """Documents that the index refused."""
    requests: int
    retried: int
    """Times that a document was sent again."""
    rejected: int
    """Times that a document was rejected because the server was overloaded."""
    size: int
    """Bytes that were sent, before compression."""
    limit: float
    """Requests that a task may have in flight, adapted to the server's responses."""


@dataclass(frozen=True, slots=True)
class BatchPublished(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    sequence: int
    rolled_forward: bool
    """True if the commit was found in the row, made by an earlier owner or attempt."""


@dataclass(frozen=True, slots=True)
class BatchCancelled(Event):
    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchRebuilt(Event):
    """Staged data of a committed batch was missing and was rebuilt from the source."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    sequence: int


@dataclass(frozen=True, slots=True)
class PipelineFinished(Event):
    """Nothing is left to do in a bounded pipeline."""

    pipeline: str
    completed: int
    failed: int


@dataclass(frozen=True, slots=True)
class RowsSkipped(Event):
    """Rows that the format of a sink cannot hold, and that a setting such as `tombstones: skip` leaves out."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    sink: str
    rows: int


@dataclass(frozen=True, slots=True)
class FolderFinalized(Event):
    """An output folder is final, and all hooks were called. `late`: rows that came after it was final."""

    pipeline: str
    topic: str
    output_folder: str
    files: int
    rows: int
    late: int


@dataclass(frozen=True, slots=True)
class LateRecords(Event):
    """Records came for an output folder that was already final; a setting decides what happens to them."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    topic: str
    output_folder: str
    records: int


@dataclass(frozen=True, slots=True)
class FinalizingFailed(Event):
    """A hook failed and will be called again. `topic` and `output_folder` may be empty."""

    level: ClassVar[Level] = "error"
    pipeline: str
    topic: str
    output_folder: str
    attempts: int
    error: str

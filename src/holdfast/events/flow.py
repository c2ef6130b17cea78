"""Facts about batches and the places that they land in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.events.event import Event, Level


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


@dataclass(frozen=True, slots=True)
class RowsDropped(Event):
    """Good rows that came to a processor and not out of it, in a batch that was committed or in others of its job."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    processor: str
    """Its place among the processors of the pipeline, and its name."""
    rows: int


@dataclass(frozen=True, slots=True)
class DocumentsIndexed(Event):
    """A batch's documents are in a search index: what became of them, and what it took."""

    level: ClassVar[Level] = "debug"
    pipeline: str
    sink: str
    documents: int
    """Acknowledged, conflicts included."""
    conflicts: int
    """Those that were there already, in this version or a later one."""
    dead: int
    """Those that the index refused."""
    requests: int
    retried: int
    """Times that a document was sent again."""
    rejected: int
    """Times that a document was turned away because the server had too much to do."""
    size: int
    """Bytes that were sent, before compression."""
    limit: float
    """How many requests a task has under way at most, as the server's answers have made it."""


@dataclass(frozen=True, slots=True)
class BatchPublished(Event):
    level: ClassVar[Level] = "debug"
    pipeline: str
    key: str
    sequence: int
    rolled_forward: bool
    """True when the commit was found in the row, made by an earlier owner or an earlier try."""


@dataclass(frozen=True, slots=True)
class BatchCancelled(Event):
    level: ClassVar[Level] = "warning"
    pipeline: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchRebuilt(Event):
    """Staged data of a committed batch was gone; it was made again from the source."""

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
class PlaceFinalized(Event):
    """A place is final, and everybody who wants to know was told. `late`: rows that came when it was final already."""

    pipeline: str
    topic: str
    place: str
    files: int
    rows: int
    late: int


@dataclass(frozen=True, slots=True)
class LateRecords(Event):
    """Records came for a place that was final already; what became of them is a setting."""

    level: ClassVar[Level] = "warning"
    pipeline: str
    topic: str
    place: str
    records: int


@dataclass(frozen=True, slots=True)
class FinalizingFailed(Event):
    """A hook failed, and is called again after a while. Topic and place are empty if it was not about one place."""

    level: ClassVar[Level] = "error"
    pipeline: str
    topic: str
    place: str
    attempts: int
    error: str

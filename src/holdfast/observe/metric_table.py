"""Every metric, with its labels, help text and the events it counts. The reference page is generated from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.events import (
    AttemptFailed,
    BatchCancelled,
    BatchCommitted,
    BatchPublished,
    BatchRebuilt,
    DeadLettersBeyondTolerance,
    DiscoveryFailed,
    DiscoveryFinished,
    DocumentsIndexed,
    Event,
    FinalizingFailed,
    FolderFinalized,
    Heartbeat,
    HeartbeatWithheld,
    LateRecords,
    NodeExpired,
    NodeJoined,
    NodeLeft,
    NothingAcquired,
    PartitionAcquired,
    PartitionClosed,
    PartitionCompleted,
    PartitionErrorRaised,
    PartitionFailed,
    PartitionHalted,
    PartitionLost,
    PartitionOrphaned,
    PartitionReleased,
    PartitionsCreated,
    RoundSubmitted,
    RowsDropped,
    RowsSkipped,
    SessionEnded,
    Unreachable,
)

E = TypeVar("E", bound=Event)
PIPELINE = "pipeline"
"""First label of every metric of a pipeline; its value comes from the event."""


@dataclass(frozen=True, slots=True)
class Counts(Generic[E]):
    """How much one kind of event adds, and to which labels besides the pipeline; fixed labels exist from the start."""

    event: type[E]
    labels: tuple[str, ...] | Callable[[E], tuple[str, ...]] = ()
    amount: Callable[[E], float] = lambda _: 1


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that only grows while the process lives."""

    name: str
    help: str
    labels: tuple[str, ...]
    counted: tuple[Counts[Any], ...]


COUNTERS = (
    Metric(
        "holdfast_partitions_total",
        "Partitions that were created, or changed in this way, by this node.",
        (PIPELINE, "event"),
        (
            Counts(PartitionsCreated, ("created",), lambda event: event.count),
            Counts(PartitionAcquired, ("acquired",)),
            Counts(PartitionCompleted, ("completed",)),
            Counts(PartitionClosed, ("closed",)),
            Counts(PartitionReleased, ("released",)),
            Counts(PartitionOrphaned, ("orphaned",)),
            Counts(PartitionFailed, ("failed",)),
            Counts(PartitionHalted, ("halted",)),
            Counts(PartitionLost, ("lost",)),
        ),
    ),
    Metric(
        "holdfast_nothing_acquired_total",
        "Times that this node looked for a free partition and found none.",
        (PIPELINE,),
        (Counts(NothingAcquired),),
    ),
    Metric(
        "holdfast_attempts_failed_total",
        "Errors that counted as an attempt on their partition.",
        (PIPELINE,),
        (Counts(AttemptFailed),),
    ),
    Metric(
        "holdfast_partition_errors_total",
        "Errors that the API for source authors raised to its caller.",
        (PIPELINE, "kind", "action"),
        (Counts(PartitionErrorRaised, lambda event: (event.kind, event.action)),),
    ),
    Metric(
        "holdfast_discoveries_total",
        "Runs of the supplier of partitions on this node.",
        (PIPELINE, "outcome"),
        (Counts(DiscoveryFinished, ("finished",)), Counts(DiscoveryFailed, ("failed",))),
    ),
    Metric(
        "holdfast_rounds_total",
        "Rounds that were submitted; each is one Spark job.",
        (PIPELINE,),
        (Counts(RoundSubmitted),),
    ),
    Metric(
        "holdfast_batches_submitted_total",
        "Batches that were submitted in rounds.",
        (PIPELINE,),
        (Counts(RoundSubmitted, (), lambda event: event.batches),),
    ),
    Metric(
        "holdfast_batches_total",
        "Outcomes of batches; rolled_forward: published for an earlier owner or attempt.",
        (PIPELINE, "outcome"),
        (
            Counts(BatchCommitted, ("committed",)),
            Counts(BatchPublished, ("published",), lambda event: not event.rolled_forward),
            Counts(BatchPublished, ("rolled_forward",), lambda event: event.rolled_forward),
            Counts(BatchCancelled, ("cancelled",)),
            Counts(BatchRebuilt, ("rebuilt",)),
        ),
    ),
    Metric(
        "holdfast_records_committed_total",
        "Records in committed batches, dead letters included.",
        (PIPELINE,),
        (Counts(BatchCommitted, (), lambda event: event.records),),
    ),
    Metric(
        "holdfast_bytes_committed_total",
        "Bytes of the records in committed batches, as far as the source reports them.",
        (PIPELINE,),
        (Counts(BatchCommitted, (), lambda event: event.size),),
    ),
    Metric(
        "holdfast_dead_letters_total",
        "Records in committed batches that could not be processed.",
        (PIPELINE,),
        (Counts(BatchCommitted, (), lambda event: event.dead),),
    ),
    Metric(
        "holdfast_dead_letters_beyond_tolerance_total",
        "Batches that were not committed because of their dead letters; each has halted its partition.",
        (PIPELINE,),
        (Counts(DeadLettersBeyondTolerance),),
    ),
    Metric(
        "holdfast_rows_dropped_total",
        "Rows without a fault that a processor left out.",
        (PIPELINE, "processor"),
        (Counts(RowsDropped, lambda event: (event.processor,), lambda event: event.rows),),
    ),
    Metric(
        "holdfast_rows_skipped_total",
        "Rows that the format of a sink cannot hold, and that a setting leaves out.",
        (PIPELINE, "sink"),
        (Counts(RowsSkipped, lambda event: (event.sink,), lambda event: event.rows),),
    ),
    Metric(
        "holdfast_documents_total",
        "Documents for a search index: acknowledged, already there, or refused by the index.",
        (PIPELINE, "sink", "outcome"),
        (
            Counts(DocumentsIndexed, lambda event: (event.sink, "indexed"), lambda event: event.documents),
            Counts(DocumentsIndexed, lambda event: (event.sink, "conflict"), lambda event: event.conflicts),
            Counts(DocumentsIndexed, lambda event: (event.sink, "refused"), lambda event: event.dead),
        ),
    ),
    Metric(
        "holdfast_documents_resent_total",
        "Times that a document was sent again, and times that the server rejected it because of overload.",
        (PIPELINE, "sink", "reason"),
        (
            Counts(DocumentsIndexed, lambda event: (event.sink, "any"), lambda event: event.retried),
            Counts(DocumentsIndexed, lambda event: (event.sink, "rejected"), lambda event: event.rejected),
        ),
    ),
    Metric(
        "holdfast_bulk_requests_total",
        "Bulk requests to a search cluster.",
        (PIPELINE, "sink"),
        (Counts(DocumentsIndexed, lambda event: (event.sink,), lambda event: event.requests),),
    ),
    Metric(
        "holdfast_bulk_bytes_total",
        "Bytes of bulk requests, before compression.",
        (PIPELINE, "sink"),
        (Counts(DocumentsIndexed, lambda event: (event.sink,), lambda event: event.size),),
    ),
    Metric(
        "holdfast_late_records_total",
        "Records for an output folder that was already final; counted by the node that finalizes.",
        (PIPELINE, "topic"),
        (Counts(LateRecords, lambda event: (event.topic,), lambda event: event.records),),
    ),
    Metric(
        "holdfast_final_folders_total",
        "Output folders reported as final, again after late records, and failed reports.",
        (PIPELINE, "outcome"),
        (Counts(FolderFinalized, ("reported",)), Counts(FinalizingFailed, ("failed",))),
    ),
    Metric(
        "holdfast_sessions_total",
        "Sessions of this node that began, were left in order, or were lost.",
        ("event",),
        (Counts(NodeJoined, ("joined",)), Counts(NodeLeft, ("left",)), Counts(SessionEnded, ("ended",))),
    ),
    Metric(
        "holdfast_heartbeats_total",
        "Heartbeats of this node; withheld ones because a step of its loop took too long.",
        ("outcome",),
        (Counts(Heartbeat, ("renewed",)), Counts(HeartbeatWithheld, ("withheld",))),
    ),
    Metric(
        "holdfast_nodes_expired_total",
        "Silent sessions of other nodes that this node marked as ended.",
        (),
        (Counts(NodeExpired),),
    ),
    Metric(
        "holdfast_unreachable_total",
        "Calls to a server that got no response and are repeated.",
        ("what",),
        (Counts(Unreachable, lambda event: (event.what,)),),
    ),
)

SESSION_USABLE = "holdfast_session_usable_seconds"
SESSION_USABLE_HELP = "For how long this node may still rely on its session, by its own clock; 0 without a session."


def _of_source_coordinator(name: str, help: str, *counted: Counts[Any]) -> Metric:  # noqa: A002
    return Metric(name, help, (PIPELINE,), counted)


def _errors(kind: str) -> Counts[PartitionErrorRaised]:
    return Counts(PartitionErrorRaised, (), lambda event: event.kind == kind)


def _update_errors(action: str) -> Counts[PartitionErrorRaised]:
    return Counts(PartitionErrorRaised, (), lambda event: event.kind == "update" and event.action == action)


SOURCE_COORDINATOR = (
    _of_source_coordinator(
        "partitionsCreatedCount",
        "Partitions that have been created.",
        Counts(PartitionsCreated, (), lambda event: event.count),
    ),
    _of_source_coordinator(
        "partitionsCompleted",
        "Partitions that have been fully processed and are COMPLETED.",
        Counts(PartitionCompleted),
    ),
    _of_source_coordinator(
        "noPartitionsAcquired",
        "Times that this node looked for a partition and found none available.",
        Counts(NothingAcquired),
    ),
    _of_source_coordinator(
        "partitionsAcquired",
        "Partitions that this node has acquired to work on.",
        Counts(PartitionAcquired),
    ),
    _of_source_coordinator(
        "partitionsClosed",
        "Partitions that have been CLOSED, to be opened again later.",
        Counts(PartitionClosed),
    ),
    _of_source_coordinator(
        "partitionNotFoundErrors",
        "Partitions that this node owned and whose row was gone.",
        _errors("not_found"),
        Counts(PartitionLost, (), lambda event: event.missing),
    ),
    _of_source_coordinator(
        "partitionNotOwnedErrors",
        "Partitions that this node worked on and no longer owned.",
        _errors("not_owned"),
        Counts(PartitionLost, (), lambda event: not event.missing),
    ),
    _of_source_coordinator(
        "saveStatePartitionUpdateErrors",
        "Updates of the store that failed while state was saved.",
        _update_errors("saveState"),
    ),
    _of_source_coordinator(
        "closePartitionUpdateErrors",
        "Updates of the store that failed while a partition was closed.",
        _update_errors("close"),
    ),
    _of_source_coordinator(
        "completePartitionUpdateErrors",
        "Updates of the store that failed while a partition was completed.",
        _update_errors("complete"),
    ),
)
"""Named `<pipeline>_source_coordinator_<name>`: one metric per pipeline, without labels and without any suffix."""

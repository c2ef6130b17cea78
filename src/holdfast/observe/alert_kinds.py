"""Every kind of alert: its meaning, its runbook, and the events that raise and end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.config.alerts import AlertSettings
from holdfast.events import (
    BatchCommitted,
    BatchPublished,
    DeadLettersBeyondTolerance,
    DeadLettersNearTolerance,
    DiscoveryFailed,
    DiscoveryFinished,
    Event,
    FinalizingFailed,
    FolderFinalized,
    Heartbeat,
    HeartbeatWithheld,
    LagMeasured,
    NodeExpired,
    NodeJoined,
    NodeLeft,
    PartitionAcquired,
    PartitionClosed,
    PartitionCompleted,
    PartitionFailed,
    PartitionHalted,
    PartitionHandedOff,
    PartitionLost,
    PartitionReleased,
    RecordsLost,
    RoundSubmitted,
    SessionEnded,
    TopicDenied,
    Unreachable,
    WaitsBehindTransaction,
)

NEAR_RETENTION = 0.5
"""Fraction of the source's retention above which lag raises an alert: records may be lost soon."""

LONGEST_TRANSACTION = 900.0
"""Seconds; a broker's default of `transaction.max.timeout.ms`. An older transaction has no living producer."""

Subject: TypeAlias = tuple[str | None, str | None]
"""The pipeline and the key that an alert or an event concerns; None if it names none."""


@dataclass(frozen=True, slots=True)
class AlertKind:
    """A reason to call a person."""

    name: str
    meaning: str
    runbook: str
    """Name of the page in docs/runbooks."""
    ended_by: tuple[type[Event], ...] = ()
    """Events that prove its end, for the same pipeline and key if they name them."""
    lasting: bool = False
    """Raised only after `unreachable_after`; the others are raised at once."""
    of_pipeline: bool = True


FAILED = AlertKind(
    "partition_failed", "A partition is FAILED: its retries are used up.", "partition-failed.md", (PartitionAcquired,)
)
HALTED = AlertKind(
    "partition_halted",
    "A partition is halted: evidence disagrees, its nodes die, or too many of its records are dead letters.",
    "partition-halted.md",
    (PartitionAcquired,),
)
LETTERS_BEYOND = AlertKind(
    "dead_letters_beyond_tolerance",
    "A partition is halted: a batch has more dead letters than `dead_letters.tolerance` allows.",
    "dead-letters.md",
    (PartitionAcquired,),
)
LETTERS_NEAR = AlertKind(
    "dead_letters_near_tolerance",
    "A partition has more than half of the dead letters that `dead_letters.tolerance` allows.",
    "dead-letters.md",
    (PartitionHalted,),
)
_HELD_NO_MORE = (
    PartitionReleased,
    PartitionHandedOff,
    PartitionLost,
    PartitionClosed,
    PartitionCompleted,
    PartitionFailed,
    PartitionHalted,
    SessionEnded,
    NodeLeft,
)
LAGGING = AlertKind(
    "partition_lagging",
    "A partition that this node holds is behind its source by more than `lag_records` or `lag_seconds`, or by half of "
    "the time for which the source keeps records.",
    "partition-lagging.md",
    _HELD_NO_MORE,
)
TRANSACTION_OPEN = AlertKind(
    "transaction_open",
    "A partition waits behind a transaction that was open for longer than brokers allow by default: 15 minutes.",
    "open-transaction.md",
    (BatchCommitted, *_HELD_NO_MORE),
)
TOPIC_DENIED = AlertKind(
    "topic_denied",
    "The brokers do not let this node read a topic.",
    "topic-denied.md",
    (LagMeasured, *_HELD_NO_MORE),
)
RECORDS_LOST = AlertKind("records_lost", "The source has deleted records before they were read.", "records-lost.md")
LEASE_LOST = AlertKind(
    "lease_lost", "A lease of this node was taken by another.", "node-expired.md", (PartitionAcquired,)
)
SESSION_LOST = AlertKind("session_lost", "This node has lost its session.", "node-expired.md", of_pipeline=False)
NODE_LOST = AlertKind(
    "node_lost", "Another node was silent for its whole session timeout.", "node-expired.md", of_pipeline=False
)
HEARTBEAT_WITHHELD = AlertKind(
    "heartbeat_withheld",
    "This node hangs and is about to lose its leases.",
    "heartbeat-withheld.md",
    (Heartbeat, NodeJoined),
    of_pipeline=False,
)
DISCOVERY_FAILED = AlertKind(
    "discovery_failed", "The supplier of partitions has failed.", "source-unreachable.md", (DiscoveryFinished,)
)
FINALIZING_FAILED = AlertKind(
    "finalizing_failed",
    "A hook that is called for final output folders has failed.",
    "finalizing-failed.md",
    (FolderFinalized,),
)
STORE_UNREACHABLE = AlertKind(
    "store_unreachable",
    "The store does not respond.",
    "store-unreachable.md",
    (Heartbeat, NodeJoined),
    lasting=True,
    of_pipeline=False,
)
SOURCE_UNREACHABLE = AlertKind(
    "source_unreachable",
    "A source, such as a broker, does not respond.",
    "source-unreachable.md",
    (RoundSubmitted, DiscoveryFinished),
    lasting=True,
)
SINK_UNREACHABLE = AlertKind(
    "sink_unreachable",
    "A sink, such as a bucket, does not respond.",
    "sink-unreachable.md",
    (BatchPublished,),
    lasting=True,
)

KINDS: Mapping[str, AlertKind] = {
    kind.name: kind
    for kind in (
        FAILED,
        HALTED,
        LETTERS_BEYOND,
        LETTERS_NEAR,
        LAGGING,
        TRANSACTION_OPEN,
        TOPIC_DENIED,
        RECORDS_LOST,
        LEASE_LOST,
        SESSION_LOST,
        NODE_LOST,
        HEARTBEAT_WITHHELD,
        DISCOVERY_FAILED,
        FINALIZING_FAILED,
        STORE_UNREACHABLE,
        SOURCE_UNREACHABLE,
        SINK_UNREACHABLE,
    )
}


def runbook(kind: str) -> str:
    """Return the path of the runbook in the repository."""
    return f"docs/runbooks/{KINDS[kind].runbook if kind in KINDS else 'README.md'}"


@dataclass(frozen=True, slots=True)
class Sign:
    """A problem that an event reports. `lasts`: seconds for which it is certain, until the next attempt is due."""

    kind: AlertKind
    subject: Subject
    message: str
    lasts: float = 0.0


def subject_of(event: Event) -> Subject:
    """Return the pipeline and key that the event concerns."""
    return getattr(event, "pipeline", None), getattr(event, "key", None)


def sign_of(event: Event, limits: AlertSettings) -> Sign | None:
    """Return the problem that the event reports, if any."""
    sign = _SIGNS.get(type(event))
    return sign(event, limits) if sign is not None else None


def within_limits(event: LagMeasured, limits: AlertSettings) -> bool:
    """Return whether the lag is known to be below all limits."""
    return all(lag is not None and lag <= limit for _, lag, limit in _limited(event, limits))


def _limited(event: LagMeasured, limits: AlertSettings) -> list[tuple[str, float | None, float]]:
    near_loss = None if event.kept is None else event.kept * NEAR_RETENTION
    measured = (
        ("records", event.records, limits.lag_records),
        ("seconds", event.seconds, limits.lag_seconds),
        ("seconds", event.seconds, near_loss),
    )
    return [(unit, lag, limit) for unit, lag, limit in measured if limit is not None]


def _lagging(event: LagMeasured, limits: AlertSettings) -> Sign | None:
    excess = [
        f"{lag:.0f} {unit} behind, more than {limit:g}"
        for unit, lag, limit in _limited(event, limits)
        if lag is not None and lag > limit
    ]
    return Sign(LAGGING, subject_of(event), "; ".join(excess)) if excess else None


def _behind_transaction(event: WaitsBehindTransaction, _: AlertSettings) -> Sign | None:
    if event.seconds < LONGEST_TRANSACTION:
        return None
    message = f"has waited behind an open transaction since {event.since}, at offset {event.offset}"
    return Sign(TRANSACTION_OPEN, subject_of(event), message)


def _unreachable(event: Unreachable, _: AlertSettings) -> Sign:
    name = f"{event.what}_unreachable"
    kind = KINDS.get(name) or AlertKind(name, f"The {event.what} does not respond.", "README.md", lasting=True)
    message = f"the {event.what} does not respond: {event.error}"
    return Sign(kind, (event.pipeline, None), message, event.retry_in)


def _letters(kind: AlertKind) -> Callable[[Any, AlertSettings], Sign]:
    def sign(event: DeadLettersNearTolerance | DeadLettersBeyondTolerance, _: AlertSettings) -> Sign:
        message = f"{event.letters} of {event.records} records are dead letters, {event.allowed} are allowed"
        if isinstance(event, DeadLettersBeyondTolerance) and event.reason:
            message = f"{message}: {event.reason}"
        return Sign(kind, subject_of(event), message)

    return sign


def _at_once(kind: AlertKind, message: Callable[[Any], str]) -> Callable[[Any, AlertSettings], Sign]:
    return lambda event, _: Sign(kind, subject_of(event), message(event))


_SIGNS: Mapping[type[Event], Callable[[Any, AlertSettings], Sign | None]] = {
    PartitionFailed: _at_once(FAILED, lambda event: f"its retries are used up: {event.error}"),
    PartitionHalted: _at_once(HALTED, lambda event: event.reason),
    DeadLettersBeyondTolerance: _letters(LETTERS_BEYOND),
    DeadLettersNearTolerance: _letters(LETTERS_NEAR),
    TopicDenied: _at_once(TOPIC_DENIED, lambda event: f"the brokers deny access to the topic: {event.error}"),
    RecordsLost: _at_once(
        RECORDS_LOST,
        lambda event: f"the source has deleted {event.start} to {event.end} (exclusive) before they were read",
    ),
    PartitionLost: _at_once(LEASE_LOST, lambda event: event.reason),
    SessionEnded: _at_once(SESSION_LOST, lambda event: f"session {event.session} has ended: {event.reason}"),
    HeartbeatWithheld: _at_once(
        HEARTBEAT_WITHHELD, lambda event: f"step {event.step} is {event.seconds:.0f} s over its limit"
    ),
    DiscoveryFailed: _at_once(DISCOVERY_FAILED, lambda event: event.error),
    FinalizingFailed: _at_once(
        FINALIZING_FAILED,
        lambda event: f"{event.topic}/{event.output_folder}: {event.error}" if event.output_folder else event.error,
    ),
    # Every session has its own id, so that each dead node raises one alert.
    NodeExpired: lambda event, _: Sign(
        NODE_LOST, (None, event.session), f"session {event.session} has sent no heartbeat"
    ),
    LagMeasured: _lagging,
    WaitsBehindTransaction: _behind_transaction,
    Unreachable: _unreachable,
}

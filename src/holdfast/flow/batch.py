"""A batch: the rows of one partition from a start position to an end position, as one try of one node.

A batch belongs to the lease under which it was planned. Its id is new for every try, so that nothing that one try
stages can be mistaken for what another staged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import BatchError, Halt
from holdfast.leases.lease import Json, Lease


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one batch. `timeout` is the watchdog's: beyond it the batch is cancelled and counts an attempt."""

    max_bytes: int = 256 * 1024 * 1024
    max_records: int | None = None
    timeout: float = 3600.0


@dataclass(frozen=True, slots=True)
class Name:
    """How a partition is called in output names: for Kafka topic and partition, for an object bucket and hash."""

    stream: str
    label: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the next batch of a partition ends, as the source plans it; `end` is exclusive."""

    start: Json
    end: Json
    last: bool = False
    """Nothing follows in this partition: it is complete when the batch is published."""
    size: int = 0
    """Estimated bytes, to balance the tasks of a round."""
    max_bytes: int | None = None
    """Where the batch is cut short if it turns out larger; None: never. Needs the source's size column."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Items [from, to) that the source has lost for ever, told in receipt and manifest."""
    max_records: int | None = None
    """Records after which the source itself cuts the batch short, by a row whose fault is `cut`; None: never."""
    state: Json = None
    """What the source wants to know of this batch later: the state of the row from its commit on; None: as it was."""


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to read now; ask again after that many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """Everything of this partition has been read; it is complete."""


@dataclass(frozen=True, slots=True)
class Close:
    """There is nothing to read for long: the partition sleeps, and whoever is free then takes it."""

    seconds: float
    most: int | None = None
    """It is complete when it has been closed so many times."""


Plan: TypeAlias = Cut | Wait | Done | Close | BatchError | Halt
"""What a source says of a partition's next batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    lease: Lease
    name: Name
    cut: Cut
    restages: str | None = None
    """The id of a pending commit whose staged data is gone and is made again from the same range."""

"""When the next batch of a partition is due, and how much it takes. Pure.

Records wait in the source and are buffered nowhere else. A partition is due when it has enough for a full batch, when
its oldest record is old enough, or at fixed times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from holdfast.config import ByteSize, Duration, Options, PositiveCount

SLACK = 1.05
"""Factor by which plans exceed the average size of a full batch: a batch is cut where it is full, so it is never too
small."""


@dataclass(frozen=True, slots=True)
class UploadPolicy:
    """When a batch is due. One of the limits must be reached at some time, so `max_age` always has a value."""

    max_bytes: int = 256 << 20
    max_records: int | None = None
    max_age: float = 300.0
    """Seconds after which even a small batch is due."""
    every: float | None = None
    """Seconds between fixed times, counted from 1970 in UTC; at each of them, everything that came before it is due."""


class Upload(Options):
    """When the records of a partition become files. Each partition is treated on its own."""

    max_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        "256MiB", validate_default=True, description="Bytes of keys and values, uncompressed, that make a batch."
    )
    max_records: PositiveCount | None = Field(None, description="Records that make a batch; no limit unless given.")
    max_age: Annotated[Duration, Field(gt=0)] = Field(
        "5m", validate_default=True, description="A record is in a visible file after about this time at most."
    )
    every: Annotated[Duration, Field(gt=0)] | None = Field(
        None, description="Files also end at every multiple of this time on the clock, for example `5m`."
    )

    def policy(self) -> UploadPolicy:
        """The same settings as an `UploadPolicy`."""
        return UploadPolicy(self.max_bytes, self.max_records, self.max_age, self.every)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The records of a partition that are not read yet."""

    records: int
    mean_bytes: float
    age: float
    """Seconds since the oldest record arrived."""
    now: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Due:
    """Read this many records now."""

    records: int


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing is due before that many seconds have passed, unless more records come."""

    seconds: float


def decide(policy: UploadPolicy, backlog: Backlog) -> Due | NotYet:
    """Whether a batch is due, and how many records it has."""
    if backlog.records <= 0:
        return NotYet(math.inf)
    full = max(1, int(policy.max_bytes / max(backlog.mean_bytes, 1.0)))
    planned = max(1, math.ceil(full * SLACK))
    if policy.max_records is not None:
        full, planned = min(full, policy.max_records), min(planned, policy.max_records)
    if backlog.records >= full:
        return Due(min(backlog.records, planned))
    left = _seconds_left(policy, backlog)
    return Due(backlog.records) if left <= 0 else NotYet(left)


def _seconds_left(policy: UploadPolicy, backlog: Backlog) -> float:
    left = policy.max_age - backlog.age
    if policy.every is not None:
        arrived = backlog.now - backlog.age
        next_time = (math.floor(arrived / policy.every) + 1) * policy.every
        left = min(left, next_time - backlog.now)
    return left

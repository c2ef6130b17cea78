"""When the next batch of a partition is due, and how much it takes. Pure.

The source is the buffer: nothing is kept anywhere in the meantime. A partition is due when it has enough for a full
batch, when its oldest record is old enough, or when the clock strikes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SLACK = 1.05
"""Planned beyond what the mean record suggests: the batch is cut exactly where it is full, so it is not too small."""


@dataclass(frozen=True, slots=True)
class UploadPolicy:
    """What makes a batch. At least one of the limits must come true in time, so `max_age` always has a value."""

    max_bytes: int = 256 << 20
    max_records: int | None = None
    max_age: float = 300.0
    """Seconds after which even a small batch is due."""
    every: float | None = None
    """Seconds between strokes of the clock, counted from midnight UTC of 1970; what came before one is due after it."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a partition has that nobody has read."""

    records: int
    mean_bytes: float
    age: float
    """Seconds since the oldest of them arrived."""
    now: float
    """Seconds since 1970, for strokes of the clock."""


@dataclass(frozen=True, slots=True)
class Due:
    """Read so many records now."""

    records: int


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing is due before that many seconds have passed, unless more records come."""

    seconds: float


def decide(policy: UploadPolicy, backlog: Backlog) -> Due | NotYet:
    """What to do about a backlog."""
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
        stroke = (math.floor(arrived / policy.every) + 1) * policy.every
        left = min(left, stroke - backlog.now)
    return left

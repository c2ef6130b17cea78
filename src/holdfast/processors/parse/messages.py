"""For functions of `parse`: what a function is given for each message, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A field that the source does not have is None."""

    topic: str
    partition: int | None
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a function returns for a message."""

    names: Sequence[str] = ()
    """Partition names in order, such as ("dt=2026-01-01", "hr=05"); each becomes a folder."""
    payload: bytes | None = None
    """Replaces the value of the message; None: the value stays."""

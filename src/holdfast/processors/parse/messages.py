"""For people who write a parser of their own: what a function gets for each message, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Message:
    """One message. What the source does not have is None."""

    topic: str
    partition: int | None
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a function has made of a message."""

    names: Sequence[str] = ()
    """Partition names in order, such as ("dt=2026-01-01", "hr=05"); each becomes a folder."""
    payload: bytes | None = None
    """What is kept instead of the message's value; None: the value stays."""

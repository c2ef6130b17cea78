"""Bytes in order, and what it is called when they are not what they should be."""

from __future__ import annotations

from typing import Protocol

from holdfast.errors import BatchError


class Damaged(BatchError):
    """The object itself is broken: cut off, altered, or not of the kind that the settings say."""


class Stream(Protocol):
    """Bytes in order."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; none at the end. Raises `BatchError` (`Damaged`) or `Unavailable`."""
        ...

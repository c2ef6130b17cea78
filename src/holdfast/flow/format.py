"""The format of files: which columns it wants, and how rows become bytes.

The same rows give the same bytes, in whatever portions of whole blocks they come: a file that is lost after its commit
is made again from the source and must be the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol


class RawWriter(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | memoryview) -> int: ...


class FormatWriter(ABC):
    """One open file."""

    @property
    def buffered(self) -> int:
        """About how many bytes wait in memory."""
        return 0

    @abstractmethod
    def write(self, rows: Any) -> None:
        """Add a record batch."""

    def flush(self) -> None:
        """Hand over what waits in memory, if the format allows it. The file stays open."""

    @abstractmethod
    def close(self) -> None:
        """Write the rest and the end of the file. The raw writer stays open. May be called once."""


class Format(ABC):
    """A way to write rows. Picklable."""

    extension: str
    """What file names end with, without the first dot."""

    @abstractmethod
    def columns(self, fields: Any) -> Mapping[str, Any]:
        """As `Stager.columns`: what `open`'s writer wants, as Spark expressions over the data columns."""

    @abstractmethod
    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        """A writer of record batches with this Arrow schema."""

"""The format of files: which columns it needs, and how rows become bytes.

The same rows give the same bytes, in whatever portions of whole blocks they come: a file that is lost after its commit
is written a second time from the source and must be identical.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol


class RawWriter(Protocol):
    """A writer of raw bytes."""

    def write(self, data: bytes | memoryview) -> int: ...


class FormatWriter(ABC):
    """One open file."""

    @property
    def buffered(self) -> int:
        """About how many bytes are buffered in memory."""
        return 0

    @abstractmethod
    def write(self, rows: Any) -> None:
        """Add a record batch."""

    def flush(self) -> None:
        """Write what is buffered in memory, if the format allows it. The file stays open."""

    @abstractmethod
    def close(self) -> None:
        """Write the rest and the end of the file. The raw writer stays open. May be called once."""


class Format(ABC):
    """A way to write rows. Picklable."""

    extension: str
    """The extension of file names, without the first dot."""
    keeps: frozenset[str] = frozenset()
    """Columns of Kafka's rows that `read` returns, if they were written and settings do not change them."""
    skips: frozenset[str] = frozenset()
    """Reasons of `faults` for which settings say that a row is left out and counted, instead of a dead letter."""

    @abstractmethod
    def columns(self, fields: Any) -> Mapping[str, Any]:
        """The columns that the writer needs, as Spark expressions over the data columns; see `Stager.columns`."""

    @abstractmethod
    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        """A writer of record batches with this Arrow schema."""

    def faults(self, rows: Any) -> Any | None:  # noqa: ARG002 - most formats can hold every row
        """Which rows of a record batch cannot be written without loss; None if all can.

        Otherwise an Arrow array of strings with the reason for each such row, and null for the others. A sink keeps
        these rows as dead letters, or leaves them out if the reason is one of `skips`, and gives only the others to the
        writer. Pure; may be called in any portions.
        """
        return None

    def limits(self) -> list[str]:
        """For people: what the format cannot hold, what becomes of it, and the setting that decides."""
        return []

    @abstractmethod
    def read(self, data: BinaryIO) -> Iterator[Any]:
        """Read back a whole file that a writer of the same settings has made: record batches, in the order of writing.

        They have the columns that the file has, in Arrow types close to those that were written; a batch is never
        empty. `data` can seek, and stays open. Raises `ValueError` if the bytes are not a whole file of this format, at
        the latest at the end; errors of `data` are passed on.
        """


@dataclass(frozen=True)
class Formats:
    """The format of each topic: that of the first rule whose pattern matches the whole name, else the default."""

    default: Format
    rules: Sequence[tuple[str, Format]] = ()

    def of(self, stream: str) -> Format:
        """The format of a topic's files."""
        for pattern, chosen in self.rules:
            if re.fullmatch(pattern, stream):
                return chosen
        return self.default

    def all(self) -> list[Format]:
        """All formats that may be used."""
        return [*(chosen for _, chosen in self.rules), self.default]

"""The interface of output whose folders can be declared final; `holdfast.finalize.finalizer` decides when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.finalize.rules import FolderView, Period, Rules
from holdfast.flow.batch import Name
from holdfast.flow.manifest import Manifest


@dataclass(frozen=True, slots=True)
class FinalFolder:
    """An output folder that is final."""

    pipeline: str
    topic: str
    output_folder: str
    content: FolderView
    ends: Mapping[str, int]
    """By partition: all records before this offset have been read."""


@dataclass(frozen=True, slots=True)
class FinalTime:
    """How far a topic is final, for batches that are staged."""

    final: float
    """Output folders that end at or before this time are final."""
    through: Mapping[str, int]
    """By partition: records before this offset were committed before, and are not late if they are written again."""


class FinalizableOutput(ABC):
    """The output folders of one sink. Called from a thread of its own; every call may be repeated, by any node."""

    rules: Rules
    interval: float
    """Seconds between two passes."""
    patience: float
    """Seconds that `finish` may take; after that another node may do it."""

    @abstractmethod
    def period(self, output_folder: str) -> Period | None:
        """The period of an output folder; None if its name has no time, so that it is never final. Pure."""

    @abstractmethod
    def manifest(self, name: Name, sequence: int) -> Manifest | None:
        """The manifest of that commit; None if the commit has no data in this sink.

        Raises `Unavailable`, or `Halt` for a broken manifest.
        """

    @abstractmethod
    def finish(self, final: FinalFolder) -> str | None:
        """Announce that an output folder is final. Blocks. Returns what went wrong; None on success.

        Raises `Unavailable`. Called at least once for each folder: if a node dies in the middle, another repeats it.
        """

    @abstractmethod
    def set_final_times(self, topics: Mapping[str, FinalTime]) -> None:
        """Use these final times, by topic, for batches that are staged from now on. Does not block."""


class Finalizes(ABC):
    """A capability of sinks: output folders can be declared final."""

    @abstractmethod
    def finalizing(self) -> FinalizableOutput | None:
        """The output whose folders are declared final; None if that is not configured."""

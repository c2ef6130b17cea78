"""What a sink must offer so that places in it can be declared final; `holdfast.finalize.finalizer` decides when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.finalize.rules import Period, PlaceView, Rules
from holdfast.flow.batch import Name
from holdfast.flow.manifest import Manifest


@dataclass(frozen=True, slots=True)
class FinalPlace:
    """A place that is final."""

    pipeline: str
    topic: str
    place: str
    told: PlaceView
    ends: Mapping[str, int]
    """By partition: all records before this offset have been looked at."""


@dataclass(frozen=True, slots=True)
class Known:
    """What of a topic is final, for those who stage."""

    final: float
    through: Mapping[str, int]
    """By partition: records before this offset were committed before and are not late when they come again."""


class Finalizing(ABC):
    """The places of one sink. Called from a thread of its own; every call may be repeated, by any node."""

    rules: Rules
    interval: float
    """Seconds between two looks."""
    patience: float
    """Seconds that `finish` may take; after that another node may do it."""

    @abstractmethod
    def period(self, place: str) -> Period | None:
        """What time a place holds; None if it tells none and is therefore never final. Pure."""

    @abstractmethod
    def manifest(self, name: Name, sequence: int) -> Manifest | None:
        """That commit; None if this sink has none of it. Raises `Unavailable`, or `Halt` for a broken manifest."""

    @abstractmethod
    def finish(self, final: FinalPlace) -> str | None:
        """Tell the world that a place is final. Blocks. Answers what went wrong; None if everything is told.

        Raises `Unavailable`. At least once: a node that dies in the middle is followed by one that tells again.
        """

    @abstractmethod
    def know(self, topics: Mapping[str, Known]) -> None:
        """What is final, by topic, for batches that are staged from now on. Does not block."""


class Finalizes(ABC):
    """A capability of sinks: output folders can be declared final."""

    @abstractmethod
    def finalizing(self) -> Finalizing | None:
        """How output folders are declared final; None if the settings do not ask for it."""

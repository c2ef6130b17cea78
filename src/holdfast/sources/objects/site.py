"""A site: where objects are found, which partitions they make, and how each is planned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.errors import Unavailable
from holdfast.events import Event
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.leases.lease import Json, Lease
from holdfast.sources.objects.cutting import cut_short
from holdfast.sources.objects.finding_order import Candidate
from holdfast.sources.objects.pieces import Piece


class Site(ABC):
    """One pipeline's objects. Used by the node only, by one thread, except that `find` may run beside the others."""

    mark: str
    """What the specs of this kind of site have, and no others."""
    tidies: bool = False
    """Whether objects are not left alone when they have been read, see `after_publish`."""

    @abstractmethod
    def open(self) -> None:
        """Raise `Refused` if the objects cannot be read as the settings say, `Unavailable` if one cannot tell."""

    def check(self) -> None:
        """Before partitions are planned: raise `Unavailable` if there is no use in it now."""

    @abstractmethod
    def admit(self, state: dict[str, Any]) -> None:
        """Raise `Refused` if the pipeline's state is of objects that must not be mixed with these."""

    @abstractmethod
    def find(self, now: float) -> Iterator[Candidate | None]:
        """All partitions, in order of their keys; None is a mere sign of life. Raises `Unavailable`."""

    @abstractmethod
    def name(self, lease: Lease) -> Name:
        """As the source's. Pure."""

    @abstractmethod
    def plan(self, lease: Lease, limits: Limits) -> Plan:
        """Where the partition's next batch ends. Raises `Unavailable`."""

    @abstractmethod
    def pieces(self, batch: Batch) -> list[Piece]:
        """What the tasks read for that batch."""

    def cut_short(self, batch: Batch, item: int) -> Json:
        """As the source's. Pure."""
        return cut_short(batch.cut.start, item)

    def after_publish(self, leases: Sequence[Lease]) -> list[Unavailable | None]:
        """As the source's."""
        return [None] * len(leases)

    def noticed(self) -> list[Event]:
        """What people should hear of since the last call."""
        return []

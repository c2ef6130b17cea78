"""The engine: carries the batches of a round to the sinks' staging areas and reports each.

Spark implements it; the simulator has its own implementation. The node's loop never blocks on a job: it submits, polls
and commits each batch as soon as it is reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.flow.batch import Batch, Name
from holdfast.leases.lease import Counts, Json, Ranges


@dataclass(frozen=True, slots=True)
class Staged:
    """The batch is staged in full; it may be committed. No further report follows for it.

    `end` may lie before the planned end when the engine cut the batch shorter; `last` is then False. A batch that
    restages a commit is never cut shorter.
    `receipts` has one entry per sink, or none for an acknowledgement without data, which is visible as it is. `acked`
    are ranges beyond the end that a long-lived batch has acknowledged.
    """

    batch_id: str
    end: Json
    last: bool
    receipts: Mapping[str, Json]
    counts: Counts = Counts()
    acked: tuple[tuple[int, int], ...] = ()
    size: int = 0
    """Bytes of the records, if the source has a size column."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By processor, the good rows that it dropped. One batch of a job may count for all its batches."""
    chosen_letters: int = 0
    """Dead letters that a setting has asked for, such as late records: the tolerance does not count them."""
    forwarded: Ranges = ()
    """As in `Advanced`."""
    letter_reason: str | None = None
    """Why one of the records became a dead letter, without values of the record; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """A long-lived batch has acknowledged records up to `position` and in `acked` ranges beyond it, and goes on.

    It puts off the deadline of the batch; a report without anything new is a sign of life and writes nothing.
    """

    batch_id: str
    position: Json
    acked: tuple[tuple[int, int], ...] = ()
    counts: Counts = Counts()
    forwarded: Ranges = ()
    """Acks of other nodes, from `Engine.acknowledge`, that the position and `acked` contain."""
    receipts: Mapping[str, Json] = field(default_factory=dict)
    """By sink, what was staged for the records between the last committed position and this one; empty if there is no
    sink to stage for. The next report of the batch is committed when these are published."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch has ended with an error. That counts as an attempt unless source or sink were `unavailable`."""

    batch_id: str
    error: str
    unavailable: bool = False
    what: str = "sink"
    """Which was unavailable: `source` or `sink`."""


Report = Staged | Advanced | Failed


class Engine(ABC):
    """Carries rounds of one node, for all its pipelines. Used by one thread."""

    endless: bool = False
    """Whether batches run until they are drained, so that no round can wait for the end of another."""

    @abstractmethod
    def room(self) -> int:
        """How many more rounds the engine accepts now. Does not block."""

    @abstractmethod
    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        """Begin a round. Does not block; every outcome comes through `poll`."""

    @abstractmethod
    def poll(self, timeout: float) -> list[Report]:
        """Reports that have come in. Blocks up to `timeout` seconds for the first one."""

    @abstractmethod
    def cancel(self, batch_ids: Sequence[str]) -> None:
        """Stop these batches without waiting. Other batches of the same round may come back as unavailable.

        What was staged stays; nothing more is reported for them.
        """

    def drain(self, batch_ids: Sequence[str]) -> None:
        """Let long-lived batches finish the records that they have read; each ends with `Staged`. Does not block."""

    def acknowledge(self, batch_id: str, ranges: Ranges) -> None:
        """Note that other nodes have acknowledged these records of a long-lived batch. May be repeated; does not block.

        A report names them in `forwarded` once its position and ranges contain them.
        """

    def take_foreign_acks(self) -> Mapping[Name, Collection[int]]:
        """Offsets, by partition, that handlers have acknowledged and that no batch of this node has. Does not block."""
        return {}

    def published(self, batch_ids: Sequence[str]) -> None:
        """Note that everything that these long-lived batches have reported is visible. Does not block."""

    def workers(self) -> Mapping[str, int]:
        """Number of long-lived workers by state; empty if the engine has none.

        Any thread may call it; does not block.
        """
        return {}

    def close(self) -> None:
        """Cancel everything and free resources. May be repeated; never raises."""


class ReportsBatches(Protocol):
    """What a node needs of its engines; the loops of its pipelines submit to them."""

    def poll(self, timeout: float) -> list[Report]:
        """As `Engine.poll`."""
        ...

    def close(self) -> None:
        """As `Engine.close`."""
        ...


class Engines:
    """Several engines, polled and closed together."""

    def __init__(self, engines: Sequence[ReportsBatches]) -> None:
        self._engines = list(engines)

    def add(self, engine: ReportsBatches) -> None:
        """Poll this engine too, from now on."""
        self._engines.append(engine)

    def remove(self, engine: ReportsBatches) -> None:
        """Stop polling this engine; the caller closes it."""
        self._engines.remove(engine)

    def poll(self, timeout: float) -> list[Report]:
        reports = [report for engine in self._engines for report in engine.poll(0.0)]
        for engine in self._engines:
            if reports:
                break
            reports = engine.poll(timeout / len(self._engines))
        return reports

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

"""The sink: the engine's tasks stage rows; the node does everything else.

A sink has three methods: stager, receipt and publish. A feature that only some sinks have is a capability: a separate
interface that a sink may also implement and that the loop finds by type. The order for one commit is stage, commit,
publish, discard_staged. Each call may be repeated, by any node, at any time, also at the same time as another node's; a
published commit stays published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Halt, StagedDataGone, Unavailable
from holdfast.events import Event
from holdfast.flow.batch import Batch, Name
from holdfast.flow.engine import Engine
from holdfast.flow.letter import LetterBox, Rebuilder
from holdfast.flow.search_index import IndexPlan, SearchIndexes
from holdfast.flow.source import Source
from holdfast.flow.staging import Stager
from holdfast.leases.lease import Json, Lease


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit on its way to readers: its row, and the receipt of this sink.

    `receipt` is JSON with the keys `from`, `to` and `token` of the batch, and everything that the sink needs to
    publish.
    """

    lease: Lease
    name: Name
    receipt: Json


PublishResult = Halt | StagedDataGone | Unavailable | None


class Sink(ABC):
    """One output of one pipeline."""

    name: str

    def open(self, pipeline: str, *, durable: bool) -> str | None:
        """Check that this output belongs to this pipeline. `durable`: whether the store survives a restart.

        Returns a message for people, or None. Raises `Refused` when going on would put data at risk,
        `Unavailable` when the output does not respond.
        """

    def close(self) -> None:
        """Close what `open` has opened. Never raises."""

    @abstractmethod
    def stager(self) -> Stager:
        """The stager with which the engine's tasks write rows where no reader sees them; must be picklable."""

    @abstractmethod
    def receipt(self, parts: Sequence[Json]) -> Json:
        """The receipt of a batch, from the parts that the tasks returned; a batch without rows has no parts.

        Raises `BatchError` when the parts cannot be one commit.
        """

    @abstractmethod
    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        """Make each commit visible. Returns a result for each, None when all of it is visible; raises nothing."""


# --- capabilities: what a sink may also be -------------------------------------------------------------------------


class StagesByBatch(ABC):
    """The stager depends on the batches."""

    @abstractmethod
    def stager_for(self, batches: Sequence[Batch]) -> Stager:
        """The stager for these batches, used instead of `stager`."""


class BoundsTimes(ABC):
    """Refuses records whose output folder is named after a time that is too far ahead."""

    @abstractmethod
    def use_time_patterns(self, patterns: Sequence[tuple[str, str]]) -> None:
        """Note that processors name output folders by these patterns of strftime, each with its time zone.

        Called once, before the sink is opened; not at all if no processor names folders after times.
        """


class Witness(ABC):
    """The output itself records commits, so that a store that has lost writes is noticed."""

    @abstractmethod
    def witness(self, taken: Sequence[tuple[Lease, Name]]) -> list[Halt | Unavailable | None]:
        """For each lease just taken, a `Halt` if the output has more commits than the row. Raises nothing."""


class KeepsStaged(ABC):
    """Staged data stays in the output until it is discarded."""

    @abstractmethod
    def discard_staged(self, publications: Sequence[Publication]) -> None:
        """Delete the remaining staged data of these receipts, which no row has any more. Never raises."""

    @abstractmethod
    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        """Delete data that was staged under lower tokens and is in no row; never by age. Never raises."""


class VisibleWhenStaged(ABC):
    """Readers may see rows as soon as they are staged; publishing does nothing."""

    @abstractmethod
    def is_visible(self, receipt: Json) -> bool:
        """Whether all data of the receipt is visible already, so that nothing is to be published or discarded. Pure."""


class PublishesFiles:
    """Publishing takes time for each file; the node keeps its leases while it makes progress."""

    _progress: Callable[[], None] | None = None

    def report_progress_to(self, progress: Callable[[], None]) -> None:
        """Set the function that `progress` calls from now on. Any thread may call it."""
        self._progress = progress

    def progress(self) -> None:
        """Report that part of a call is done. A part that takes longer than `step_limit` costs the node its leases."""
        if self._progress is not None:
            self._progress()

    def files_in(self, receipt: Json) -> int:
        """How many files are published with this receipt; the loop sizes its steps by them."""
        return len(receipt.get("files", ()))


class Restages(ABC):
    """A commit whose staged data is gone can be published after its range was staged again."""

    @abstractmethod
    def mend(self, publication: Publication, fresh: Json) -> Json:
        """The receipt that replaces the one whose staged data is gone.

        Raises `Halt` when part of the commit is visible already and the fresh data is not the same.
        """


class KeepsLetters(ABC):
    """Dead letters of this sink can be listed and sent again."""

    has_letters: bool = True
    """Whether its settings let it keep any."""

    @abstractmethod
    def letter_box(self, pipeline: str) -> LetterBox:
        """The dead letters of this sink in that pipeline. Connects to nothing yet."""


class StagesIndexes(ABC):
    """Rows of a reindex run go to search indexes that no search reaches before the run is promoted.

    The member `index` in the spec of a partition names the index of its rows.
    """

    @property
    @abstractmethod
    def prefix(self) -> str:
        """Beginning of the names of staged indexes, unless a run has its own."""

    @property
    @abstractmethod
    def keep_previous(self) -> int:
        """How many former indexes of an entity are kept."""

    @abstractmethod
    def plan(self, mappings: Mapping[str, Any], settings: Mapping[str, Any]) -> IndexPlan:
        """The mappings and settings of an entity's index; those of the sink fill in what these do not set."""

    @abstractmethod
    def indexes(self) -> SearchIndexes:
        """The indexes of the sink's cluster. Connects to nothing yet."""

    @abstractmethod
    def use_aliases(self, aliases: Mapping[str, str]) -> None:
        """Use these indexes, by entity, for rows whose partition names none, such as redriven dead letters."""


class RunsWorkers(ABC):
    """Long-lived workers handle the records themselves. What they return goes to the other sinks of the pipeline.

    Such a pipeline has no processors and no routes.
    """

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of cores that the workers of a node occupy."""

    @property
    @abstractmethod
    def session_timing(self) -> tuple[float, float]:
        """The session timeout and the heartbeat interval that suit it, in seconds."""

    @property
    @abstractmethod
    def source_start(self) -> Mapping[str, Any]:
        """Settings that replace those of the source, to begin where this sink says; empty if it says nothing."""

    @property
    @abstractmethod
    def source_defaults(self) -> Mapping[str, Any]:
        """Settings of the source that apply unless the file gives them."""

    @abstractmethod
    def endless(self, source: Source, others: Mapping[str, Sink]) -> Source:
        """A source whose batches continue until they are drained; `others` are the other sinks.

        Raises `UsageError` if this source has no shards or does not read the stream that the sink's settings name, or
        if one of the sinks cannot be written to.
        """

    @abstractmethod
    def engine(
        self,
        spark: Any,
        source: Source,
        others: Mapping[str, Sink],
        pipeline: str,
        usable: Callable[[], float],
        emit: Callable[[Event], None],
    ) -> Engine:
        """Start the workers, and wait for them. `usable`: seconds for which the node's session can be relied on."""

    @abstractmethod
    def rebuilder(self) -> Rebuilder:
        """Makes rows from dead letters that `stager` can hand to the workers' code. Needs no Spark."""

    @abstractmethod
    def redriving(self, source: Source, others: Mapping[str, Sink]) -> Sink:
        """This sink as a redrive uses it: its stager feeds `others` with what the workers' code returns.

        `source` is what `endless` has returned: rows of a record are known by the same numbers as if it were read.
        """


def other_sinks(function: RunsWorkers, sinks: Mapping[str, Sink]) -> dict[str, Sink]:
    """The sinks that get what the handler returns."""
    return {name: sink for name, sink in sinks.items() if id(sink) != id(function)}

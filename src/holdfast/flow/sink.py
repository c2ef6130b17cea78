"""The sink: staging happens in the engine's tasks, everything else here, on the node.

The order for one commit is stage, commit, publish, settle. Each call may be repeated, by any node, at any time, also
at the same time as another node's; a commit that was published stays so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import Halt, SinkUnavailable, StagedDataGone
from holdfast.events import Event
from holdfast.flow.batch import Batch, Name
from holdfast.flow.finalizing import Finalizing
from holdfast.flow.letters import LetterBox
from holdfast.flow.staging import Stager
from holdfast.leases.lease import Json, Lease


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit on its way to readers: the row that carries it, and what this sink staged for it.

    `receipt` is JSON with the keys `from`, `to` and `token` of the batch, and what the sink needs to publish.
    """

    lease: Lease
    name: Name
    receipt: Json


PublishResult = Halt | StagedDataGone | SinkUnavailable | None


class Sink(ABC):
    """One output of one pipeline."""

    name: str
    _progress: Callable[[], None] | None = None

    def tell_progress_to(self, progress: Callable[[], None]) -> None:
        """Call it from now on, from any thread, when part of a long call is done: the node keeps its leases then."""
        self._progress = progress

    def progress(self) -> None:
        """Part of a call is done. A part that takes longer than `step_limit` costs the node its leases."""
        if self._progress is not None:
            self._progress()

    def open(self, pipeline: str, *, durable: bool) -> str | None:
        """Check that this output belongs to this pipeline. `durable` tells whether the store survives a restart.

        Answers what it found, in words for people, if there is anything to tell.

        Raises `Refused` when going on would put data at risk, `SinkUnavailable` when it cannot be told.
        """

    def close(self) -> None:
        """Give back what `open` took. Never raises."""

    @abstractmethod
    def stager(self) -> Stager:
        """What the engine's tasks use to stage rows where no reader sees them; must be picklable."""

    def stager_for(self, batches: Sequence[Batch]) -> Stager:  # noqa: ARG002 - most stage all batches alike
        """The same for these very batches, which is what their tasks are given."""
        return self.stager()

    def finalizing(self) -> Finalizing | None:
        """How places in this output are declared final; None if they are not."""
        return None

    def letter_box(self, pipeline: str) -> LetterBox | None:  # noqa: ARG002 - for those that keep letters
        """The dead letters of this sink in that pipeline; None if they cannot be looked at. Connects to nothing yet."""
        return None

    @abstractmethod
    def receipt(self, parts: Sequence[Json]) -> Json:
        """One receipt from what the tasks staged for a batch; there are no parts for a batch without rows.

        Raises `BatchError` when the parts cannot be one commit.
        """

    def witness(self, taken: Sequence[tuple[Lease, Name]]) -> list[Halt | SinkUnavailable | None]:
        """For each lease just taken: does the output know more commits than the row? Then the store has lost writes.

        Each for itself; nothing is raised.
        """
        return [None] * len(taken)

    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        """Delete what lower tokens staged and no row names; never by age. Never raises: a later owner sweeps too."""

    def is_visible(self, receipt: Json) -> bool:  # noqa: ARG002 - where readers see nothing before it is published
        """Whether staging has shown all of this to readers already, so that nothing is to be published or settled."""
        return False

    def files_in(self, receipt: Json) -> int:
        """How many files are published with this receipt: the loop measures its steps by them."""
        return len(receipt.get("files", ()))

    @abstractmethod
    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        """Make each commit visible; None when all of it is. Each for itself; nothing is raised."""

    def mend(self, publication: Publication, fresh: Json) -> Json:
        """The receipt to record in place of one whose staged data is gone, from the same range staged anew.

        Raises `Halt` when part of the commit is visible already and the fresh data is not the same.
        """
        raise Halt(f"sink {self.name} cannot publish {publication.receipt!r} and cannot use {fresh!r} instead")

    def noticed(self) -> list[Event]:
        """What people should hear of since the last call, such as what it took to write. Does not block."""
        return []

    def settle(self, publications: Sequence[Publication]) -> None:
        """The row names these receipts no longer: staged leftovers may go. Never raises."""

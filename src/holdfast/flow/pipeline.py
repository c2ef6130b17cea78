"""The pipeline: a source, processors, sinks and the routes to them, built from its settings and ready to use.

Sources and sinks are foreign code: the functions at the end call them so that an error of one partition stays with it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.config.models import PipelineSettings
from holdfast.config.sinks import DEFAULT_ROUTE
from holdfast.errors import Interrupted
from holdfast.events import Event, Notice, StepFinished
from holdfast.flow.batch import Batch
from holdfast.flow.processor import Processor
from holdfast.flow.sink import Sink, StagesIndexes
from holdfast.flow.source import Source
from holdfast.flow.tables import LiveTables
from holdfast.leases.codec import size_without_receipts
from holdfast.leases.store import SMALLEST_BODY
from holdfast.leases.world import World

RECEIPT_MARGIN = 8 * 1024
"""Bytes reserved for the range and the token of each receipt, and for a position that is longer than the last one."""


@dataclass(frozen=True)
class Routes:
    """Which rows go to which sink: conditions by name, and the routes of those sinks that have some.

    A row may go to several sinks, or to none if the settings allow it. Rows with a fault have no route: every sink
    keeps them as dead letters.
    """

    conditions: Mapping[str, str] = field(default_factory=dict)
    by_sink: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def leave_out(self, sinks: int) -> bool:
        """Whether some rows may go to no sink; `sinks` is the number of sinks."""
        used = {route for routes in self.by_sink.values() for route in routes}
        return len(self.by_sink) == sinks and not used >= {DEFAULT_ROUTE, *self.conditions}


def routes_of(settings: PipelineSettings) -> Routes:
    """The routes in the settings of a pipeline."""
    by_sink = {named.name: named.routes for named in settings.sinks if named.routes is not None}
    return Routes(settings.routes, by_sink)


@dataclass(frozen=True)
class Pipeline:
    """The plugins of one pipeline, and the space that its store has for their receipts."""

    source: Source
    processors: Sequence[Processor]
    sinks: Mapping[str, Sink]
    routes: Routes = field(default_factory=Routes)

    max_receipt_bytes: int = SMALLEST_BODY
    """Bytes that the store can keep of a row with its receipts."""

    def __post_init__(self) -> None:
        for sink in self.sinks.values():
            if isinstance(sink, StagesIndexes) and isinstance(self.source, LiveTables):
                sink.use_aliases({name: entity.index for name, entity in self.source.entities().items()})

    def receipt_bytes(self, batch: Batch) -> int:
        """Bytes that the receipt of one sink may take in the row of the batch."""
        rest = size_without_receipts(batch.lease) + RECEIPT_MARGIN
        each = len(self.sinks) * len(json.dumps(batch.cut.gaps))
        return max(0, self.max_receipt_bytes - rest - each) // max(1, len(self.sinks))

    @property
    def has_routes(self) -> bool:
        """Whether conditions over the rows of the last processor decide which sinks they go to."""
        return bool(self.routes.by_sink)

    def close(self) -> None:
        """Close the source and the sinks. Never raises."""
        self.source.close()
        for sink in self.sinks.values():
            sink.close()


class ReportsEvents(ABC):
    """A capability of sources and sinks: they report events, such as lag."""

    @abstractmethod
    def noticed(self) -> list[Event]:
        """Events that were noticed since the last call. Does not block."""


T = TypeVar("T")
R = TypeVar("R")


def call_isolated(
    call: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T], *passes: type[Exception]
) -> list[R | Exception]:
    """The result of the call for each item, or the error that it raises for that item alone.

    The call is made for all items at once; if it raises, for each half of them, until the culprits are alone. It must
    be repeatable. `Interrupted` and the errors that `passes` names concern all items and are raised.
    """
    if not items:
        return []
    try:
        results = list(call(items))
        if len(results) == len(items):
            return list(results)
        error: Exception = ValueError(f"{len(results)} results were returned for {len(items)} partitions")
    except Exception as raised:
        if isinstance(raised, (Interrupted, *passes)):
            raise
        error = raised
    if len(items) == 1:
        return [error]
    middle = len(items) // 2
    return call_isolated(call, items[:middle], *passes) + call_isolated(call, items[middle:], *passes)


@contextmanager
def reported(emit: Callable[[Event], None], call: str) -> Iterator[None]:
    """Wrap a call that only notifies a plugin: an error is emitted as a notice and not raised."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - plugins are foreign code
        emit(Notice(f"{call} has failed, which changes nothing for the partitions: {describe(error)}"))


class TimedStep:
    """Emits how long the block took, also if it raises. A generator would cost more than many a block."""

    def __init__(self, world: World, pipeline: str, step: str) -> None:
        self._world, self._pipeline, self._step = world, pipeline, step

    def __enter__(self) -> None:
        self._started = self._world.clock.monotonic()

    def __exit__(self, *_: object) -> None:
        seconds = self._world.clock.monotonic() - self._started
        self._world.emit(StepFinished(self._pipeline, self._step, seconds))


def describe(error: Exception) -> str:
    """The error as text with its type, because the message of a `KeyError` alone is not enough."""
    return f"{type(error).__name__}: {error}"

"""The source of a function: the shards of a stream, each as one batch that goes on until it is drained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.errors import BatchError, UsageError
from holdfast.events import Event
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.shards import Lag, ReaderFactory, ReportsLags, ShardedStream
from holdfast.flow.source import PublishingListener, Source
from holdfast.leases.lease import Lease, Partition


class ShardSource(Source, ReportsLags, ReportsEvents, PublishingListener):
    """Plans endless batches over the shards of another source. Raises `UsageError` if that has no shards."""

    lives_long = True

    def __init__(self, source: Source) -> None:
        if not isinstance(source, ShardedStream):
            raise UsageError(
                "a function reads the shards of a stream: its source must have shards, as `stream` and `kafka` do"
            )
        self._source: Source = source
        self._stream: ShardedStream = source
        self.rediscover_after = source.rediscover_after

    def open(self) -> None:
        self._source.open()

    def close(self) -> None:
        self._source.close()

    def discover(self, state: dict[str, Any]) -> Iterable[Partition | None]:
        return self._source.discover(state)

    def name(self, lease: Lease) -> Name:
        return self._source.name(lease)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> Sequence[Plan]:  # noqa: ARG002 - batches have no end
        return self._stream.begin(leases)

    def lags(self, leases: Sequence[Lease]) -> Sequence[Lag]:
        return self._stream.lags(leases)

    def published(self, leases: Sequence[Lease]) -> None:
        if isinstance(self._source, PublishingListener):
            self._source.published(leases)

    def read(
        self,
        spark: Any,  # noqa: ARG002 - the contract's
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002
    ) -> Any:
        """Never called: workers read their shards themselves."""
        raise BatchError(f"a function reads shards in its workers, but {len(batches)} batches were sent to Spark")

    def noticed(self) -> list[Event]:
        return list(self._source.noticed()) if isinstance(self._source, ReportsEvents) else []

    def reader_factory(self) -> ReaderFactory:
        """What workers open to read the shards."""
        return self._stream.reader_factory()

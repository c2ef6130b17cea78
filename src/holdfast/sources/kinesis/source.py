"""The source `kinesis` on the node: finds shards, and gives them to functions.

Its records cannot be written to files yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.config.aws import AwsIdentity
from holdfast.errors import BatchError, Halt
from holdfast.events import Event, Notice
from holdfast.flow.batch import Batch, Cut, Limits, Name, Plan
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.shards import Lag, Seek, Shard, ShardedStream
from holdfast.flow.source import Source
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.kinesis.client import KinesisClient, StreamAccess, StreamSummary
from holdfast.sources.kinesis.config import KinesisConfig
from holdfast.sources.kinesis.shard_reader import KinesisReaderFactory, record_number

EARLIEST: Json = {"earliest": True}


class KinesisSource(Source, ShardedStream, ReportsEvents):
    """A data stream. Each shard is a lease that is complete once the shard is closed and read."""

    lives_long = True

    def __init__(self, config: KinesisConfig) -> None:
        self._config = config
        self._access = StreamAccess(config.stream, config.region, config.endpoint_url, AwsIdentity.of(config))
        self._opened: KinesisClient | None = None
        self._events: list[Event] = []
        self._id = ""
        """The stream's id when it was opened."""
        self._reported_recreated = ""
        self.rediscover_after = config.discovery_interval

    def open(self) -> None:
        self._id = self._client().summary().id

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _client(self) -> KinesisClient:
        if self._opened is None:
            self._opened = KinesisClient(self._access)
        return self._opened

    # --- partitions ------------------------------------------------------------------------------------------------

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        """Yield all shards. A shard that was made from others is read after them: they must be complete first.

        `start` applies to the shards of the first complete discovery. A stream that was created again is left out.
        """
        summary = self._client().summary()
        if not self._is_first_incarnation(summary, state):
            return
        found = self.shards()
        starts = state.get("starts")
        if starts is None:
            starts = self._sought(summary, [shard.id for shard in found], self._config.seek())
        for shard in found:
            yield Partition(
                key=shard.id,
                group=self._config.stream,
                spec={
                    "stream": self._config.stream,
                    "shard": _kinesis_id(shard.id),
                    "number": shard.number,
                    "start": starts.get(shard.id, EARLIEST),
                },
                index=shard.number,
                incarnation=summary.id,
                after=shard.parents,
            )
        listed = {shard.id for shard in found}
        state["starts"] = {shard: start for shard, start in starts.items() if shard in listed}

    def _is_first_incarnation(self, summary: StreamSummary, state: dict[str, Any]) -> bool:
        if state.setdefault("id", summary.id) == summary.id:
            return True
        if summary.id != self._reported_recreated:
            self._reported_recreated = summary.id
            self._events.append(
                Notice(f"stream {self._config.stream} was deleted and created again; its shards are not read")
            )
        return False

    def name(self, lease: Lease) -> Name:
        return Name(lease.spec["stream"], str(lease.spec["number"]))

    # --- shards ----------------------------------------------------------------------------------------------------

    def reads(self, stream: str) -> bool:
        return stream == self._config.stream

    def shards(self) -> list[Shard]:
        found = {str(shard["ShardId"]): shard for shard in self._client().shards()}
        return [
            Shard(
                self._key(name),
                _number(name),
                tuple(
                    self._key(parent)
                    for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                    if parent in found
                ),
                closed="EndingSequenceNumber" in shard["SequenceNumberRange"],
            )
            # Children have higher numbers than their parents.
            for name, shard in sorted(found.items())
        ]

    def seek(self, shards: Sequence[str], to: Seek) -> dict[str, Json]:
        existing = {shard.id for shard in self.shards()}
        return self._sought(self._client().summary(), [shard for shard in shards if shard in existing], to)

    def _sought(self, summary: StreamSummary, shards: Sequence[str], to: Seek) -> dict[str, Json]:
        if to == "earliest":
            return dict.fromkeys(shards, EARLIEST)
        if to == "latest" or to >= summary.now * 1000:
            time = None if to == "latest" else to
            return {shard: self._client().near_end(_kinesis_id(shard), summary.now, time) for shard in shards}
        return {shard: {"time": to} for shard in shards}

    def begin(self, leases: Sequence[Lease]) -> list[Plan]:
        summary = self._client().summary()
        return [self._begun(lease, summary) for lease in leases]

    def _begun(self, lease: Lease, summary: StreamSummary) -> Plan:
        if lease.commit.incarnation not in ("", summary.id):
            return Halt(f"stream {self._config.stream} was deleted and created again")
        position = lease.progress.position
        return Cut(lease.spec["start"] if position is None else position, None)

    def lags(self, leases: Sequence[Lease]) -> list[Lag]:
        return [self._lag(lease) for lease in leases]

    def _lag(self, lease: Lease) -> Lag:
        position = lease.progress.position
        start = lease.spec["start"] if position is None else position
        iterator = self._client().iterator(_kinesis_id(lease.key), start)
        return Lag(None, self._client().records(iterator, 1).get("MillisBehindLatest"))

    def item_of(self) -> Callable[[int], int | None]:
        return record_number

    def reader_factory(self) -> KinesisReaderFactory:
        stream_id = self._id or self._client().summary().id
        return KinesisReaderFactory(self._access, stream_id, self._config.on_loss, self._config.read_interval)

    def noticed(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _key(self, name: str) -> str:
        return f"{self._config.stream}/{name}"

    # --- what functions do not need --------------------------------------------------------------------------------

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:  # noqa: ARG002
        """Never called: only functions read this source."""
        raise BatchError(f"kinesis is read by functions only, but {len(leases)} batches were to be planned")

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:  # noqa: ARG002
        """Never called: only functions read this source."""
        raise BatchError(f"kinesis is read by functions only, but {len(batches)} batches were sent to Spark")


def _kinesis_id(shard: str) -> str:
    return shard.rpartition("/")[2]


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])

"""The source `stream` on the node: finds the shards of an embedded stream, and plans batches of their records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.errors import BatchError, Halt, Refused
from holdfast.events import Event, LagMeasured, RecordsLost
from holdfast.flow.batch import Batch, Cut, Limits, Name, Plan, Wait
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.shards import Lag, Seek, Shard, ShardedStream, lags_of
from holdfast.flow.source import FixedColumns, OffsetPositions, ReportsExtents, Source
from holdfast.flow.upload_policy import Backlog, Due, decide
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.stream.config import StreamConfig
from holdfast.sources.stream.reader import EmbeddedReaderFactory
from holdfast.sources.stream.stream import ShardView, Stream, shard_id, shard_number

GUESSED_BYTES = 1024.0
"""Bytes of a record in a shard without records."""


class StreamSource(Source, ShardedStream, FixedColumns, OffsetPositions, ReportsExtents, ReportsEvents):
    """An embedded stream. Each shard is a lease that lives as long as the stream."""

    lives_long = True

    def __init__(self, config: StreamConfig, now: Callable[[], float] = time.time) -> None:
        self._config, self._folder, self._now = config, config.streams(), now
        self._opened: Stream | None = None
        self._events: list[Event] = []
        self._reported_lost: set[tuple[str, int]] = set()

    def open(self) -> None:
        self._stream()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _stream(self) -> Stream:
        """The stream as it is now: it may have been deleted and created again. Raises `SourceUnavailable`."""
        found = Stream.open(self._folder, self._config.name)
        if self._opened is None or self._opened.id != found.id:
            self.close()
            self._opened = found
        return self._opened

    # --- partitions ------------------------------------------------------------------------------------------------

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        """Yield all shards; their start is looked up once and kept in the rows."""
        stream = self._stream()
        starts = state.get("starts") if state.get("id") == stream.id else None
        if starts is None:
            starts = [stream.seek(number, self._config.seek()) for number in range(stream.settings.shards)]
        for number, start in enumerate(starts):
            yield Partition(
                key=shard_id(stream.name, number),
                group=stream.name,
                spec={"stream": stream.name, "shard": number, "start": start},
                index=number,
                incarnation=stream.id,
            )
        state["id"], state["starts"] = stream.id, starts

    def name(self, lease: Lease) -> Name:
        return Name(lease.spec["stream"], str(lease.spec["shard"]))

    # --- shards ----------------------------------------------------------------------------------------------------

    def reads(self, stream: str) -> bool:
        return stream == self._config.name

    def shards(self) -> list[Shard]:
        stream = self._stream()
        return [Shard(shard_id(stream.name, number), number) for number in range(stream.settings.shards)]

    def seek(self, shards: Sequence[str], to: Seek) -> dict[str, Json]:
        stream = self._stream()
        existing = {shard.id for shard in self.shards()}
        return {shard: self.position(stream.seek(shard_number(shard), to)) for shard in shards if shard in existing}

    def reader_factory(self) -> EmbeddedReaderFactory:
        stream = self._opened or self._stream()
        return EmbeddedReaderFactory(self._folder, self._config.name, stream.id, self._config.on_loss)

    def begin(self, leases: Sequence[Lease]) -> list[Plan]:
        plans = self.plan(leases, Limits())
        return [self._without_end(lease, plan) for lease, plan in zip(leases, plans, strict=True)]

    def _without_end(self, lease: Lease, plan: Plan) -> Plan:
        if isinstance(plan, Halt | BatchError):
            return plan
        offset = plan.gaps[-1][1] if isinstance(plan, Cut) and plan.gaps else _offset(lease)
        return Cut(self.position(offset or 0), None)

    # --- plans -----------------------------------------------------------------------------------------------------

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        stream = self._stream()
        return [self._next(stream, lease, limits) for lease in leases]

    def _next(self, stream: Stream, lease: Lease, limits: Limits) -> Plan:
        number = _number(lease)
        if lease.commit.incarnation not in ("", stream.id):
            return Halt(f"stream {stream.name} was deleted and created again: its offsets now refer to other records")
        position = _offset(lease)
        if position is None:
            return BatchError(f"the position {lease.progress.position!r} is not an offset")
        view = stream.view(number)
        self._events.append(
            LagMeasured(lease.pipeline, lease.key, max(0, view.end - position), None, stream.settings.retention)
        )
        if view.end < position:
            return Halt(f"{lease.key} ends at {view.end}, before offset {position}: the stream has lost records")
        if view.first > position:
            return self._after_loss(lease, position, view, limits)
        return self._due(stream, position, view, limits)

    def _after_loss(self, lease: Lease, position: int, view: ShardView, limits: Limits) -> Plan:
        lost = (position, view.first)
        if (lease.key, view.first) not in self._reported_lost:
            self._reported_lost.add((lease.key, view.first))
            self._events.append(RecordsLost(lease.pipeline, lease.key, *lost))
        if self._config.on_loss == "halt":
            why = (
                f"offsets {position} to {view.first - 1} of {lease.key} were deleted by retention before they were read"
            )
            return Halt(f"{why}; `on_loss: record` records the gap and continues", lost=lost)
        largest = max(1, int(self._config.upload.max_bytes / _mean_bytes(view)))
        return self._cut(position, min(view.end, view.first + largest), view, limits, (lost,))

    def _due(self, stream: Stream, position: int, view: ShardView, limits: Limits) -> Plan:
        age = 0.0
        if view.end > position and (arrived := stream.arrived(view.number, position)) is not None:
            age = max(0.0, self._now() - arrived / 1000)
        backlog = Backlog(view.end - position, _mean_bytes(view), age, self._now())
        decision = decide(self._config.upload.policy(), backlog)
        if not isinstance(decision, Due):
            return Wait(min(decision.seconds, self._config.poll_interval))
        records = min(decision.records, limits.max_records or decision.records)
        return self._cut(position, position + records, view, limits)

    def _cut(
        self, start: int, end: int, view: ShardView, limits: Limits, gaps: tuple[tuple[int, int], ...] = ()
    ) -> Cut:
        max_bytes = min(self._config.upload.max_bytes, limits.max_bytes)
        size = int((end - start) * _mean_bytes(view))
        return Cut(self.position(start), self.position(end), size=size, max_bytes=max_bytes, gaps=gaps)

    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        stream = self._stream()
        positions = [(_offset(lease), stream.bounds(_number(lease))[1]) for lease in leases]
        return [None if offset is None else (offset, end) for offset, end in positions]

    def lags(self, leases: Sequence[Lease]) -> list[Lag]:
        return lags_of(self.extents(leases))

    def noticed(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # --- for Spark -------------------------------------------------------------------------------------------------

    def columns(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        from holdfast.flow.kafka_columns import kafka_schema

        return from_arrow_schema(kafka_schema())

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:  # noqa: ARG002
        from pyspark.sql.pandas.types import from_arrow_schema

        from holdfast.sources.stream.rows import StreamRows, arrow_schema, ranges

        schema = from_arrow_schema(arrow_schema())
        incarnation = next((batch.lease.commit.incarnation for batch in batches), "")
        return StreamRows(self._folder, self._config.name, incarnation, ranges(batches), schema)


def _number(lease: Lease) -> int:
    try:
        return int(lease.spec["shard"])
    except (KeyError, TypeError, ValueError) as wrong:
        raise Refused(f"lease {lease.key} does not belong to a stream; give this pipeline another name") from wrong


def _offset(lease: Lease) -> int | None:
    position = lease.progress.position
    offset = (
        lease.spec.get("start") if position is None else position.get("offset") if isinstance(position, dict) else None
    )
    return offset if isinstance(offset, int) and offset >= 0 else None


def _mean_bytes(view: ShardView) -> float:
    records = view.end - view.first
    return max(1.0, view.bytes / records) if records else GUESSED_BYTES

"""The sink `function` on the node: what its workers run. What handlers return is staged for the other sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.buckets.root import bucket_of, root_identity
from holdfast.buckets.sink_root import SinkRoot
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.letter_topic import letter_topic
from holdfast.deadletters.source import original_name
from holdfast.errors import BatchError, UsageError
from holdfast.events import Event
from holdfast.finalize.output import Finalizes
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.engine import Engine
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.shards import Lag, ReaderFactory, ReportsLags, ShardedStream, item_of
from holdfast.flow.sink import KeepsLetters, Publication, PublishResult, RunsWorkers, Sink, StagesByBatch
from holdfast.flow.source import PublishingListener, Source
from holdfast.flow.staging import Stager
from holdfast.functions.events import TriggerInfo
from holdfast.functions.output import ColumnType, OutputSinks
from holdfast.functions.record_letters import RecordLetters, StreamRecordRebuilder
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sinks.function.config import FunctionSinkConfig
from holdfast.sinks.function.redrive import HandlerStager

LETTERS_ROOT = "root of the dead letters"


class FunctionSink(Sink, RunsWorkers, StagesByBatch, KeepsLetters):
    """A handler. It has no receipts of its own: a commit has those of the other sinks, if there are any."""

    def __init__(self, name: str, config: FunctionSinkConfig) -> None:
        self.name = name
        self._config = config
        letters = config.dead_letters
        self._bucket = None if letters is None else bucket_of(letters.file, letters.s3)
        self._root = None if self._bucket is None else SinkRoot(self._bucket, name, lambda: None, LETTERS_ROOT)
        self._topic = (
            None if letters is None else letter_topic(letters.kafka, (root_identity(letters.file, letters.s3), name))
        )
        self.has_letters = self._bucket is not None
        self._fed: Mapping[str, Sink] = {}
        """The other sinks, in a redrive."""
        self._item_of: Callable[[int], int | None] = item_of

    def open(self, pipeline: str, *, durable: bool) -> str:
        if self._root is None:
            return ""
        verdict = f"dead letters: {self._root.open(pipeline, durable=durable)}"
        return verdict if self._topic is None else f"{verdict}; {self._topic.check()}"

    def close(self) -> None:
        if self._root is not None:
            self._root.close()

    def letter_box(self, pipeline: str) -> FileLetters:  # noqa: ARG002 - the root is that of one pipeline
        if self._bucket is None:
            raise UsageError(f"sink {self.name!r} keeps no dead letters: a shard stops at a record that fails")
        return FileLetters(self._bucket)

    @property
    def workers(self) -> int:
        return self._config.workers

    @property
    def session_timing(self) -> tuple[float, float]:
        return self._config.session_timeout, self._config.heartbeat_interval

    @property
    def source_start(self) -> dict[str, Any]:
        seek = self._config.seek_to
        if "seek_to" not in self._config.model_fields_set:
            return {}
        start, at = (seek, None) if isinstance(seek, str) else ("time", seek.time)
        return {"start": start, "start_time": at}

    @property
    def source_defaults(self) -> dict[str, Any]:
        url = self._config.url
        return {} if url is None else {"group": url.group}

    def endless(self, source: Source, others: Mapping[str, Sink]) -> ShardSource:
        url = self._config.url
        if url is not None and isinstance(source, ShardedStream) and not any(map(source.reads, url.names)):
            raise UsageError(
                f"the function's url names the stream {url.stream}, which the source does not read; "
                f"name it {' or '.join(url.names)} there, or leave out url"
            )
        config = self._config
        if others and config.batch is not None and config.ack != "disable":
            raise UsageError(
                f"batches whose records are acknowledged one by one (ack: {config.ack}) cannot return records for "
                f"other sinks ({', '.join(others)}); use ack: disable"
            )
        for name, sink in others.items():
            if isinstance(sink, RunsWorkers):
                raise UsageError("a pipeline has one function at most")
            if isinstance(sink, Finalizes) and sink.finalizing() is not None:
                raise UsageError(f"sink {name!r} finalizes folders, which is not possible for records of a function")
        return ShardSource(source)

    def engine(
        self,
        spark: Any,
        source: Source,
        others: Mapping[str, Sink],
        pipeline: str,
        usable: Callable[[], float],
        emit: Callable[[Event], None],
    ) -> Engine:
        from holdfast.functions.engine import FunctionEngine, FunctionParts
        from holdfast.functions.slot_state import SlotRules

        assert isinstance(source, ShardSource)
        config, bucket = self._config, self._bucket
        parts = FunctionParts(
            source.reader_factory(),
            config,
            letters=None if bucket is None else RecordLetters(bucket, self._topic),
            lags=source,
            trigger=TriggerInfo(name=pipeline),
            drain_within=config.drain_timeout,
            host=str(spark.sparkContext.getConf().get("spark.driver.host")),
            tls=config.tls(),
            plain_text=config.plain_text,
            sinks=others,
            output=output_sinks(others, config.output_columns) if others else None,
        )
        engine = FunctionEngine(spark, parts, usable, emit, SlotRules(max_rss=config.max_memory))
        engine.wait_until_up()
        return engine

    # --- redrives: of the live pipeline, workers call the handler and stage what it returns ---------------------------

    def rebuilder(self) -> StreamRecordRebuilder:
        return StreamRecordRebuilder()

    def redriving(self, source: Source, others: Mapping[str, Sink]) -> FunctionSink:
        sink = FunctionSink(self.name, self._config)
        sink._fed = others
        if isinstance(source, ShardSource):
            sink._item_of = source.item_of()
        return sink

    def stager(self) -> HandlerStager:
        return self.stager_for(())

    def stager_for(self, batches: Sequence[Batch]) -> HandlerStager:
        if self._bucket is None:
            raise BatchError(f"sink {self.name!r} keeps no dead letters")
        names = {batch.id: original_name(batch.lease) for batch in batches}
        output = output_sinks(self._fed, self._config.output_columns) if self._fed else None
        output = output and replace(output, item_of=self._item_of)
        letters = RecordLetters(self._bucket, self._topic)
        return HandlerStager(self._config, letters, self._config.drain_timeout, names, output)

    def receipt(self, parts: Sequence[Json]) -> Json:  # noqa: ARG002 - handlers have done what there is
        return {}

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [None for _ in publications]


def output_sinks(sinks: Mapping[str, Sink], columns: Mapping[str, ColumnType]) -> OutputSinks:
    """How workers write rows with these columns to the sinks. Raises `UsageError` if a sink needs a Spark expression.

    Raises `Refused` if a sink cannot hold such rows.
    """
    from pyspark.sql import types

    kinds = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "long": types.LongType(),
        "double": types.DoubleType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestampType(),
        "date": types.DateType(),
    }
    fields = types.StructType([types.StructField(name, kinds[kind]) for name, kind in columns.items()])
    stagers: dict[str, tuple[Stager, tuple[str, ...]]] = {}
    for name, sink in sinks.items():
        stager = sink.stager_for(()) if isinstance(sink, StagesByBatch) else sink.stager()
        needed = stager.plain_columns(fields)
        if needed is None:
            raise UsageError(f"sink {name!r} needs a Spark expression, which rows of a function cannot have")
        stagers[name] = stager, tuple(needed)
    return OutputSinks(columns, stagers)


class ShardSource(Source, ReportsLags, ReportsEvents, PublishingListener):
    """Plans endless batches over the shards of another source. Raises `UsageError` if that source has no shards."""

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

    def item_of(self) -> Callable[[int], int | None]:
        """The numbers by which rows of records are known; see `ShardedStream`."""
        return self._stream.item_of()

    def reader_factory(self) -> ReaderFactory:
        """What workers open to read the shards."""
        return self._stream.reader_factory()

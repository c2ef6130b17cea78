"""The sink `function` on the node: what its workers run. What handlers return is staged for the other sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.buckets.root import bucket_of
from holdfast.buckets.sink_root import SinkRoot
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import original_name
from holdfast.errors import BatchError, UsageError
from holdfast.events import Event
from holdfast.finalize.output import Finalizes
from holdfast.flow.batch import Batch
from holdfast.flow.engine import Engine
from holdfast.flow.shards import ShardedStream
from holdfast.flow.sink import KeepsLetters, Publication, PublishResult, RunsWorkers, Sink, StagesByBatch
from holdfast.flow.source import Source
from holdfast.flow.staging import Stager
from holdfast.functions.events import TriggerInfo
from holdfast.functions.output import ColumnType, OutputSinks
from holdfast.functions.record_letters import RecordLetters, StreamRecordRebuilder
from holdfast.functions.shard_source import ShardSource
from holdfast.leases.lease import Json
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
        self.has_letters = self._bucket is not None

    def open(self, pipeline: str, *, durable: bool) -> str:
        return "" if self._root is None else f"dead letters: {self._root.open(pipeline, durable=durable)}"

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
            letters=None if bucket is None else RecordLetters(bucket),
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

    # --- redrives: of the live pipeline, workers call the handler and nothing is staged ------------------------------

    def rebuilder(self) -> StreamRecordRebuilder:
        return StreamRecordRebuilder()

    def stager(self) -> HandlerStager:
        return self.stager_for(())

    def stager_for(self, batches: Sequence[Batch]) -> HandlerStager:
        if self._bucket is None:
            raise BatchError(f"sink {self.name!r} keeps no dead letters")
        names = {batch.id: original_name(batch.lease) for batch in batches}
        return HandlerStager(self._config, RecordLetters(self._bucket), self._config.drain_timeout, names)

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

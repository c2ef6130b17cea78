"""The sink `function` on the node: what its workers run. Nothing is staged or published: handlers act by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.buckets.root import bucket_of
from holdfast.buckets.sink_root import SinkRoot
from holdfast.deadletters.letter_files import FileLetters
from holdfast.errors import BatchError, UsageError
from holdfast.events import Event
from holdfast.flow.engine import Engine
from holdfast.flow.shards import ShardedStream
from holdfast.flow.sink import KeepsLetters, Publication, PublishResult, RunsWorkers, Sink
from holdfast.flow.source import Source
from holdfast.flow.staging import Stager
from holdfast.functions.events import TriggerInfo
from holdfast.functions.record_letters import RecordLetters
from holdfast.functions.shard_source import ShardSource
from holdfast.leases.lease import Json
from holdfast.sinks.function.config import FunctionSinkConfig

LETTERS_ROOT = "root of the dead letters"


class FunctionSink(Sink, RunsWorkers, KeepsLetters):
    """A handler. Its records are acknowledged, and the commit of a position has no receipts."""

    def __init__(self, name: str, config: FunctionSinkConfig) -> None:
        self.name = name
        self._config = config
        letters = config.dead_letters
        self._bucket = None if letters is None else bucket_of(letters.file, letters.s3)
        self._root = None if self._bucket is None else SinkRoot(self._bucket, name, lambda: None, LETTERS_ROOT)

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

    def endless(self, source: Source) -> ShardSource:
        url = self._config.url
        if url is not None and isinstance(source, ShardedStream) and not any(map(source.reads, url.names)):
            raise UsageError(
                f"the function's url names the stream {url.stream}, which the source does not read; "
                f"name it {' or '.join(url.names)} there, or leave out url"
            )
        return ShardSource(source)

    def engine(
        self, spark: Any, source: Source, pipeline: str, usable: Callable[[], float], emit: Callable[[Event], None]
    ) -> Engine:
        from holdfast.functions.engine import FunctionEngine, FunctionParts
        from holdfast.functions.slot_state import SlotRules

        assert isinstance(source, ShardSource)
        config, bucket = self._config, self._bucket
        parts = FunctionParts(
            source.reader_factory(),
            config,
            letters=None if bucket is None else RecordLetters(bucket),
            trigger=TriggerInfo(name=pipeline),
            drain_within=config.drain_timeout,
            host=str(spark.sparkContext.getConf().get("spark.driver.host")),
            tls=config.tls(),
            plain_text=config.plain_text,
        )
        return FunctionEngine(spark, parts, usable, emit, SlotRules(max_rss=config.max_memory))

    def stager(self) -> Stager:
        """Never called: workers call the handler."""
        raise BatchError("a function stages nothing, but a task asked for its stager")

    def receipt(self, parts: Sequence[Json]) -> Json:
        """Never called: nothing is staged."""
        raise BatchError(f"a function has no receipts, but {len(parts)} parts were staged")

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [None for _ in publications]

"""The sink `function` on the node: what its workers run. Nothing is staged or published: handlers act by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import BatchError
from holdfast.events import Event
from holdfast.flow.engine import Engine
from holdfast.flow.sink import Publication, PublishResult, RunsWorkers, Sink
from holdfast.flow.source import Source
from holdfast.flow.staging import Stager
from holdfast.functions.events import TriggerInfo
from holdfast.functions.letter_folder import LetterFolder
from holdfast.functions.shard_source import ShardSource
from holdfast.leases.lease import Json
from holdfast.sinks.function.config import FunctionSinkConfig


class FunctionSink(Sink, RunsWorkers):
    """A handler. Its records are acknowledged, and the commit of a position has no receipts."""

    def __init__(self, name: str, config: FunctionSinkConfig) -> None:
        self.name = name
        self._config = config

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

    def endless(self, source: Source) -> ShardSource:
        return ShardSource(source)

    def engine(
        self, spark: Any, source: Source, pipeline: str, usable: Callable[[], float], emit: Callable[[Event], None]
    ) -> Engine:
        from holdfast.functions.engine import FunctionEngine, FunctionParts

        assert isinstance(source, ShardSource)
        config, folder = self._config, self._config.dead_letter_folder
        parts = FunctionParts(
            source.reader_factory(),
            config,
            letters=None if folder is None else LetterFolder(Path(folder)),
            trigger=TriggerInfo(name=pipeline),
            drain_within=config.drain_timeout,
            host=str(spark.sparkContext.getConf().get("spark.driver.host")),
            tls=config.tls(),
            plain_text=config.plain_text,
        )
        return FunctionEngine(spark, parts, usable, emit)

    def stager(self) -> Stager:
        """Never called: workers call the handler."""
        raise BatchError("a function stages nothing, but a task asked for its stager")

    def receipt(self, parts: Sequence[Json]) -> Json:
        """Never called: nothing is staged."""
        raise BatchError(f"a function has no receipts, but {len(parts)} parts were staged")

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        return [None for _ in publications]

"""The pipeline of a reindex run: its tables and indexes, and the limits that the run sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from holdfast.assemble import StoredPipeline, fleet
from holdfast.errors import UsageError
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import StagesIndexes
from holdfast.flow.tables import LiveTables
from holdfast.leases.lease import Json, Status
from holdfast.leases.query import Query
from holdfast.leases.session import node_info
from holdfast.runs.execution import RunPipeline, partition_limits
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex import ReindexDriver
from holdfast.runs.reindex_configuration import ReindexConfiguration, decode_configuration


def run_pipeline(pipeline: StoredPipeline, configuration: Mapping[str, Json]) -> RunPipeline:
    """Return the pipeline of a reindex run from the configuration in the run's row."""
    chosen = decode_configuration(configuration)
    changed = with_limits(pipeline, chosen)
    built = changed.build()
    driver = driver_of(pipeline, promotion_of(pipeline.identifier, built))
    return RunPipeline(changed, built, chosen.generation, driver, one_node=not chosen.use_distributed_indexing)


def driver_of(pipeline: StoredPipeline, promotion: Promotion) -> ReindexDriver:
    """The driver of reindex runs of a pipeline with these tables and indexes."""
    limits = partition_limits(pipeline.configured.runs)
    return ReindexDriver(promotion, lambda: pipeline.runs().list(), lambda: _live_nodes(pipeline), limits)


def _live_nodes(pipeline: StoredPipeline) -> int:
    """How many nodes work on the pipeline now."""
    sessions = pipeline.store.find(Query(fleet(pipeline.settings), statuses=(Status.ASSIGNED,)))
    nodes = [node_info(row) for row in sessions if row.unreadable is None]
    return sum(pipeline.identifier in node.pipelines and not node.draining for node in nodes)


def promotion_of(pipeline: str, built: Pipeline) -> Promotion:
    """The tables and indexes of a pipeline. Raises `UsageError` if it has none. Connects to nothing."""
    source, sinks = built.source, [sink for sink in built.sinks.values() if isinstance(sink, StagesIndexes)]
    if not isinstance(source, LiveTables):
        raise UsageError("reindex needs a pipeline with the source `database`")
    if len(sinks) != 1 or len(built.sinks) != 1:
        raise UsageError("reindex needs a pipeline with one sink: `opensearch` with mode: staged")
    return Promotion(pipeline, source, sinks[0], sinks[0].indexes())


@contextmanager
def opened_promotion(pipeline: StoredPipeline) -> Iterator[Promotion]:
    """Like `promotion_of`, with the source open until the block ends."""
    built = pipeline.build()
    try:
        promotion = promotion_of(pipeline.identifier, built)
        built.source.open()
        yield promotion
    finally:
        built.source.close()


def with_limits(pipeline: StoredPipeline, configuration: ReindexConfiguration) -> StoredPipeline:
    """The pipeline with the limits of a run, as far as the run has any."""
    settings, threads = pipeline.configured, configuration.consumer_threads
    requests = configuration.max_concurrent_requests
    limits = {
        "max_bulk_documents": configuration.batch_size,
        "max_bulk_bytes": configuration.pay_load_size,
        # Each batch of a round is carried by a task, and each task has its own limit.
        "concurrency": None if requests is None else max(1, requests // threads),
    }
    given = {name: value for name, value in limits.items() if value is not None}
    sinks = tuple(
        replace(named, use=replace(named.use, config=named.use.config.model_copy(update=given)))
        for named in settings.sinks
    )
    rounds = settings.round.model_copy(update={"max_batches": threads})
    changed = settings.model_copy(update={"sinks": sinks, "round": rounds})
    pipelines = {**pipeline.settings.pipelines, pipeline.name: changed}
    return replace(pipeline, settings=pipeline.settings.model_copy(update={"pipelines": pipelines}))

"""The composition root: turns settings into objects."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.audit.letters import AuditedLetters
from holdfast.audit.sink import FILES, AuditedSink, audited_sinks, keeps_rows
from holdfast.config.digest import digest_of, parsing_of
from holdfast.config.models import PipelineSettings, Settings
from holdfast.config.plugins import NamedSink
from holdfast.config.settings_file import SettingProblem

# Parts of the composition root that need no more than this; the aliases export them.
from holdfast.configured_store import fleet as fleet  # noqa: PLC0414
from holdfast.configured_store import load_settings as load_settings  # noqa: PLC0414
from holdfast.configured_store import open_store as open_store  # noqa: PLC0414
from holdfast.errors import UsageError
from holdfast.events import Event
from holdfast.flow.batch import Limits, Tolerance
from holdfast.flow.generations import FollowedGeneration, Generation, Generations, follow
from holdfast.flow.letter import read_back
from holdfast.flow.loop import LoopSettings
from holdfast.flow.pipeline import Pipeline, routes_of
from holdfast.flow.processor import Processor
from holdfast.flow.runs import Runs
from holdfast.flow.sink import BoundsTimes, KeepsLetters, RunsWorkers, Sink, other_sinks
from holdfast.flow.source import Source, UsesSourceCoordination
from holdfast.leases.audit_log import AuditLog
from holdfast.leases.coordinator import RECENT, ClaimPolicy, Coordinator
from holdfast.leases.operator import Operator
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.store import Store
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.world import World, host_world
from holdfast.registry import Registry

START_PATIENCE = 60.0
"""Seconds that a starting node waits for a store that does not respond; a running node waits for ever."""

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class StoredPipeline:
    """A pipeline of the settings together with the store that keeps its rows: what commands and runs work on."""

    settings: Settings
    store: Store
    name: str

    @property
    def identifier(self) -> str:
        """The pipeline's name in the store."""
        return self.settings.identifier(self.name)

    @property
    def configured(self) -> PipelineSettings:
        return self.settings.pipelines[self.name]

    def generations(self) -> Generations:
        return Generations(self.store, _new_id, self.identifier)

    def operator(self, run: str = "") -> Operator:
        """Return the operator of the partitions of the live pipeline, or of a run."""
        return Operator(self.store, _new_id, self.identifier, run)

    def runs(self, emit: Emit = lambda _event: None) -> Runs:
        """Return the runs, to list and to stop; no node is needed."""
        world = host_world(emit)
        session = new_session(self.settings, self.store, world, pipelines=())
        return Runs(coordinator_of(self, world, session))

    def build(self) -> Pipeline:
        """Return the pipeline's source, processors and sinks, built and not opened."""
        return build_pipeline(self.configured, Registry.installed())

    def with_roots(self, roots: Mapping[str, str]) -> StoredPipeline:
        """Return the same pipeline with other roots for some sinks, by the sinks' names."""
        sinks = tuple(_with_root(named, roots.get(named.name)) for named in self.configured.sinks)
        changed = {**self.settings.pipelines, self.name: self.configured.model_copy(update={"sinks": sinks})}
        return replace(self, settings=self.settings.model_copy(update={"pipelines": changed}))


def audit_log_of(settings: Settings, store: Store) -> AuditLog:
    """Return the audit log of the file's fleet."""
    return AuditLog(store, _new_id, fleet(settings))


def _new_id() -> str:
    return uuid.uuid4().hex


def _with_root(named: NamedSink, root: str | None) -> NamedSink:
    if root is None:
        return named
    return replace(named, use=replace(named.use, config=named.use.config.model_copy(update={"root": root})))


def audited(settings: Settings, pipeline: str, registry: Registry | None = None) -> list[AuditedSink]:
    """Return the `files` sinks of a pipeline, for `holdfast.audit`. Raises `UsageError` if it has none."""
    found = list(
        audited_sinks(settings.pipelines[pipeline], settings.identifier(pipeline), registry or Registry.installed())
    )
    if not found:
        raise UsageError(f"pipeline {pipeline!r} has no sink `files`, and no other kind can be audited")
    return found


def audited_letters(settings: Settings, pipeline: str) -> list[AuditedLetters]:
    """Return the letter boxes of the sinks that are not audited by their manifests. Connects to nothing."""
    configured, registry = settings.pipelines[pipeline], Registry.installed()
    identifier, countable = settings.identifier(pipeline), len(configured.sinks) == 1 and keeps_rows(configured)
    sinks = {
        named.name: registry.get("sinks", named.use.name).build(named.name, named.use.config, registry)
        for named in configured.sinks
        if named.use.name != FILES
    }
    return [
        AuditedLetters(identifier, name, partial(read_back, sink.letter_box(identifier)), countable)
        for name, sink in sinks.items()
        if isinstance(sink, KeepsLetters) and sink.has_letters
    ]


def with_redrives(pipeline: StoredPipeline, found: Sequence[AuditedSink]) -> list[AuditedSink]:
    """Return the same sinks with the ids of the runs that redrove dead letters into them."""
    configurations = {run.id: run.configuration for run in pipeline.runs().list()}
    redrives = {
        run: configuration.get("writes_to", [configuration.get("sink")])
        for run, configuration in configurations.items()
        if isinstance(configuration, dict) and configuration.get("kind") == "redrive"
    }
    return [
        replace(audited_sink, redrives=tuple(run for run, sinks in redrives.items() if audited_sink.sink in sinks))
        for audited_sink in found
    ]


def audited_run(pipeline: StoredPipeline, run_id: str) -> list[AuditedSink]:
    """Return the roots that a rewind or backfill has written; several such runs may share them."""
    configurations = {run.id: run.configuration or {} for run in pipeline.runs().list()}
    configuration = configurations.get(run_id, {})
    if "roots" not in configuration:
        raise UsageError(
            f"pipeline {pipeline.name!r} has no run {run_id!r} with separate roots; see `holdfast runs list`"
        )
    sharing = tuple(run for run, other in configurations.items() if other.get("roots") == configuration["roots"])
    found = audited(pipeline.with_roots(configuration["roots"]).settings, pipeline.name)
    return [replace(sink, runs=sharing, generation=configuration["generation"]) for sink in found]


def source_coordinator(pipeline: StoredPipeline, session: Session, world: World) -> SourceCoordinator:
    """Return the API for source authors on that pipeline, with the file's ownership timeout."""
    settings = pipeline.settings
    return SourceCoordinator(
        pipeline.store,
        world,
        session,
        pipeline.identifier,
        ownership_timeout=settings.coordination.ownership_timeout,
        closed_last=pipeline.name in settings.pipelines and pipeline.configured.closed_last,
    )


def hand_coordinators(
    settings: Settings, store: Store, pipelines: Mapping[str, Pipeline], *, session: Session, world: World
) -> list[SourceCoordinator]:
    """Give a coordinator to each source that uses one, and return them."""
    coordinators = []
    for name, built in pipelines.items():
        if isinstance(built.source, UsesSourceCoordination):
            coordinators.append(source_coordinator(StoredPipeline(settings, store, f"{name}/$source"), session, world))
            built.source.use_coordinator(coordinators[-1])
    return coordinators


def new_session(
    settings: Settings,
    store: Store,
    world: World,
    *,
    pipelines: Sequence[str],
    name: str | None = None,
    functions: Sequence[RunsWorkers] = (),
) -> Session:
    """Return a session for this process, not joined yet. If the file does not set its timing, functions decide it."""
    node = settings.node
    info = NodeInfo(
        name=name or node.name,
        session=f"{socket.gethostname()}:{os.getpid()}",
        pipelines=tuple(settings.identifier(pipeline) for pipeline in pipelines),
        generations=tuple(sorted({settings.pipelines[pipeline].generation for pipeline in pipelines})),
        file_digest=settings.file_digest,
    )
    timeout, heartbeat = node.session_timeout, node.heartbeat_interval
    if functions and not {"session_timeout", "heartbeat_interval"} & node.model_fields_set:
        timeout, heartbeat = min(sink.session_timing for sink in functions)
    timing = SessionTiming(timeout, heartbeat, margin=min(2.0, timeout / 10))
    return Session(store, world, fleet(settings), info, timing)


def build_pipelines(settings: Settings, names: Iterable[str], registry: Registry) -> dict[str, Pipeline]:
    """Build these pipelines. Raises `ConfigError` with the position of every part that cannot be built."""
    built, problems = dict[str, Pipeline](), list[SettingProblem]()
    for name in names:
        try:
            built[name] = build_pipeline(settings.pipelines[name], registry)
        except UsageError as error:
            problems.append(SettingProblem(settings.path_of(name, error.part), str(error)))
    if problems:
        raise settings.error(problems)
    return built


def build_pipeline(pipeline: PipelineSettings, registry: Registry) -> Pipeline:
    """Build a pipeline. Raises `UsageError` with the `part` that cannot be built."""
    _check_final_times(pipeline)
    processors, sinks = list[Processor](), dict[str, Sink]()
    for number, use in enumerate(pipeline.processors):
        with _building("processors", number):
            processors.append(registry.get("processors", use.name).build(use.config))
    for number, named in enumerate(pipeline.sinks):
        with _building("sinks", number):
            sinks[named.name] = registry.get("sinks", named.use.name).build(named.name, named.use.config, registry)
    _hand_time_patterns(pipeline, sinks)
    with _building("source"):
        source = _source(pipeline, sinks, registry)
    return Pipeline(source, tuple(processors), sinks, routes_of(pipeline))


@contextmanager
def _building(*part: str | int) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        error.part = part
        raise


def _source(pipeline: PipelineSettings, sinks: Mapping[str, Sink], registry: Registry) -> Source:
    """The source as the sinks need it: for a function, one whose batches do not end. Raises `UsageError`."""
    build, config = registry.get("sources", pipeline.source.name).build, pipeline.source.config
    function = function_of(sinks.values())
    if function is None:
        source: Source = build(config)
        return source
    given = {name: value for name, value in function.source_defaults.items() if name not in config.model_fields_set}
    update = {name: value for name, value in {**given, **function.source_start}.items() if hasattr(config, name)}
    return function.endless(build(config.model_copy(update=update)), other_sinks(function, sinks))


def _check_final_times(pipeline: PipelineSettings) -> None:
    """Raise `UsageError` if a sink would misread the times that `parse` puts into output folders."""
    rules = _time_rules(pipeline)
    for sink in pipeline.sinks:
        finalize: Any = getattr(sink.use.config, "finalize", None)
        for rule in rules if finalize is not None else ():
            if rule.zone != finalize.zone:
                raise UsageError(
                    f"parse writes times in {rule.zone}, and finalize of sink {sink.name!r} reads them as times in "
                    f"{finalize.zone}; give both the same zone"
                )
            if rule.time_pattern() not in finalize.templates():
                raise UsageError(
                    f"finalize of sink {sink.name!r} cannot read times of the form {rule.time_pattern()}; "
                    "add this template to it"
                )


def _hand_time_patterns(pipeline: PipelineSettings, sinks: Mapping[str, Sink]) -> None:
    """Give sinks the patterns by which `parse` names output folders.

    Longer patterns come first, because a shorter one may match their beginning.
    """
    patterns = {(rule.time_pattern(), rule.zone) for rule in _time_rules(pipeline)}
    ordered = sorted(patterns, key=lambda pattern: (-pattern[0].count("/"), pattern))
    for sink in sinks.values() if ordered else ():
        if isinstance(sink, BoundsTimes):
            sink.use_time_patterns(ordered)


def _time_rules(pipeline: PipelineSettings) -> list[Any]:
    """The rules of `parse` that name output folders after times."""
    return [rule for use in pipeline.processors if use.name == "parse" for _, rule in use.config.rules() if rule.time]


def coordinator_of(pipeline: StoredPipeline, world: World, session: Session) -> Coordinator:
    retries = pipeline.configured.retries
    limits = RetryLimits(retries.max_retries, retries.max_takeovers, retries.backoff, retries.max_backoff)
    policy = ClaimPolicy(closed_last=pipeline.configured.closed_last, limits=limits)
    return Coordinator(pipeline.store, world, session, pipeline.identifier, policy=policy)


def followed_generation(pipeline: StoredPipeline, world: World) -> FollowedGeneration:
    """Register this node's generation. Blocks while the store does not respond, as opening it does."""
    chosen, node = pipeline.configured, pipeline.settings.node
    mine = Generation(chosen.generation, digest_of(chosen), parsing_of(chosen), created_by=node.name)
    recent = replace(pipeline, store=pipeline.store.recent(node.heartbeat_interval * RECENT))
    automatic = chosen.generation_switch == "automatic"
    return follow(pipeline.generations(), recent.generations(), mine, world, switch=automatic, patience=START_PATIENCE)


def loop_settings_of(settings: Settings, name: str) -> LoopSettings:
    pipeline = settings.pipelines[name]
    batch, tolerance = pipeline.batch, pipeline.dead_letters.tolerance
    return LoopSettings(
        limits=Limits(batch.max_bytes, batch.max_records, batch.timeout),
        max_batches=pipeline.round.max_batches,
        generation=pipeline.generation,
        replicas=pipeline.replicas or 0,
        step_limit=settings.node.step_limit,
        tolerance=Tolerance(tolerance.share, tolerance.records),
    )


def functions_of(pipelines: Iterable[Pipeline]) -> list[RunsWorkers]:
    """Return the sinks of these pipelines that are functions."""
    return [sink for built in pipelines if (sink := function_of(built.sinks.values())) is not None]


def function_of(sinks: Iterable[Sink]) -> RunsWorkers | None:
    return next((sink for sink in sinks if isinstance(sink, RunsWorkers)), None)

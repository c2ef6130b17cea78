"""Runs a node: opens the store, sources and sinks, works until it is finished or asked to stop, and closes them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TypeVar

from holdfast.assemble import (
    START_PATIENCE,
    Emit,
    StoredPipeline,
    build_pipeline,
    build_pipelines,
    coordinator_of,
    followed_generation,
    functions_of,
    hand_coordinators,
    loop_settings_of,
    new_session,
    open_store,
)
from holdfast.config.models import Settings
from holdfast.config.plain_text import warnings_of_plain_text
from holdfast.config.settings_file import SettingProblem
from holdfast.config.units import format_duration
from holdfast.engines import engines_of
from holdfast.errors import NotCreatedYet, Refused, StoreError, Unavailable, UsageError
from holdfast.events import Notice, SinkOpened
from holdfast.finalize.finalizer import finalizers
from holdfast.flow.engine import Engine, Engines, ReportsBatches
from holdfast.flow.generations import FollowedGeneration
from holdfast.flow.loop import LoopSettings, PipelineLoop
from holdfast.flow.node import Companion, Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.tables import LiveTables
from holdfast.leases.controls import Controls
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Status
from holdfast.leases.session import Session
from holdfast.leases.store import Store
from holdfast.leases.world import HostClock, World, host_world
from holdfast.leases.writes import until_answered
from holdfast.observe.consumers import Consumer, Reporter
from holdfast.observe.measurements import Measurements
from holdfast.observe.partition_counts import PartitionCounts
from holdfast.registry import Registry

STOP_WITHIN = 9.0
"""Seconds after a signal within which a node hands back its leases: orchestrators kill after ten."""
SAME_SIGNAL = 0.5
"""Seconds within which a second signal is the first one: a terminal and a wrapper such as make may both send it."""
SHOW_CURSOR = b"\x1b[?25h\n"


_STDERR = 2
"""Not that of `sys.stderr`, which in a notebook has none."""
T = TypeVar("T")
Watch = Callable[[Store], AbstractContextManager[None]]
Beside = Callable[[StoredPipeline, Coordinator, Pipeline, Engines], Companion]
"""Makes the companion of one pipeline from its rows, its leases and its plugins; engines that it adds are polled."""


def run(
    settings: Settings,
    emit: Emit,
    *,
    node_name: str | None = None,
    pipelines: Sequence[str] = (),
    beside: Beside | None = None,
    watch: Watch | None = None,
    measurements: Measurements | None = None,
) -> int:
    """Run the pipelines on this node until they are finished or the process is asked to stop.

    `beside` makes the work that a node does beside each pipeline, such as its runs; functions have no runs. `watch` is
    entered with the store before the node joins, and left when it has ended. `measurements` go with the heartbeats; the
    caller passes the events to them. Returns 0, or 1 if the pipelines are finished and partitions are FAILED. SIGTERM
    and SIGINT hand all leases back within ten seconds and return 0; while the node is starting they raise `SystemExit`
    with 128 plus the signal's number. They are handled in the main thread only.
    """
    names = _chosen(settings, pipelines)
    clock = HostClock()
    if measurements is None:
        measurements = Measurements()
        emit = Reporter([emit, measurements])
    world = host_world(emit, clock)
    registry = Registry.installed()
    for warning in warnings_of_plain_text(settings):
        emit(Notice(warning))
    with _on_signal(_exit_as_killed):
        # First, because it connects to nothing: what cannot be built leaves no store behind.
        built = build_pipelines(settings, names, registry)
        store = until_answered(world, "store", lambda: open_store(settings, registry), START_PATIENCE)
        _warn_if_not_durable(settings, store, emit)
        _warn_of_expiry(store, built, emit)
        try:
            _warn_of_routes(built, emit)
            open_pipelines(settings, store, built, world)
            with watch(store) if watch else nullcontext():
                session = _session(settings, store, built, world, node_name)
                session.measured = measurements.sent
                return _run_node(settings, store, built, session, measurements, world=world, clock=clock, beside=beside)
        finally:
            for pipeline in built.values():
                pipeline.close()
            store.close()


@contextmanager
def observed(settings: Settings, consumers: Sequence[Consumer], node_name: str) -> Iterator[Emit]:
    """Serve metrics and send alerts while the block runs, if the settings say so.

    The function that is yielded passes every event to these consumers, to the metrics and to the alerts; it never
    raises.
    """
    from holdfast.observe.alerts import alerting
    from holdfast.observe.metrics import Metrics

    metrics = Metrics({settings.identifier(name): name for name in settings.pipelines})
    port = settings.node.metrics_port
    endpoint = None if port is None else metrics.serve(port, settings.node.metrics_address)
    try:
        with alerting(settings.alerts, node_name, [*consumers, metrics]) as alerts:
            yield Reporter([*consumers, metrics, alerts])
    finally:
        if endpoint is not None:
            endpoint.stop()


def _chosen(settings: Settings, wanted: Sequence[str]) -> list[str]:
    unknown = [name for name in wanted if name not in settings.pipelines]
    if unknown:
        raise UsageError(f"there is no pipeline {unknown[0]!r} in this file; it has {', '.join(settings.pipelines)}")
    names = list(wanted or settings.pipelines)
    if not names:
        raise UsageError("this file has no pipelines to run")
    return names


def _warn_if_not_durable(settings: Settings, store: Store, emit: Emit) -> None:
    if not store.durable:
        emit(
            Notice(
                f"the store {settings.coordination.store.name} serves one process and loses everything when it ends; "
                "for several nodes, or to continue after a restart, configure a durable one such as sqlite"
            )
        )


def _warn_of_expiry(store: Store, pipelines: Mapping[str, Pipeline], emit: Emit) -> None:
    for name, built in pipelines.items():
        ttl = store.forgets_after
        if ttl is not None and ttl < built.source.rediscovery_window:
            emit(
                Notice(
                    f"pipeline {name}: the store deletes rows of completed objects after {format_duration(ttl)} (ttl), "
                    "but scans still find the objects: they will be read again. Raise ttl, make scans cover less "
                    "(range), or delete objects that were read (after_success)"
                )
            )


def _warn_of_routes(pipelines: Mapping[str, Pipeline], emit: Emit) -> None:
    for name, built in pipelines.items():
        if built.routes.leave_out(len(built.sinks)):
            emit(Notice(f"pipeline {name!r}: rows that match no route of any sink go to no sink"))


def open_pipelines(settings: Settings, store: Store, pipelines: Mapping[str, Pipeline], world: World) -> None:
    """Open sources and sinks, waiting a while for those that do not respond. Raises `Unavailable` and `Refused`."""
    for name, built in pipelines.items():
        pipeline = settings.identifier(name)
        until_answered(world, "source", built.source.open, START_PATIENCE)
        for sink_name, sink in built.sinks.items():
            opened = partial(sink.open, pipeline, durable=store.durable)
            if verdict := until_answered(world, "sink", opened, START_PATIENCE):
                world.emit(SinkOpened(pipeline, sink_name, verdict))


def try_connections(settings: Settings, emit: Emit) -> None:
    """Open store, sources and sinks once, as a node does, and close them.

    Raises `ConfigError` with what could not be opened, and where it is configured. Creates nothing in the store. A
    sink claims its root and prepares its indexes, as it would when the pipeline runs.
    """
    registry, problems = Registry.installed(), list[SettingProblem]()
    of_store = ("source_coordination", "store", settings.coordination.store.name)
    durable = _tried(problems, of_store, partial(_durable, settings, emit))
    for name, chosen in settings.pipelines.items():
        try:
            built = build_pipeline(chosen, registry)
        except UsageError as error:
            problems.append(SettingProblem(settings.path_of(name, error.part), str(error)))
            continue
        _tried(problems, settings.path_of(name, ("source",)), built.source.open)
        for number, (sink_name, sink) in enumerate(built.sinks.items()):
            opened = partial(sink.open, settings.identifier(name), durable=durable is not False)
            if verdict := _tried(problems, settings.path_of(name, ("sinks", number)), opened):
                emit(SinkOpened(settings.identifier(name), sink_name, verdict))
        built.close()
    if problems:
        raise settings.error(problems)


def _durable(settings: Settings, emit: Emit) -> bool:
    """Open the store, and return whether it keeps its rows."""
    try:
        store = open_store(settings, create=False)
    except NotCreatedYet as missing:
        if getattr(settings.coordination.store.config, "skip_table_creation", False):
            raise
        emit(Notice(f"the store responds; {missing}"))
        return True
    try:
        return store.durable
    finally:
        store.close()


def _tried(problems: list[SettingProblem], path: tuple[str | int, ...], opened: Callable[[], T]) -> T | None:
    try:
        return opened()
    except (Unavailable, Refused, StoreError, UsageError) as error:
        problems.append(SettingProblem(path, str(error)))
        return None


def _session(
    settings: Settings, store: Store, built: Mapping[str, Pipeline], world: World, name: str | None
) -> Session:
    functions = functions_of(built.values())
    return new_session(settings, store, world, pipelines=list(built), name=name, functions=functions)


def _run_node(  # noqa: PLR0913 - what a node is made of
    settings: Settings,
    store: Store,
    built: Mapping[str, Pipeline],
    session: Session,
    measurements: Measurements,
    *,
    world: World,
    clock: HostClock,
    beside: Beside | None,
) -> int:
    stored = {name: StoredPipeline(settings, store, name) for name in built}
    engine, engines = engines_of(settings, built, session, world.emit, store.max_receipt_bytes)
    with_functions = [name for name in built if functions_of([built[name]])]
    measurements.workers = {stored[name].identifier: engines[name].workers for name in with_functions}
    # Only now: the nodes of the former generation hand over as soon as this one is current.
    generations = _followed(stored, world, engine)
    coordinators = {name: coordinator_of(pipeline, world, session) for name, pipeline in stored.items()}
    loops = [
        _loop(
            coordinators[name],
            pipeline,
            engine=engines[name],
            settings=loop_settings_of(settings, name),
            generation=generations[name],
        )
        for name, pipeline in _live(built).items()
    ]
    source_coordinators = hand_coordinators(settings, store, built, session=session, world=world)
    pool = Engines([engine])
    with_runs = {name: pipeline for name, pipeline in built.items() if beside and not functions_of([pipeline])}
    companions = [beside(stored[name], coordinators[name], with_runs[name], pool) for name in with_runs if beside]
    if settings.node.metrics_port is not None:
        companions.append(PartitionCounts(store, world, [pipeline.identifier for pipeline in stored.values()]))
    node = Node(session, loops, pool, world, coordinators=source_coordinators, companions=companions)

    with stopped_by_signals(node, clock):
        if not node.run():
            return 0
    return int(any(coordinator.counts().get(Status.FAILED) for coordinator in coordinators.values()))


def _loop(
    coordinator: Coordinator,
    pipeline: Pipeline,
    *,
    engine: Engine,
    settings: LoopSettings,
    generation: FollowedGeneration,
) -> PipelineLoop:
    return PipelineLoop(
        coordinator,
        pipeline,
        engine,
        settings=settings,
        may_claim=permission_of(coordinator),
        generation=generation,
        duties=finalizers(coordinator, pipeline.source, pipeline.sinks),
    )


def _followed(
    pipelines: Mapping[str, StoredPipeline], world: World, engine: ReportsBatches
) -> dict[str, FollowedGeneration]:
    """Register the generations of these pipelines, and close the engine if one is refused."""
    try:
        return {name: followed_generation(pipeline, world) for name, pipeline in pipelines.items()}
    except BaseException:
        engine.close()
        raise


def permission_of(coordinator: Coordinator) -> Callable[[], bool]:
    """Return a function that says whether this node may work on the pipeline: it may be paused, or the node drained."""
    controls = Controls(coordinator.store, coordinator.world.new_id, coordinator.session.fleet)
    return lambda: controls.permit(coordinator.pipeline, coordinator.session.name)


def _live(pipelines: Mapping[str, Pipeline]) -> dict[str, Pipeline]:
    """The pipelines that work without a run: a source of live tables has partitions in runs only."""
    return {name: built for name, built in pipelines.items() if not isinstance(built.source, LiveTables)}


@contextmanager
def stopped_by_signals(node: Node, clock: HostClock) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGINT stop the node, and a second one ends the process at once.

    Restores the previous handlers.
    """
    stopping_since: float | None = None

    def stop(number: int) -> None:
        nonlocal stopping_since
        now = clock.monotonic()
        if stopping_since is not None:
            if now - stopping_since >= SAME_SIGNAL:
                _end_at_once(number)
            return
        stopping_since = now
        # Not through the log: the thread that is interrupted here may be writing to it.
        os.write(_STDERR, b"\nstopping, at most 10 s; a second signal ends the node at once\n")
        clock.ask_to_stop(STOP_WITHIN)
        node.stop()

    with _on_signal(stop):
        yield


@contextmanager
def _on_signal(handle: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets no other thread handle signals
        return

    def handler(number: int, _frame: FrameType | None) -> None:
        handle(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _end_at_once(number: int) -> None:
    """End this process and its JVM; other nodes take over the leases when the session has expired."""
    if "pyspark" in sys.modules:
        from holdfast.spark.session import kill_jvm

        kill_jvm()
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)  # the table of `holdfast run` has hidden it
    os._exit(128 + number)


def _exit_as_killed(number: int) -> None:
    """Exit with the code that a shell reports for a signal: a node that is starting holds no leases."""
    sys.exit(128 + number)

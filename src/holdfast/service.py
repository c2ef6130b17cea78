"""Runs a node: opens the store, the sources and the sinks, works until it is done or asked to stop, and closes them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

from holdfast.assemble import (
    START_PATIENCE,
    Emit,
    build_pipeline,
    coordinator_of,
    engine_of,
    hand_coordinators,
    loop_settings_of,
    new_session,
    open_store,
    own_generation,
)
from holdfast.config.models import Settings
from holdfast.config.units import format_duration
from holdfast.errors import UsageError
from holdfast.events import Notice, SinkOpened
from holdfast.finalize.finalizer import finalizers
from holdfast.flow.loop import PipelineLoop
from holdfast.flow.node import Node
from holdfast.flow.pipeline import Pipeline
from holdfast.leases.lease import Status
from holdfast.leases.store import Store
from holdfast.leases.world import HostClock, World, host_world
from holdfast.leases.writes import until_answered
from holdfast.registry import Registry

STOP_WITHIN = 9.0
"""Seconds after a signal in which a node hands its leases back: orchestrators kill after ten."""


def run(settings: Settings, emit: Emit, *, node_name: str | None = None, pipelines: Sequence[str] = ()) -> int:
    """Run the pipelines on this node until they are finished or the process is asked to stop.

    Returns 0, or 1 if they are finished and partitions are FAILED. SIGTERM and SIGINT hand all leases back within ten
    seconds and return 0; while the node still starts they raise `SystemExit` with 128 and the signal's number.
    """
    names = _chosen(settings, pipelines)
    clock = HostClock()
    world = host_world(emit, clock)
    registry = Registry.installed()
    with _on_signal(_exit_as_killed):
        store = until_answered(world, "store", lambda: open_store(settings, registry), START_PATIENCE)
        _warn_of_forgetful(settings, store, emit)
        built = {name: build_pipeline(settings.pipelines[name], registry) for name in names}
        _warn_of_expiry(store, built, emit)
        try:
            _warn_of_routes(built, emit)
            open_pipelines(settings, store, built, world)
            return _run_node(settings, store, world, clock, built, node_name)
        finally:
            for pipeline in built.values():
                pipeline.close()
            store.close()


def _chosen(settings: Settings, asked: Sequence[str]) -> list[str]:
    unknown = [name for name in asked if name not in settings.pipelines]
    if unknown:
        raise UsageError(f"there is no pipeline {unknown[0]!r} in this file; it has {', '.join(settings.pipelines)}")
    names = list(asked or settings.pipelines)
    if not names:
        raise UsageError("this file has no pipelines to run")
    return names


def _warn_of_forgetful(settings: Settings, store: Store, emit: Emit) -> None:
    if not store.durable:
        emit(
            Notice(
                f"the store {settings.coordination.store.name} is for one process and forgets everything when it ends; "
                "for several nodes, or to go on after a restart, configure a durable one such as sqlite"
            )
        )


def _warn_of_expiry(store: Store, pipelines: Mapping[str, Pipeline], emit: Emit) -> None:
    for name, built in pipelines.items():
        ttl = store.forgets_after
        if ttl is not None and ttl < built.source.found_again_within:
            emit(
                Notice(
                    f"pipeline {name}: the store forgets after {format_duration(ttl)} (ttl) what is done, and scans go "
                    "on to find it: it will be read again. Raise ttl, let scans cover less (range), or delete what was "
                    "read (after_success)"
                )
            )


def _warn_of_routes(pipelines: Mapping[str, Pipeline], emit: Emit) -> None:
    for name, built in pipelines.items():
        if built.routes.leave_out(len(built.sinks)):
            emit(Notice(f"pipeline {name!r}: rows that match none of the routes of its sinks go to no sink"))


def open_pipelines(settings: Settings, store: Store, pipelines: Mapping[str, Pipeline], world: World) -> None:
    """Check sources and sinks; one that is away is waited for, for a while. Raises `Unavailable` and `Refused`."""
    for name, built in pipelines.items():
        pipeline = settings.identifier(name)
        until_answered(world, "source", built.source.open, START_PATIENCE)
        for sink_name, sink in built.sinks.items():
            opened = partial(sink.open, pipeline, durable=store.durable)
            if verdict := until_answered(world, "sink", opened, START_PATIENCE):
                world.emit(SinkOpened(pipeline, sink_name, verdict))


def _run_node(
    settings: Settings,
    store: Store,
    world: World,
    clock: HostClock,
    built: Mapping[str, Pipeline],
    name: str | None,
) -> int:
    session = new_session(settings, store, world, list(built), name)
    own = {name: own_generation(settings, store, world, name) for name in built}
    engine = engine_of(settings, built, world.emit, store.max_receipt_bytes)
    coordinators = {name: coordinator_of(settings, store, world, session, name) for name in built}
    loops = [
        PipelineLoop(
            coordinators[name],
            pipeline,
            engine,
            settings=loop_settings_of(settings, name),
            generation=own[name],
            duties=finalizers(coordinators[name], pipeline.source, pipeline.sinks),
        )
        for name, pipeline in built.items()
    ]
    node = Node(session, loops, engine, world, coordinators=hand_coordinators(settings, store, session, built, world))

    with stopped_by_signals(node, clock):
        if not node.run():
            return 0
    return int(any(coordinator.counts().get(Status.FAILED) for coordinator in coordinators.values()))


@contextmanager
def stopped_by_signals(node: Node, clock: HostClock) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGINT ask the node to stop. Restores the handlers of before."""

    def stop(_number: int) -> None:
        clock.ask_to_stop(STOP_WITHIN)
        node.stop()

    with _on_signal(stop):
        yield


@contextmanager
def _on_signal(handle: Callable[[int], None]) -> Iterator[None]:
    def handler(number: int, _frame: FrameType | None) -> None:
        handle(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _exit_as_killed(number: int) -> None:
    """End the process as a shell reports it: until the node runs, it holds nothing."""
    sys.exit(128 + number)

"""`holdfast run`: runs a node."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from holdfast.cli.exit_codes import VERBOSE
from holdfast.cli.options import File
from holdfast.events import Level

Pipelines = Annotated[
    list[str] | None,
    typer.Option("--pipeline", metavar="NAME", help="Run only this pipeline; may be given several times."),
]
NodeName = Annotated[
    str | None,
    typer.Option("--node", metavar="NAME", help="Stable name of this node; the one in the file unless given."),
]
Verbose = Annotated[bool, typer.Option("--verbose", metavar="", help="Log every event, and show tracebacks of errors.")]
LogForm = Annotated[
    Literal["text", "json"] | None,
    typer.Option("--log", help="Log format; the one in the file unless given."),
]


def run(
    ctx: typer.Context,
    file: File,
    node: NodeName = None,
    pipeline: Pipelines = None,
    verbose: Verbose = False,
    log: LogForm = None,
) -> None:
    """Run the pipelines of a file on this node, until they are finished or the process is asked to stop.

    Any number of nodes may run the same file; they share the work through the store. They also carry out the runs of
    these pipelines, such as a reindex, or a rewind that was begun with --detach. The log is written to stderr.
    """
    from holdfast import assemble, service
    from holdfast.observe.alerts import alerting
    from holdfast.observe.consumers import Consumer, Reporter
    from holdfast.observe.log import Log
    from holdfast.observe.metrics import Metrics
    from holdfast.runs.pickup import RunPickup

    ctx.meta[VERBOSE] = verbose or ctx.meta.get(VERBOSE, False)
    settings = assemble.load_settings(file)
    level: Level = "debug" if ctx.meta[VERBOSE] else "info"
    metrics = Metrics({settings.identifier(name): name for name in settings.pipelines})
    consumers: list[Consumer] = [
        Log(sys.stderr, form=log or settings.node.log, level=level, node=node or settings.node.name),
        metrics,
    ]
    port = settings.node.metrics_port
    endpoint = None if port is None else metrics.serve(port, settings.node.metrics_address)
    try:
        with alerting(settings.alerts, node or settings.node.name, consumers) as alerts:
            emit = Reporter([*consumers, alerts])
            code = service.run(settings, emit, node_name=node, pipelines=pipeline or (), beside=RunPickup)
    finally:
        if endpoint is not None:
            endpoint.stop()
    raise typer.Exit(code)

"""`holdfast run`: runs a node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli import output
from holdfast.cli.exit_codes import VERBOSE
from holdfast.cli.options import File

if TYPE_CHECKING:
    from holdfast.config.models import Settings
    from holdfast.events import Level
    from holdfast.observe.log import Form

NEXT = (
    "some partitions are FAILED; `holdfast partitions list {file} --status FAILED` shows why, and when the cause is "
    "mended, `holdfast partitions reopen {file} --status FAILED` lets nodes try them again"
)

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


Quiet = Annotated[bool, typer.Option("--quiet", metavar="", help="Log warnings and errors only, and no progress.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", metavar="", help="Show no progress.")]


def run(  # noqa: PLR0913, PLR0917 - each is an option
    ctx: typer.Context,
    file: File,
    node: NodeName = None,
    pipeline: Pipelines = None,
    verbose: Verbose = False,
    log: LogForm = None,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
) -> None:
    """Run the pipelines of a file on this node, until they are finished or the process is asked to stop.

    Any number of nodes may run the same file; they share the work through the store. They also carry out the runs of
    these pipelines, such as a reindex, or a rewind that was begun with --detach. Log and progress are written to
    stderr: on a terminal a table, else a line per pipeline every 10 s.
    """
    from holdfast.configured_store import load_settings

    ctx.meta[VERBOSE] = verbose or ctx.meta.get(VERBOSE, False)
    settings = load_settings(file)
    form = log or settings.node.log
    if not quiet:
        _tell_of_start(settings, form)
    level: Level = "debug" if ctx.meta[VERBOSE] else "warning" if quiet else "info"
    code = _run_node(settings, form, level, node, pipeline or (), progress=not (quiet or no_progress))
    if code:
        output.tell(NEXT.format(file=file))
    raise typer.Exit(code)


def _tell_of_start(settings: Settings, form: str) -> None:
    """Say at once that something happens: Spark takes seconds, and so does loading the rest of holdfast."""
    from importlib.metadata import version

    from holdfast.spark.java import java_release

    java = java_release()
    on = "" if java is None else f" on Java {java}"
    # Unless given, the master follows from the workers of functions, which are not loaded yet.
    at = "" if settings.spark.master is None else f" ({settings.spark.master})"
    text = f"starting Spark {version('pyspark')}{on}{at} …"
    if form == "text":
        output.tell(text)


def _run_node(
    settings: Settings, form: Form, level: Level, node: str | None, pipelines: Sequence[str], *, progress: bool
) -> int:
    from holdfast import service
    from holdfast.cli.display import Display, LogStream, is_terminal
    from holdfast.observe.log import Log
    from holdfast.observe.progress import Progress
    from holdfast.runs.pickup import RunPickup

    names = {settings.identifier(name): name for name in pipelines or settings.pipelines}
    counted = Progress(names)
    node_name = node or settings.node.name
    log = Log(LogStream(), form=form, level=level, node=node_name)
    with service.observed(settings, [log, counted], node_name) as emit:
        display = Display(counted, names, emit, live=is_terminal(sys.stderr) and form == "text")
        watch = display.showing if progress else None
        code = service.run(settings, emit, node_name=node, pipelines=pipelines, beside=RunPickup, watch=watch)
    if level != "warning" and form == "text":
        output.tell(str(counted.summary()))
    return code

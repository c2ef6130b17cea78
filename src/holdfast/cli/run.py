"""`holdfast run`: runs a node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli import output
from holdfast.cli.exit_codes import VERBOSE
from holdfast.cli.options import File, check_pipelines

if TYPE_CHECKING:
    from holdfast.cli.display import Display
    from holdfast.config.models import Settings
    from holdfast.events import Level
    from holdfast.leases.store import Store
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
WebPort = Annotated[
    int | None,
    typer.Option("--web", min=0, max=65535, metavar="PORT", help="Serve the dashboard on this port of this host, too."),
]


def run(  # noqa: PLR0913, PLR0917 - each is an option
    ctx: typer.Context,
    file: File,
    node: NodeName = None,
    pipeline: Pipelines = None,
    verbose: Verbose = False,
    log: LogForm = None,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    web: WebPort = None,
) -> None:
    """Run the pipelines of a file on this node, until they are finished or the process is asked to stop.

    Any number of nodes may run the same file; they share the work through the store. They also carry out the runs of
    these pipelines, such as a reindex, or a rewind that was begun with --detach. Log and progress are written to
    stderr: on a terminal a table, else a line per pipeline every 10 s.
    """
    from holdfast.configured_store import load_settings

    ctx.meta[VERBOSE] = verbose or ctx.meta.get(VERBOSE, False)
    settings = load_settings(file)
    check_pipelines(settings, pipeline or ())
    form = log or settings.node.log
    if not quiet:
        _tell_of_start(settings, form)
    level: Level = "debug" if ctx.meta[VERBOSE] else "warning" if quiet else "info"
    dashboard = None if web is None else partial(_dashboard, file, settings, web)
    watching = _Watching(dashboard, progress=not (quiet or no_progress))
    code = _run_node(settings, form, level, node, pipeline or (), watching)
    if code:
        output.tell(NEXT.format(file=file))
    raise typer.Exit(code)


def _tell_of_start(settings: Settings, form: str) -> None:
    """Print at once that the node is starting: Spark takes seconds, and so does loading the rest of holdfast."""
    from importlib.metadata import version

    from holdfast.spark.java import java_release

    java = java_release()
    on = "" if java is None else f" on Java {java}"
    # Unless given, the master follows from the workers of functions, which are not loaded yet.
    at = "" if settings.spark.master is None else f" ({settings.spark.master})"
    text = f"starting Spark {version('pyspark')}{on}{at} …"
    if form == "text":
        output.tell(text)


@dataclass(frozen=True)
class _Watching:
    """What shows people how the node is doing."""

    dashboard: Callable[[Store], AbstractContextManager[None]] | None
    progress: bool

    @contextmanager
    def entered(self, display: Display, store: Store) -> Iterator[None]:
        with ExitStack() as stack:
            if self.dashboard is not None:
                stack.enter_context(self.dashboard(store))
            if self.progress:
                stack.enter_context(display.showing(store))
            yield


def _dashboard(file: str, settings: Settings, port: int, store: Store) -> AbstractContextManager[None]:
    from holdfast.cli.web import beside_a_node

    return beside_a_node(file, settings, port, store)


def _run_node(
    settings: Settings, form: Form, level: Level, node: str | None, pipelines: Sequence[str], watching: _Watching
) -> int:
    from holdfast import service
    from holdfast.cli.display import Display, LogStream, is_terminal
    from holdfast.configured_store import fleet
    from holdfast.observe.log import Log
    from holdfast.observe.measurements import Measurements
    from holdfast.observe.progress import Progress
    from holdfast.runs.pickup import RunPickup

    names = {settings.identifier(name): name for name in pipelines or settings.pipelines}
    counted = Progress(names)
    node_name = node or settings.node.name
    log = Log(LogStream(), form=form, level=level, node=node_name)
    measurements = Measurements()
    with service.observed(settings, [log, counted, measurements], node_name) as emit:
        live = is_terminal(sys.stderr) and form == "text"
        display = Display(counted, names, emit, live=live, fleet=fleet(settings))
        watch = partial(watching.entered, display)
        more: dict[str, Any] = {"beside": RunPickup, "watch": watch, "measurements": measurements}
        code = service.run(settings, emit, node_name=node, pipelines=pipelines, **more)
    if level != "warning" and form == "text":
        output.tell(str(counted.summary()))
    return code

"""`holdfast rewind` and `holdfast backfill`: write past records again, beside the live pipeline."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import (
    File,
    PipelineName,
    Why,
    arguments_of,
    check_pipelines,
    opened_pipeline,
    pipeline_actions,
)
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.assemble import Emit
    from holdfast.flow.run import Run
    from holdfast.runs.actions import PipelineActions
    from holdfast.runs.rewind import Rewind

Topic = Annotated[str, typer.Option("--topic", metavar="NAME", help="The Kafka topic.")]
KafkaPartition = Annotated[int, typer.Option("--partition", min=0, metavar="NUMBER", help="The Kafka partition.")]
To = Annotated[str, typer.Option("--to", metavar="OFFSET|TIME", help="Where to begin: an offset or a time.")]
NewRoot = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="ROOT",
        help="Root of the new files; unless given, the old root followed by `-g` and the generation.",
    ),
]
Backup = Annotated[
    str,
    typer.Option("--from", metavar="PIPELINE", help="The pipeline in this configuration file whose output is read."),
]
Span = Annotated[
    str, typer.Option("--between", metavar="FROM..TO", help="Offsets or times; either end may be left out.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic; may be given several times.")
]
Names = Annotated[
    str | None,
    typer.Option(
        "--partition-names", metavar="NAMES", help="Only records with these partition names, such as dt=2026-01-01."
    ),
]

InPlace = Annotated[
    bool,
    typer.Option(
        "--replace", metavar="", help="Move the old files away, and let the live pipeline write the range again."
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", metavar="", help="Leave the run to the nodes that run the pipeline, and return.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar="", help="With --replace: only list the files that would be moved.")
]


def rewind(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    topic: Topic,
    partition: KafkaPartition,
    to: To,
    pipeline: PipelineName = None,
    root: NewRoot = None,
    replace: InPlace = False,
    dry_run: DryRun = False,
    detach: Detach = False,
    reason: Why = "",
) -> None:
    """Read a Kafka partition again from an offset or a time up to the committed position, with this file's parsing.

    The files get the next generation and a separate root, so that readers can choose. The live pipeline keeps running.
    With --replace, the new files take the names of the old ones, which are moved below `_holdfast/replaced`. Readers
    see a gap until the live pipeline has written the range again. The next call finishes an interrupted one.
    """
    from holdfast.runs.rewind import Rewind

    if (replace and (detach or root is not None)) or (dry_run and not replace):
        raise UsageError("--root and --detach cannot be combined with --replace, and --dry-run needs --replace")
    request = Rewind(topic, partition, to)
    with opened_pipeline(file, pipeline) as opened:
        actions = pipeline_actions(opened, reason, log())
        if replace:
            _replace(actions, request, dry_run=dry_run)
            return
        run = actions.rewind(request, root=root, detached=detach).result
        end(run, arguments_of(file, opened))


def backfill(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    backup: Backup,
    between: Span = "..",
    topic: Topics = None,
    partition_names: Names = None,
    pipeline: PipelineName = None,
    root: NewRoot = None,
    detach: Detach = False,
    reason: Why = "",
) -> None:
    """Put records from a backup's files through a pipeline's processors again.

    The files get the next generation and a separate root, so that readers can choose. The live pipeline keeps running.
    """
    from holdfast.runs.backfill import Backfill

    request = Backfill(backup, between, topic or (), partition_names)
    with opened_pipeline(file, pipeline) as opened:
        check_pipelines(opened.settings, [backup])
        run = pipeline_actions(opened, reason, log()).backfill(request, root=root, detached=detach).result
        end(run, arguments_of(file, opened))


def _replace(actions: PipelineActions, request: Rewind, *, dry_run: bool) -> None:
    done = actions.preview_replacement(request) if dry_run else actions.replace(request).result
    if done.start != done.requested:
        output.tell(f"only whole commits are replaced: the commit with offset {done.requested} begins at {done.start}")
    if dry_run:
        for root, key in done.moves:
            output.say(f"{root.rstrip('/')}/{key}")
        output.tell(f"{len(done.moves)} files would be moved; offsets {done.start} to {done.end - 1} of {request.key}")
        return
    output.say(
        f"{len(done.moves) - len(done.missing)} files were moved; the live pipeline writes offsets {done.start} to "
        f"{done.end - 1} of {request.key} again as generation {done.generation}, and readers see a gap until then"
    )


def log() -> Emit:
    """Return a consumer that logs events to stderr; stdout is for the result."""
    from holdfast.observe.consumers import Reporter
    from holdfast.observe.log import Log

    return Reporter([Log(sys.stderr, form="text", level="info")])


def tell_detached(run: Run, arguments: str) -> None:
    """Print how to watch a run that is left to the nodes."""
    output.say(
        f"run {run.id} is left to the nodes that run the pipeline; see `holdfast runs show {arguments} {run.id}`"
    )


def tell_next(run: Run, arguments: str) -> None:
    """Print the next command for a run that is not complete. `arguments`: from `arguments_of`."""
    status = run.status.value
    if status in {"RUNNING", "READY"}:
        output.tell(f"it has not ended; continue it with `holdfast runs join {arguments} {run.id}`")
    elif status in {"STOPPING", "STOPPED"}:
        output.tell(
            f"it was stopped; `holdfast runs resume {arguments} {run.id}` lets it go on, on nodes that run the "
            f"pipeline or with `holdfast runs join {arguments} {run.id}`"
        )
    elif status in {"COMPLETED_WITH_ERRORS", "FAILED"}:
        failed = f"holdfast partitions list {arguments} --run {run.id} --status FAILED"
        output.tell(f"{run.error or 'some partitions are FAILED'}; `{failed}` shows which and why")
        output.tell(f"when the cause is mended, {_again(run, arguments)}")


def _again(run: Run, arguments: str) -> str:
    kind = (run.configuration or {}).get("kind")
    if kind == "redrive":
        return f"`holdfast deadletters redrive {arguments}` sends what was not sent yet"
    if kind == "reindex":
        return f"`holdfast reindex start {arguments}` begins another run"
    return f"give the command of this {kind} with a --root that has no files of these partitions yet"


def end(run: Run, arguments: str) -> None:
    """Print how a run has ended, or how to continue it, and exit: with 0 only if it is complete."""
    counts = run.counts
    if run.status.value == "INITIALIZING":
        tell_detached(run, arguments)
        return
    output.say(f"run {run.id} is {run.status.value}: {counts.succeeded} of {counts.processed} records written again")
    for name, root in (run.configuration or {}).get("roots", {}).items():
        output.tell(f"sink {name}: {root}")
    tell_next(run, arguments)
    raise typer.Exit(0 if run.status.value == "COMPLETED" else 1)

"""`holdfast rewind` and `holdfast backfill`: write a part of the past again, beside the live pipeline."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import File, PipelineName, chosen_pipeline, opened_store
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.assemble import Emit
    from holdfast.config.models import Settings
    from holdfast.flow.run import Run
    from holdfast.leases.store import Store
    from holdfast.runs.rewind import Rewind

Topic = Annotated[str, typer.Option("--topic", metavar="NAME", help="The Kafka topic.")]
KafkaPartition = Annotated[int, typer.Option("--partition", min=0, metavar="NUMBER", help="The Kafka partition.")]
To = Annotated[str, typer.Option("--to", metavar="OFFSET|TIME", help="Where to begin again: an offset, or a time.")]
NewRoot = Annotated[
    str | None,
    typer.Option("--root", metavar="ROOT", help="Where the files go; the old root and `-g` with the generation else."),
]
Backup = Annotated[
    str, typer.Option("--from", metavar="PIPELINE", help="The pipeline of the same file whose files are read.")
]
Span = Annotated[
    str, typer.Option("--between", metavar="FROM..TO", help="Offsets or times; either end may be left out.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic; may be given several times.")
]
Names = Annotated[
    str | None, typer.Option("--partition-names", metavar="NAMES", help="Only records of these, as in dt=2026-01-01.")
]

InPlace = Annotated[
    bool,
    typer.Option(
        "--replace", metavar="", help="Move the old files away, and let the live pipeline write the range anew."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar="", help="With --replace: only list what would be moved.")]


def rewind(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    topic: Topic,
    partition: KafkaPartition,
    to: To,
    pipeline: PipelineName = None,
    root: NewRoot = None,
    replace: InPlace = False,
    dry_run: DryRun = False,
) -> None:
    """Read a Kafka partition again from an offset or a time up to what is committed, with this file's parsing.

    The files get the next generation and a root of their own, so that readers choose. The live pipeline goes on.
    With --replace they get the place of the old ones instead, which are moved below `_holdfast/replaced`; readers see a
    hole until the live pipeline has written the range again. A call that was interrupted is finished by the next one.
    """
    from holdfast import assemble
    from holdfast.runs.rewind import Rewind
    from holdfast.runs.rewind import rewind as write_again

    settings = assemble.load_settings(file)
    if (replace and root is not None) or (dry_run and not replace):
        raise UsageError("--root is for files beside the old ones, --dry-run is for --replace")
    asked = Rewind(chosen_pipeline(settings, pipeline), topic, partition, to)
    with opened_store(settings) as store:
        if replace:
            _replace(settings, store, asked, dry_run=dry_run)
            return
        end(write_again(settings, store, asked, log(), root=root, by=getpass.getuser()), file)


def backfill(
    file: File,
    backup: Backup,
    between: Span = "..",
    topic: Topics = None,
    partition_names: Names = None,
    pipeline: PipelineName = None,
    root: NewRoot = None,
) -> None:
    """Put records of a backup's files through a pipeline's parsers again.

    The files get the next generation and a root of their own, so that readers choose. The live pipeline goes on.
    """
    from holdfast import assemble
    from holdfast.runs.backfill import Backfill
    from holdfast.runs.backfill import backfill as write_again

    settings = assemble.load_settings(file)
    name = chosen_pipeline(settings, pipeline)
    if backup not in settings.pipelines:
        raise UsageError(f"there is no pipeline {backup!r} in this file; it has {', '.join(settings.pipelines)}")
    asked = Backfill(name, backup, between, topic or (), partition_names)
    with opened_store(settings) as store:
        end(write_again(settings, store, asked, log(), root=root, by=getpass.getuser()), file)


def _replace(settings: Settings, store: Store, asked: Rewind, *, dry_run: bool) -> None:
    from holdfast.runs.replace import replacing_of

    replacing = replacing_of(settings, store, asked, log(), getpass.getuser())
    done = replacing.preview() if dry_run else replacing.carry_out()
    if done.start != done.asked:
        output.tell(f"only whole commits are replaced: the one that holds offset {done.asked} begins at {done.start}")
    if dry_run:
        for root, key in done.moves:
            output.say(f"{root.rstrip('/')}/{key}")
        output.tell(f"{len(done.moves)} files would be moved; offsets {done.start} to {done.end - 1} of {asked.key}")
        return
    output.say(
        f"{len(done.moves) - len(done.missing)} files are moved; the live pipeline writes offsets {done.start} to "
        f"{done.end - 1} of {asked.key} again as generation {done.generation}, and readers see a hole until then"
    )


def log() -> Emit:
    """Events as lines on stderr; stdout is for the result."""
    from holdfast.observe.fanout import Reporter
    from holdfast.observe.log import Log

    return Reporter([Log(sys.stderr, form="text", level="info")])


def end(run: Run, file: str) -> None:
    """Tell how a run has ended, or how it can go on; the exit code is 0 only if all of it was done."""
    counts = run.counts
    output.say(f"run {run.id} is {run.status.value}: {counts.succeeded} of {counts.processed} records written again")
    for name, root in (run.configuration or {}).get("roots", {}).items():
        output.tell(f"sink {name}: {root}")
    if run.status.value in {"RUNNING", "READY"}:
        output.tell(f"it has not ended; go on with `holdfast runs join {file} {run.id}`")
    raise typer.Exit(0 if run.status.value == "COMPLETED" else 1)

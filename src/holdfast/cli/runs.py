"""`holdfast runs`: bounded passes over a part of the past, such as a rewind or a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, chosen_pipeline, opened_store
from holdfast.cli.reprocess import end, log
from holdfast.errors import PartitionNotFound, UsageError

if TYPE_CHECKING:
    from holdfast.flow.run import Run, Runs

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `holdfast runs list` shows it.")]
COLUMNS = ("RUN", "STATUS", "PARTITIONS", "COMPLETED", "FAILED", "RECORDS", "CREATED BY", "ERROR")


def list_runs(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the runs of a pipeline."""
    with _runs(file, pipeline) as runs:
        known = sorted(runs.list(), key=lambda run: run.created_at or 0.0)
    if json:
        output.say_json([asdict(run) for run in known])
    else:
        output.say_table(COLUMNS, [_cells(run) for run in known])


def show(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """Show a run with its settings and how far each of its groups is, as JSON."""
    with _runs(file, pipeline) as runs, _known(run):
        output.say_json(asdict(runs.show(run)))


def stop(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """End a run before it is done. What it has written stays; nodes that work on it let go within a heartbeat."""
    with _runs(file, pipeline) as runs, _known(run):
        runs.stop(run)
        stopped = runs.aggregate(run)
    output.say(f"run {run} is {stopped.status.value}")


def join(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """Work on a run that another node has begun: beside it, or in its place if it is gone.

    Needs the file with which the run was begun. Several nodes may join one run.
    """
    from holdfast import assemble
    from holdfast.runs.join import join_run

    settings = assemble.load_settings(file)
    name = chosen_pipeline(settings, pipeline)
    with opened_store(settings) as store, _known(run):
        end(join_run(settings, store, name, run, log()), file)


def _cells(run: Run) -> tuple[Any, ...]:
    groups = run.groups.values()
    return (
        run.id,
        run.status.value,
        sum(group.partitions for group in groups),
        sum(group.completed for group in groups),
        sum(group.failed_partitions for group in groups),
        run.counts.processed,
        run.created_by,
        run.error,
    )


@contextmanager
def _runs(file: str, pipeline: str | None) -> Iterator[Runs]:
    from holdfast import assemble

    settings = assemble.load_settings(file)
    name = chosen_pipeline(settings, pipeline)
    with opened_store(settings) as store:
        yield assemble.runs(settings, store, name)


@contextmanager
def _known(run: str) -> Iterator[None]:
    try:
        yield
    except PartitionNotFound:
        raise UsageError(f"there is no run {run!r}; `holdfast runs list` shows them") from None

"""`holdfast runs`: bounded passes over past records, such as a rewind or a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, opened_pipeline
from holdfast.cli.reprocess import end, log
from holdfast.errors import PartitionNotFound, UsageError

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.flow.run import Run
    from holdfast.flow.runs import Runs

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `holdfast runs list` shows it.")]
COLUMNS = ("RUN", "STATUS", "PARTITIONS", "COMPLETED", "FAILED", "RECORDS", "CREATED BY", "ERROR")


def list_runs(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the runs of a pipeline."""
    with _runs(file, pipeline) as runs:
        found = sorted(runs.list(), key=lambda run: run.created_at or 0.0)
    if json:
        output.say_json([asdict(run) for run in found])
    else:
        output.say_table(COLUMNS, [_cells(run) for run in found])


def show(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """Show a run with its configuration and the progress of each group, as JSON."""
    with _runs(file, pipeline) as runs, _existing(run):
        output.say_json(asdict(runs.show(run)))


def stop(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """End a run early. Its files stay; nodes that work on it give up its partitions within a heartbeat."""
    with _runs(file, pipeline) as runs, _existing(run):
        runs.stop(run)
        stopped = runs.settle_stop(run)
    output.say(f"run {run} is {stopped.status.value}")


def join(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """Work on a run that another node has started: beside that node, or instead of it if it is gone.

    Needs the file with which the run was started. Several nodes may join one run.
    """
    with opened_pipeline(file, pipeline) as opened, _existing(run):
        end(_join(opened, run), file)


def _join(pipeline: StoredPipeline, run_id: str) -> Run:
    """Work on the run until it has ended or this process is asked to stop.

    Raises `UsageError` if it has ended, `Refused` if this file's parsing is not the run's.
    """
    from holdfast.runs import backfill, execution, redrive, reindex_pipeline, rewind
    from holdfast.runs.letter_selection import KIND as REDRIVE
    from holdfast.runs.next_generation import check_digest
    from holdfast.runs.reindex_state import KIND as REINDEX

    run_pipelines = {
        rewind.KIND: rewind.run_pipeline,
        backfill.KIND: backfill.run_pipeline,
        REDRIVE: redrive.run_pipeline,
        REINDEX: reindex_pipeline.run_pipeline,
    }
    configuration = execution.unfinished(pipeline.runs(), run_id).configuration
    if not isinstance(configuration, dict) or configuration.get("kind") not in run_pipelines:
        raise UsageError(f"run {run_id} is neither a rewind, nor a backfill, nor a redrive, nor a reindex")
    kind = configuration["kind"]
    if kind != REINDEX:
        check_digest(pipeline, configuration["generation"])
    run = execution.join(run_pipelines[kind](pipeline, configuration), run_id, log())
    if kind == REDRIVE:
        redrive.mark_sent(pipeline, run_id)
    return run


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
    with opened_pipeline(file, pipeline) as opened:
        yield opened.runs()


@contextmanager
def _existing(run: str) -> Iterator[None]:
    try:
        yield
    except PartitionNotFound:
        raise UsageError(f"there is no run {run!r}; `holdfast runs list` shows them") from None

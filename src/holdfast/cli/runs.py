"""`holdfast runs`: bounded passes over past records, such as a rewind or a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, Rate, arguments_of, node_names, opened_pipeline, rate_of
from holdfast.cli.reprocess import end, log
from holdfast.errors import PartitionNotFound, UsageError

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.flow.run import GroupStats, NodeStats, Run
    from holdfast.flow.runs import Runs

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `holdfast runs list` shows it.")]
GROUP_COLUMNS = ("GROUP", "PARTITIONS", "COMPLETED", "FAILED", "RECORDS", "WRITTEN", "FAILED RECORDS")
NODE_COLUMNS = ("NODE", "HELD", "COMPLETED", "FAILED", "RECORDS", "FAILED RECORDS")
COLUMNS = ("RUN", "STATUS", "PARTITIONS", "COMPLETED", "FAILED", "RECORDS", "CREATED BY", "ERROR")


def list_runs(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the runs of a pipeline."""
    with _runs(file, pipeline) as runs:
        found = sorted(runs.list(), key=lambda run: run.created_at or 0.0)
    if json:
        output.say_json([asdict(run) for run in found])
    else:
        output.say_table(COLUMNS, [_cells(run) for run in found])


def show(file: File, run: RunId, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """Show a run: its status, and the progress of each group and each node.

    The driver of the run sums its partitions up every two seconds. With --json, everything that is stored of the run.
    """
    with opened_pipeline(file, pipeline) as opened, _existing(run):
        found = opened.runs().show(run)
        names = node_names(opened)
    if json:
        output.say_json({**asdict(found), "total": found.total, "seconds_left": found.seconds_left})
        return
    output.say(_headline(found))
    output.say_table(GROUP_COLUMNS, [(name, *_progress(group)) for name, group in sorted(found.groups.items())])
    output.say_table(NODE_COLUMNS, [(names.get(session, session), *_share(of)) for session, of in found.nodes.items()])


def resume(file: File, run: RunId, pipeline: PipelineName = None) -> None:
    """Let a stopped run go on where it was, on the nodes that run the pipeline or by `holdfast runs join`."""
    with _runs(file, pipeline) as runs, _existing(run):
        resumed = runs.resume(run)
    output.say(f"run {run} is {resumed.status.value}")


def throttle(file: File, run: RunId, rate: Rate, pipeline: PipelineName = None) -> None:
    """Limit a run to so many records per second over all nodes, from now on; `none` lifts the limit."""
    limit = rate_of(rate)
    with _runs(file, pipeline) as runs, _existing(run):
        runs.throttle(run, limit)
    output.say(f"run {run}: " + ("no limit" if limit is None else f"at most {limit:g} records per second"))


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
        end(_join(opened, run), arguments_of(file, opened))


def _join(pipeline: StoredPipeline, run_id: str) -> Run:
    """Work on the run until it has ended or this process is asked to stop.

    Raises `UsageError` if it has ended, `Refused` if this file's parsing is not the run's.
    """
    from holdfast.runs import execution, redrive
    from holdfast.runs.kinds import run_pipeline_of

    configuration = execution.unfinished(pipeline.runs(), run_id).configuration
    run = execution.join(run_pipeline_of(pipeline, configuration), run_id, log())
    if configuration["kind"] == "redrive":
        redrive.mark_sent(pipeline, run_id)
    return run


def _headline(run: Run) -> str:
    from holdfast.config.units import format_duration

    done, rate, left = run.counts, run.rate, run.seconds_left
    parts = [f"{run.id} is {run.status.value}" + (f" in phase {run.phase}" if run.phase else "")]
    parts.append(f"{done.processed} of {run.total} records, {done.failed} failed")
    if run.status.value == "RUNNING" and rate is not None:
        parts.append(f"{rate:.0f} records/s" + ("" if left is None else f", {format_duration(round(left))} left"))
    if run.throttle is not None:
        parts.append(f"limited to {run.throttle:g} records/s")
    if run.error:
        parts.append(run.error)
    return "; ".join(parts)


def _progress(group: GroupStats) -> tuple[int, ...]:
    partitions = (group.partitions, group.completed, group.failed_partitions)
    return (*partitions, group.total, group.succeeded, group.failed)


def _share(node: NodeStats) -> tuple[int, ...]:
    return (node.held, node.completed, node.failed_partitions, node.processed, node.failed)


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

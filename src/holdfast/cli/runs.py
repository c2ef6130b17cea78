"""`holdfast runs`: bounded passes over past records, such as a rewind or a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import (
    AsJson,
    File,
    PipelineName,
    Rate,
    Why,
    arguments_of,
    node_names,
    opened_pipeline,
    pipeline_actions,
    rate_of,
)
from holdfast.cli.reprocess import end, log

if TYPE_CHECKING:
    from holdfast.flow.run import GroupStats, NodeStats, Run
    from holdfast.flow.runs import Runs

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `holdfast runs list` shows it.")]
GROUP_COLUMNS = ("GROUP", "PARTITIONS", "COMPLETED", "FAILED", "RECORDS", "WRITTEN", "FAILED RECORDS")
NODE_COLUMNS = ("NODE", "HELD", "COMPLETED", "FAILED", "RECORDS", "FAILED RECORDS")
COLUMNS = ("RUN", "STATUS", "PARTITIONS", "COMPLETED", "FAILED", "RECORDS", "CREATED BY", "ERROR")


def list_runs(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the runs of a pipeline."""
    from holdfast.observe.listings import run_rows

    with _runs(file, pipeline) as runs:
        found = sorted(runs.list(), key=lambda run: run.created_at or 0.0)
    if json:
        output.say_json(run_rows(found))
    else:
        output.say_table(COLUMNS, [_cells(run) for run in found])


def show(file: File, run: RunId, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """Show a run: its status, and the progress of each group and each node.

    The driver of the run sums its partitions up every two seconds. With --json, everything that is stored about the
    run.
    """
    from holdfast.observe.listings import run_row
    from holdfast.runs.actions import existing

    with opened_pipeline(file, pipeline) as opened:
        found = existing(opened, run)
        names = node_names(opened)
    if json:
        output.say_json(run_row(found))
        return
    output.say(_headline(found))
    output.say_table(GROUP_COLUMNS, [(name, *_progress(group)) for name, group in sorted(found.groups.items())])
    output.say_table(NODE_COLUMNS, [(names.get(session, session), *_share(of)) for session, of in found.nodes.items()])


def resume(file: File, run: RunId, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Let a stopped run continue where it was, on the nodes that run the pipeline or by `holdfast runs join`."""
    with opened_pipeline(file, pipeline) as opened:
        resumed = pipeline_actions(opened, reason).resume_run(run).result
    output.say(f"run {run} is {resumed.status.value}")


def throttle(file: File, run: RunId, rate: Rate, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Limit a run to this many records per second over all nodes, from now on; `none` lifts the limit."""
    limit = rate_of(rate)
    with opened_pipeline(file, pipeline) as opened:
        pipeline_actions(opened, reason).throttle_run(run, limit)
    output.say(f"run {run}: " + ("no limit" if limit is None else f"at most {limit:g} records per second"))


def stop(file: File, run: RunId, pipeline: PipelineName = None, reason: Why = "") -> None:
    """End a run early. Its files stay; nodes that work on it give up its partitions within a heartbeat."""
    with opened_pipeline(file, pipeline) as opened:
        stopped = pipeline_actions(opened, reason).stop_run(run).result
    output.say(f"run {run} is {stopped.status.value}")


def join(file: File, run: RunId, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Work on a run that another node has started: beside that node, or instead of it if it is gone.

    Needs the file with which the run was started. Several nodes may join one run.
    """
    with opened_pipeline(file, pipeline) as opened:
        joined = pipeline_actions(opened, reason, log()).join_run(run).result
        end(joined, arguments_of(file, opened))


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

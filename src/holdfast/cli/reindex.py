"""`holdfast reindex`: copies live tables into search indexes, and promotes these without downtime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import (
    AsJson,
    File,
    PipelineName,
    Rate,
    Why,
    actions_of,
    node_names,
    opened_pipeline,
    opened_store,
    pipeline_actions,
    rate_of,
)
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.flow.run import GroupStats, Run
    from holdfast.runs.index_check import Comparison, IndexCheck
    from holdfast.runs.reindex_configuration import ReindexConfiguration

LatestRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="The run's id; the latest unless given.")]
Entities = Annotated[
    str | None, typer.Option("--entities", metavar="NAMES", help="Entities, separated by commas; all unless given.")
]
Recreate = Annotated[
    bool | None,
    typer.Option(
        "--recreate/--in-place",
        help="Fill staged indexes that replace the former ones (default), or write into the live indexes.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, metavar="N", help="Maximum number of documents in one bulk request."),
]
Changed = Annotated[
    bool, typer.Option("--changed", metavar="", help="Copy only what changed since the last COMPLETED run, in place.")
]
WithErrors = Annotated[
    bool, typer.Option("--promote-with-errors", metavar="", help="Promote even if partitions have FAILED.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar="", help="Only print partitions, rows and time; change nothing.")
]
Configuration = Annotated[
    Path | None,
    typer.Option("--configuration", metavar="FILE", help="JSON with entities, recreateIndex, batchSize and so on."),
]
Watch = Annotated[
    bool, typer.Option("--watch", metavar="", help="Print the status again every 2 s until the run ends.")
]
MinRatio = Annotated[
    float | None,
    typer.Option("--min-ratio", min=0, max=1, metavar="SHARE", help="Least share of the rows that must be documents."),
]
Keep = Annotated[bool, typer.Option("--keep", metavar="", help="Do not delete the index that is rolled back.")]
Sample = Annotated[
    float, typer.Option("--sample", min=0, max=1, metavar="SHARE", help="Share of the rows that are compared.")
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        metavar="",
        help="Mend documents that differ, and delete extra ones; impossible if the pipeline has processors.",
    ),
]
Remove = Annotated[bool, typer.Option("--remove", metavar="", help="Remove the views instead.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="TCP port; 0: any that is free.")]
AllowRemote = Annotated[
    bool, typer.Option("--allow-remote", metavar="", help="Let other hosts connect. There is no login.")
]

WATCH_EVERY = 2.0
COLUMNS = ("ENTITY", "PARTITIONS", "COMPLETED", "FAILED", "TOTAL", "SUCCESS", "ERRORS")
NODES = ("NODE", "HELD", "COMPLETED", "PROCESSED", "ERRORS")
LISTED = ("RUN", "STATUS", "PHASE", "ENTITIES", "SUCCESS", "ERRORS", "CREATED BY", "ERROR")
COMPARED = ("ENTITY", "ROWS", "DOCUMENTS", "COMPARED", "MISSING", "DIFFERENT", "EXTRA", "MENDED")


def start(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    pipeline: PipelineName = None,
    entities: Entities = None,
    recreate: Recreate = None,
    batch_size: BatchSize = None,
    changed: Changed = False,
    promote_with_errors: WithErrors = False,
    configuration: Configuration = None,
    dry_run: DryRun = False,
    reason: Why = "",
) -> None:
    """Start a run. Nodes that run the pipeline pick it up by themselves; this command does not wait for them."""
    from holdfast.runs import reindex_start

    if changed and recreate:
        raise UsageError("--changed writes into the live indexes, so that it cannot be combined with --recreate")
    given = {
        "entities": None if entities is None else [name.strip() for name in entities.split(",") if name.strip()],
        "recreateIndex": recreate,
        "batchSize": batch_size,
        "promoteWithErrors": promote_with_errors or None,
    }
    chosen = _configuration(configuration, {name: value for name, value in given.items() if value is not None})
    with opened_pipeline(file, pipeline) as opened:
        if dry_run:
            found = reindex_start.estimates(opened, chosen)
            output.say_table(
                ("ENTITY", "INDEX", "PARTITIONS", "ROWS", "SECONDS"),
                [tuple(asdict(estimate).values()) for estimate in found],
            )
            return
        run = pipeline_actions(opened, reason).reindex(chosen, changed=changed).result
    output.say(run.id)
    output.tell(f"follow it with `holdfast reindex status {file} --watch`; it begins when a node runs the pipeline")


def status(
    file: File, run: LatestRun = None, pipeline: PipelineName = None, watch: Watch = False, json: AsJson = False
) -> None:
    """Show the progress of a run by entity."""
    from holdfast.flow.run import ENDED

    with opened_pipeline(file, pipeline) as opened:
        run_id = _chosen(opened, run).id
        while True:
            found = opened.runs().show(run_id)
            _show(found, node_names(opened), json=json)
            if not watch or found.status in ENDED:
                return
            time.sleep(WATCH_EVERY)


def list_runs(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the reindex runs of a pipeline, the latest first."""
    from holdfast.runs.reindex_start import reindex_runs

    with opened_pipeline(file, pipeline) as opened:
        found = reindex_runs(opened)
    if json:
        output.say_json([asdict(run) for run in found])
    else:
        output.say_table(LISTED, [_cells(run) for run in found])


def stop(file: File, run: LatestRun = None, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Stop a run. Nothing is promoted; `holdfast reindex resume` continues it."""
    with opened_pipeline(file, pipeline) as opened:
        stopped = pipeline_actions(opened, reason).stop_run(_chosen(opened, run).id).result
    output.say(f"run {stopped.id} is {stopped.status.value}")


def resume(file: File, run: LatestRun = None, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Continue a run that was stopped, where it was."""
    with opened_pipeline(file, pipeline) as opened:
        resumed = pipeline_actions(opened, reason).resume_run(_chosen(opened, run).id).result
    output.say(f"run {resumed.id} is {resumed.status.value}")


def throttle(file: File, rate: Rate, run: LatestRun = None, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Limit the rows per second of a run, while it runs. Nodes notice within a heartbeat."""
    limit = rate_of(rate)
    with opened_pipeline(file, pipeline) as opened:
        changed = pipeline_actions(opened, reason).throttle_run(_chosen(opened, run).id, limit).result
    output.say(f"run {changed.id}: " + ("no limit" if limit is None else f"at most {limit:g} records per second"))


def promote(
    file: File,
    run: LatestRun = None,
    pipeline: PipelineName = None,
    min_ratio: MinRatio = None,
    reason: Why = "",
) -> None:
    """Promote a run that has ended without being promoted, for example because partitions have FAILED.

    Starts a run that brings the staged indexes up to date and puts them under their aliases.
    """
    with opened_pipeline(file, pipeline) as opened:
        promoted = _chosen(opened, run).id
        started = pipeline_actions(opened, reason).promote(promoted, min_ratio=min_ratio).result
    output.say(started.id)


def rollback(
    file: File, pipeline: PipelineName = None, entities: Entities = None, keep: Keep = False, reason: Why = ""
) -> None:
    """Put the former indexes under their aliases again. Needs no running node."""
    names = tuple(name.strip() for name in (entities or "").split(",") if name.strip())
    with opened_pipeline(file, pipeline) as opened:
        taken = pipeline_actions(opened, reason).rollback(names, keep=keep).result
    for entity, target in taken.items():
        former = ", ".join(() if target.former is None else target.former.indexes)
        output.say(f"{entity}: the alias {target.alias} names {former} again, instead of {target.index}")


def verify(
    file: File,
    pipeline: PipelineName = None,
    entities: Entities = None,
    sample: Sample = 1.0,
    repair: Repair = False,
    json: AsJson = False,
    reason: Why = "",
) -> None:
    """Compare rows with documents: counts, versions and contents. Exits with 1 if they differ and were not mended."""
    from holdfast.runs.index_check import IndexCheck
    from holdfast.runs.reindex_configuration import checked_configuration
    from holdfast.runs.reindex_pipeline import opened_promotion

    names = [name.strip() for name in (entities or "").split(",") if name.strip()]
    with opened_pipeline(file, pipeline) as opened, opened_promotion(opened) as promotion:
        chosen = checked_configuration({"entities": names}).resolved(promotion.tables.entities())
        texts = not opened.configured.processors
        if repair and not texts:
            raise UsageError(
                "--repair writes rows as they are, without the processors of the pipeline; write them again with "
                f"`holdfast reindex start --in-place {file}`"
            )
        check = IndexCheck(promotion, share=sample, texts=texts, repair=repair)
        compare = partial(_compared, check, chosen.entities)
        actions = pipeline_actions(opened, reason)
        found = actions.perform("reindex verify --repair", compare).result if repair else compare()
    if not texts:
        output.tell("the pipeline has processors: only ids and versions were compared")
    if json:
        output.say_json([asdict(comparison) for comparison in found])
    else:
        rows = [tuple(asdict(comparison).values())[: len(COMPARED)] for comparison in found]
        output.say_table(COMPARED, rows)
    for different in [comparison for comparison in found if not comparison.agrees]:
        output.tell(f"{different.entity}: {', '.join(different.examples)}")
    raise typer.Exit(0 if all(comparison.is_mended for comparison in found) else 1)


def _compared(check: IndexCheck, entities: Sequence[str]) -> list[Comparison]:
    return [check.compare(entity) for entity in entities]


def views(file: File, remove: Remove = False, reason: Why = "") -> None:
    """Create views of the runs in the store's database, with the names and columns of OpenMetadata's tables.

    They show the reindex runs of all pipelines of the file: search_index_job, search_index_partition and
    search_reindex_lock. Needs a store in PostgreSQL, MariaDB or MySQL.
    """
    from holdfast.assemble import fleet, load_settings
    from holdfast.flow.run_views import RUN_VIEWS, HasRunViews, ViewedRuns
    from holdfast.leases.action import Action
    from holdfast.runs.reindex_state import KIND

    settings = load_settings(file)
    with opened_store(settings) as store:
        if not isinstance(store, HasRunViews):
            name = settings.coordination.store.name
            raise UsageError(f"the store {name} cannot have views; only postgresql and mysql can")
        viewed = ViewedRuns([settings.identifier(pipeline) for pipeline in settings.pipelines], fleet(settings), KIND)
        create = partial(store.create_run_views, viewed)
        auditor = actions_of(settings, store, reason).auditor
        auditor.perform(
            Action("reindex views", parameters={"remove": remove}), store.remove_run_views if remove else create
        )
    output.say(f"{'removed' if remove else 'created'} {', '.join(RUN_VIEWS)}")


def serve(
    file: File,
    pipeline: PipelineName = None,
    host: Host = "127.0.0.1",
    port: Port = 8585,
    allow_remote: AllowRemote = False,
) -> None:
    """Send the progress of runs to WebSocket clients, until it is interrupted. Needs holdfast[web]."""
    from holdfast.registry import server

    with opened_pipeline(file, pipeline) as opened:
        serve_job_status = server("job_status")
        serve_job_status(opened, host, port, allow_remote=allow_remote, announce=output.say, report=output.tell)


def _configuration(file: Path | None, given: Mapping[str, Any]) -> ReindexConfiguration:
    """The configuration of the file; options that are given override it."""
    from holdfast.runs.reindex_configuration import checked_configuration, parse_configuration

    if file is None:
        return checked_configuration(given)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    stored = parse_configuration(text).model_dump(by_alias=True, exclude_unset=True)
    return checked_configuration({**stored, **given})


def _chosen(pipeline: StoredPipeline, run_id: str | None) -> Run:
    from holdfast.runs.reindex_start import reindex_runs

    found = reindex_runs(pipeline)
    if not found:
        raise UsageError(f"pipeline {pipeline.name!r} has no reindex runs; start one with `holdfast reindex start`")
    chosen = next((run for run in found if run_id in {None, run.id}), None)
    if chosen is None:
        raise UsageError(f"there is no reindex run {run_id!r}; `holdfast reindex list` shows all runs")
    return chosen


def _show(run: Run, names: Mapping[str, str], *, json: bool) -> None:
    from holdfast.config.units import format_duration
    from holdfast.flow.run import RunStatus

    if json:
        output.say_json(asdict(run))
        return
    phase = f" ({run.phase})" if run.phase else ""
    output.say(f"run {run.id} is {run.status.value}{phase}" + (f": {run.error}" if run.error else ""))
    output.say_table(COLUMNS, [_entity_cells(name, group) for name, group in sorted(run.groups.items())])
    if run.status is RunStatus.RUNNING and run.rate:
        left = sum(max(0, group.total - group.processed) for group in run.groups.values())
        output.say(f"{run.rate:.0f} documents per second, about {format_duration(round(left / run.rate))} left")
    if run.nodes:
        cells = [
            (names.get(session, session), node.held, node.completed, node.processed, node.failed)
            for session, node in run.nodes.items()
        ]
        output.say_table(NODES, cells)


def _entity_cells(name: str, group: GroupStats) -> tuple[Any, ...]:
    return (
        name,
        group.partitions,
        group.completed,
        group.failed_partitions,
        group.total,
        group.succeeded,
        group.failed,
    )


def _cells(run: Run) -> tuple[Any, ...]:
    entities = ", ".join((run.configuration or {}).get("entities", ()))
    counts = run.counts
    return run.id, run.status.value, run.phase, entities, counts.succeeded, counts.failed, run.created_by, run.error

"""`holdfast status` and `holdfast lag`: everything on one screen, and how far pipelines are behind their sources."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, chosen_pipeline, opened_store
from holdfast.errors import SourceUnavailable

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.config.models import Settings
    from holdfast.flow.shards import Lag
    from holdfast.leases.lease import Lease

Row = Mapping[str, Any]
Watch = Annotated[bool, typer.Option("--watch", metavar="", help="Repeat every 2 s until interrupted.")]
ByPartition = Annotated[bool, typer.Option("--by-partition", metavar="", help="Show each partition separately.")]

WATCH_EVERY = 2.0
SHARE = 40
"""A look may take this part of the time between two looks, so that watching a slow store does not load it."""
PIPELINES = (
    "PIPELINE",
    "STATE",
    "NODES",
    "DONE",
    "HELD",
    "WAITING",
    "FAILED",
    "RECORDS",
    "RATE",
    "LAG",
    "DEAD LETTERS",
)
NODES = ("NODE", "STATE", "LEASES", "LAST HEARTBEAT", "PIPELINES")
RUNS = ("RUN", "PIPELINE", "STATUS", "PARTITIONS", "RECORDS", "LEFT", "ERROR")
FAILURES = ("FAILED PARTITION", "PIPELINE", "RUN", "SINCE", "ERROR")
LAGS = ("PIPELINE", "GROUP", "PARTITION", "UNFINISHED", "LAG")


def status(file: File, watch: Watch = False, json: AsJson = False) -> None:
    """Show all pipelines of the file, the nodes that share its store, runs, lag, failures and dead letters.

    Lag and rate are what the nodes have measured last; `holdfast lag` looks them up. With --watch and --json, one
    document per line.
    """
    from holdfast.configured_store import fleet, load_settings
    from holdfast.observe.overview import overview

    settings = load_settings(file)
    pipelines = {name: settings.identifier(name) for name in settings.pipelines}
    with opened_store(settings) as store:
        if not watch:
            _show(overview(store, fleet(settings), pipelines), file, settings, json=json)
            return
        watched(
            lambda: overview(store, fleet(settings), pipelines), lambda found: _watched(found, file, settings, json)
        )


def watched(look: Callable[[], Row], show: Callable[[Row], None]) -> None:
    """Look and show until the process is interrupted; a look that takes long is repeated less often."""
    while True:
        started = time.monotonic()
        found = look()
        took = time.monotonic() - started
        show(found)
        time.sleep(max(WATCH_EVERY, SHARE * took))


def _watched(found: Row, file: str, settings: Settings, json: bool) -> None:
    if json:
        output.say_json_line(found)
        return
    output.clear_screen()
    _show(found, file, settings, json=False)


def _show(found: Row, file: str, settings: Settings, *, json: bool) -> None:
    if json:
        output.say_json(found)
        return
    output.say(f"{file} at {found['at']}")
    _section(PIPELINES, [_pipeline(row) for row in found["pipelines"]])
    _section(NODES, [_node(row, settings) for row in found["nodes"]])
    if not found["nodes"]:
        output.say(f"no node is alive; start one with `holdfast run {file}`")
    _section(RUNS, [_run(row) for row in found["runs"]])
    _section(FAILURES, [_failure(row) for row in found["failures"]])
    for hint in _hints(found, file):
        output.say(hint)


def _section(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        output.say("")
        output.say_table(columns, rows)


def _pipeline(row: Row) -> tuple[Any, ...]:
    partitions = row["partitions"]
    waiting = partitions["UNASSIGNED"] + partitions["CLOSED"]
    numbers = (partitions["COMPLETED"], partitions["ASSIGNED"], waiting, partitions["FAILED"])
    rate = row["records_per_second"]
    shown_rate = None if rate is None else f"{rate:.0f}/s"
    counts = row["counts"]
    return (
        row["pipeline"],
        row["state"],
        row["nodes"],
        *numbers,
        f"{counts['processed']:,}",
        shown_rate,
        lag_text(row),
        f"{counts['dead']:,}",
    )


def lag_text(row: Row) -> str | None:
    """Return the lag of a row that has `lag_records` and `lag_seconds`, of which each may be None."""
    from holdfast.config.units import format_duration

    records, seconds = row["lag_records"], row["lag_seconds"]
    parts = [] if records is None else [str(records)]
    if seconds:
        parts.append(format_duration(max(1, round(seconds))))
    return ", ".join(parts) or None


def _node(row: Row, settings: Settings) -> tuple[Any, ...]:
    names = {settings.identifier(name): name for name in settings.pipelines}
    state = (
        "silent" if not row["alive"] else "drained" if row["drained"] else "draining" if row["draining"] else "alive"
    )
    pipelines = ", ".join(names.get(identifier, identifier) for identifier in row["pipelines"])
    return (row["name"], state, row["leases"], row["last_heartbeat"], pipelines)


def _run(row: Row) -> tuple[Any, ...]:
    from holdfast.config.units import format_duration

    done = f"{row['completed'] + row['failed_partitions']}/{row['partitions']}"
    left = row["seconds_left"]
    phase = f"{row['status']} ({row['phase']})" if row["phase"] else row["status"]
    shown_left = None if left is None else format_duration(round(left))
    return (row["run"], row["pipeline"], phase, done, f"{row['records']}/{row['total']}", shown_left, row["error"])


def _failure(row: Row) -> tuple[Any, ...]:
    return (row["key"], row["pipeline"], row["run"] or None, row["failed_at"], row["error"])


def _hints(found: Row, file: str) -> Iterable[str]:
    """Yield the command that shows or mends each thing that needs a person."""
    for row in found["pipelines"]:
        of_pipeline = f"{file} --pipeline {row['pipeline']}"
        shown = sum(each["pipeline"] == row["pipeline"] and not each["run"] for each in found["failures"])
        if (more := row["partitions"]["FAILED"] - shown) > 0:
            listed = f"`holdfast partitions list {of_pipeline} --status FAILED` shows them"
            yield f"{row['pipeline']}: {more:,} more are FAILED; {listed}"
        if row["partitions"]["FAILED"]:
            yield f"{row['pipeline']}: `holdfast partitions reopen {of_pipeline} --status FAILED` tries them again"
        if row["counts"]["dead"]:
            yield f"{row['pipeline']}: `holdfast deadletters list {of_pipeline}` shows why records became dead letters"
        if row["state"] == "paused":
            yield f"{row['pipeline']}: `holdfast pipelines resume {of_pipeline}` lets nodes work on it"


def lag(file: File, pipeline: PipelineName = None, by_partition: ByPartition = False, json: AsJson = False) -> None:
    """Show how far pipelines are behind: records that the source has and that are not committed, by topic or stream.

    The ends are looked up in the source, so that this also works while no node runs. Of sources that have no ends, such
    as objects and tables, the unfinished partitions are counted. Exits with 0 whatever the lag is.
    """
    from holdfast.assemble import StoredPipeline, load_settings

    settings = load_settings(file)
    names = [chosen_pipeline(settings, pipeline)] if pipeline else list(settings.pipelines)
    with opened_store(settings) as store:
        found = [
            row for name in names for row in _lag_rows(StoredPipeline(settings, store, name), by_partition=by_partition)
        ]
    if json:
        output.say_json(found)
    else:
        shown = [name for name in LAGS if by_partition or name != "PARTITION"]
        output.say_table(shown, [_lag_cells(row, by_partition=by_partition) for row in found])


def _lag_rows(opened: StoredPipeline, *, by_partition: bool) -> Iterator[dict[str, Any]]:
    from holdfast.leases.lease import FINISHED

    unfinished = [row for row in opened.operator().rows() if row.status not in FINISHED]
    lags = _lags(opened, unfinished)
    groups: dict[tuple[str, str | None], list[tuple[Lease, Lag | None]]] = defaultdict(list)
    for row, behind in zip(unfinished, lags, strict=True):
        groups[row.group, row.key if by_partition else None].append((row, behind))
    for (group, key), members in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        yield _lag_row(opened.name, group, key, [behind for _, behind in members])
    if not groups:
        yield _lag_row(opened.name, "", None, [])


def _lag_row(pipeline: str, group: str, key: str | None, lags: Sequence[Lag | None]) -> dict[str, Any]:
    found = [behind for behind in lags if behind is not None]
    records = [behind.records for behind in found if behind.records is not None]
    milliseconds = [behind.milliseconds for behind in found if behind.milliseconds is not None]
    return {
        "pipeline": pipeline,
        "group": group,
        "key": key,
        "unfinished": len(lags),
        "lag_records": sum(records) if records else None,
        "lag_seconds": max(milliseconds) / 1000 if milliseconds else None,
    }


def _lags(opened: StoredPipeline, rows: Sequence[Lease]) -> Sequence[Lag | None]:
    """For each row, how far it is behind; None if the source has no ends or does not respond."""
    from holdfast.flow.shards import ReportsLags

    source = opened.build().source
    try:
        if isinstance(source, ReportsLags) and rows:
            return list(source.lags(rows))
    except SourceUnavailable as error:
        output.tell(f"warning: the lag of {opened.name} is not known: {error}")
    finally:
        source.close()
    return [None] * len(rows)


def _lag_cells(row: dict[str, Any], *, by_partition: bool) -> tuple[Any, ...]:
    return (row["pipeline"], row["group"], *([row["key"]] if by_partition else []), row["unfinished"], lag_text(row))

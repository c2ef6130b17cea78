"""`holdfast status`: pipelines, nodes, runs and failures on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, opened_store

if TYPE_CHECKING:
    from holdfast.config.models import Settings

Row = Mapping[str, Any]
Watch = Annotated[bool, typer.Option("--watch", metavar="", help="Show it again every 2 s, until it is interrupted.")]

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
        counts["processed"],
        shown_rate,
        lag_text(row),
        counts["dead"],
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
        if row["partitions"]["FAILED"]:
            yield f"{row['pipeline']}: `holdfast partitions reopen {of_pipeline} --status FAILED` tries them again"
        if row["counts"]["dead"]:
            yield f"{row['pipeline']}: `holdfast deadletters list {of_pipeline}` shows why records became dead letters"
        if row["state"] == "paused":
            yield f"{row['pipeline']}: `holdfast pipelines resume {of_pipeline}` lets nodes work on it"

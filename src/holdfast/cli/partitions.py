"""`holdfast partitions`: shows the partitions of a pipeline, and changes them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, Why, opened_pipeline, pipeline_actions
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.assemble import StoredPipeline
    from holdfast.leases.lease import Lease
    from holdfast.leases.operator import Operator
    from holdfast.runs.audited import Report
    from holdfast.runs.partition_actions import Changes, PartitionActions


class StatusName(StrEnum):
    """The values of `Status`, repeated here because loading its module would delay every `--help`."""

    UNASSIGNED = "UNASSIGNED"
    ASSIGNED = "ASSIGNED"
    CLOSED = "CLOSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


Key = Annotated[str, typer.Argument(metavar="KEY", help="The partition's key.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of one or more partitions.")]
Statuses = Annotated[
    list[StatusName] | None,
    typer.Option(
        "--status",
        case_sensitive=False,
        metavar="STATUS",
        help="Only partitions that are UNASSIGNED, ASSIGNED, CLOSED, COMPLETED or FAILED; may be given several times.",
    ),
]
SomeKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY]...", help="Keys of one or more partitions, unless --status is given."),
]
ReopenedStatus = Annotated[
    StatusName | None,
    typer.Option(
        "--status",
        case_sensitive=False,
        metavar="STATUS",
        help="Reopen all partitions that are FAILED, CLOSED or COMPLETED, instead of those with the given keys.",
    ),
]
OfRun = Annotated[
    str,
    typer.Option("--run", metavar="RUN", help="Partitions of this run, instead of those of the live pipeline."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Show at most this many; all unless given.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason that is stored in the row.")]
PurgedStatus = Annotated[
    StatusName,
    typer.Option(
        "--status",
        case_sensitive=False,
        metavar="STATUS",
        help="Must be COMPLETED: all other partitions are still needed.",
    ),
]
OlderThan = Annotated[
    str,
    typer.Option(
        "--older-than",
        metavar="DURATION",
        help="Only partitions that were completed at least this long ago, such as 7d.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar="", help="Print how many there are, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask for confirmation.")]

COLUMNS = ("KEY", "STATUS", "OWNER", "TOKEN", "SEQUENCE", "POSITION", "RECORDS", "ATTEMPTS", "LAST ERROR")
REOPENABLE = (StatusName.FAILED, StatusName.CLOSED, StatusName.COMPLETED)
BY_HAND = "failed by hand with holdfast partitions fail"


def list_partitions(
    file: File,
    pipeline: PipelineName = None,
    status: Statuses = None,
    run: OfRun = "",
    limit: Limit = None,
    json: AsJson = False,
) -> None:
    """List the partitions of a pipeline in order of their keys."""
    from holdfast.leases.lease import Status
    from holdfast.observe import insights

    with _operator(file, pipeline, run) as operator:
        rows = islice(operator.rows(tuple(map(Status, status or ()))), limit)
        if json:
            output.say_json_rows(insights.partition(row) for row in rows)
        else:
            output.say_table(COLUMNS, map(_cells, rows))
            _print_counts(insights.counts(operator.store, operator.pipeline, run))


def show(file: File, key: Key, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """Show everything that is stored about one partition."""
    from holdfast.observe import insights

    with _operator(file, pipeline) as operator:
        row = insights.partition(operator.show(key))
    if json:
        output.say_json(row)
    else:
        held = row.pop("tenures")
        output.say_table(("FIELD", "VALUE"), list(row.items()))
        if held:
            output.say("")
            output.say_table(
                ("TOKEN", "OWNER", "FROM", "TO", "SEQUENCE", "HOW", "BY"), [_tenure(each) for each in held]
            )


def _tenure(held: Mapping[str, Any]) -> tuple[Any, ...]:
    how = str(held["how"]).replace("_", " ")
    return (held["token"], held["owner"], held["from"], held["to"], held["sequence"], how, held["by"])


def reopen(
    file: File,
    key: SomeKeys = None,
    pipeline: PipelineName = None,
    status: ReopenedStatus = None,
    yes: Yes = False,
    reason: Why = "",
) -> None:
    """Reopen FAILED, CLOSED or COMPLETED partitions; each continues at its current position."""
    if bool(key) == (status is not None):
        raise UsageError("give the keys of partitions, or --status to reopen all with that status")
    if status is not None and status not in REOPENABLE:
        raise UsageError(f"{status} partitions are open; only FAILED, CLOSED and COMPLETED ones can be reopened")
    from holdfast.leases.lease import Status
    from holdfast.runs.partition_actions import Selection

    with opened_pipeline(file, pipeline) as opened:
        actions = _actions(opened, reason)
        chosen = Selection(keys=key or (), statuses=(Status(status),) if status else ())
        number = len(actions.matching(chosen))
        if not number:
            output.say(f"there are no {status} partitions")
        elif key or yes or output.confirm(f"Reopen {_number(number)} of {opened.identifier}?", otherwise="--yes"):
            _raise_first(actions.reopen(chosen if key or yes else replace(chosen, expect=number)))
        else:
            output.say("nothing was changed")


def release(file: File, key: Keys, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Take partitions away from their owner, so that any node can take them. Late writes of the owner are refused."""
    from holdfast.runs.partition_actions import Selection

    with opened_pipeline(file, pipeline) as opened:
        _raise_first(_actions(opened, reason).release(Selection(keys=key)))


def fail(
    file: File,
    key: Keys,
    reason: Reason = BY_HAND,
    pipeline: PipelineName = None,
) -> None:
    """Stop work on partitions until they are reopened."""
    from holdfast.runs.partition_actions import Selection

    with opened_pipeline(file, pipeline) as opened:
        _raise_first(_actions(opened, reason).fail(Selection(keys=key), reason))


def purge(
    file: File,
    older_than: OlderThan,
    status: PurgedStatus = StatusName.COMPLETED,
    pipeline: PipelineName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Why = "",
) -> None:
    """Free the space of partitions that were completed long ago.

    Each row is reduced to its key and token, so that nothing is read again and no late writer gets through.
    """
    if status is not StatusName.COMPLETED:
        raise UsageError(f"{status} partitions cannot be purged: only COMPLETED ones are no longer needed")
    seconds = _seconds(older_than)
    with opened_pipeline(file, pipeline) as opened:
        number = sum(1 for _ in opened.operator().purgeable(seconds))
        if dry_run or not number:
            output.say(f"{_number(number)} would be purged" if number else "there is nothing to purge")
        elif yes or output.confirm(f"Purge {_number(number)} of {opened.identifier}?", otherwise="--yes"):
            purged = _actions(opened, reason).purge(seconds, expect=None if yes else number).result
            output.say(f"{_number(purged.done)} purged")
        else:
            output.say("nothing was changed")


NOTHING_TO_FORGET = "there is nothing to forget: only partitions that were purged at least a day ago can be forgotten"


def forget(
    file: File, pipeline: PipelineName = None, dry_run: DryRun = False, yes: Yes = False, reason: Why = ""
) -> None:
    """Delete the rows of partitions that were purged at least a day ago.

    A partition that discovery finds later is read a second time: forget only what the source no longer has.
    """
    with opened_pipeline(file, pipeline) as opened:
        number = sum(1 for _ in opened.operator().forgettable())
        if dry_run or not number:
            output.say(f"{_number(number)} would be forgotten" if number else NOTHING_TO_FORGET)
        elif yes or output.confirm(f"Forget {_number(number)} of {opened.identifier}?", otherwise="--yes"):
            forgotten = _actions(opened, reason).forget(expect=None if yes else number).result
            output.say(f"{_number(forgotten.done)} forgotten")
        else:
            output.say("nothing was changed")


@contextmanager
def _operator(file: str, pipeline: str | None, run: str = "") -> Iterator[Operator]:
    with opened_pipeline(file, pipeline) as opened:
        yield opened.operator(run)


def _actions(pipeline: StoredPipeline, reason: str) -> PartitionActions:
    """Actions that print every partition that was changed, and end at the first one that cannot be changed."""
    return pipeline_actions(pipeline, "" if reason == BY_HAND else reason).partitions(_print_status, halt=True)


def _raise_first(report: Report[Changes]) -> None:
    for error in report.result.errors:
        raise error


def _print_status(row: Lease) -> None:
    output.say(f"{row.key} is now {row.status.value}")


def _cells(row: Lease) -> tuple[Any, ...]:
    return (
        row.key,
        row.status.value,
        row.owner,
        row.token,
        row.commit.sequence,
        row.progress.position,
        row.progress.counts.processed,
        row.history.attempts,
        "its row cannot be read" if row.unreadable is not None else row.history.last_error,
    )


def _print_counts(counts: dict[str, int]) -> None:
    found = [f"{number} {status}" for status, number in counts.items() if number]
    output.tell(f"{_number(sum(counts.values()))} in total" + (f": {', '.join(found)}" if found else ""))


def _number(count: int) -> str:
    return f"{count} partition" if count == 1 else f"{count} partitions"


def _seconds(duration: str) -> float:
    from holdfast.config.units import parse_duration

    try:
        return parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"--older-than: {duration!r} {error}") from None

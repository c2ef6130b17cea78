"""`holdfast partitions`: shows the partitions of a pipeline, and changes them by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, opened_pipeline
from holdfast.errors import UsageError
from holdfast.leases.lease import Status

if TYPE_CHECKING:
    from holdfast.leases.lease import Lease
    from holdfast.leases.operator import Operator

Key = Annotated[str, typer.Argument(metavar="KEY", help="The partition's key.")]
Keys = Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of one or more partitions.")]
Statuses = Annotated[
    list[Status] | None,
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
    Status | None,
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
    Status,
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
PURGE_CHUNK = 500
REOPENABLE = (Status.FAILED, Status.CLOSED, Status.COMPLETED)


def list_partitions(
    file: File,
    pipeline: PipelineName = None,
    status: Statuses = None,
    run: OfRun = "",
    limit: Limit = None,
    json: AsJson = False,
) -> None:
    """List the partitions of a pipeline in order of their keys."""
    from holdfast.observe import insights

    with _operator(file, pipeline, run) as operator:
        rows = islice(operator.rows(tuple(status or ())), limit)
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
        output.say_table(("FIELD", "VALUE"), list(row.items()))


def reopen(
    file: File, key: SomeKeys = None, pipeline: PipelineName = None, status: ReopenedStatus = None, yes: Yes = False
) -> None:
    """Reopen FAILED, CLOSED or COMPLETED partitions; each continues at its current position."""
    if bool(key) == (status is not None):
        raise UsageError("give the keys of partitions, or --status to reopen all with that status")
    if status is not None and status not in REOPENABLE:
        raise UsageError(f"{status.value} partitions are open; only FAILED, CLOSED and COMPLETED ones can be reopened")
    with _operator(file, pipeline) as operator:
        keys = key or [row.key for row in operator.rows((status,) if status else ())]
        if not keys:
            output.say(f"there are no {status} partitions")
        elif key or yes or output.confirm(f"Reopen {_number(len(keys))} of {operator.pipeline}?", otherwise="--yes"):
            for partition_key in keys:
                _print_status(operator.reopen(partition_key))
        else:
            output.say("nothing was changed")


def release(file: File, key: Keys, pipeline: PipelineName = None) -> None:
    """Take partitions away from their owner, so that any node can take them. Late writes of the owner are refused."""
    _change(file, pipeline, key, lambda operator, partition_key: operator.release(partition_key))


def fail(
    file: File,
    key: Keys,
    reason: Reason = "failed by hand with holdfast partitions fail",
    pipeline: PipelineName = None,
) -> None:
    """Stop work on partitions until they are reopened."""
    _change(file, pipeline, key, lambda operator, partition_key: operator.fail(partition_key, reason))


def purge(
    file: File,
    older_than: OlderThan,
    status: PurgedStatus = Status.COMPLETED,
    pipeline: PipelineName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Free the space of partitions that were completed long ago.

    Each row is reduced to its key and token, so that nothing is read again and no late writer gets through.
    """
    if status is not Status.COMPLETED:
        raise UsageError(f"{status.value} partitions cannot be purged: only COMPLETED ones are no longer needed")
    seconds = _seconds(older_than)
    with _operator(file, pipeline) as operator:
        number = sum(1 for _ in operator.purgeable(seconds))
        if dry_run or not number:
            output.say(f"{_number(number)} would be purged" if number else "there is nothing to purge")
        elif yes or output.confirm(f"Purge {_number(number)} of {operator.pipeline}?", otherwise="--yes"):
            output.say(f"{_number(_in_chunks(operator.purgeable(seconds), operator.purge))} purged")
        else:
            output.say("nothing was changed")


def forget(file: File, pipeline: PipelineName = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete the rows of partitions that were purged at least a day ago.

    What discovery finds of them later is read a second time: forget only what the source no longer has.
    """
    with _operator(file, pipeline) as operator:
        number = sum(1 for _ in operator.forgettable())
        if dry_run or not number:
            output.say(f"{_number(number)} would be forgotten" if number else "there is nothing to forget")
        elif yes or output.confirm(f"Forget {_number(number)} of {operator.pipeline}?", otherwise="--yes"):
            output.say(f"{_number(_in_chunks(operator.forgettable(), operator.forget))} forgotten")
        else:
            output.say("nothing was changed")


def _in_chunks(rows: Iterator[Lease], change: Callable[[list[Lease]], int]) -> int:
    changed = 0
    while chunk := list(islice(rows, PURGE_CHUNK)):
        changed += change(chunk)
    return changed


@contextmanager
def _operator(file: str, pipeline: str | None, run: str = "") -> Iterator[Operator]:
    with opened_pipeline(file, pipeline) as opened:
        yield opened.operator(run)


def _change(file: str, pipeline: str | None, keys: list[str], change: Callable[[Operator, str], Lease]) -> None:
    with _operator(file, pipeline) as operator:
        for key in keys:
            _print_status(change(operator, key))


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

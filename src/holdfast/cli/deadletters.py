"""`holdfast deadletters`: records that could not be processed; lists, shows and redrives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import (
    AsJson,
    File,
    PipelineName,
    arguments_of,
    chosen_pipeline,
    opened_pipeline,
    pipeline_actions,
)
from holdfast.cli.reprocess import Detach, log, tell_detached, tell_next

if TYPE_CHECKING:
    from holdfast.flow.letter import Letter, LetterBox
    from holdfast.flow.run import Run
    from holdfast.runs.letter_selection import Taken

COUNTS = ("WAITING", "SENT AGAIN", "CANNOT BE", "FIRST", "LAST")
MOST_ROWS = 1000

SinkName = Annotated[str | None, typer.Option("--sink", metavar="NAME", help="Only this sink; all unless given.")]
Partition = Annotated[str | None, typer.Option("--partition", metavar="KEY", help="Only letters of this partition.")]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only letters whose reason contains this text.")
]
ByPartition = Annotated[
    bool, typer.Option("--by-partition", metavar="", help="Count the letters of each partition separately.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Print at most this many.")]
Everything = Annotated[bool, typer.Option("--all", metavar="", help="Also letters that were sent again.")]
Whole = Annotated[
    bool, typer.Option("--whole", metavar="", help="Print large records whole, and not only their beginning.")
]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why they are sent; kept in the audit log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar="", help="Only print what would be sent.")]


def list_letters(
    file: File,
    pipeline: PipelineName = None,
    sink: SinkName = None,
    by_partition: ByPartition = False,
    json: AsJson = False,
) -> None:
    """Count the dead letters of a pipeline by sink and reason. Reads all of them; does not use the store.

    Reasons are shown without the values in them, so that records with the same error are counted together.
    """
    from holdfast.assemble import load_settings
    from holdfast.runs.letter_counts import letter_rows

    settings = load_settings(file)
    found = letter_rows(settings, chosen_pipeline(settings, pipeline), sink, by_partition=by_partition)
    if json:
        output.say_json(found)
        return
    columns, rows = (
        ("SINK", *(["PARTITION"] if by_partition else []), "REASON", *COUNTS),
        [[*row.values()] for row in found],
    )
    output.say_table(columns, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        output.tell(f"{len(rows) - MOST_ROWS} more rows are not shown; --json shows all")


def show(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    pipeline: PipelineName = None,
    sink: SinkName = None,
    partition: Partition = None,
    reason: Reason = None,
    limit: Limit = 20,
    all_of_them: Everything = False,
    whole: Whole = False,
) -> None:
    """Print dead letters as JSON, one per line."""
    chosen = (
        (name, box, letter)
        for name, box, letter in _letters(file, pipeline, sink)
        if partition in {None, letter.key}
        and (reason is None or reason in letter.reason)
        and (all_of_them or letter.redriven is None)
    )
    for name, box, letter in islice(chosen, limit):
        output.say_json_line({"sink": name, **_fields(box.whole(letter) if whole else letter)})
    if next(chosen, None) is not None:
        output.tell(f"there are more than {limit} letters; see --limit")


def redrive(  # noqa: PLR0913, PLR0917 - each is an option
    file: File,
    pipeline: PipelineName = None,
    sink: SinkName = None,
    partition: Partition = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    why: Why = "",
) -> None:
    """Send the records of dead letters through the pipeline's processors again, into the sink that kept them.

    The record is sent as the source had it: a message with its key, headers and time, a tombstone as a tombstone. Each
    letter is sent once and then marked; a record that fails again becomes another dead letter. Letters that do not
    hold enough of their record are left and reported. Letters of a function are sent to its handler. The live pipeline
    keeps running. Exits with 1 if a run is incomplete.
    """
    from holdfast.runs.letter_counts import sink_names
    from holdfast.runs.letter_selection import Choice
    from holdfast.runs.redrive import look

    complete = True
    with opened_pipeline(file, pipeline) as opened:
        arguments, actions = arguments_of(file, opened), pipeline_actions(opened, why, log())
        for name in sink_names(opened.settings, opened.name, sink):
            choice = Choice(name, partition, reason)
            taken = look(opened, choice)
            _tell_taken(name, taken, dry_run=dry_run)
            if taken.number and not dry_run:
                run = actions.redrive(choice, detached=detach).result
                complete = (detach or _end(name, run, arguments)) and complete
                if detach:
                    tell_detached(run, arguments)
    if not complete:
        raise typer.Exit(1)


def _letters(file: str, pipeline: str | None, sink: str | None) -> Iterator[tuple[str, LetterBox, Letter]]:
    """Yield letters with the names and the letter boxes of their sinks."""
    from holdfast.assemble import load_settings
    from holdfast.runs.letter_counts import letters_of

    settings = load_settings(file)
    yield from letters_of(settings, chosen_pipeline(settings, pipeline), sink)


def _fields(letter: Letter) -> dict[str, Any]:
    from holdfast.runs.letter_counts import letter_time

    fields = asdict(letter) | {"id": f"{letter.id.container}:{letter.id.number}", "at": letter_time(letter.at)}
    return {name: value for name, value in fields.items() if value is not None} | {"cannot_be_sent": letter.refusal}


def _tell_taken(sink: str, taken: Taken, *, dry_run: bool) -> None:
    for why, number in taken.refused.items():
        output.tell(f"sink {sink}: {number} cannot be sent again: {why}")
    if taken.left:
        output.tell(f"sink {sink}: {taken.left} are left for the next redrive: they are too many for one run")
    if dry_run or not taken.number:
        partitions = len(taken.partitions)
        output.say(f"sink {sink}: {taken.number} letters of {partitions} partitions wait to be sent again")


def _end(sink: str, run: Run, arguments: str) -> bool:
    counts = run.counts
    output.say(
        f"sink {sink}: run {run.id} is {run.status.value}: {counts.processed} letters sent again, "
        f"{counts.failed} of them became dead letters again"
    )
    if counts.failed:
        output.tell(f"`holdfast deadletters list {arguments}` counts the letters by reason")
    tell_next(run, arguments)
    return run.status.value == "COMPLETED"

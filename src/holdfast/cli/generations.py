"""`holdfast generation`: shows which version of the parsing is current, and switches it for the whole fleet."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, opened_pipeline

if TYPE_CHECKING:
    from holdfast.flow.generations import Generations

Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The generation's number.")]
COLUMNS = ("GENERATION", "CURRENT", "DIGEST", "CREATED BY")


def list_generations(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the generations of a pipeline."""
    with _generations(file, pipeline) as generations:
        registered = list(generations.list())
        current = generations.current()[0] if registered else None
    if json:
        output.say_json([asdict(generation) | {"current": generation.number == current} for generation in registered])
    else:
        marks = {True: "yes", False: ""}
        output.say_table(
            COLUMNS,
            [
                (generation.number, marks[generation.number == current], generation.digest[:12], generation.created_by)
                for generation in registered
            ],
        )


def show(file: File, number: Number, pipeline: PipelineName = None) -> None:
    """Show a generation with its settings, as JSON."""
    with _generations(file, pipeline) as generations:
        output.say_json(asdict(generations.show(number)))


def switch(file: File, number: Number, pipeline: PipelineName = None) -> None:
    """Make a later generation the current one.

    Nodes with other code hand back their partitions in their next pass; nodes with this generation take them. Each
    partition switches between two commits, so that every record is in exactly one generation.
    """
    with _generations(file, pipeline) as generations:
        switched = generations.switch(number)
    output.say(f"generation {switched.number} is now current; nodes see it within a heartbeat")


def back(file: File, pipeline: PipelineName = None) -> None:
    """Return to the previous parsing. It gets the next number, because numbers are never reused."""
    with _generations(file, pipeline) as generations:
        restored = generations.back(getpass.getuser())
    output.say(f"generation {restored.number} is now current, with the parsing of digest {restored.digest[:12]}")


@contextmanager
def _generations(file: str, pipeline: str | None) -> Iterator[Generations]:
    with opened_pipeline(file, pipeline) as opened:
        yield opened.generations()

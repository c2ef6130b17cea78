"""`holdfast generation`: shows which version of the parsing is current, and switches it for the whole fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.options import AsJson, File, PipelineName, Why, opened_pipeline, pipeline_actions

if TYPE_CHECKING:
    from holdfast.flow.generations import Generations

Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The generation's number.")]
COLUMNS = ("GENERATION", "CURRENT", "DIGEST", "CREATED BY")


def list_generations(file: File, pipeline: PipelineName = None, json: AsJson = False) -> None:
    """List the generations of a pipeline."""
    from holdfast.observe.listings import generation_rows

    with _generations(file, pipeline) as generations:
        found = generation_rows(generations)
    if json:
        output.say_json(found)
    else:
        output.say_table(COLUMNS, [_cells(row) for row in found])


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (row["number"], "yes" if row["current"] else "", row["digest"][:12], row["created_by"])


def show(file: File, number: Number, pipeline: PipelineName = None) -> None:
    """Show a generation with its settings, as JSON."""
    with _generations(file, pipeline) as generations:
        output.say_json(asdict(generations.show(number)))


def switch(file: File, number: Number, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Make a later generation the current one.

    Nodes with other code hand back their partitions in their next pass; nodes with this generation take them. Each
    partition switches between two commits, so that every record is in exactly one generation.
    """
    with opened_pipeline(file, pipeline) as opened:
        switched = pipeline_actions(opened, reason).switch_generation(number).result
    output.say(f"generation {switched.number} is now current; nodes see it within a heartbeat")


def back(file: File, pipeline: PipelineName = None, reason: Why = "") -> None:
    """Return to the previous parsing. It gets the next number, because numbers are never reused."""
    with opened_pipeline(file, pipeline) as opened:
        restored = pipeline_actions(opened, reason).previous_generation().result
    output.say(f"generation {restored.number} is now current, with the parsing of digest {restored.digest[:12]}")


@contextmanager
def _generations(file: str, pipeline: str | None) -> Iterator[Generations]:
    with opened_pipeline(file, pipeline) as opened:
        yield opened.generations()

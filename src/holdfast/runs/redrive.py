"""Redrive: sends the records of dead letters through the pipeline's processors again, into the sink that kept them.

Each sink has a separate run, because a record may be a dead letter in one sink and not in another. A run takes the
letters that wait when it gets the run's lock. Letters that it has committed count as sent even before they are marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from holdfast.assemble import Emit, StoredPipeline, functions_of
from holdfast.config.digest import digest_of
from holdfast.deadletters.source import LettersSource, sent_ids
from holdfast.errors import PartitionNotFound, Refused, UsageError
from holdfast.flow.letter import Letter, LetterBox, Rebuilder
from holdfast.flow.pipeline import Pipeline, Routes
from holdfast.flow.run import Run
from holdfast.flow.run_driver import End, Extend, Keep, RunDriver, Wait
from holdfast.flow.sink import KeepsLetters, RunsWorkers, Sink, other_sinks
from holdfast.flow.source import Rebuilds
from holdfast.leases.lease import Json, Partition
from holdfast.runs.backfill import needed_columns
from holdfast.runs.execution import NewRun, RunPipeline, begin
from holdfast.runs.letter_selection import KIND, Choice, Taken, Waiting
from holdfast.runs.next_generation import parsing_as, seal


def look(pipeline: StoredPipeline, choice: Choice, *, detached: bool = False) -> Taken:
    """Return what a redrive would take now. Changes nothing.

    Raises `UsageError`; if it is to be detached, also what `redrive` would raise, because nobody would see that error
    later.
    """
    built, waiting = _prepared(pipeline, choice)
    built.source.close()
    if detached:
        _check_detached(built)
        _current(pipeline)
    return waiting.look()


def redrive(
    pipeline: StoredPipeline,
    choice: Choice,
    emit: Emit,
    *,
    by: str,
    detached: bool = False,
    expect: int | None = None,
) -> Run:
    """Send the letters again with this file's parsing. Blocks until the run has ended, unless it is detached.

    The run fails and sends nothing if there is another number of letters than `expect` when a node begins with it.
    Raises `UsageError` if that cannot be done with this source or sink, `Refused` unless this file's parsing is the
    current one.
    """
    generation = _current(pipeline)
    seal(pipeline.generations(), parsing_as(pipeline, generation, by))
    built, waiting = _prepared(pipeline, choice, expect)
    if detached:
        _check_detached(built)
    configuration = {"kind": KIND, **asdict(choice), "generation": generation, "writes_to": list(built.sinks)}
    if expect is not None:
        configuration["expect"] = expect
    try:
        driver = RedriveDriver(pipeline, waiting)
        made = RunPipeline(pipeline, built, generation, driver, any_letters=True)
        run = begin(made, NewRun(configuration, by, detached), emit)
    finally:
        _end_spark()
    if not detached:
        mark_sent(pipeline, run.id)
    return run


def _check_detached(built: Pipeline) -> None:
    if functions_of([built]):
        raise UsageError(
            "nodes that run a function take no runs: send its letters with `holdfast deadletters redrive`, and without "
            "--detach"
        )


def run_pipeline(pipeline: StoredPipeline, configuration: Mapping[str, Json]) -> RunPipeline:
    """Return the pipeline of a redrive from the configuration in the run's row."""
    choice = Choice(configuration["sink"], configuration.get("key"), configuration.get("reason"))
    built, waiting = _prepared(pipeline, choice, configuration.get("expect"))
    driver = RedriveDriver(pipeline, waiting)
    return RunPipeline(pipeline, built, configuration["generation"], driver, any_letters=True)


class RedriveDriver(RunDriver):
    """Takes the letters that wait when the run is created, and marks those that were sent when it ends."""

    def __init__(self, pipeline: StoredPipeline, waiting: Waiting) -> None:
        self._pipeline = pipeline
        self._waiting = waiting

    def partitions(self, run: Run) -> Iterable[Partition]:  # noqa: ARG002 - the letters themselves decide
        return self._waiting

    def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:
        mark_sent(self._pipeline, run.id)
        return super().advance(run, keep)


def mark_sent(pipeline: StoredPipeline, run_id: str) -> int:
    """Mark the letters that the run has sent, and return how many they are. May be repeated."""
    configuration = pipeline.runs().show(run_id).configuration
    built = pipeline.build()
    box = box_of(built, pipeline.identifier, configuration["sink"])
    sent = [letter_id for row in pipeline.operator(run_id).rows() for letter_id in sent_ids(row)]
    box.mark(sent, run_id)
    built.source.close()
    return len(sent)


def box_of(built: Pipeline, identifier: str, sink: str) -> LetterBox:
    """Return the dead letters of a sink. Raises `UsageError` if they cannot be read."""
    if sink not in built.sinks:
        raise UsageError(f"there is no sink {sink!r}; there are {', '.join(built.sinks)}")
    keeper = built.sinks[sink]
    if not isinstance(keeper, KeepsLetters):
        raise UsageError(f"dead letters of sink {sink!r} cannot be read by this command")
    return keeper.letter_box(identifier)


def _rebuilder_of(built: Pipeline, sink: str) -> Rebuilder:
    for function in functions_of([built]):
        return _HandlerRows() if sink in other_sinks(function, built.sinks) else function.rebuilder()
    if not isinstance(built.source, Rebuilds):
        raise UsageError(f"the source {type(built.source).__name__} cannot turn dead letters back into rows")
    return built.source.rebuilder()


class _HandlerRows(Rebuilder):
    """Refuses the letters of sinks that get what a handler returns: the record of such a row is not kept."""

    keeps: frozenset[str] | None = None

    def fields(self) -> Any:
        from pyspark.sql import types

        return types.StructType([])

    def refusal(self, letter: Letter) -> str:  # noqa: ARG002 - of every letter
        return "it is a row that the handler returned; put its record into the stream again"

    def row(self, letter: Letter) -> Any:
        raise ValueError(self.refusal(letter))


def _prepared(pipeline: StoredPipeline, choice: Choice, expect: int | None = None) -> tuple[Pipeline, Waiting]:
    live = pipeline.build()
    waiting = Waiting(
        pipeline,
        choice,
        box=box_of(live, pipeline.identifier, choice.sink),
        rebuilder=_rebuilder_of(live, choice.sink),
        live=live.source,
        sinks=live.sinks,
        needed=needed_columns(live.processors, [live.sinks[choice.sink]], routed=choice.sink in live.routes.by_sink),
        expect=expect,
    )
    return _from_letters(live, pipeline.identifier, choice.sink), waiting


def _from_letters(built: Pipeline, identifier: str, sink: str) -> Pipeline:
    """Return the pipeline with the dead letters as its source, and with this sink and those that it writes to."""
    box, rebuilder = box_of(built, identifier, sink), _rebuilder_of(built, sink)
    routed = {sink: built.routes.by_sink[sink]} if sink in built.routes.by_sink else {}
    return replace(
        built,
        source=LettersSource(box, rebuilder),
        sinks=_sinks_of(built, sink),
        routes=Routes(built.routes.conditions, routed),
    )


def _sinks_of(built: Pipeline, sink: str) -> dict[str, Sink]:
    """Return the sinks that get rows: this one and, of a function, those that its handler returns records for."""
    chosen = built.sinks[sink]
    if not isinstance(chosen, RunsWorkers):
        return {sink: chosen}
    others = other_sinks(chosen, built.sinks)
    return {sink: chosen.redriving(built.source, others), **others}


def _end_spark() -> None:
    """Stop the Spark session: a process has one, and the run of the next sink starts its own."""
    from pyspark.sql import SparkSession

    from holdfast.spark.session import stop_session

    session = SparkSession.getActiveSession()
    if session is not None:
        stop_session(session)


def _current(pipeline: StoredPipeline) -> int:
    try:
        number, digest = pipeline.generations().current()
    except PartitionNotFound:
        raise UsageError(f"pipeline {pipeline.name!r} has never run; there is nothing to send again") from None
    mine = digest_of(pipeline.configured)
    if digest != mine:
        raise Refused(
            f"generation {number} is current, and its parsing (digest {digest[:12]}) differs from this file's "
            f"({mine[:12]}); roll out this file's parsing first, see `holdfast generation`"
        )
    return number

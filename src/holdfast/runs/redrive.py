"""Redrive: the records of dead letters once more through the pipeline's processors, into the sink that kept them.

Each sink is a run of its own, because a record may be dead in one sink and well in another. A run takes the letters
that wait when it holds the run's lock; what it has committed counts as sent, also before it is marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from holdfast import assemble
from holdfast.config.digest import digest_of
from holdfast.config.models import Settings
from holdfast.deadletters.source import LettersSource, sent_ids
from holdfast.errors import PartitionNotFound, Refused, UsageError
from holdfast.flow.letter import LetterBox, Rebuilder
from holdfast.flow.pipeline import Pipeline, Routes
from holdfast.flow.run import Run
from holdfast.flow.sink import KeepsLetters
from holdfast.flow.source import Rebuilds, Source
from holdfast.leases.lease import Json
from holdfast.leases.store import Store
from holdfast.registry import Registry
from holdfast.runs.backfill import needed_columns
from holdfast.runs.execution import Job, NewRun, begin
from holdfast.runs.letter_selection import KIND, Choice, Taken, Waiting


def look(settings: Settings, store: Store, pipeline: str, choice: Choice) -> Taken:
    """What a redrive would take now. Changes nothing. Raises `UsageError` and `Refused` as `redrive`."""
    parts, waiting = _made(settings, store, pipeline, choice)
    parts.source.close()
    return waiting.look()


def redrive(settings: Settings, store: Store, pipeline: str, choice: Choice, emit: assemble.Emit, *, by: str) -> Run:
    """Send the letters again, by this file's parsing. Blocks until the run has ended.

    Raises `UsageError` if that cannot be done with this source or sink, `Refused` unless this file's parsing is the
    current one.
    """
    generation = _current(settings, store, pipeline)
    parts, waiting = _made(settings, store, pipeline, choice)
    told = {"kind": KIND, **asdict(choice), "generation": generation}
    job = Job(settings, pipeline, parts, generation)
    try:
        run = begin(store, job, NewRun(waiting, told, by), emit)
    finally:
        _end_spark()
    mark_sent(settings, store, pipeline, run.id)
    return run


def job_of(settings: Settings, pipeline: str, told: Mapping[str, Json]) -> Job:
    """The job of a run of this kind, as its row tells of it."""
    built = assemble.build_pipeline(settings.pipelines[pipeline], Registry.installed())
    parts = _parts(built, settings.identifier(pipeline), told["sink"])
    return Job(settings, pipeline, parts, told["generation"])


def mark_sent(settings: Settings, store: Store, pipeline: str, run_id: str) -> int:
    """Mark the letters that the run has sent; answers how many. May be repeated."""
    told = assemble.runs(settings, store, pipeline).show(run_id).configuration
    built = assemble.build_pipeline(settings.pipelines[pipeline], Registry.installed())
    box = box_of(built, settings.identifier(pipeline), told["sink"])
    sent = [one for row in assemble.operator(settings, store, pipeline, run_id).rows() for one in sent_ids(row)]
    box.mark(sent, run_id)
    built.source.close()
    return len(sent)


def box_of(built: Pipeline, identifier: str, sink: str) -> LetterBox:
    """The letters of a sink. Raises `UsageError` if they cannot be looked at."""
    if sink not in built.sinks:
        raise UsageError(f"there is no sink {sink!r}; there are {', '.join(built.sinks)}")
    keeper = built.sinks[sink]
    if not isinstance(keeper, KeepsLetters):
        raise UsageError(f"dead letters of sink {sink!r} cannot be looked at from here")
    return keeper.letter_box(identifier)


def _rebuilder_of(source: Source) -> Rebuilder:
    if not isinstance(source, Rebuilds):
        raise UsageError(f"the source {type(source).__name__} cannot make rows of dead letters")
    return source.rebuilder()


def _made(settings: Settings, store: Store, pipeline: str, choice: Choice) -> tuple[Pipeline, Waiting]:
    built = assemble.build_pipeline(settings.pipelines[pipeline], Registry.installed())
    identifier = settings.identifier(pipeline)
    parts = _parts(built, identifier, choice.sink)
    box, rebuilder = box_of(built, identifier, choice.sink), _rebuilder_of(built.source)
    sink = built.sinks[choice.sink]
    return parts, Waiting(settings, store, pipeline, choice, box, rebuilder, built.source, sink)


def _parts(built: Pipeline, identifier: str, sink: str) -> Pipeline:
    """The parts of the pipeline with the letters as their source, and this sink alone."""
    box, rebuilder = box_of(built, identifier, sink), _rebuilder_of(built.source)
    routed = {sink: built.routes.by_sink[sink]} if sink in built.routes.by_sink else {}
    parts = replace(
        built,
        source=LettersSource(box, rebuilder),
        sinks={sink: built.sinks[sink]},
        routes=Routes(built.routes.conditions, routed),
    )
    _check_columns(parts, rebuilder.keeps)
    return parts


def _check_columns(parts: Pipeline, keeps: frozenset[str] | None) -> None:
    """Raise `Refused` if the pipeline may need more of a record than a letter keeps."""
    if keeps is None:
        return
    needed = needed_columns(parts.processors, list(parts.sinks.values()), routed=bool(parts.routes.by_sink))
    if missing := needed - keeps:
        raise Refused(
            f"dead letters do not keep {', '.join(sorted(missing))}, which this pipeline may need; write the records "
            "again from Kafka or from a backup, see `holdfast rewind` and `holdfast backfill`"
        )


def _end_spark() -> None:
    """A process has one session, and the next sink's run starts its own."""
    from pyspark.sql import SparkSession

    from holdfast.spark.session import stop_session

    session = SparkSession.getActiveSession()
    if session is not None:
        stop_session(session)


def _current(settings: Settings, store: Store, pipeline: str) -> int:
    try:
        number, digest = assemble.generations(settings, store, pipeline).current()
    except PartitionNotFound:
        raise UsageError(f"pipeline {pipeline!r} has never run; there is nothing to send again") from None
    mine = digest_of(settings.pipelines[pipeline])
    if digest != mine:
        raise Refused(
            f"generation {number} is current and has another parsing (digest {digest[:12]}) than this file "
            f"({mine[:12]}); roll this file's parsing out first, see `holdfast generation`"
        )
    return number

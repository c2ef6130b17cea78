"""The kinds of runs: which module makes the pipeline of a run from the configuration in its row."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from holdfast.assemble import StoredPipeline
from holdfast.errors import UsageError
from holdfast.leases.lease import Json
from holdfast.runs.execution import RunPipeline
from holdfast.runs.next_generation import check_digest, parsing_as, seal

MODULES: Mapping[str, str] = {
    "rewind": "holdfast.runs.rewind",
    "backfill": "holdfast.runs.backfill",
    "redrive": "holdfast.runs.redrive",
    "reindex": "holdfast.runs.reindex_pipeline",
}
"""Modules with a function `run_pipeline`, by kind. Loaded when a run of that kind is met."""
OF_A_GENERATION = frozenset(("rewind", "backfill", "redrive"))
"""Kinds whose runs need the file with which they were begun; they have sealed its generation."""


def run_pipeline_of(pipeline: StoredPipeline, configuration: Json) -> RunPipeline:
    """Return the pipeline of a run, built and not opened.

    Raises `UsageError` if this version does not have that kind of run, `Refused` if this file's parsing is not the
    run's.
    """
    kind = str(configuration.get("kind")) if isinstance(configuration, dict) else ""
    if kind not in MODULES:
        raise UsageError(f"a run of the kind {kind!r} cannot be carried out; there are {', '.join(MODULES)}")
    if kind in OF_A_GENERATION:
        check_digest(pipeline, configuration["generation"])
    else:
        # Nobody has sealed it: a reindex run is added without the parsing, by a schedule or by a person.
        seal(pipeline.generations(), parsing_as(pipeline, pipeline.configured.generation, kind))
    made: RunPipeline = import_module(MODULES[kind]).run_pipeline(pipeline, configuration)
    return made

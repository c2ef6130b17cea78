"""`holdfast validate`, `holdfast schema` and `holdfast plugins`: the configuration file and what it may name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import AsJson, File
from holdfast.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from holdfast.config.models import Settings
    from holdfast.events import Event
    from holdfast.registry import Kind, Registry


NoEnv = Annotated[
    bool, typer.Option("--no-env", metavar="", help="Accept variables that are not set, for example in CI.")
]


Analyse = Annotated[
    bool,
    typer.Option(
        "--analyse",
        metavar="",
        help="Start Spark and check columns, types and expressions of all pipelines; nothing is read.",
    ),
]
Connect = Annotated[
    bool,
    typer.Option(
        "--connect",
        metavar="",
        help="Try the store, the sources and the sinks. Sinks claim their roots and prepare their indexes.",
    ),
]


def validate(
    file: File, json: AsJson = False, no_env: NoEnv = False, analyse: Analyse = False, connect: Connect = False
) -> None:
    """Check a file. Every problem is shown with its line and column.

    Nothing is connected to unless --connect is given, and Spark is not started unless --analyse is given.
    """
    from holdfast.config import check, load
    from holdfast.config.plain_text import warnings_of_plain_text
    from holdfast.registry import Registry

    if no_env and (analyse or connect):
        raise UsageError("--no-env cannot be combined with --analyse or --connect, which need the variables")
    try:
        settings = (check if no_env else load)(file, Registry.installed())
        if settings is not None and (analyse or connect):
            _check_further(settings, analyse=analyse, connect=connect)
    except ConfigError as error:
        if not json:
            raise
        output.say_json(_wrong(file, error))
        raise typer.Exit(ExitCode.WRONG) from error
    if settings is None:
        if json:
            output.say_json({"file": file, "valid": True, "store": None, "pipelines": [], "problems": []})
        else:
            output.say(f"{file} is valid, as far as it can be checked without its variables")
    elif json:
        output.say_json(_right(file, settings))
    else:
        pipelines = ", ".join(settings.pipelines) or "none"
        for warning in warnings_of_plain_text(settings):
            output.tell(f"{file}: warning: {warning}")
        for note in _notes(settings):
            output.tell(f"{file}: note: {note}")
        output.say(f"{file} is valid; store: {settings.coordination.store.name}; pipelines: {pipelines}")


def _check_further(settings: Settings, *, analyse: bool, connect: bool) -> None:
    """Raise `ConfigError` with everything that cannot be reached or, if all can, with what does not fit."""
    from holdfast import engines, service
    from holdfast.configured_store import find_modules_beside
    from holdfast.events import Notice

    def tell(event: Event) -> None:
        if isinstance(event, Notice):
            output.tell(f"note: {event.message}")

    find_modules_beside(settings)
    if connect:
        service.try_connections(settings, tell)
    if analyse:
        engines.analyse(settings, tell)


def schema() -> None:
    """Print the JSON Schema of the file, with the settings of all installed plugins, for editors and other tools."""
    from holdfast.config.schema import json_schema
    from holdfast.registry import Registry

    output.say_json(json_schema(Registry.installed()))


def _right(file: str, settings: Settings) -> dict[str, Any]:
    from holdfast.config.plain_text import warnings_of_plain_text

    store, pipelines = settings.coordination.store.name, list(settings.pipelines)
    warnings = warnings_of_plain_text(settings)
    head = {"file": file, "valid": True, "store": store, "pipelines": pipelines}
    return {**head, "problems": [], "warnings": warnings, "notes": _notes(settings)}


def _notes(settings: Settings) -> list[str]:
    """Return what formats of file sinks cannot hold, what functions ignore, and what live tables need."""
    from holdfast.formats.choice import limits_of
    from holdfast.functions.settings import FunctionConfig
    from holdfast.registry import Registry
    from holdfast.sources.database.config import DatabaseConfig

    registry, notes = Registry.installed(), []
    for name, pipeline in settings.pipelines.items():
        source = pipeline.source
        if isinstance(source.config, DatabaseConfig):
            notes += [f"pipelines.{name}.source.{source.name}.{note}" for note in source.config.notes()]
        for sink in pipeline.sinks:
            config, found = sink.use.config, []
            if isinstance(config, FunctionConfig):
                found = config.warnings()
            elif hasattr(config, "format") and hasattr(config, "topics"):
                found = limits_of(config.format, config.topics, registry)
            notes += [f"pipelines.{name}.sinks.{sink.name}: {note}" for note in found]
    return notes


def _wrong(file: str, error: ConfigError) -> dict[str, Any]:
    problems = [
        {
            "file": mark.file if mark else file,
            "line": mark.line if mark else None,
            "column": mark.column if mark else None,
            "message": message,
        }
        for mark, message in error.problems
    ]
    return {"file": file, "valid": False, "store": None, "pipelines": [], "problems": problems}


def plugins(json: AsJson = False) -> None:
    """List the stores, sources, processors, sinks and formats that can be used in a file."""
    from holdfast.registry import KINDS, Registry

    registry = Registry.installed()
    rows = [_row(registry, kind, name) for kind in KINDS for name in registry.names(kind)]
    if json:
        output.say_json(rows)
    else:
        output.say_table(
            ("KIND", "NAME", "SUMMARY"), [(row["kind"], row["name"], row["summary"] or row["problem"]) for row in rows]
        )


def _row(registry: Registry, kind: Kind, name: str) -> dict[str, Any]:
    from holdfast.registry import singular

    row: dict[str, Any] = {"kind": singular(kind), "name": name, "summary": None, "problem": None}
    try:
        return {**row, "summary": registry.get(kind, name).summary}
    except UsageError as error:
        # A plugin that cannot be loaded must not hide the others.
        return {**row, "problem": str(error)}

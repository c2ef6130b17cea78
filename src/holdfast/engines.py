"""Starts Spark, checks that pipelines fit the rows that they get, and makes the engines that carry their rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.assemble import Emit, build_pipeline, function_of, functions_of
from holdfast.config.models import Settings
from holdfast.config.plain_text import secret_names
from holdfast.config.settings_file import SettingProblem
from holdfast.events import Notice
from holdfast.flow.engine import Engine, Engines, ReportsBatches
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import RunsWorkers, other_sinks
from holdfast.flow.source import ReadsByConnector
from holdfast.leases.session import Session
from holdfast.leases.store import SMALLEST_BODY
from holdfast.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPEN_SPARK = (
    "anyone who can reach this Spark application can read its tasks, including credentials, and run code in it: "
    "set spark.authenticate and spark.network.crypto.enabled"
)


def engine_of(
    settings: Settings,
    pipelines: Mapping[str, Pipeline],
    emit: Emit = lambda _event: None,
    max_receipt_bytes: int = SMALLEST_BODY,
) -> Engine:
    """Start Spark, and return the engine of these pipelines, which carries rounds."""
    # Spark is loaded only here, so that commands that only read the store stay fast.
    from holdfast.spark.engine import SparkEngine

    spark = _start_spark(settings, pipelines, emit, "local[2]")
    _warm_up(spark, pipelines)
    return SparkEngine(spark, _identified(settings, pipelines, max_receipt_bytes))


def engines_of(
    settings: Settings, pipelines: Mapping[str, Pipeline], session: Session, emit: Emit, max_receipt_bytes: int
) -> tuple[ReportsBatches, dict[str, Engine]]:
    """Start Spark, and return what the node polls and the engine of each pipeline: functions have one each.

    Raises `ConfigError` if a column, type or expression of a pipeline does not fit.
    """
    from holdfast.spark.engine import SparkEngine

    found = {name: function_of(built.sinks.values()) for name, built in pipelines.items()}
    functions = {name: sink for name, sink in found.items() if sink is not None}
    rounds = {name: built for name, built in pipelines.items() if name not in functions}
    master = _master(settings, functions.values(), rounds=bool(rounds))
    spark = _start_spark(settings, rounds, emit, master, "holdfast.functions.engine" if functions else "")
    check_plans(spark, settings, rounds, emit)
    _warm_up(spark, rounds)
    engines: dict[str, Engine] = {}
    for name, sink in functions.items():
        built, others = pipelines[name], other_sinks(sink, pipelines[name].sinks)
        engines[name] = sink.engine(spark, built.source, others, name, lambda: session.usable_for, emit)
    if rounds:
        engines |= dict.fromkeys(rounds, SparkEngine(spark, _identified(settings, rounds, max_receipt_bytes)))
    distinct = list(dict.fromkeys(engines.values()))
    return (distinct[0] if len(distinct) == 1 else Engines(distinct)), engines


def _master(settings: Settings, functions: Collection[RunsWorkers], *, rounds: bool) -> str:
    """Where Spark runs. Raises `UsageError` if it has not a core for each worker that lives, and for the rounds."""
    from holdfast.spark.session import check_cores

    workers = sum(sink.workers for sink in functions)
    master = settings.spark.master or f"local[{workers + (2 if rounds else 0)}]"
    if functions:
        check_cores(master, workers + rounds)
    return master


def check_plans(spark: SparkSession, settings: Settings, pipelines: Mapping[str, Pipeline], emit: Emit) -> None:
    """Analyse these pipelines without reading anything. Raises `ConfigError` with what does not fit, and where.

    A pipeline whose source cannot be read without batches is not analysed, which a `Notice` says.
    """
    from holdfast.spark.analysis import analyse, explained, fragment_of, needs_batches

    problems = []
    for name, built in pipelines.items():
        wrong = analyse(spark, built)
        if wrong is not None and needs_batches(wrong):
            emit(Notice(f"pipeline {name!r} is not analysed: its source cannot be read without batches ({wrong})"))
        elif wrong is not None:
            path = settings.path_of(name, wrong.part)
            problems.append(SettingProblem(path, explained(wrong), fragment_of(wrong)))
    if problems:
        raise settings.error(problems)


def analyse(settings: Settings, emit: Emit) -> None:
    """Start Spark, check the pipelines of these settings as `check_plans` does, and stop Spark."""
    from holdfast.spark.session import stop_session

    registry = Registry.installed()
    built = {name: build_pipeline(pipeline, registry) for name, pipeline in settings.pipelines.items()}
    rounds = {name: pipeline for name, pipeline in built.items() if not functions_of([pipeline])}
    spark = _start_spark(settings, rounds, emit, "local[1]")
    try:
        check_plans(spark, settings, rounds, emit)
    finally:
        stop_session(spark)


def _identified(settings: Settings, pipelines: Mapping[str, Pipeline], max_receipt_bytes: int) -> dict[str, Pipeline]:
    return {
        settings.identifier(name): replace(built, max_receipt_bytes=max_receipt_bytes)
        for name, built in pipelines.items()
    }


def _start_spark(
    settings: Settings, pipelines: Mapping[str, Pipeline], emit: Emit, master: str, preload: str = ""
) -> SparkSession:
    """Start the session for these pipelines. A file may name another `master`.

    Workers on this host begin with the module `preload`.
    """
    from holdfast.spark.connector import connector_jars
    from holdfast.spark.java import unused_java_home
    from holdfast.spark.session import is_unprotected, redaction, start_session

    needs_jars = any(isinstance(built.source, ReadsByConnector) for built in pipelines.values())
    jars = connector_jars() if needs_jars else []
    configured = settings.spark
    py_files = [Path(name) for name in configured.py_files]
    conf = _worker_environment(settings.folder, preload) | configured.plain_conf()
    secrets = secret_names(settings)
    conf |= redaction(secrets, conf)
    # Before Spark starts: it is given a JAVA_HOME of its own.
    if (unused := unused_java_home()) is not None:
        emit(Notice(unused))
    spark = start_session(
        "holdfast", conf, configured.master or master, jars, py_files, secrets, configured.worker_memory
    )
    if is_unprotected(spark):
        emit(Notice(OPEN_SPARK))
    return spark


def _worker_environment(folder: Path | None, preload: str) -> dict[str, str]:
    """Spark's settings for Python workers of this machine, which find modules in the folder of the file, too.

    Those of a cluster have another daemon, and need `py_files`.
    """
    from holdfast.spark.worker_daemon import MODULES, PRELOAD

    values = {MODULES: "" if folder is None else str(folder), PRELOAD: preload}
    return {f"spark.executorEnv.{name}": value for name, value in values.items() if value}


def _warm_up(spark: SparkSession, pipelines: Mapping[str, Pipeline]) -> None:
    """Load the sinks of these pipelines on every core."""
    from holdfast.spark.task import warm_up

    warm_up(spark, [sink.stager() for built in pipelines.values() for sink in built.sinks.values()])

"""Starts Spark, checks that pipelines fit the rows that they get, and makes the engines that carry their rounds."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.assemble import Emit, build_pipelines, function_of, functions_of
from holdfast.config.models import Settings
from holdfast.config.plain_text import secret_names
from holdfast.config.settings_file import SettingProblem
from holdfast.events import Notice, SparkStarted
from holdfast.flow.engine import Engine, Engines, ReportsBatches
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import RunsWorkers, other_sinks
from holdfast.flow.source import ReadsByConnector, Source
from holdfast.flow.staging import Stager
from holdfast.flow.tables import LiveTables
from holdfast.leases.session import Session
from holdfast.leases.store import SMALLEST_BODY
from holdfast.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPEN_SPARK = (
    "anyone who can reach this Spark application can read its tasks, including credentials, and run code in it: "
    "set spark.authenticate and spark.network.crypto.enabled"
)

_QUICK_COMPILATION = "-XX:TieredStopAtLevel=1"
"""For a JVM that only plans jobs: Java would spend several times as long on compiling that well as on running it."""
_FOR_TABLES = {
    # Workers keep memory for the next page of rows. By default the kernel takes it back, and clears it for each.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
"""Spark's settings for a node whose rows are all of tables and stay in Python workers."""


def engine_of(
    settings: Settings,
    pipelines: Mapping[str, Pipeline],
    emit: Emit = lambda _event: None,
    max_receipt_bytes: int = SMALLEST_BODY,
) -> Engine:
    """Start Spark, and return the engine of these pipelines, which carries rounds."""
    # Spark is loaded only here, so that commands that only read the store stay fast.
    from holdfast.spark.engine import SparkEngine

    spark = _start_spark(
        settings, pipelines, emit, "local[2]", _conf(settings, pipelines, task_modules(pipelines.values()))
    )
    _warm_up(spark, pipelines)
    return SparkEngine(spark, _identified(settings, pipelines, max_receipt_bytes))


def engines_of(
    settings: Settings, pipelines: Mapping[str, Pipeline], session: Session, emit: Emit, max_receipt_bytes: int
) -> tuple[ReportsBatches, dict[str, Engine]]:
    """Start Spark; return the engines that the node polls, and the engine of each pipeline. Each function has its own.

    Raises `ConfigError` if a column, type or expression of a pipeline does not fit.
    """
    from holdfast.spark.engine import SparkEngine

    found = {name: function_of(built.sinks.values()) for name, built in pipelines.items()}
    functions = {name: sink for name, sink in found.items() if sink is not None}
    rounds = {name: built for name, built in pipelines.items() if name not in functions}
    master = _master(settings, functions.values(), rounds=bool(rounds))
    preload = [*(["holdfast.functions.engine"] if functions else []), *task_modules(rounds.values())]
    spark = _start_spark(settings, rounds, emit, master, _conf(settings, pipelines, preload))
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
    """Where Spark runs. Raises `UsageError` if it lacks a core for each long-lived worker and for the rounds."""
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
    built = build_pipelines(settings, settings.pipelines, registry)
    rounds = {name: pipeline for name, pipeline in built.items() if not functions_of([pipeline])}
    spark = _start_spark(settings, rounds, emit, "local[1]", _conf(settings, built))
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
    settings: Settings, pipelines: Mapping[str, Pipeline], emit: Emit, master: str, conf: Mapping[str, str]
) -> SparkSession:
    """Start the session for these pipelines. A file may name another `master`, and other values for `conf`."""
    from holdfast.spark.connector import connector_jars
    from holdfast.spark.java import unused_java_home
    from holdfast.spark.session import is_unprotected, redaction, start_session

    needs_jars = any(isinstance(built.source, ReadsByConnector) for built in pipelines.values())
    jars = connector_jars() if needs_jars else []
    configured = settings.spark
    py_files = [Path(name) for name in configured.py_files]
    conf = {**conf, **configured.plain_conf()}
    secrets = secret_names(settings)
    conf |= redaction(secrets, conf)
    # Before Spark starts: it is given a JAVA_HOME of its own.
    if (unused := unused_java_home()) is not None:
        emit(Notice(unused))
    began, address = time.monotonic(), configured.master or master
    spark = start_session("holdfast", conf, address, jars, py_files, secrets, configured.worker_memory)
    emit(SparkStarted(spark.version, address, round(time.monotonic() - began, 1)))
    if is_unprotected(spark):
        emit(Notice(OPEN_SPARK))
    return spark


def _conf(settings: Settings, pipelines: Mapping[str, Pipeline], preload: Sequence[str] = ()) -> dict[str, str]:
    """Spark's settings for a node that runs all of these pipelines, and whose workers begin with these modules."""
    from holdfast.spark.session import DEFAULT_JAVA_OPTIONS

    found = worker_environment(settings.folder, preload)
    of_tables = [isinstance(built.source, LiveTables) and not built.processors for built in pipelines.values()]
    if of_tables and all(of_tables):
        found |= _FOR_TABLES
        # Not among the extra options, which users and `spark-defaults.conf` set.
        found["spark.driver.defaultJavaOptions"] = f"{DEFAULT_JAVA_OPTIONS} {_QUICK_COMPILATION}"
    return found


def worker_environment(folder: Path | None, preload: Sequence[str]) -> dict[str, str]:
    """Spark's settings for Python workers of this machine, which find modules in the folder of the file, too.

    Workers of a cluster have another daemon, and need `py_files`.
    """
    from holdfast.spark.worker_daemon import MODULES, PRELOAD

    values = {MODULES: "" if folder is None else str(folder), PRELOAD: ",".join(preload)}
    return {f"spark.executorEnv.{name}": value for name, value in values.items() if value}


def task_modules(pipelines: Iterable[Pipeline]) -> list[str]:
    """The modules of holdfast that the tasks of these pipelines need, and those that sources and sinks name.

    Spark ends workers that were idle for a minute, and a worker would take a second to import them. Modules of others
    are left to the workers: importing them may have effects that a fork does not survive. pandas is imported by Arrow,
    with the first array that is made of Python objects.
    """
    modules: list[str] = []
    for built in pipelines:
        parts: list[Source | Stager] = [built.source, *(sink.stager() for sink in built.sinks.values())]
        classes = [type(part).__module__ for part in (*parts, *built.processors)]
        modules += [
            "pyarrow.pandas_compat",
            "pyarrow.vendored.version",
            "pandas",
            "holdfast.spark.job",
            *(name for name in classes if name.startswith("holdfast.")),
        ]
        modules += [name for part in parts for name in part.task_modules]
    return list(dict.fromkeys(modules))


def _warm_up(spark: SparkSession, pipelines: Mapping[str, Pipeline]) -> None:
    """Load the sinks of these pipelines on every core."""
    from holdfast.spark.task import warm_up

    warm_up(spark, [sink.stager() for built in pipelines.values() for sink in built.sinks.values()])

"""Analyses a pipeline before it runs: the frame of a round without batches is built, and Spark checks every part of it.

The frame is made by the planner of rounds, so that what is analysed is what runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.config.settings_file import Fragment
from holdfast.errors import HoldfastError, PlanError, Refused
from holdfast.flow.pipeline import Pipeline
from holdfast.spark.failures import is_of_spark, planning, quieten
from holdfast.spark.job import Planner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS = re.compile(r"\[[A-Z][A-Z_.0-9]+\]\s*")
_END = re.compile(r"\s*(?:SQLSTATE: \w+|;\s*line \d+ pos \d+|\(line \d+, pos \d+\)|== SQL)")
_LINE = re.compile(r"(?:; line |\(line )(\d+)(?:,)? pos (\d+)")
_SQL = re.compile(r"^== SQL ==\n(.*)", re.MULTILINE | re.DOTALL)


def analyse(spark: SparkSession, pipeline: Pipeline) -> PlanError | None:
    """Return what does not fit in the pipeline, the first part of it if there are several. Reads nothing.

    Raises `Unavailable` if a part has to look something up and cannot.
    """
    quieten()
    try:
        _plan(spark, pipeline)
    except PlanError as wrong:
        return wrong
    return None


def _plan(spark: SparkSession, pipeline: Pipeline) -> None:
    """Plan a round without batches. An error that belongs to no single part is one of the whole pipeline."""
    try:
        Planner(spark, pipeline, (), planning).analyse()
    except Exception as error:
        if isinstance(error, Refused) or is_of_spark(error):
            with planning():
                raise
        raise


def needs_batches(error: PlanError) -> bool:
    """Return whether the code of a source has failed because there were no batches, as far as its error shows."""
    cause = error.__cause__
    return error.part == ("source",) and not isinstance(cause, HoldfastError) and not is_of_spark(cause)


def explained(error: PlanError) -> str:
    """Return the error without what only Spark needs: error class, SQL state, plan."""
    text = _CLASS.sub("", str(error), count=1)
    return _END.split(text, maxsplit=1)[0].rstrip(". ;")


def fragment_of(error: PlanError) -> Fragment | None:
    """Return the part of an expression at which Spark has found the error; None if it names none."""
    cause = _spark_error(error)
    found = _LINE.search(str(cause))
    if found is None:
        return None
    line, caret = int(found[1]) - 1, int(found[2])
    if (sql := _SQL.search(str(cause))) is not None:
        whole = sql[1].split("\n")[line]
        return Fragment(whole, line, 0, caret) if whole else None
    blamed = _context(cause)
    return Fragment(blamed, line, caret, caret) if blamed else None


def _spark_error(error: BaseException) -> BaseException | None:
    """The error of Spark among the causes."""
    from pyspark.errors import PySparkException

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, PySparkException):
        cause = cause.__cause__
    return cause


def _context(error: Any) -> str:
    """The text that Spark blames, if the error names it."""
    try:
        return next((str(context.fragment()) for context in error.getQueryContext()), "")
    except Exception:  # noqa: BLE001 - an error that was raised by Python has no context
        return ""

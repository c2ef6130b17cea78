"""What to tell a person when Spark has failed a job: one line, not eighty of a Java trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ERROR = 500

_TRACEBACK = "Traceback (most recent call last):\n"
_LOST_TASK = re.compile(r"[Ll]ost task [^)]*\)[^:]*: (?P<error>[^\n]+)")
_JAVA_NAME = re.compile(r"^(?:[a-z][\w$]*\.)+(?P<name>[A-Z]\w*): ")


def readable(error: BaseException) -> str:
    """The line that says what happened."""
    text = str(error)
    lost = _LOST_TASK.search(text)
    line = _raised_in_worker(text) or (lost["error"] if lost else _first_line(text)).strip()
    return (_JAVA_NAME.sub("", line) or type(error).__name__)[:MAX_ERROR]


def session_is_gone(spark: SparkSession, error: BaseException) -> bool:
    """Whether no job will ever run in this session again: asked of Spark itself, whatever the error says."""
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, Py4JNetworkError):
        return True
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - Python has no public way to ask
    except Exception:  # noqa: BLE001 - whatever it is, the JVM does not answer
        return True


def quieten() -> None:
    """Keep pyspark from writing what it raises to stderr as well, all eighty lines of it."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True


def _raised_in_worker(text: str) -> str:
    """The error at the end of the last Python traceback in there."""
    _, traceback, rest = text.rpartition(_TRACEBACK)
    return next((line for line in rest.splitlines() if line[:1].strip()), "") if traceback else ""


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")

"""What to tell a person when Spark has failed a job: one line, not eighty of a Java trace."""

from __future__ import annotations

import re

MAX_ERROR = 500

_TRACEBACK = "Traceback (most recent call last):\n"
_LOST_TASK = re.compile(r"[Ll]ost task [^)]*\)[^:]*: (?P<error>[^\n]+)")
_JAVA_NAME = re.compile(r"^(?:[a-z][\w$]*\.)+(?P<name>[A-Z]\w*): ")
_GONE = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "SparkContext has been shutdown",
    "Connection refused",
    "Answer from Java side is empty",
    "Error while sending or receiving",
)


def readable(error: BaseException) -> str:
    """The line that says what happened."""
    text = str(error)
    lost = _LOST_TASK.search(text)
    line = _raised_in_worker(text) or (lost["error"] if lost else _first_line(text)).strip()
    return (_JAVA_NAME.sub("", line) or type(error).__name__)[:MAX_ERROR]


def session_is_gone(error: BaseException) -> bool:
    """Whether no job will ever run in this session again."""
    return isinstance(error, ConnectionError) or any(sign in str(error) for sign in _GONE)


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

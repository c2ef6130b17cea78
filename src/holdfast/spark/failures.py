"""Spark's errors in one readable line, instead of the eighty lines of a Java trace, and the part that caused them."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, PlanError, Unavailable
from holdfast.spark.report import NEEDS_MEMORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ERROR = 500
MAX_NAMES = 5
_EXIT_PATIENCE = 1.0
"""Seconds for the process of a JVM to end that responds no more."""
_STACK_OVERFLOW = "StackOverflowError"
_OUT_OF_MEMORY = re.compile(r"(?:pyarrow\.lib\.Arrow)?MemoryError\b")
_EXITS = {50: "an uncaught error", 51: "an uncaught error", 52: "out of memory"}
"""Codes with which Spark ends a JVM."""

_TRACEBACK = "Traceback (most recent call last):\n"
_CALL = re.compile(
    r"An error occurred while calling [^\n]*?(?:\. Trace:|\.?)\s*\n(?:: )?|An error occurred while calling .*"
)
_LOST_TASK = re.compile(r"[Ll]ost task [\d.]+ in stage [\d.]+ \(TID \d+\)(?: \([^)]*\))?: (?P<error>[^\n]+)")
_CAUSE = re.compile(r"^Caused by: (?P<error>[^\n]+: [^\n]+)", re.MULTILINE)
_PACKAGE = re.compile(r"^(?:[a-z][\w$]*\.)+(?=[A-Z]\w*(?::|$))")
_WRAPPERS = re.compile(r"^(?:SparkException|Py4JException): ")
"""Error names that add nothing to their message."""
_HOST_FAULT = re.compile(
    "|".join(
        re.escape(os.strerror(code))
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE)
    )
)
"""Java keeps only the text of an operating system's error, not its number."""


def readable(error: BaseException) -> str:
    """The error in one line, followed by the cause if Java names one."""
    text = str(error)
    line = _raised_in_worker(text) or _raised_in_java(text)
    if not line:
        line = f"Spark failed and gave no reason ({type(error).__name__})" if text.strip() else type(error).__name__
    if line == _STACK_OVERFLOW:
        line += ": an expression recurses too deep for a record; grok: write repeated groups possessively, (?:…)*+"
    if _OUT_OF_MEMORY.match(line):
        line = f"{line[: MAX_ERROR // 2]}: {NEEDS_MEMORY}"
    return line[:MAX_ERROR]


def is_of_the_host(error: BaseException) -> bool:
    """Whether Spark failed the job because of a host of its cluster, such as a full disk."""
    return _HOST_FAULT.search(readable(error)) is not None


def session_is_gone(spark: SparkSession, error: BaseException) -> bool:
    """Whether the session can run no more jobs. Decided by the state of Spark, not by the text of the error."""
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, Py4JNetworkError):
        return True
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - Python has no public way to ask
    except Exception:  # noqa: BLE001 - whatever it is, the JVM does not respond
        return True


def how_it_ended(spark: SparkSession, error: BaseException, partitions: Sequence[str]) -> str:
    """Why a session is gone, as far as its process shows, and which partitions it was working on."""
    names = ", ".join(partitions[:MAX_NAMES]) + (
        f" and {len(partitions) - MAX_NAMES} more" * (len(partitions) > MAX_NAMES)
    )
    return f"the Spark session is gone: {_exit_of_jvm(spark) or readable(error)}; it was working on {names}"


def _exit_of_jvm(spark: SparkSession) -> str | None:
    """How the process of the JVM ended; None if it runs, or was started by `spark-submit`."""
    code: int | None = None
    with suppress(Exception):  # a session that was closed meanwhile has no process
        process: Any = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=_EXIT_PATIENCE)
    if code is None:
        return None
    if code < 0:
        return f"its JVM was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"its JVM ended with exit code {code}" + (f" ({_EXITS[code]})" if code in _EXITS else "")


def quieten() -> None:
    """Keep pyspark from writing the errors that it raises to stderr as well."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


Planning = Callable[..., AbstractContextManager[None]]
"""Given the path of a part of a pipeline; entered while that part is planned."""


@contextmanager
def planning(*part: str | int) -> Iterator[None]:
    """Raise an error of the block as a `PlanError` of that part of the pipeline.

    Errors that may pass with time, and the end of the JVM, are raised unchanged.
    """
    from py4j.protocol import Py4JNetworkError

    try:
        yield
    except (Unavailable, PlanError, Py4JNetworkError):
        raise
    except Exception as error:
        raise PlanError(part, _reason(error)) from error


def is_of_spark(error: BaseException | None) -> bool:
    """Whether Spark has raised this error, or the bridge to it."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _reason(error: Exception) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    return readable(error) if is_of_spark(error) else f"{type(error).__name__}: {error}"


def _raised_in_worker(text: str) -> str:
    """The error at the end of the last Python traceback in the text."""
    _, traceback, rest = text.rpartition(_TRACEBACK)
    return next((line for line in rest.splitlines() if line[:1].strip()), "") if traceback else ""


def _raised_in_java(text: str) -> str:
    """The error of the lost task, else of the whole job, and its innermost cause."""
    lost = _LOST_TASK.search(text)
    line = _plain(lost["error"] if lost else _first_line(_CALL.sub("", text, count=1)))
    causes = _CAUSE.findall(text)
    cause = _plain(causes[-1]) if causes else ""
    if not cause or cause.partition(": ")[2] in line:
        return line
    return f"{line.rstrip(': ')}: {cause}" if line else cause


def _plain(line: str) -> str:
    return _WRAPPERS.sub("", _PACKAGE.sub("", line.strip()))


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")

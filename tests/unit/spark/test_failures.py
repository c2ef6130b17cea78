"""Long errors of Spark in one line; and an engine whose Spark is gone."""

from __future__ import annotations

import errno
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from holdfast.errors import Unavailable
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.pipeline import Pipeline
from holdfast.leases.lease import Lease
from holdfast.spark.engine import SparkEngine
from holdfast.spark.failures import MAX_ERROR, is_of_the_host, readable, session_is_gone
from holdfast.spark.task import run_tasks
from holdfast.testing.flows import NumbersSource

FROM_A_WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "pyspark/worker.py", line 1834, in main
    process()
  File "job.py", line 3, in clean
    raise ValueError("twenty is no good")
ValueError: twenty is no good

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in f
RuntimeError: the second one
"""
CRASHED = """An error occurred while calling o99.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 3.0 (TID 5) (localhost executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:758)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""
NO_LOST_TASK = """An error occurred while calling o3997.collectToPython.
: org.apache.spark.SparkException: Job 12 cancelled because SparkContext was shut down
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$cleanUpAfterSchedulerStop$3(DAGScheduler.scala:1300)
"""
CAUSED = """An error occurred while calling o3997.collectToPython.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:56)
Caused by: org.apache.spark.SparkException: Could not execute broadcast
\t... 12 more
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
LOST_WITH_CAUSE = """An error occurred while calling o12.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 3.0 (TID 5) (::1 executor driver): \
org.apache.spark.SparkException: [FAILED_READ_FILE] Cannot read file:///in/a.gz
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:1)
Caused by: java.io.EOFException: Unexpected end of input stream
\tat org.apache.hadoop.io.compress.DecompressorStream.decompress(DecompressorStream.java:165)
"""
MEMORY = """An error occurred while calling o5.collectToPython.
: java.lang.OutOfMemoryError: Java heap space
"""
OVERFLOW = """An error occurred while calling o99.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 3.0 (TID 5) (localhost executor driver): java.lang.StackOverflowError
\tat java.base/java.util.regex.Pattern$Loop.match(Pattern.java:5063)
"""
NO_METHOD = """An error occurred while calling o5.nothing. Trace:
py4j.Py4JException: Method nothing([]) does not exist
\tat py4j.reflection.ReflectionEngine.getMethod(ReflectionEngine.java:321)
"""
ANALYSIS = """[UNRESOLVED_COLUMN] A column with name `x` cannot be resolved. SQLSTATE: 42703;
'Filter 'x
+- Range (0, 2)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FROM_A_WORKER, "ValueError: twenty is no good"),
        (CHAINED, "RuntimeError: the second one"),
        (CRASHED, "Python worker exited unexpectedly (crashed)"),
        (NO_LOST_TASK, "Job 12 cancelled because SparkContext was shut down"),
        (CAUSED, "Exception thrown in awaitResult: IOException: No space left on device"),
        (
            LOST_WITH_CAUSE,
            "[FAILED_READ_FILE] Cannot read file:///in/a.gz: EOFException: Unexpected end of input stream",
        ),
        (MEMORY, "OutOfMemoryError: Java heap space"),
        (
            OVERFLOW,
            (
                "StackOverflowError: an expression recurses too deep for a record; "
                "grok: write repeated groups possessively, (?:…)*+"
            ),
        ),
        (NO_METHOD, "Method nothing([]) does not exist"),
        ("An error occurred while calling o3997.collectToPython.", "Spark failed and gave no reason (RuntimeError)"),
        (ANALYSIS, "[UNRESOLVED_COLUMN] A column with name `x` cannot be resolved. SQLSTATE: 42703;"),
        ("", "RuntimeError"),
        ("x" * 9000, "x" * MAX_ERROR),
    ],
)
def test_one_line_says_what_happened(text: str, line: str) -> None:
    assert readable(RuntimeError(text)) == line


class GoneSpark:
    """A session whose JVM has died."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError(111, "Connection refused")


class StoppedSpark:
    """A session that was stopped, or one that runs, in the part that is asked for it."""

    def __init__(self, *, stopped: bool) -> None:
        context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
        self.sparkContext = SimpleNamespace(_jsc=context)


def test_a_session_that_is_gone_is_told_from_a_job_that_failed() -> None:
    running, stopped, gone = StoppedSpark(stopped=False), StoppedSpark(stopped=True), GoneSpark()
    failed = RuntimeError(CRASHED)
    assert not session_is_gone(running, failed)  # type: ignore[arg-type]
    assert not session_is_gone(running, ConnectionRefusedError("of a user's own server"))  # type: ignore[arg-type]
    assert session_is_gone(stopped, failed)  # type: ignore[arg-type]
    assert session_is_gone(gone, failed)  # type: ignore[arg-type]
    assert session_is_gone(running, Py4JNetworkError("no answer"))  # type: ignore[arg-type]


def test_when_spark_is_gone_no_batch_is_handed_back_as_innocent_and_the_node_is_told_once() -> None:
    source = NumbersSource({"a": 1, "b": 1})
    engine = SparkEngine(GoneSpark(), {"numbers": Pipeline(source, (), {})})  # type: ignore[arg-type]
    batches = [Batch(key, Lease("numbers", key), Name("numbers", key), Cut(0, 1)) for key in "ab"]
    engine.submit("numbers", batches)
    with pytest.raises(Unavailable, match="Connection refused"):
        engine.poll(30)
    assert engine.poll(0) == []
    assert engine.room() == 0
    engine.close()


class EndedSpark:
    """A session whose process has ended."""

    def __init__(self, code: int | None) -> None:
        self._code = code
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=self), setJobGroup=self._no_answer)

    def wait(self, timeout: float) -> int:
        if self._code is None:
            raise subprocess.TimeoutExpired("java", timeout)
        return self._code

    def _no_answer(self, *_given: Any, **_named: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (52, "its JVM ended with exit code 52 (out of memory)"),
        (134, "its JVM ended with exit code 134"),
        (-9, "its JVM was ended by signal 9 (Killed)"),
        (None, "Answer from Java side is empty"),
    ],
)
def test_when_the_jvm_ends_its_exit_and_the_partitions_that_may_have_ended_it_are_named(
    code: int | None, cause: str
) -> None:
    source = NumbersSource({})
    engine = SparkEngine(EndedSpark(code), {"numbers": Pipeline(source, (), {})}, rounds=1)  # type: ignore[arg-type]
    batches = [Batch(key, Lease("numbers", key), Name("numbers", key), Cut(0, 1)) for key in "abcdef"]
    engine.submit("numbers", batches)
    expected = "numbers/a, numbers/b, numbers/c, numbers/d, numbers/e and 1 more"
    with pytest.raises(Unavailable) as gone:
        engine.poll(30)
    assert str(gone.value) == f"the Spark session is gone: {cause}; it was working on {expected}"
    engine.close()


DISK_FULL = """An error occurred while calling o99.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 3.0 (TID 5) (localhost executor driver): \
java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""
NO_DESCRIPTORS = """Traceback (most recent call last):
  File "job.py", line 3, in clean
OSError: [Errno 24] Too many open files: '/data/names.csv'
"""


@pytest.mark.parametrize(("text", "is_host"), [(DISK_FULL, True), (NO_DESCRIPTORS, True), (FROM_A_WORKER, False)])
def test_a_job_that_its_host_failed_is_told_from_one_that_a_batch_failed(text: str, is_host: bool) -> None:
    assert is_of_the_host(RuntimeError(text)) is is_host


def test_a_host_that_cannot_prepare_a_job_is_waited_for() -> None:
    def parallelize(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=parallelize))
    with pytest.raises(Unavailable, match="Read-only file system"):
        run_tasks(spark, 1, lambda _task: iter(()))

"""Starting and stopping the Spark session of a node.

A process has one session. Its JVM is in a separate process group, so that Ctrl-C in a terminal or a signal to the
node's group reaches Python only, which then lets running batches finish. The JVM exits when Python dies,
because it reads a pipe that only this process holds open.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.spark.java import java_home
from holdfast.spark.shipping import check_modules, ship_holdfast, ship_modules

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

SECRETS = "(?i)secret|password|token|key"

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

DEFAULT_JAVA_OPTIONS = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
_DEFAULTS = {
    "spark.driver.defaultJavaOptions": DEFAULT_JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.redaction.regex": SECRETS,
    "spark.sql.redaction.options.regex": f"{SECRETS}|url",
    # A record for which Java's stack or heap is too small fails its task. By default that would end the whole JVM, and
    # that of each node that takes the batch over.
    "spark.executor.killOnFatalError.depth": "0",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A silent fall-back to pickled rows would be several times slower; an error is better.
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    # Tasks of frames would have Python workers of their own beside those of other tasks.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Without kafka: its V1 source turns every row into a Java object and back, which takes a fifth of the JVM's time.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
}

_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Saves about 40 ms per Python task against TCP. On a cluster a folder's name may be too long for a socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # Not on a cluster: an executor starts the daemon before it has been sent holdfast, and would not find it.
    "spark.python.daemon.module": "holdfast.spark.worker_daemon",
}

LEAST_WORKER_MEMORY = 2 << 30
"""Less is not enough for the largest blocks of files that are read."""
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_PATIENCE = 3.0
"""Seconds for the JVM to exit after each request, before it is terminated, and then killed."""


def start_session(
    app_name: str,
    settings: Mapping[str, str],
    master: str = "local[2]",
    jars: Sequence[Path] = (),
    py_files: Sequence[Path] = (),
    secrets: Collection[str] = (),
    worker_memory: int | None = None,
) -> SparkSession:
    """Start the Spark session of this process. Takes seconds, and sets Spark's environment variables.

    `settings` have Spark's names and override every default; `jars` are added to their `spark.jars`. Settings that are
    named in `secrets`, or whose names suggest a secret, do not appear on a command line. Tasks find the modules of
    `py_files`, and on a cluster holdfast itself. With a local master each Python worker may take `worker_memory` bytes,
    by default its share of the machine. Under `spark-submit` the JVM runs already, and jars have to be given there. The
    caller's signal handlers stay; if one raises, the JVM is ended first. Raises `UsageError` when this process has a
    session already, when there is no Java, when a file of `py_files` cannot be sent, or when Spark refuses a setting.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise UsageError("this process has a Spark session already; there can be only one")
    check_modules(py_files)
    master = settings.get("spark.master", master)
    _prepare_environment(settings, master)
    everything = _all_settings(app_name, _with_jars(settings, jars), master, worker_memory)
    with _recorded_processes() as launched:
        try:
            context = _started(everything, _without_secrets(everything, secrets))
            _ship(context, master, py_files)
            return SparkSession(context)
        except BaseException as error:
            refusal = _refusal(error)
            _end_jvm(launched)
            if refusal is not None:
                raise UsageError(f"Spark does not start with these settings: {refusal}") from None
            raise


def _started(everything: Mapping[str, str], public: list[tuple[str, str]]) -> SparkContext:
    """Start the JVM, unless it runs already, with the `public` settings on its command line, and then Spark in it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    launch: Callable[..., Any] = launch_gateway
    gateway = SparkContext._gateway or launch(SparkConf(loadDefaults=False).setAll(public), {"process_group": 0})
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
    with _kept_interrupt_handler():
        return SparkContext(conf=SparkConf(_jvm=gateway.jvm).setAll(list(everything.items())))


def _without_secrets(settings: Mapping[str, str], secrets: Collection[str]) -> list[tuple[str, str]]:
    """The settings that may be on the JVM's command line, which every user of the machine can read.

    The rest follows by socket.
    """
    return [(name, value) for name, value in settings.items() if name not in secrets and not re.search(SECRETS, name)]


def _ship(context: SparkContext, master: str, py_files: Sequence[Path]) -> None:
    # Spark deletes this folder with the JVM, also when Python is killed.
    folder = Path(str(context._temp_dir))
    ship_modules(context, py_files, folder)
    if not _is_local(master):
        ship_holdfast(context, folder)


def is_unprotected(session: SparkSession) -> bool:
    """Whether any client that reaches the ports of this session can read its tasks or submit others."""
    conf = session.sparkContext.getConf()
    encrypted = _is_true(conf, "spark.network.crypto.enabled") or _is_true(conf, "spark.ssl.rpc.enabled")
    protected = _is_true(conf, "spark.authenticate") and encrypted
    return not protected and not _is_local(str(conf.get("spark.master")))


def _is_true(conf: SparkConf, name: str) -> bool:
    return str(conf.get(name, "false")).lower() == "true"


def _refusal(error: BaseException) -> str | None:
    """Spark's message, read while its JVM is still there; None if the error is not Spark's."""
    from py4j.protocol import Py4JJavaError

    return str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else None


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM, and cancel what still runs; returns when the JVM has ended."""
    try:
        session.stop()
    finally:
        _end_jvm()


def kill_jvm() -> None:
    """End the JVM that this process started, and with it all tasks, without waiting for anything. Never raises."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _all_settings(
    app_name: str, settings: Mapping[str, str], master: str, worker_memory: int | None = None
) -> dict[str, str]:
    from holdfast.spark.worker_daemon import MEMORY

    local: Mapping[str, str] = {}
    if _is_local(master):
        memory = worker_memory or _share_of_machine(settings, master)
        local = {**_LOCAL_DEFAULTS, f"spark.executorEnv.{MEMORY}": str(memory)}
    return {"spark.app.name": app_name, "spark.master": master, **_DEFAULTS, **local, **settings}


def _share_of_machine(settings: Mapping[str, str], master: str) -> int:
    """What is left of the machine's memory beside the JVM's heap, for each core; at least `LEAST_WORKER_MEMORY`."""
    heap = re.fullmatch(r"(\d+)([kmgt]?)b?", settings.get("spark.driver.memory", "1g").strip().lower())
    heap_bytes = int(heap[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}.get(heap[2], 20) if heap else 0
    return max((_machine_memory() - heap_bytes) // max(_local_cores(master), 1), LEAST_WORKER_MEMORY)


def check_cores(master: str, needed: int) -> None:
    """Raise `UsageError` if Spark on this machine runs fewer tasks at once than are needed: some would never begin."""
    if _is_local(master) and _local_cores(master) < needed:
        raise UsageError(
            f"workers of functions, and a core for other pipelines, need {needed} cores, and Spark's master is "
            f"{master}; leave it out, or give local[{needed}]: workers that wait for records do not use a core"
        )


def _local_cores(master: str) -> int:
    cores = re.match(r"local\[(\d+|\*)", master)
    return 1 if cores is None else os.cpu_count() or 1 if cores[1] == "*" else int(cores[1])


def _machine_memory() -> int:
    """Bytes of the machine's memory, or of the container's."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(Path(name).read_text()))
    return found


def _with_jars(settings: Mapping[str, str], jars: Sequence[Path]) -> Mapping[str, str]:
    given = [jar.strip() for jar in settings.get("spark.jars", "").split(",") if jar.strip()]
    every = list(dict.fromkeys([*given, *map(str, jars)]))
    return {**settings, "spark.jars": ",".join(every)} if every else settings


def _prepare_environment(settings: Mapping[str, str], master: str) -> None:
    os.environ["JAVA_HOME"] = java_home()
    os.environ["PYSPARK_PYTHON"] = _python(settings, master)
    if _is_local(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def _python(settings: Mapping[str, str], master: str) -> str:
    """The Python of the executors. Spark reads its own setting for it only under `spark-submit`."""
    # On other machines Python may be elsewhere; the variable says where.
    elsewhere = None if _is_local(master) else os.environ.get("PYSPARK_PYTHON")
    return settings.get("spark.pyspark.python") or elsewhere or sys.executable


def _is_local(master: str) -> bool:
    return master.startswith("local")


@contextmanager
def _recorded_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Record the processes that Spark launches in the block, also those of a JVM that never starts."""
    from pyspark import java_gateway

    launched: list[subprocess.Popen[bytes]] = []

    def launch(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        with _signals_deferred():
            launched.append(subprocess.Popen(*args, **kwargs))
        return launched[-1]

    module: Any = java_gateway
    before, module.Popen = module.Popen, launch
    try:
        yield launched
    finally:
        module.Popen = before


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM when the block has ended, so that a handler that raises interrupts nothing in it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def defer(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, defer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for deferred in received:
        signal.raise_signal(deferred)


@contextmanager
def _kept_interrupt_handler() -> Iterator[None]:
    """Keep the handler of SIGINT: Spark's would cancel all jobs, the node's lets running batches finish."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _end_jvm(launched: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """End the JVM that this process started; a JVM of `spark-submit` is left alone.

    `launched`: the processes of a start that failed, whose JVM may not listen yet.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        for process in launched:
            _end_process(process)
    elif gateway.proc is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(timeout=_PATIENCE)
        _end_process(gateway.proc)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def redaction(secrets: Iterable[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that decide what Spark redacts on its pages, in its logs and in plans.

    They cover the settings that `secrets` names, names that suggest a secret, and what `settings` already redacts.
    """
    words = (SECRETS.removeprefix("(?i)"), "jaas", "credential", *map(re.escape, sorted(secrets)))
    ours = f"(?i:{'|'.join(words)})"
    wanted = {"spark.redaction.regex": ours, "spark.sql.redaction.options.regex": f"{ours}|(?i:url)"}
    return {name: f"{settings[name]}|{regex}" if settings.get(name) else regex for name, regex in wanted.items()}

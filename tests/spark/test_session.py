"""A session in a process of its own, because these tests start, signal and kill it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import daemon

from holdfast.spark.worker_daemon import MANY, freezing_what_stays, quiet_on_hangup
from tests.e2e.freezing import descendants

pytestmark = pytest.mark.spark

SECRET = "an-open-sesame"
PATIENCE = 20.0

NODE = f"""
import json, os, signal, threading, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: seen.append(number))

from pyspark import SparkContext
from holdfast.spark.session import start_session

settings = {{"spark.hadoop.fs.s3a.secret.key": {SECRET!r}, "spark.sql.shuffle.partitions": "3"}}
session = start_session("node", settings)

def say(**facts):
    print(json.dumps(facts), flush=True)

def who(batches):
    import pyarrow
    yield pyarrow.RecordBatch.from_pydict({{"pid": [os.getpid()]}})

def slow(batches):
    time.sleep(4)
    yield from batches

say(
    jvm=SparkContext._gateway.proc.pid,
    workers=[row.pid for row in session.range(2).mapInArrow(who, "pid long").collect()],
    conf=dict(session.sparkContext.getConf().getAll()),
)
counts = []
job = threading.Thread(target=lambda: counts.append(session.range(10).mapInArrow(slow, "id long").count()))
job.start()
while not session.sparkContext.statusTracker().getActiveStageIds():
    time.sleep(0.05)
say(running=True)
job.join()
say(counts=counts, signals=seen)
signal.pause()
"""

TWICE = """
import json
from pyspark import SparkContext
from holdfast.errors import UsageError
from holdfast.spark.session import start_session, stop_session

jvms, refused = [], False
for partitions in ("3", "5"):
    session = start_session("twice", {"spark.sql.shuffle.partitions": partitions}, "local[1]")
    jvms.append(SparkContext._gateway.proc.pid)
    assert session.conf.get("spark.sql.shuffle.partitions") == partitions
    assert session.range(3).count() == 3
    try:
        start_session("once more", {})
    except UsageError:
        refused = True
    stop_session(session)
print(json.dumps({"jvms": jvms, "refused": refused}))
"""

TOO_SMALL = """
from pyspark import SparkContext
from holdfast.errors import UsageError
from holdfast.spark.session import start_session

try:
    start_session("small", {"spark.driver.memory": "400m"}, "local[1]")
except UsageError as error:
    print(error)
assert SparkContext._gateway is None
"""

PAGE = f"""
import json
from urllib.request import urlopen
from holdfast.spark.session import redaction
from holdfast.spark.session import start_session, stop_session

settings = {{"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.lake.dsn": {SECRET!r}}}
session = start_session("page", settings | redaction(["spark.lake.dsn"], settings), "local[1]")
address = session.sparkContext.uiWebUrl
application = f"api/v1/applications/{{session.sparkContext.applicationId}}"
pages = [f"{{address}}/environment/", f"{{address}}/{{application}}/environment"]
shown = [urlopen(page).read().decode() for page in pages]
shown.append(str(session.sql("SET").collect()))
used = session.conf.get("spark.lake.dsn")
stop_session(session)
print(json.dumps({{"shown": shown, "used": used}}))
"""


def _alive(pid: int) -> bool:
    """Whether that process runs; a dead one that nobody waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _survivors(pids: list[int]) -> list[int]:
    end = time.monotonic() + PATIENCE
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    return left


@dataclass(frozen=True)
class Life:
    """What one node did, from start to kill -9."""

    facts: dict[str, Any]
    command_lines: str
    result: dict[str, Any]
    survivors: list[int]
    stderr: str


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    errors = tmp_path_factory.mktemp("node") / "stderr"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", NODE],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            cwd=errors.parent,
        ) as node,
    ):
        assert node.stdout is not None
        try:
            facts = json.loads(node.stdout.readline())
            command_lines = Path(f"/proc/{facts['jvm']}/cmdline").read_text()
            node.stdout.readline()
            os.killpg(node.pid, signal.SIGINT)
            os.killpg(node.pid, signal.SIGTERM)
            result = json.loads(node.stdout.readline())
        finally:
            node.kill()
            node.wait()
        survivors = _survivors([facts["jvm"], *facts["workers"]])
    return Life(facts, command_lines, result, survivors, errors.read_text())


def test_a_secret_reaches_spark_but_no_command_line(life: Life) -> None:
    assert life.facts["conf"]["spark.hadoop.fs.s3a.secret.key"] == SECRET
    assert "spark.sql.shuffle.partitions=3" in life.command_lines
    assert SECRET not in life.command_lines


def test_defaults_bind_to_loopback_and_keep_time_in_utc(life: Life) -> None:
    conf = life.facts["conf"]
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.ui.enabled"] == "false"


def test_signals_to_the_group_reach_our_handlers_and_no_job(life: Life) -> None:
    assert life.result == {"counts": [10], "signals": [signal.SIGINT, signal.SIGTERM]}


def test_a_killed_node_takes_its_jvm_and_workers_along(life: Life) -> None:
    assert life.survivors == []


def test_nothing_is_written_to_stderr(life: Life) -> None:
    assert life.stderr == ""


def test_a_stopped_session_ends_its_jvm_and_the_next_has_its_own_settings() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    settings = json.loads(done.stdout)
    assert settings["refused"]
    assert len(set(settings["jvms"])) == 2
    assert not any(_alive(pid) for pid in settings["jvms"])


def test_a_setting_that_spark_refuses_is_told_in_sparks_own_words() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_SMALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Spark does not start" in done.stdout
    assert "INVALID_DRIVER_MEMORY" in done.stdout


class TestASignalWhileSparkStarts:
    """The node holds nothing yet: it ends with the signal's code, and nothing that it started outlives it."""

    @pytest.fixture
    def starting(self, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
        (tmp_path / "in").mkdir()
        (tmp_path / "pipeline.yaml").write_text(
            "spark: {master: 'local[1]'}\n"
            "pipelines: {p: {source: {objects: {folder: in}}, sinks: [{files: {root: out}}]}}\n"
        )
        command = [sys.executable, "-m", "holdfast", "run", "pipeline.yaml"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as node:
            try:
                yield node
            finally:
                node.kill()

    @pytest.mark.parametrize(
        ("listening", "number", "code"),
        [(False, signal.SIGINT, 130), (False, signal.SIGTERM, 143), (True, signal.SIGINT, 130)],
    )
    def test_no_jvm_stays(
        self, starting: subprocess.Popen[bytes], number: signal.Signals, code: int, *, listening: bool
    ) -> None:
        jvm = self._jvm_of(starting, listening=listening)
        starting.send_signal(number)
        _, errors = starting.communicate(timeout=120)
        assert (starting.returncode, _survivors([jvm])) == (code, [])
        assert b"Traceback" not in errors

    def _jvm_of(self, node: subprocess.Popen[bytes], *, listening: bool) -> int:
        """The JVM as soon as it runs, or as soon as it listens for the commands that make a Spark context."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for child in descendants(node.pid):
                with suppress(OSError):
                    command = Path(f"/proc/{child}/cmdline").read_text()
                    if "SparkSubmit" in command and (not listening or _listens(child)):
                        return child
        raise AssertionError("no JVM was started")


def _listens(pid: int) -> bool:
    """Whether the process has a listening TCP socket."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return any(f"socket:[{line[9]}]" in sockets for line in lines[1:] if line[3] == "0A")


@pytest.mark.parametrize(
    ("error", "file", "printed"),
    [
        ("BrokenPipeError", daemon.__file__, False),
        ("ValueError", daemon.__file__, True),
        # The same error from a user's function is worth a traceback.
        ("BrokenPipeError", "handler.py", True),
    ],
)
def test_workers_keep_quiet_about_hangups_of_their_own_socket_only(error: str, file: str, *, printed: bool) -> None:
    tracebacks: list[bool] = []
    report = quiet_on_hangup(lambda: tracebacks.append(True))
    try:
        exec(compile(f"raise {error}", file, "exec"))  # noqa: S102 - the way to raise from a file of that name
    except (BrokenPipeError, ValueError):
        report()
    assert bool(tracebacks) is printed


def test_what_any_task_of_a_worker_has_loaded_is_not_looked_at_after_every_other_one() -> None:
    loaded: list[list[list[int]]] = []
    work = freezing_what_stays(lambda number: loaded.append([[] for _ in range(number)]))
    try:
        work(0)
        first = gc.get_freeze_count()
        assert first > 0
        work(10)
        assert gc.get_freeze_count() <= first
        work(4 * MANY)
        # Frozen objects of the other tests and their threads may be freed meanwhile, and are not counted any more.
        assert gc.get_freeze_count() >= first + 2 * MANY
    finally:
        gc.unfreeze()


def test_garbage_of_a_task_is_not_kept() -> None:
    def work(number: int) -> None:
        for _ in range(number):
            ring: list[object] = []
            ring.append(ring)

    freezing = freezing_what_stays(work)
    try:
        freezing(0)
        frozen = gc.get_freeze_count()
        gc.disable()
        freezing(2 * MANY)
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.enable()
        gc.unfreeze()


def test_spark_shows_no_secret_whatever_its_name_is() -> None:
    done = subprocess.run([sys.executable, "-c", PAGE], capture_output=True, text=True, check=True, timeout=240)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["used"] == SECRET
    for shown in (*facts["shown"], done.stderr):
        assert SECRET not in shown
    assert any("spark.lake.dsn" in shown for shown in facts["shown"])

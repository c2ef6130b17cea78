"""What a person sees while a node works, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import service
from holdfast.cli import display
from holdfast.cli.display import Display, is_terminal
from holdfast.errors import StoreUnavailable
from holdfast.events import BatchCommitted, Event, PartitionFailed, PipelineProgressed
from holdfast.flow.node import Node
from holdfast.leases.lease import Lease
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.world import HostClock, host_world
from holdfast.observe.partition_counts import COSTLY_EVERY, SHARE
from holdfast.observe.progress import Progress
from holdfast.stores.memory import MemoryStore

ROOT = Path(__file__).parents[3]
NAMES = {"prod|orders": "orders"}
SHOW = """
import sys
from holdfast.cli.display import LogStream, Display
from holdfast.events import AttemptFailed, BatchCommitted
from holdfast.observe.progress import Progress
from holdfast.stores.memory import MemoryStore
store = MemoryStore()
store.open()
progress = Progress(["prod|orders"])
progress(BatchCommitted("prod|orders", "a", 1, 1234, 0))
progress(AttemptFailed("prod|orders", "a", 1, "bad"))
with Display(progress, {"prod|orders": "orders"}, progress, live=True).showing(store):
    LogStream().write("a line of the log\\n")
"""
WORK = """
import time
from holdfast import service
from holdfast.leases.world import HostClock
service.SAME_SIGNAL = 0.0
class Node:
    def stop(self):
        pass
with service.stopped_by_signals(Node(), HostClock()):
    print("working", flush=True)
    while True:
        time.sleep(60)
"""

JOBS = """
import fcntl, os, sys, termios
from holdfast.cli.display import is_terminal
print("no job of it", is_terminal(sys.stderr), flush=True)
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
print("foreground", is_terminal(sys.stderr), flush=True)
if not (child := os.fork()):
    os.setpgid(0, 0)
    print("background", is_terminal(sys.stderr), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


class ReadStore(MemoryStore):
    """Counts its reads; each takes `seconds` of its clock."""

    def __init__(self, *keys: str, seconds: float = 0.0) -> None:
        super().__init__()
        self.open()
        self.add([Lease("prod|orders", key) for key in keys])
        self.seconds = seconds
        self.clock = 0.0
        self.reads = 0

    def find(self, query: Query) -> list[Lease]:
        self.reads += 1
        self.clock += self.seconds
        return super().find(query)


class SteppedClock(HostClock):
    """Stands still unless a test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class StoppedNode(Node):
    """Counts how often it is stopped."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


class Lines:
    """Consumes the lines of the display, and lets a test wait for the next ones."""

    def __init__(self) -> None:
        self._emitted = 0
        self._changed = threading.Condition()

    def __call__(self, _event: Event) -> None:
        with self._changed:
            self._emitted += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for two lines: the store was or was not read before the second, not only before this call."""
        with self._changed:
            enough = self._emitted + 2
            assert self._changed.wait_for(lambda: self._emitted >= enough, timeout=60)


def on_terminal(code: str, **environ: str) -> str:
    """What the program shows on a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", **environ}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b"".join(_chunks(ours))
    os.close(ours)
    assert process.wait(60) == 0, shown
    return shown.decode()


def _chunks(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            return
        if not chunk:
            return
        yield chunk


def test_on_a_terminal_a_table_is_shown_below_the_log() -> None:
    shown = on_terminal(SHOW)
    # What moves the cursor back ends a line: the table is drawn over itself.
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.replace("\x1b[1A", "\n")).replace("\r", "\n").splitlines()
    row = next(line.split() for line in lines if line.startswith("orders"))
    assert row[:4] == ["orders", "0/0", "1,234", row[3]]
    assert row[-4:] == ["1", "0", "0", "0"]
    assert "a line of the log" in lines
    assert "\x1b[31m" in shown, "errors are red"


def test_colours_can_be_refused() -> None:
    assert "\x1b[31m" not in on_terminal(SHOW, NO_COLOR="1")


def test_without_a_terminal_each_pipeline_is_reported_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "EVERY", 0.01)
    store, events = MemoryStore(), list[Event]()
    store.open()
    store.add([Lease("prod|orders", "a"), Lease("prod|orders", "b")])
    progress = Progress(["prod|orders"])
    reported = Display(progress, {"prod|orders": "orders"}, events.append, live=False)
    with reported.showing(store):
        while not events:
            pass
    assert isinstance(events[0], PipelineProgressed)
    assert (events[0].pipeline, events[0].partitions) == ("prod|orders", 2)
    progress(PartitionFailed("prod|orders", "a", "bad"))
    assert "1 partition failed" in str(progress.summary())


def test_a_node_counts_as_soon_as_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "EVERY", 0.001)
    store, lines = ReadStore("a"), Lines()
    info = NodeInfo("n1", "host:1", pipelines=("prod|orders", "prod|clicks"))
    Session(store, host_world(lambda _: None), "$nodes", info, SessionTiming()).join()
    progress = Progress(["prod|orders"])
    with Display(progress, NAMES, lines, live=False, fleet="$nodes").showing(store):
        lines.wait()
    assert progress.now()[0].nodes == 1


@pytest.mark.parametrize(
    ("charges", "seconds", "pause"),
    [(True, 0.0, COSTLY_EVERY), (True, 1.0, COSTLY_EVERY), (False, 1.0, SHARE * 1.0)],
    ids=["reads cost money", "reads cost money and time", "reads take long"],
)
def test_lines_between_two_costly_reads_come_from_events(
    monkeypatch: pytest.MonkeyPatch, charges: bool, seconds: float, pause: float
) -> None:
    monkeypatch.setattr(display, "EVERY", 0.001)
    store, lines = ReadStore("a", "b", seconds=seconds), Lines()
    monkeypatch.setattr(store, "charges_for_reads", charges)
    shown = Display(Progress(["prod|orders"]), NAMES, lines, live=False, clock=lambda: store.clock)
    with shown.showing(store):
        lines.wait()
        assert store.reads == 1
        store.clock += pause - 0.1
        lines.wait()
        assert store.reads == 1
        store.clock += 0.2
        lines.wait()
        assert store.reads == 2


def test_a_costly_store_is_read_until_it_has_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "EVERY", 0.001)
    store, lines = ReadStore(), Lines()
    monkeypatch.setattr(store, "charges_for_reads", True)
    with Display(Progress(["prod|orders"]), NAMES, lines, live=False).showing(store):
        store.add([Lease("prod|orders", "a")])
        lines.wait()


def test_a_costly_read_that_fails_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "EVERY", 0.001)
    store, lines, reads = ReadStore("a"), Lines(), list[Query]()

    def find(query: Query) -> list[Lease]:
        reads.append(query)
        raise StoreUnavailable("throttled")

    monkeypatch.setattr(store, "charges_for_reads", True)
    monkeypatch.setattr(store, "find", find)
    progress = Progress(["prod|orders"])
    progress(BatchCommitted("prod|orders", "a", 1, 10, 0))
    with Display(progress, NAMES, lines, live=False).showing(store):
        lines.wait()
        lines.wait()
    assert len(reads) == 1


def test_without_a_terminal_nothing_is_read_at_the_end() -> None:
    store = ReadStore("a")
    with Display(Progress(["prod|orders"]), NAMES, Lines(), live=False).showing(store):
        pass
    assert store.reads == 0


def test_the_table_ends_with_what_the_store_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "LAST_READ", 60.0)
    with Display(Progress(["prod|orders"]), NAMES, Lines(), live=True).showing(ReadStore("a", "b")):
        pass
    assert "0/2" in capsys.readouterr().err


def test_a_table_is_filled_soon_after_partitions_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SOON", 0.001)
    store, progress, clock = ReadStore(), Progress(["prod|orders"]), SteppedClock()
    with Display(progress, NAMES, Lines(), live=True, clock=clock.monotonic).showing(store):
        while store.reads < 2:
            pass
        store.add([Lease("prod|orders", "a"), Lease("prod|orders", "b")])
        while not progress.now()[0].partitions:
            pass
        reads = store.reads
    assert progress.now()[0].partitions == 2
    assert store.reads <= reads + 1, "with rows, the next read but the last waits"


def test_a_failure_of_the_last_read_does_not_fail_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    store, failed = ReadStore("a"), threading.Event()

    def find(_query: Query) -> list[Lease]:
        failed.set()
        raise RuntimeError("the client is closed")

    monkeypatch.setattr(store, "find", find)
    with Display(Progress(["prod|orders"]), NAMES, Lines(), live=True).showing(store):
        pass
    assert failed.wait(60)


def test_a_store_that_hangs_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store, begun, freed, returned = ReadStore("a"), threading.Event(), threading.Event(), list[bool]()

    def find(_query: Query) -> list[Lease]:
        begun.set()
        returned.append(freed.wait(20))
        return []

    monkeypatch.setattr(store, "find", find)
    with Display(Progress(["prod|orders"]), NAMES, Lines(), live=True).showing(store):
        pass
    assert begun.wait(60)
    assert not returned
    freed.set()


def test_a_file_is_not_a_terminal(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert not is_terminal(file)


def test_a_background_job_has_no_table() -> None:
    assert on_terminal(JOBS).split("\r\n")[:3] == ["no job of it False", "foreground True", "background False"]


@contextmanager
def working(stderr: int) -> Iterator[subprocess.Popen[str]]:
    """A node that works, and does not end by itself when it is stopped."""
    command = [sys.executable, "-c", WORK]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        yield process


def test_the_first_interrupt_says_how_long_it_takes_and_the_second_ends_at_once() -> None:
    with working(subprocess.PIPE) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        assert process.stderr.readline().startswith("stopping, at most 10 s")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
        assert not process.stderr.read(), "escapes are for terminals"


def test_a_node_that_ends_at_once_gives_the_cursor_back() -> None:
    ours, theirs = pty.openpty()
    with working(theirs) as process:
        os.close(theirs)
        process.send_signal(signal.SIGINT)
        shown = b""
        while b"ends the node at once" not in shown:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert b"\x1b[?25h" in b"".join(_chunks(ours))
        assert process.wait(60) == 128 + signal.SIGINT
    os.close(ours)


def test_a_signal_that_comes_twice_is_one_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, clock, node = list[int](), SteppedClock(), StoppedNode()
    monkeypatch.setattr(service, "_end_at_once", ended.append)
    with Path(os.devnull).open("w") as nowhere, service.stopped_by_signals(node, clock):
        monkeypatch.setattr(sys, "stderr", nowhere)
        signal.raise_signal(signal.SIGINT)
        clock.now += 0.4
        signal.raise_signal(signal.SIGINT)
        assert not ended
        clock.now += 0.2
        signal.raise_signal(signal.SIGINT)
    assert (ended, node.stops) == ([signal.SIGINT], 1)

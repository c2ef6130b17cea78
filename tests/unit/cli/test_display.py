"""What a person sees while a node works, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import display
from holdfast.cli.display import Display, is_terminal
from holdfast.events import Event, PartitionFailed, PipelineProgressed
from holdfast.leases.lease import Lease
from holdfast.observe.progress import Progress
from holdfast.stores.memory import MemoryStore

ROOT = Path(__file__).parents[3]
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
class Node:
    def stop(self):
        pass
with service.stopped_by_signals(Node(), HostClock()):
    print("working", flush=True)
    while True:
        time.sleep(60)
"""


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
    assert "1 partition failed" in progress.summary()


def test_a_file_is_not_a_terminal(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert not is_terminal(file)


def test_the_first_interrupt_says_how_long_it_takes_and_the_second_ends_at_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORK], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        assert process.stderr.readline().startswith("stopping, at most 10 s")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT

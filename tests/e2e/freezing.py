"""Standing a process still, with or without all that it has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def freeze(pid: int) -> None:
    """Stop the process, and return when none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    # A stop is not immediate: threads that run on another core go on a little longer.
    while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        pass


def freeze_descendants(pid: int) -> None:
    """Stop what the process has started, and what that has started: the JVM and its Python workers."""
    for child in list(descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGSTOP)


def thaw(pid: int) -> None:
    """Let the process and all its descendants run on. One that is gone is none of our business."""
    for process in [*descendants(pid), pid]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def descendants(pid: int) -> Iterator[int]:
    """What the process has started, and what that has started."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    """What the threads of the process have started; threads and processes may end while we look."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except OSError:
        return True

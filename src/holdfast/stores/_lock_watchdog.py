"""Locks of files, and processes that are stopped while they hold one (SIGSTOP, job control, a debugger).

Such a lock is held as long as its process lives, and cannot be broken safely: the stopped process continues to write
when it is resumed. So a process that takes locks has a small watchdog process, which checks whether it is stopped for
too long while it holds a lock. The watchdog sends SIGCONT, so that the holder finishes, and SIGKILL if that does not
help. Both are safe: the lock was held all the time, and fencing covers a node that dies. Linux only;
elsewhere, and where no process can be started, a lock is held for as long as its holder is stopped.
"""

from __future__ import annotations

import atexit
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLOTS = 64
"""Maximum number of locks of one process that are watched."""
REPEAT_AFTER = 60.0
"""Seconds until the next attempt to start the watchdog process, after one has failed."""
_SLOT = struct.Struct("d")

_LOOK_AFTER = """
import mmap, os, select, signal, struct, sys, time
pid, table = int(sys.argv[1]), mmap.mmap(int(sys.argv[2]), int(sys.argv[3]))
holder, continued_at = os.pidfd_open(pid), None
ended = select.poll()
ended.register(holder, select.POLLIN)
while os.getppid() == pid and not ended.poll(250):
    now = time.monotonic()
    overdue = any(0 < deadline < now for (deadline,) in struct.iter_unpack("d", table))
    with open(f"/proc/{pid}/stat") as stat:
        stopped = stat.read().rpartition(")")[2].split()[0] in "Tt"
    if not overdue:
        continued_at = None
    elif stopped and continued_at is None:
        signal.pidfd_send_signal(holder, signal.SIGCONT)
        continued_at = now
    elif stopped and now > continued_at + 1.0:
        signal.pidfd_send_signal(holder, signal.SIGKILL)
"""


class LockWatchdog:
    """Watches this process while it holds locks. Safe to use from several threads, and after a fork."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._pid = 0
        self._free: list[int] = []
        self._table: mmap.mmap | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._try_at = 0.0

    @contextmanager
    def holding(self, limit: float) -> Iterator[None]:
        """Wait for a lock and hold it in the block. A process stopped there is resumed after that many seconds."""
        slot = self._slot()
        table = self._table
        if slot is None or table is None:
            yield
            return
        _SLOT.pack_into(table, slot * _SLOT.size, time.monotonic() + limit)
        try:
            yield
        finally:
            _SLOT.pack_into(table, slot * _SLOT.size, 0.0)
            self._free.append(slot)

    def _slot(self) -> int | None:
        if self._pid != os.getpid() or (self._table is None and time.monotonic() >= self._try_at):
            with self._starting:
                if self._pid != os.getpid() or self._table is None:
                    self._start()
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _start(self) -> None:
        self._pid, self._table, self._free, self._process = os.getpid(), None, [], None
        self._try_at = time.monotonic() + REPEAT_AFTER
        if sys.platform != "linux":
            return
        size = SLOTS * _SLOT.size
        try:
            number = os.memfd_create("holdfast-locks")
            try:
                os.ftruncate(number, size)
                table = mmap.mmap(number, size)
                self._process = _start_beside(self._pid, number, size)
            finally:
                os.close(number)
        except OSError:
            return
        self._table, self._free = table, list(range(SLOTS))
        atexit.register(self._stop, self._pid)

    def _stop(self, pid: int) -> None:
        if pid == os.getpid() and self._process is not None:
            self._process.kill()
            self._process.wait()


def _start_beside(pid: int, number: int, size: int) -> subprocess.Popen[bytes]:
    # In a session of its own: a signal to our group, such as Ctrl-Z, must not stop it too.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LOOK_AFTER, str(pid), str(number), str(size)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[number],
        start_new_session=True,
    )


WATCHDOG = LockWatchdog()
"""The watchdog of this process, shared by all its stores."""

"""Patience that depends on the work of processes, not on a clock: a busy machine only makes a wait longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.freezing import descendants

MOST_WORK = 400.0
"""Seconds of CPU that nodes may use before what is awaited; a start of Spark takes about 20, an idle node 0.1 each."""
SILENCE = 120.0
"""Seconds without any use of the CPU, after which processes are taken for stuck."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Effort:
    """The work of some processes, and of all that they have started, since it was made."""

    used: float = 0.0
    _ticks: dict[int, int] = field(default_factory=dict)
    _moved_at: float = field(default_factory=time.monotonic)

    def check(self, processes: Iterable[int], what: Callable[[], str]) -> None:
        """Fail if these have worked for long, or do not work any more."""
        now, before = time.monotonic(), self.used
        for process in [part for root in processes for part in (root, *descendants(root))]:
            ticks = _ticks(process)
            self.used += max(0, ticks - self._ticks.get(process, ticks)) / TICKS
            self._ticks[process] = ticks
        if self.used > before:
            self._moved_at = now
        assert self.used < MOST_WORK, f"not after {self.used:.0f} s of CPU: {what()}"
        assert now - self._moved_at < SILENCE, f"nobody has worked for {SILENCE:.0f} s: {what()}"


def _ticks(process: int) -> int:
    """User and system time of the process; 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0

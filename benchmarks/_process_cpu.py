"""CPU seconds of processes and all that they have started, as the kernel counts them."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of that process, its threads, and its children, also those that have ended."""
    return sum(cpu_by_process(pid).values())


def cpu_by_process(pid: int) -> dict[int, float]:
    """Like `cpu_seconds`, for each of the processes."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in _children(task)]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = {pid: sum(map(int, fields[11:15])) / _TICKS}
    for child in children:
        found |= cpu_by_process(child)
    return found


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []

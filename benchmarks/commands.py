"""How long a person waits for a command: `--help`, and `run` until its first line of progress.

Seconds of processor time and of the clock from the start of the process, beside the bars of half a second and one
second, and beside a process that only imports typer, the library of the command line. Medians of processes that take
turns; the machine must be quiet for the seconds of the clock to mean something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Comparison, compare, interleaved

HELP_MS, FIRST_LINE_MS = 500.0, 1000.0
REPETITIONS = 7
HOLDFAST = (sys.executable, "-m", "holdfast")
TYPER = (sys.executable, "-c", "import typer")
FILE = """
pipelines:
  orders:
    source: {objects: {folder: in}}
    sinks: [{files: {root: out, format: text}}]
"""


def run() -> list[Comparison]:
    """Both commands against their bars, and against importing typer."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "pipeline.yaml").write_text(FILE)
        helped = (*HOLDFAST, "--help")
        started = (*HOLDFAST, "run", "pipeline.yaml")
        found = []
        for unit, measured in (("ms of CPU", _cpu_ms), ("ms", _wall_ms)):
            cases: Sequence[Callable[[], float]] = [
                partial(measured, helped, folder),
                partial(measured, started, folder),
                partial(measured, TYPER, folder),
            ]
            shown, line, typer = interleaved(cases, REPETITIONS)
            found += [
                compare("commands", "--help against its bar", shown, HELP_MS, unit, "<= 1"),
                compare("commands", "first line of `run` against its bar", line, FIRST_LINE_MS, unit, "<= 1"),
                compare("commands", "--help against importing typer", shown, typer, unit, "<= 5"),
            ]
        return found


def _wall_ms(command: Sequence[str], folder: str) -> float:
    return _measured(command, folder)[0]


def _cpu_ms(command: Sequence[str], folder: str) -> float:
    return _measured(command, folder)[1]


def _measured(command: Sequence[str], folder: str) -> tuple[float, float]:
    """Milliseconds until the first line of a command, or its end if it prints none: by the clock, and of the CPU."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert process.stdout is not None
    if "--help" in command:
        process.stdout.read()
    else:
        process.stdout.readline()
    waited = time.monotonic() - started
    cpu = _cpu_seconds(process.pid)
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.stdout.close()
    process.wait()
    return 1000 * waited, 1000 * cpu


def _cpu_seconds(pid: int) -> float:
    """Of a process that has not been waited for, also if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

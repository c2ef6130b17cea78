"""Reads inputs in a child process: what ends, blocks or fills it is found, and the inputs after it are read too.

The time is that of the CPU, so that a busy machine decides nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.fuzz.target import Target

CPU_SECONDS = 10.0
"""For one input."""
BLOCKED_AFTER = 300.0
"""Seconds of the clock. Nothing that is fuzzed waits for anything."""
MEMORY = 1 << 30
"""The most that one input may take, of physical memory."""
ADDRESSES = 6 << 30
"""The most address space that a child may add. Allocators reserve more than they use."""
PER_CHILD = 200
_FROM_OURS = "/holdfast/"
_DONE_CODE = 77
_DONE = _DONE_CODE << 8
"""The status of a child that has read all its inputs; a decoder may end it with any other."""


@dataclass(frozen=True)
class Finding:
    """An input that did what none may do."""

    target: str
    number: int
    kind: str
    """`ended`, `hung`, `blocked`, `memory` or `error`."""
    reason: str

    @property
    def cause(self) -> tuple[str, str, str]:
        """The same for inputs that show the same fault."""
        return self.target, self.kind, self.reason.partition("\n")[0][:80]


@dataclass
class Results:
    """What became of the inputs of a target."""

    tried: int = 0
    accepted: int = 0
    findings: list[Finding] = field(default_factory=list)
    peak: int = 0
    """The most memory that an accepted input took, in bytes, and its number."""
    peak_number: int = 0
    slowest: float = 0.0
    slowest_number: int = 0

    def add(self, other: Results) -> None:
        """Count the results of more inputs."""
        self.tried += other.tried
        self.accepted += other.accepted
        self.findings += other.findings
        if other.peak > self.peak:
            self.peak, self.peak_number = other.peak, other.peak_number
        if other.slowest > self.slowest:
            self.slowest, self.slowest_number = other.slowest, other.slowest_number


def fuzzed(target: Target, data: Callable[[int], bytes], numbers: range) -> Results:
    """Read the inputs of these numbers."""
    results, done = Results(), numbers.start
    while done < numbers.stop:
        done = _in_child(target, data, range(done, min(done + PER_CHILD, numbers.stop)), results)
    return results


def _in_child(target: Target, data: Callable[[int], bytes], numbers: range, results: Results) -> int:
    """Read inputs in one child. Returns the number of the first that has not been read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _child(target, data, numbers, writing)
    os.close(writing)
    current, is_blocked = numbers.start, False
    for line in _lines(reading):
        if line is None:
            is_blocked = True
            os.kill(pid, signal.SIGKILL)
            break
        event = json.loads(line)
        current = event["number"]
        _note(target, event, results)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if status != _DONE:
        results.findings.append(Finding(target.name, current, *_end(status, is_blocked)))
        return current + 1
    return numbers.stop


def _note(target: Target, event: dict[str, Any], results: Results) -> None:
    number = event["number"]
    if event["event"] == "begun":
        results.tried += 1
        return
    if event.get("finding"):
        results.findings.append(Finding(target.name, number, *event["finding"]))
    if event["accepted"]:
        results.accepted += 1
        if event["memory"] > results.peak:
            results.peak, results.peak_number = event["memory"], number
    if event["seconds"] > results.slowest:
        results.slowest, results.slowest_number = event["seconds"], number


def _end(status: int, is_blocked: bool) -> tuple[str, str]:
    if is_blocked:
        return "blocked", f"nothing happened for {BLOCKED_AFTER:g} s"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGPROF:
            return "hung", f"it took more than {CPU_SECONDS:g} s of CPU"
        return "ended", f"signal {number} ({signal.strsignal(number)})"
    return "ended", f"exit code {os.WEXITSTATUS(status)}"


def _lines(reading: int) -> Iterator[bytes | None]:
    """The lines that a child writes; None when there was none for too long."""
    rest = b""
    while True:
        ready, _, _ = select.select([reading], [], [], BLOCKED_AFTER)
        if not ready:
            yield None
            return
        part = os.read(reading, 1 << 16)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


# --- in the child ----------------------------------------------------------------------------------------------------


def _child(target: Target, data: Callable[[int], bytes], numbers: range, writing: int) -> NoReturn:
    code = 1
    try:
        _confine()
        base = _peak()
        for number in numbers:
            _write(writing, event="begun", number=number)
            given = data(number)
            before, began = _peak(), _cpu()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            finding, accepted = _read(target, given)
            signal.setitimer(signal.ITIMER_PROF, 0)
            # A peak that an earlier input has made hides those below it.
            grown = _peak() - base if _peak() > before else 0
            if finding is None and grown > MEMORY:
                finding = ("memory", f"it took {grown >> 20} MiB")
            spent = _cpu() - began
            _write(
                writing, event="read", number=number, finding=finding, accepted=accepted, memory=grown, seconds=spent
            )
        code = _DONE_CODE
    except BaseException:  # noqa: BLE001 - nothing may run on in the copy of the caller
        traceback.print_exc()
    finally:
        os._exit(code)


def _confine() -> None:
    faulthandler.disable()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    with open("/proc/self/statm") as file:  # noqa: PTH123 - no more modules than needed
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (held + ADDRESSES, held + ADDRESSES))


def _read(target: Target, data: bytes) -> tuple[tuple[str, str] | None, bool]:
    """The finding, if there is one, and whether the input was accepted."""
    try:
        target.read(data)
    except MemoryError as error:
        return ("memory", f"{type(error).__name__}: {error}"), False
    except target.refusals:
        return None, False
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        return ("error", _described(error)), False
    return None, True


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _FROM_OURS in frame.filename] or frames[-1:]
    where = f"{ours[-1].filename.rpartition('/src/')[2]}:{ours[-1].lineno}" if ours else ""
    text = f"{type(error).__name__} at {where}: {error}"
    with contextlib.suppress(Exception):
        text += "\n" + "".join(traceback.format_tb(error.__traceback__)[-6:])
    return text.encode("utf-8", "backslashreplace").decode()[:3000]


def _write(writing: int, **event: Any) -> None:
    line = json.dumps(event).encode() + b"\n"
    while line:
        line = line[os.write(writing, line) :]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

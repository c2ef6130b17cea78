"""Runs a test of pytest's on a mutant, in a process of its own that has everything imported already."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Mutant, patched

_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def is_killed(mutant: Mutant, output: Path, timeout: float) -> bool:
    """Whether the test that the mutant names fails on the product as the mutant has it: the test, not its fixtures.

    `output` gets what pytest says. False when it does not end within `timeout` seconds; raises `EOFError` when its
    process ends without a result.
    """
    context = multiprocessing.get_context("forkserver")
    result, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(mutant.name, output, sender))
    process.start()
    sender.close()
    try:
        return result.poll(timeout) and bool(result.recv())
    finally:
        process.kill()
        process.join()
        result.close()


def _run(name: str, output: Path, result: Connection) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    with output.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    plugin = _Mutating(mutant)
    pytest.main([*_OPTIONS, mutant.killed_by], plugins=[plugin])
    result.send(plugin.failed)


class _Mutating:
    """A plugin of pytest's: all tests run on the mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self.failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        with patched(self._mutant.change):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed and report.when == "call"

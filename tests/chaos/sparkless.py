"""A node whose workers are processes of its own and not tasks of Spark: for tests that have no time for a JVM.

python -m tests.chaos.sparkless FILE NODE

Everything else is the node's own: leases, grants, the channel, and what becomes of workers that die.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import cloudpickle

from holdfast import assemble, engines, service

RUN = "import sys; from pyspark import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())(iter(()))"


class ProcessContext:
    """The part of a Spark context that functions use: a job is a process."""

    def __init__(self) -> None:
        self._group = threading.local()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        stopped = SimpleNamespace(isStopped=lambda: False)
        self._jsc = SimpleNamespace(sc=lambda: stopped)

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"spark.driver.host": "127.0.0.1"}

    def setJobGroup(self, group: str, _about: str, **_: Any) -> None:  # noqa: N802
        self._group.name = group

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        with suppress(KeyError):
            self._processes[group].kill()

    def parallelize(self, _rows: Iterable[int], _parts: int) -> ProcessContext:
        return self

    def mapPartitions(self, work: Callable[[Any], Any]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(collect=lambda: self._run(cloudpickle.dumps(work)))  # type: ignore[no-untyped-call]

    def _run(self, work: bytes) -> list[int]:
        with tempfile.TemporaryFile() as given:
            given.write(work)
            given.seek(0)
            process = subprocess.Popen([sys.executable, "-c", RUN], stdin=given)
        self._processes[self._group.name] = process
        if code := process.wait():
            raise RuntimeError(f"the worker has ended with {code}")
        return []


def main(file: str, node: str) -> int:
    spark = SimpleNamespace(sparkContext=ProcessContext())
    engines._start_spark = lambda *_: spark  # type: ignore[assignment]
    engines._warm_up = lambda *_: None

    def say(event: object) -> None:
        sys.stdout.write(f"{event}\n")
        sys.stdout.flush()

    return service.run(assemble.load_settings(Path(file)), say, node_name=node)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

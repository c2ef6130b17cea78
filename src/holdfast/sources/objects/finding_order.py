"""Order of what was found. By time, it is sorted on disk: in memory there is never more than one run of it."""

from __future__ import annotations

import heapq
import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

from holdfast.leases.lease import Json, Partition

RUN = 20_000
MOST_RUNS = 64
"""Files that are open at a time; beyond it runs are merged into one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object that may become a partition."""

    key: str
    spec: dict[str, Json]
    modified: float
    incarnation: str = ""

    def partition(self) -> Partition:
        return Partition(self.key, spec=self.spec, incarnation=self.incarnation)


def by_time(found: Iterable[Candidate | None], *, newest: bool) -> Iterator[Candidate | None]:
    """The same objects, oldest or newest first; those of one time by key. None, a sign of life, comes between."""
    sign = -1.0 if newest else 1.0
    with ExitStack() as files:
        runs: list[IO[str]] = []
        rows: list[list[Any]] = []
        for count, one in enumerate(found):
            if one is not None:
                rows.append([sign * one.modified, one.key, one.spec, one.incarnation])
            if count % RUN == RUN - 1:
                yield None
            if len(rows) == RUN:
                runs.append(_written(sorted(rows, key=_order), files))
                rows = []
            if len(runs) == MOST_RUNS:
                merged = _written(_merged(runs), files)
                for run in runs:
                    run.close()
                runs = [merged]
        ordered = heapq.merge(sorted(rows, key=_order), _merged(runs), key=_order)
        for time, key, spec, incarnation in ordered:
            yield Candidate(key, spec, sign * time, incarnation)


def _order(row: list[Any]) -> tuple[float, str]:
    return row[0], row[1]


def _merged(runs: Iterable[IO[str]]) -> Iterator[list[Any]]:
    return heapq.merge(*map(_read, runs), key=_order)


def _written(rows: Iterable[list[Any]], files: ExitStack) -> IO[str]:
    run = files.enter_context(tempfile.TemporaryFile("w+", encoding="ascii", prefix="holdfast-"))  # noqa: SIM115
    rows = iter(rows)
    while portion := list(itertools.islice(rows, 1000)):
        run.writelines(f"{json.dumps(row)}\n" for row in portion)
    return run


def _read(run: IO[str]) -> Iterator[list[Any]]:
    run.seek(0)
    for line in run:
        yield json.loads(line)

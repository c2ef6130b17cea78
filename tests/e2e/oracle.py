"""Who judges the output: plain Python and pyarrow, no code of the product.

`judge` compares every record that a plain listing shows with the input files. A `Lister` looks again and again while
nodes work, as a reader would who knows nothing of commits.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq

from tests import listing

Record: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class Verdict:
    """What is wrong with the output; three empty tuples if every record is there once."""

    lost: tuple[Record, ...] = ()
    twice: tuple[Record, ...] = ()
    """Records that are there more often than they were given."""
    foreign: tuple[Record, ...] = ()
    """Records that nobody gave."""


def judge(given: Path, output: Path) -> Verdict:
    """Compare the records of the folder `given` with those visible in `output`."""
    wanted, found = _given(given), _shown(output)
    return Verdict(
        lost=tuple(sorted(wanted - found)),
        twice=tuple(sorted(record for record in found - wanted if record in wanted)),
        foreign=tuple(sorted(record for record in found if record not in wanted)),
    )


def visible(output: Path) -> Iterator[Path]:
    """Files as a listing shows them to Spark, Hive or Trino: not those below a name that begins with `_` or `.`."""
    for folder, below, names in os.walk(output):
        below[:] = [name for name in below if not name.startswith(("_", "."))]
        yield from (Path(folder, name) for name in names if not name.startswith(("_", ".")))


def _given(folder: Path) -> Counter[Record]:
    records: Counter[Record] = Counter()
    for path in folder.iterdir():
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        records.update((row["id"], row["note"]) for row in map(json.loads, data.splitlines()))
    return records


def _shown(output: Path) -> Counter[Record]:
    records: Counter[Record] = Counter()
    for path in visible(output):
        columns = pq.read_table(path, columns=["id", "note"]).to_pydict()
        records.update(zip(columns["id"], columns["note"], strict=True))
    return records


class Lister(listing.Lister):
    """Lists an output folder, and reads everything in it."""

    def __init__(self, output: Path) -> None:
        super().__init__(lambda: {str(path): found for path in visible(output) if (found := _digest(path)) is not None})


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None

"""Reindexing: PostgreSQL to OpenSearch against the usual ways, boundaries, reading, sharing, sums, and lost changes.

`make bench-reindex` runs all cases, `make bench-reindex CASES="cursor race"` only these two. Documents per second are
compared with `prepared`, `cursor`, `raw`, `jdbc` and `connector`; the others are `reading`, `race`, `boundaries`,
`makespan` and `sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from benchmarks import _run_sums
from benchmarks._reindex_race import race
from benchmarks._reindex_site import Site, site
from benchmarks._reindex_speed import PEERS, speed
from benchmarks._reindex_tables import boundaries, makespan, reading
from benchmarks.harness import Comparison

_ALONE: dict[str, Callable[[], list[Comparison]]] = {
    "boundaries": boundaries,
    "makespan": makespan,
    "sums": _run_sums.run,
}
_ON_SITE: dict[str, Callable[[Site], list[Comparison]]] = {"reading": reading, "race": race}
CASES = (*PEERS, *_ON_SITE, *_ALONE)


def run(cases: Sequence[str] = CASES) -> list[Comparison]:
    """These cases; peers in documents per second take turns in one run."""
    found: list[Comparison] = []
    peers = [name for name in cases if name in PEERS]
    with ExitStack() as closing:
        if peers or any(name in _ON_SITE for name in cases):
            where = closing.enter_context(site())
            found += speed(where, peers) if peers else []
            found += [one for name in cases if name in _ON_SITE for one in _ON_SITE[name](where)]
    return found + [one for name in cases if name in _ALONE for one in _ALONE[name]()]

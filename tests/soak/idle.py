"""How long partitions were without a node that worked on them, from the history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.soak.history import Version
from tests.soak.oracle import ASSIGNED, COMPLETED, SESSIONS

Place = tuple[str, str]


def gaps(history: Iterable[Version], pipelines: Iterable[str]) -> list[tuple[float, Place]]:
    """Every time for which an unfinished partition had no live owner, with its place; the longest first."""
    wanted = set(pipelines)
    return sorted(_gaps(row for row in history if row.pipeline in wanted or row.pipeline == SESSIONS), reverse=True)


def _gaps(history: Iterable[Version]) -> Iterator[tuple[float, Place]]:
    owners: dict[Place, str] = {}
    idle_since: dict[Place, float] = {}
    for row in history:
        partition = (row.pipeline, row.key)
        if row.pipeline == SESSIONS:
            if row.status == COMPLETED:
                left = [partition_key for partition_key, owner in owners.items() if owner == row.key]
                idle_since.update({partition_key: row.at for partition_key in left if partition_key not in idle_since})
        elif row.status == ASSIGNED and row.owner is not None and owners.get(partition) != row.owner:
            owners[partition] = row.owner
            if partition in idle_since:
                yield row.at - idle_since.pop(partition), partition
        elif row.status != ASSIGNED:
            owners.pop(partition, None)
            if row.status == COMPLETED:
                idle_since.pop(partition, None)
            else:
                idle_since.setdefault(partition, row.at)

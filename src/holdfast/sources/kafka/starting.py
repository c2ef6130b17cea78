"""Where partitions begin that nobody has read, when a pipeline starts for the first time.

The answer is pinned in the partition's row when it is made: asked again later, `latest` would skip records.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from holdfast.errors import SourceUnavailable
from holdfast.sources.kafka.cluster import Cluster, Place
from holdfast.sources.kafka.config import KafkaConfig


def starts_of(config: KafkaConfig, cluster: Cluster, places: Sequence[Place]) -> dict[Place, int]:
    """First offsets by the start setting; a partition that is not among them begins at its earliest record.

    Raises `SourceUnavailable` while a partition's offsets cannot be looked up.
    """
    if config.start == "latest":
        return _all(places, {place: end.stable for place, end in cluster.ends(places).items()})
    if config.start == "offset" and config.start_offset is not None:
        return dict.fromkeys(places, config.start_offset)
    if config.start == "time" and config.start_time is not None:
        moment = config.start_time if config.start_time.tzinfo else config.start_time.replace(tzinfo=UTC)
        return _all(places, cluster.at_time(places, int(moment.timestamp() * 1000)))
    if config.start == "group" and config.start_group is not None:
        return cluster.committed(config.start_group, places)
    return {}


def _all(places: Sequence[Place], found: dict[Place, int]) -> dict[Place, int]:
    """What was found, if it is of all: a partition that nobody serves right now must not begin elsewhere."""
    if missing := [place for place in places if place not in found]:
        raise SourceUnavailable(f"partition {missing[0].partition} of {missing[0].topic} is not served right now")
    return found

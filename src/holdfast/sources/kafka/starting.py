"""Where partitions begin that nobody has read, when a pipeline starts for the first time.

The answer is pinned in the partition's row when it is made: asked again later, `latest` would skip records.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from holdfast.sources.kafka.cluster import Cluster, Place
from holdfast.sources.kafka.config import KafkaConfig


def starts_of(config: KafkaConfig, cluster: Cluster, places: Sequence[Place]) -> dict[Place, int]:
    """First offsets by the start setting; a partition that is not among them begins at its earliest record."""
    if config.start == "latest":
        return cluster.ends(places)
    if config.start == "offset" and config.start_offset is not None:
        return dict.fromkeys(places, config.start_offset)
    if config.start == "time" and config.start_time is not None:
        moment = config.start_time if config.start_time.tzinfo else config.start_time.replace(tzinfo=UTC)
        return cluster.at_time(places, int(moment.timestamp() * 1000))
    if config.start == "group" and config.start_group is not None:
        return cluster.committed(config.start_group, places)
    return {}

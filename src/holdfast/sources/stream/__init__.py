"""The source `stream`: an embedded stream on this host, each shard a lease that lives as long as the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin
from holdfast.sources.stream.config import StreamConfig

if TYPE_CHECKING:
    from holdfast.sources.stream.source import StreamSource


def build(config: StreamConfig) -> StreamSource:
    """Return the source with these settings; opens nothing yet."""
    from holdfast.sources.stream.source import StreamSource

    return StreamSource(config)


PLUGIN = Plugin(
    "stream", StreamConfig, build, "Shards of a stream in a folder on this host, shared fairly among nodes."
)

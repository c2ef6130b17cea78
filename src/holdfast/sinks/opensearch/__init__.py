"""The sink `opensearch`: documents in OpenSearch, or in Elasticsearch where the same calls work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, Registry, needing
from holdfast.sinks.opensearch.config import OpenSearchConfig

if TYPE_CHECKING:
    from holdfast.sinks.opensearch.sink import OpenSearchSink


def build(name: str, config: OpenSearchConfig, formats: Registry) -> OpenSearchSink:  # noqa: ARG001 - has no formats
    """The sink of that name, not yet connected. Raises `UsageError` if the client is missing."""
    with needing("the opensearch sink", "opensearch-py", "opensearch"):
        import opensearchpy  # noqa: F401 - a missing client fails here, not in a task
    if config.mode == "staged":
        from holdfast.sinks.opensearch.staged_sink import build_staged_sink

        return build_staged_sink(name, config)
    from holdfast.sinks.opensearch.sink import build_sink

    return build_sink(name, config)


PLUGIN = Plugin(
    "opensearch", OpenSearchConfig, build, "Documents in OpenSearch or Elasticsearch, each record there once."
)

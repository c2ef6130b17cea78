"""The sink `kafka`: each row becomes a message of a topic, exactly once for consumers that read committed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, Registry, needing
from holdfast.sinks.kafka.config import KafkaSinkConfig

if TYPE_CHECKING:
    from holdfast.sinks.kafka.sink import KafkaSink


def build(name: str, config: KafkaSinkConfig, formats: Registry) -> KafkaSink:  # noqa: ARG001 - it has no formats
    """The sink of that name, not yet connected. Raises `UsageError` if the client is missing."""
    with needing("the sink kafka", "confluent-kafka", "kafka"):
        from holdfast.sinks.kafka.sink import build_sink
    return build_sink(name, config)


PLUGIN = Plugin(
    "kafka", KafkaSinkConfig, build, "Messages of a Kafka topic, once for consumers that read committed messages."
)

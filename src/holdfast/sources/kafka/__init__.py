"""The source `kafka`: topics of one cluster, each partition a lease that lives as long as the topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.registry import Plugin, needing
from holdfast.sources.kafka.config import KafkaConfig

if TYPE_CHECKING:
    from holdfast.sources.kafka.source import KafkaSource


def build(config: KafkaConfig) -> KafkaSource:
    """Return the source with these settings; connects to nothing yet. Raises `UsageError` if the client is missing."""
    with needing("the source kafka", "confluent-kafka", "kafka"):
        import confluent_kafka  # noqa: F401 - it fails here and not in a task
    from holdfast.sources.kafka.source import KafkaSource

    return KafkaSource(config)


PLUGIN = Plugin("kafka", KafkaConfig, build, "Topics of a Kafka cluster, read by Spark, shared fairly among nodes.")

"""The properties that Kafka's clients are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import load_text
from holdfast.config.kafka_client import Security, client_properties
from holdfast.errors import ConfigError
from holdfast.registry import Registry
from holdfast.sources.kafka.config import KafkaConfig, spark_options


def test_certificates_travel_to_executors_which_need_not_have_the_files(tmp_path: Path) -> None:
    texts = {
        "ca": "# Zertifizierungsstelle für alle\n-----BEGIN CERTIFICATE-----\n",
        "certificate": "certificate",
        "key": "key",
    }
    files = {name: tmp_path / f"{name}.pem" for name in texts}
    for name, file in files.items():
        file.write_text(texts[name], encoding="utf-8")
    ca, certificate, key = map(str, files.values())
    security = Security(protocol="SSL", ca_file=ca, certificate_file=certificate, key_file=key)
    config = KafkaConfig(bootstrap_servers="broker:9093", topics=("orders",), security=security)
    options = spark_options(config)
    assert options["kafka.ssl.truststore.certificates"] == texts["ca"]
    assert options["kafka.ssl.keystore.certificate.chain"] == texts["certificate"]
    assert options["kafka.ssl.keystore.key"] == texts["key"]
    assert not any(str(tmp_path) in value for value in options.values())
    # The other client runs on the node, where the files are.
    assert client_properties(config)["ssl.ca.location"] == ca


@pytest.mark.parametrize(
    ("letters", "read"),
    [
        ("{bootstrap_servers: 'b:9092', topic: orders-dead}", True),
        ("{bootstrap_servers: 'b:9092', topic: dead-orders}", False),
        ("{bootstrap_servers: 'other:9092', topic: orders-dead}", False),
    ],
)
def test_a_pipeline_cannot_read_the_topic_of_its_own_dead_letters(letters: str, read: bool) -> None:
    text = (
        "source_coordination: {store: {in_memory: {}}}\n"
        "pipelines:\n"
        "  p:\n"
        "    source: {kafka: {bootstrap_servers: 'a:9092, b:9092', topics_pattern: 'orders-.*'}}\n"
        f"    sinks: [{{files: {{root: /out, dead_letters: {{kafka: {letters}}}}}}}]\n"
    )
    if read:
        with pytest.raises(ConfigError, match="'orders-dead' is read by this pipeline"):
            load_text(text, "pipeline.yaml", Registry.installed())
    else:
        load_text(text, "pipeline.yaml", Registry.installed())

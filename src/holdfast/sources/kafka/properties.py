"""Settings as properties of the two clients: librdkafka on the node, Kafka's Java client in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.config import Secret
from holdfast.sources.kafka.config import KafkaConfig, Security


def client_properties(config: KafkaConfig) -> dict[str, str]:
    """Return the properties for librdkafka."""
    security = config.security
    properties = {
        "bootstrap.servers": config.bootstrap_servers,
        "security.protocol": security.protocol,
        "sasl.mechanism": security.sasl_mechanism,
        "sasl.username": _plain(security.username),
        "sasl.password": _plain(security.password),
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
        # holdfast reports a broker that is down once; librdkafka would log it to stderr every second.
        "log_level": "0",
        "socket.connection.setup.timeout.ms": "10000",
    }
    return {name: value for name, value in properties.items() if value is not None} | _revealed(
        config.client_properties
    )


def spark_options(config: KafkaConfig) -> dict[str, str]:
    """Return the options for Spark's connector."""
    properties = {
        "bootstrap.servers": config.bootstrap_servers,
        "isolation.level": config.isolation,
        # With the defaults the broker works three times as much and reading is a third slower.
        "max.poll.records": "10000",
        "max.partition.fetch.bytes": "4194304",
        "fetch.max.bytes": "52428800",
        # Without this, each task waits half a second for more records at the end of the log.
        "fetch.max.wait.ms": "10",
        **_java_security(config.security),
        **_revealed(config.spark_properties),
    }
    return {f"kafka.{name}": value for name, value in properties.items()}


def _java_security(security: Security) -> dict[str, str]:
    properties: dict[str, str] = {"security.protocol": security.protocol}
    if security.sasl_mechanism is not None:
        properties["sasl.mechanism"] = security.sasl_mechanism
        properties["sasl.jaas.config"] = _login(security)
    # Contents, not paths: executors on other machines do not have the files.
    if security.ca_file is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(security.ca_file)}
    if security.certificate_file is not None and security.key_file is not None:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.certificate.chain"] = _text(security.certificate_file)
        properties["ssl.keystore.key"] = _text(security.key_file)
    return properties


def _login(security: Security) -> str:
    scram = (security.sasl_mechanism or "").startswith("SCRAM")
    module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
    user, password = _quoted(_plain(security.username)), _quoted(_plain(security.password))
    return f"org.apache.kafka.common.security.{module} required username={user} password={password};"


def _quoted(text: str | None) -> str:
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _plain(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()


def _revealed(given: Mapping[str, str | Secret]) -> dict[str, str]:
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in given.items()}

"""Settings as the two clients want them: librdkafka on the node, Kafka's Java client in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.config import Secret
from holdfast.sources.kafka.config import KafkaConfig, Security


def client_properties(config: KafkaConfig) -> dict[str, str]:
    """For librdkafka."""
    security = config.security
    told = {
        "bootstrap.servers": config.bootstrap_servers,
        "security.protocol": security.protocol,
        "sasl.mechanism": security.sasl_mechanism,
        "sasl.username": _plain(security.username),
        "sasl.password": _plain(security.password),
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
        # A broker that is down is told once by us, not every second on stderr.
        "log_level": "0",
        "socket.connection.setup.timeout.ms": "10000",
    }
    return {name: value for name, value in told.items() if value is not None} | _revealed(config.client_properties)


def spark_options(config: KafkaConfig) -> dict[str, str]:
    """For Spark's connector."""
    told = {
        "bootstrap.servers": config.bootstrap_servers,
        "isolation.level": config.isolation,
        # The defaults cost the broker three times the work and the reader a third of its speed.
        "max.poll.records": "10000",
        "max.partition.fetch.bytes": "4194304",
        "fetch.max.bytes": "52428800",
        # A task reads what is there: without this each waits half a second for more when it comes to the log's end.
        "fetch.max.wait.ms": "10",
        **_java_security(config.security),
        **_revealed(config.spark_properties),
    }
    return {f"kafka.{name}": value for name, value in told.items()}


def _java_security(security: Security) -> dict[str, str]:
    told: dict[str, str] = {"security.protocol": security.protocol}
    if security.sasl_mechanism is not None:
        told["sasl.mechanism"] = security.sasl_mechanism
        told["sasl.jaas.config"] = _login(security)
    # Texts and no paths: executors on other machines do not have the files.
    if security.ca_file is not None:
        told |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(security.ca_file)}
    if security.certificate_file is not None and security.key_file is not None:
        told["ssl.keystore.type"] = "PEM"
        told["ssl.keystore.certificate.chain"] = _text(security.certificate_file)
        told["ssl.keystore.key"] = _text(security.key_file)
    return told


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

"""A broker that wants TLS: the node's client and Spark's executors reach it from the same settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.config import Secret
from holdfast.config.kafka_client import Security, client_properties
from holdfast.sources.kafka.cluster import Cluster
from holdfast.sources.kafka.config import KafkaConfig, spark_options
from tests.servers.kafka import KafkaServer
from tests.servers.processes import free_port, run, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SettingsOf = Callable[["TlsKafka"], KafkaConfig]

TOPIC = "sealed"
PASSWORD = 'as "said" \\ and quoted'


class TlsKafka(KafkaServer):
    """Also listens with TLS: once for clients with a certificate, once for those with a password."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self.certificate_port, self.password_port = free_port(), free_port()

    def initialise(self) -> None:
        ca = ("-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", self.pem("ca-key"), "-out", self.pem("ca"))
        self._openssl("req", *ca)
        for name in ("broker", "client"):
            self._openssl("req", "-subj", f"/CN={name}", "-keyout", self.pem(f"{name}-key"), "-out", self.pem("asked"))
            (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
            signed = ("-CA", self.pem("ca"), "-CAkey", self.pem("ca-key"), "-extfile", str(self.folder / "names"))
            run("openssl", "x509", "-req", "-days", "2", "-in", self.pem("asked"), "-out", self.pem(name), *signed)
        both = [Path(self.pem(name)).read_text() for name in ("broker-key", "broker")]
        Path(self.pem("broker-both")).write_text("".join(both))
        super().initialise()

    def pem(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def _openssl(self, *arguments: str) -> None:
        run("openssl", *arguments[:1], "-newkey", "rsa:2048", "-nodes", *arguments[1:])

    def _defaults(self) -> Mapping[str, str]:
        plain = super()._defaults()
        sealed = f",SSL://127.0.0.1:{self.certificate_port},SASL_SSL://127.0.0.1:{self.password_port}"
        quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="{quoted}";'
        return {
            **plain,
            "listeners": plain["listeners"] + sealed,
            "advertised.listeners": plain["advertised.listeners"] + sealed,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.pem("broker-both"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.pem("ca"),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN",
            # A properties file takes one backslash of two.
            "listener.name.sasl_ssl.plain.sasl.jaas.config": login.replace("\\", "\\\\"),
        }


@pytest.fixture(scope="module")
def tls_kafka() -> Iterator[TlsKafka]:
    with running(TlsKafka) as server:
        server.create_topic(TOPIC)
        server.produce(TOPIC, [b"one", b"two"])
        yield server


def by_certificate(kafka: TlsKafka) -> KafkaConfig:
    certificate, key = kafka.pem("client"), kafka.pem("client-key")
    security = Security(protocol="SSL", ca_file=kafka.pem("ca"), certificate_file=certificate, key_file=key)
    return KafkaConfig(bootstrap_servers=f"127.0.0.1:{kafka.certificate_port}", topics=(TOPIC,), security=security)


def by_password(kafka: TlsKafka) -> KafkaConfig:
    user, password = Secret("reader"), Secret(PASSWORD)
    security = Security(
        protocol="SASL_SSL", sasl_mechanism="PLAIN", ca_file=kafka.pem("ca"), username=user, password=password
    )
    return KafkaConfig(bootstrap_servers=f"127.0.0.1:{kafka.password_port}", topics=(TOPIC,), security=security)


@pytest.mark.parametrize("settings_of", [by_certificate, by_password])
def test_both_clients_read_over_tls(spark: SparkSession, tls_kafka: TlsKafka, settings_of: SettingsOf) -> None:
    config = settings_of(tls_kafka)
    (topic,) = Cluster(client_properties(config), config.isolation).topics(lambda name: name == TOPIC)
    assert topic.partitions == (0,)
    ranges = {"startingOffsets": {TOPIC: {"0": 0}}, "endingOffsets": {TOPIC: {"0": 2}}, "assign": {TOPIC: [0]}}
    options = {name: json.dumps(value) for name, value in ranges.items()}
    frame = spark.read.format("kafka").options(**spark_options(config), **options).load()
    assert [row.value for row in frame.orderBy("offset").collect()] == [b"one", b"two"]

"""Secrets among settings that are named by Spark and by the clients of Kafka: in the file itself, and by name."""

from __future__ import annotations

import re

import pytest

from holdfast import service
from holdfast.config import Settings, load_text
from holdfast.config.plain_text import secret_names, warnings_of_plain_text
from holdfast.errors import StoreError
from holdfast.events import Event, Notice
from holdfast.registry import Registry
from holdfast.spark.session import redaction

PASSWORD = {"PASSWORD": "sesame"}


def settings(conf: str = "", client: str = "", spark: str = "", before: str = "") -> Settings:
    text = f"""
{before}
spark: {{conf: {{{conf}}}}}
pipelines:
  p:
    source:
      kafka:
        bootstrap_servers: b:9092
        topics: [t]
        client_properties: {{{client}}}
        spark_properties: {{{spark}}}
    sinks: [{{files: {{root: build/out, format: jsonl}}}}]
"""
    return load_text(text, "f.yaml", Registry.installed(), PASSWORD)


def test_the_warning_says_where_and_what_to_write() -> None:
    kafka = "pipelines.p.source.kafka"
    assert warnings_of_plain_text(
        settings("spark.hadoop.fs.s3a.secret.key: hunter2", "sasl.password: hunter2", "ssl.key.password: hunter2")
    ) == [
        f"{where}: {name} stands in the file as plain text; write ${{env:NAME}} or ${{file:PATH}}"
        for where, name in [
            ("spark.conf", "spark.hadoop.fs.s3a.secret.key"),
            (f"{kafka}.client_properties", "sasl.password"),
            (f"{kafka}.spark_properties", "ssl.key.password"),
        ]
    ]


def test_a_node_warns_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("no store in this test")

    monkeypatch.setattr(service, "open_store", refuse)
    events: list[Event] = []
    with pytest.raises(StoreError):
        service.run(settings(client="sasl.password: hunter2"), events.append)
    (notice,) = events
    assert isinstance(notice, Notice)
    assert "sasl.password stands in the file as plain text" in notice.message
    assert "hunter2" not in notice.message


@pytest.mark.parametrize(
    "entry",
    [
        "sasl.oauthbearer.client.secret: x",
        "ssl.keystore.key: x",
        "ssl.key.pem: x",
        "spark.hadoop.fs.s3a.session.token: x",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net: x",
        "spark.hadoop.fs.azure.sas.fixed.token.lake: x",
        "spark.ssl.keyStorePassword: x",
        'sasl.jaas.config: \'PlainLoginModule required username="u" password="x";\'',
        "spark.executorEnv.DB_PWD: x",
    ],
)
def test_names_that_say_secret(entry: str) -> None:
    assert len(warnings_of_plain_text(settings(entry, entry, entry))) == 3


@pytest.mark.parametrize(
    "entry",
    [
        "spark.executor.memory: 1g",
        "spark.authenticate: true",
        "ssl.key.location: /etc/key.pem",
        "ssl.keystore.location: /etc/store.p12",
        "ssl.keystore.type: PEM",
        "sasl.oauthbearer.token.endpoint.url: https://login.example",
        "spark.hadoop.fs.s3a.aws.credentials.provider: com.example.Provider",
        "spark.security.credentials.kafka.enabled: false",
        "spark.kubernetes.executor.secretKeyRef.PW: store:password",
        "spark.kubernetes.driver.secrets.store: /etc/secrets",
        "spark.authenticate.secret.file: /etc/secret",
        "sasl.jaas.config: 'Krb5LoginModule required useKeyTab=true;'",
        "sasl.password: '${env:PASSWORD}'",
    ],
)
def test_what_is_not_warned_of(entry: str) -> None:
    assert (
        warnings_of_plain_text(settings(entry, entry.replace(": true", ": 'true'").replace(": false", ": 'false'")))
        == []
    )


def test_a_file_that_allows_plain_text_is_not_warned_of() -> None:
    allowed = settings(client="sasl.password: hunter2", before="allow_plaintext_secrets: true")
    assert warnings_of_plain_text(allowed) == []


def test_spark_redacts_every_secret_whatever_its_name_is() -> None:
    loaded = settings(
        "spark.executorEnv.LAKE_DSN: '${env:PASSWORD}', spark.executor.memory: 1g", spark="my.option: '${env:PASSWORD}'"
    )
    assert secret_names(loaded) == {"spark.executorEnv.LAKE_DSN", "my.option"}
    given = redaction(secret_names(loaded), loaded.spark.plain_conf())
    assert set(given) == {"spark.redaction.regex", "spark.sql.redaction.options.regex"}
    for regex in given.values():
        for name in (
            "spark.executorEnv.LAKE_DSN",
            "kafka.my.option",
            "kafka.sasl.jaas.config",
            "kafka.ssl.keystore.key",
            "PASSWORD",
        ):
            assert re.search(regex, name)
        for name in ("spark.executor.memory", "kafka.my-option", "kafka.bootstrap.servers"):
            assert not re.search(regex, name)
    assert re.search(given["spark.sql.redaction.options.regex"], "url")


def test_what_the_user_wants_redacted_stays_redacted() -> None:
    regex = redaction((), {"spark.redaction.regex": "(?i)dsn|x"})["spark.redaction.regex"]
    assert regex.startswith("(?i)dsn|x|")
    assert re.search(regex, "LAKE_DSN")
    assert re.search(regex, "password")

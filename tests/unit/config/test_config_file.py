"""What a right file becomes."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from holdfast.config import NamedSink, PluginUse, load
from holdfast.errors import ConfigError
from holdfast.registry import Registry
from tests.unit.config.samples import (
    PIPELINE,
    PLUGINS,
    REGISTRY,
    DynamoDb,
    Files,
    InMemory,
    Jsonl,
    Objects,
    Sqlite,
    plugin,
    problems,
    settings,
)

FIXTURES = Path(__file__).parent / "fixtures"


def test_every_setting_arrives() -> None:
    loaded = load(FIXTURES / "everything.yaml", REGISTRY, {"PASSWORD": "sesame"})
    assert loaded.coordination.partition_prefix == "team-a"
    assert loaded.coordination.ownership_timeout == 600
    assert loaded.coordination.store == PluginUse("sqlite", Sqlite(path="state/leases.db"))
    assert loaded.node.model_dump() == {
        "name": "replica1",
        "session_timeout": 30.0,
        "heartbeat_interval": 10.0,
        "step_limit": 90.0,
        "metrics_port": 9090,
        "metrics_address": "0.0.0.0",  # noqa: S104 (data, nothing listens)
        "log": "json",
    }
    assert loaded.spark.master == "local[2]"
    assert loaded.spark.py_files == ("parsing.py", "shop/")
    assert loaded.spark.plain_conf() == {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
    }
    clicks = loaded.pipelines["clicks"]
    assert isinstance(clicks.source.config, Objects)
    assert clicks.source.name == "objects"
    assert [use.name for use in clicks.processors] == ["filter"]
    assert [sink.name for sink in clicks.sinks] == ["files", "archive"]
    assert (clicks.batch.max_bytes, clicks.batch.max_records, clicks.batch.timeout) == (64 << 20, 1000, 1800)
    assert clicks.round.max_batches == 10
    assert clicks.retries.model_dump() == {
        "max_retries": 5,
        "backoff": 0.5,
        "max_backoff": 60.0,
        "max_takeovers": 4,
    }
    assert (clicks.generation, clicks.replicas, clicks.closed_last) == (2, 3, True)


def test_what_is_not_given_has_a_default() -> None:
    loaded = settings(PIPELINE)
    assert loaded.coordination.store == PluginUse("in_memory", InMemory())
    assert loaded.coordination.partition_prefix is None
    assert loaded.coordination.ownership_timeout == 600
    assert loaded.node.name == socket.gethostname()
    assert (loaded.node.session_timeout, loaded.node.heartbeat_interval) == (30, 10)
    assert (loaded.node.metrics_port, loaded.node.metrics_address) == (None, "127.0.0.1")
    assert (loaded.node.step_limit, loaded.node.log) == (60, "text")
    assert (loaded.spark.master, loaded.spark.plain_conf()) == (None, {})
    clicks = loaded.pipelines["clicks"]
    assert clicks.processors == ()
    assert (clicks.batch.max_bytes, clicks.batch.max_records, clicks.batch.timeout) == (256_000_000, None, 3600)
    assert (clicks.round.max_batches, clicks.generation, clicks.closed_last) == (100, 1, False)
    assert clicks.replicas is None
    assert clicks.retries.model_dump() == {
        "max_retries": 3,
        "backoff": 5.0,
        "max_backoff": 300.0,
        "max_takeovers": 10,
    }


def test_the_heartbeat_follows_the_session() -> None:
    assert settings("node: {session_timeout: 90s}").node.heartbeat_interval == 30


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings(PIPELINE).node.log = "json"  # type: ignore[misc]


@pytest.mark.parametrize(("prefix", "identifier"), [("", "clicks"), ("partition_prefix: a", "a|clicks")])
def test_the_identifier_carries_the_prefix(prefix: str, identifier: str) -> None:
    assert settings(f"source_coordination: {{{prefix}}}").identifier("clicks") == identifier


def test_sinks_without_a_name_get_their_plugins_name_and_a_number() -> None:
    text = PIPELINE.replace(
        "[{files: {path: out}}]",
        "[{files: {path: a}}, {files: {path: b}}, {name: files-3, files: {path: c}}, {files: {path: d}}]",
    )
    sinks = settings(text).pipelines["clicks"].sinks
    assert [sink.name for sink in sinks] == ["files", "files-2", "files-3", "files-4"]
    assert sinks[2] == NamedSink("files-3", PluginUse("files", Files(path="c", format=PluginUse("jsonl", Jsonl()))))


def test_a_plugin_may_be_named_by_its_place() -> None:
    plugin = "tests.unit.config.samples:PLUGINS"
    assert problems(f"source_coordination: {{store: {{'{plugin}': }}}}") == [
        f"1:31 store '{plugin}' is not a Plugin but a dict"
    ]
    plugin = "tests.unit.test_registry:SAMPLE"
    assert settings(f"source_coordination: {{store: {{'{plugin}': }}}}").coordination.store.name == plugin


def test_keys_are_text_and_so_are_dates_and_times() -> None:
    text = PIPELINE.replace("clicks", "2024").replace("path: in", "path: 2024-01-31, user: 12:30")
    source = settings(text).pipelines["2024"].source.config
    assert (source.path, source.user) == ("2024-01-31", "12:30")


def test_an_alias_repeats_a_value() -> None:
    text = """\
        pipelines:
          a: &a
            source: {objects: {path: in}}
            sinks: [{files: {path: out}}]
          b: *a
    """
    pipelines = settings(text).pipelines
    assert pipelines["a"] == pipelines["b"]


class TestBlocksOfTheDocumentation:
    def test_in_memory_works_as_it_stands(self) -> None:
        loaded = load(FIXTURES / "in_memory.yaml", REGISTRY)
        assert loaded.coordination.store == PluginUse("in_memory", InMemory())
        assert loaded.pipelines == {}

    @pytest.mark.parametrize("name", ["dynamodb.yaml", "dynamodb_without_account.yaml"])
    def test_dynamodb_works_as_it_stands_once_a_plugin_is_there(self, name: str) -> None:
        registry = Registry({**PLUGINS, "stores": [plugin("dynamodb", DynamoDb)]})
        store = load(FIXTURES / name, registry).coordination.store
        written = re.search(r'sts_role_arn: "(.*)"', (FIXTURES / name).read_text())
        assert written
        assert store == PluginUse(
            "dynamodb",
            DynamoDb(
                table_name="DataPrepperSourceCoordinationStore",
                region="us-east-1",
                sts_role_arn=written[1],
                ttl=7 * 86400,
                skip_table_creation=True,
            ),
        )

    def test_dynamodb_is_refused_while_no_plugin_is_there(self) -> None:
        path = FIXTURES / "dynamodb.yaml"
        with pytest.raises(ConfigError) as refused:
            load(path, REGISTRY)
        assert str(refused.value) == (
            f"{path}:3:6: store 'dynamodb' is not installed; installed: in_memory, sqlite\n"
            "    3 |      dynamodb:\n"
            "             ^"
        )

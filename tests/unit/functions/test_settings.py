from __future__ import annotations

import pickle
from importlib.metadata import entry_points
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from holdfast.config import load_text
from holdfast.errors import ConfigError
from holdfast.functions.nuclio_trigger import StreamAddress
from holdfast.functions.settings import FunctionConfig, SeekTime
from holdfast.registry import Plugin, Registry


def _config(**settings: Any) -> FunctionConfig:
    return FunctionConfig.model_validate({"handler": "main:handler", **settings})


def test_defaults() -> None:
    config = _config()
    assert (config.ack, config.worker_allocation, config.workers) == ("disable", "pool", 1)
    assert (config.session_timeout, config.heartbeat_interval, config.commit_interval) == (10.0, 3.0, 1.0)
    assert (config.on_error.max_retries, config.on_error.after_retries, config.batch) == (3, "dead_letter", None)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 (made here)


def test_every_field_of_the_trigger_under_its_own_name() -> None:
    config = _config(
        url=" http://v3io-webapi:8081/bigdata/folder/my-stream@cg0",
        maxWorkers=8,
        seekTo="Earliest",
        readBatchSize=128,
        pollingIntervalMs=250,
        password="key",
        explicitAckMode="explicitOnly",
        sessionTimeout="12s",
        heartbeatInterval="2s",
        sequenceNumberCommitInterval="500ms",
        annotations={"nuclio.io/v3iostream-worker-allocation-mode": "static"},
        workerAvailabilityTimeoutMilliseconds=10000,
        partitions=0,
        username="me",
        workerAllocatorName="shared",
    )
    assert config.url == StreamAddress("v3io-webapi:8081", "bigdata", "folder/my-stream", "cg0")
    assert config.url is not None
    assert config.url.stream == "bigdata.folder.my-stream"
    assert (config.workers, config.seek_to, config.read_batch_size) == (8, "earliest", 128)
    assert (config.polling_interval, config.ack, config.worker_allocation) == (0.25, "explicit_only", "static")
    assert (config.session_timeout, config.heartbeat_interval, config.commit_interval) == (12.0, 2.0, 0.5)
    assert "key" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 (made here)
    assert [warning.split()[0] for warning in config.warnings()] == [
        "workerAvailabilityTimeoutMilliseconds",
        "partitions",
        "username",
        "workerAllocatorName",
        "password",
    ]
    assert _config().warnings() == []


def test_a_setting_beats_an_annotation() -> None:
    annotations = {"nuclio.io/v3iostream-worker-allocation-mode": "static"}
    assert _config(worker_allocation="pool", annotations=annotations).worker_allocation == "pool"
    assert _config(workerAllocationMode="pool", annotations=annotations).worker_allocation == "pool"


def test_a_time_to_begin_at() -> None:
    seek = _config(seek_to={"time": "2026-01-01T00:00:00Z"}).seek_to
    assert isinstance(seek, SeekTime)
    assert seek.time.timestamp() == 1767225600


@pytest.mark.parametrize("mode", ["enable", "explicit_only", "explicitOnly"])
def test_explicit_acks_need_static_workers(mode: str) -> None:
    with pytest.raises(ValidationError, match=r"needs worker_allocation: static"):
        _config(ack=mode)
    assert _config(ack=mode, worker_allocation="static").ack != "disable"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"handler": "no handler"}, "must be module:name"),
        ({"heartbeat_interval": "6s"}, "at most half of session_timeout"),
        ({"on_error": {"bisect": True}}, "for batch handlers"),
        ({"url": "http://host/stream@group"}, "container/stream path@consumer group"),
        ({"url": "http://host/container/stream"}, "consumer group"),
        ({"url": "http://host:x/container/stream@g"}, "consumer group"),
        ({"url": "http://me:pw@host/container/stream@g"}, "without a user name"),
        ({"seek_to": "beginning"}, "earliest"),
        ({"annotations": {"nuclio.io/other": "1"}}, "annotations may hold"),
        ({"maxWorker": 1}, "Extra inputs"),
        ({"maxWorkers": 1, "workers": 1}, "workers and maxWorkers are names of one setting"),
        ({"pollingIntervalMs": "soon"}, "number of milliseconds"),
        ({"pollingIntervalMs": 1, "polling_interval": 1}, "stands for polling_interval"),
    ],
)
def test_mistakes_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        _config(**settings)


@pytest.mark.parametrize("name", ["main:handler", "a.b-c:f", "folder/main.py", "/x/main.py:other", "./main.py"])
def test_names_of_handlers(name: str) -> None:
    assert _config(handler=name).handler == name


def _loaded(line: str) -> None:
    plugin = Plugin("function", FunctionConfig, lambda config: config, "Call a handler.")
    registry = Registry({"sinks": [plugin]}, lambda kind: entry_points(group=f"holdfast.{kind}"))
    source = "kafka: {bootstrap_servers: a:1, topics: [t]}"
    sink = f"function: {{handler: a:b, {line}}}"
    load_text(f"pipelines:\n  a:\n    source: {{{source}}}\n    sinks:\n      - {sink}\n", "f.yaml", registry)


def test_a_file_may_use_either_name_and_a_mistake_is_shown_where_it_is() -> None:
    _loaded("maxWorkers: 3, seekTo: Earliest, pollingIntervalMs: 250")
    with pytest.raises(ConfigError, match=r"f.yaml:5:\d+: ack: enable needs worker_allocation: static"):
        _loaded("ack: enable")
    with pytest.raises(ConfigError, match=r"f.yaml:5:46: expected a whole number, not 'x'"):
        _loaded("maxWorkers: x")
    with pytest.raises(ConfigError, match="plain-text secrets are not allowed"):
        _loaded("password: abc")


def test_editors_know_both_names() -> None:
    schema = FunctionConfig.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"handler": "a:b", "maxWorkers": 3, "pollingIntervalMs": 250, "workers": 3}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"handler": "a:b", "maxWorkers": "x"}, schema)

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from holdfast.cli.root import app

HANDLER = """
import sys
def handler(context, event):
    context.logger.info_with("Got event", body=event.body)
    return {"shard": event.shard_id, "body": event.body if isinstance(event.body, dict) else event.body.decode()}
def failing(context, event):
    sys.exit(3)
def refusing(context, event):
    return context.Response(status_code=500, body="no")
"""


def _run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def _handler(folder: Path, code: str = HANDLER) -> str:
    path = folder / "cli_handler.py"
    path.write_text(code)
    return str(path)


def test_init_makes_a_handler_whose_test_passes(tmp_path: Path) -> None:
    done = _run("function", "init", "my_orders", "--folder", str(tmp_path))
    assert done.exit_code == 0, done.output
    handler, test = map(Path, done.stdout.split())
    assert (handler.name, test.name) == ("my_orders.py", "test_my_orders.py")
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    checked = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), test.name],
        cwd=test.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    invoked = _run("function", "invoke", str(handler), "--event", "hello")
    assert (invoked.exit_code, invoked.stdout) == (0, "event 0: acked; returned None\n")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    assert _run("function", "init", "twice", "--folder", str(tmp_path)).exit_code == 0
    done = _run("function", "init", "twice", "--folder", str(tmp_path))
    assert (done.exit_code, "exists already" in done.stderr) == (2, True)
    assert "cannot be the name" in _run("function", "init", "a-b", "--folder", str(tmp_path)).stderr


def test_invoke_calls_a_handler_with_events_in_order(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text('{"id": 7}')
    done = _run(
        *("function", "invoke", _handler(tmp_path), "--event", f"@{file}", "--event", "-", "--json", "--shard-id", "5"),
        *("--header", "content-type=application/json"),
        text='{"id": 8}',
    )
    assert done.exit_code == 0, done.output
    calls = json.loads(done.stdout)
    assert [call["result"] for call in calls] == [{"shard": 5, "body": {"id": 7}}, {"shard": 5, "body": {"id": 8}}]
    assert [(call["offsets"], call["acked"], call["error"]) for call in calls] == [([0], True, None), ([1], True, None)]
    assert '"message":"Got event"' in done.stderr


@pytest.mark.parametrize(("name", "shown"), [("failing", "SystemExit: 3"), ("refusing", "status 500: no")])
def test_invoke_exits_with_1_if_the_handler_fails(tmp_path: Path, name: str, shown: str) -> None:
    done = _run("function", "invoke", _handler(tmp_path), "--event", "x", "--handler", name)
    assert done.exit_code == 1
    assert shown in done.stdout
    assert _run("function", "invoke", f"{_handler(tmp_path)}:{name}", "--event", "x").stdout == done.stdout


def test_invoke_takes_the_name_of_a_handler_once(tmp_path: Path) -> None:
    done = _run("function", "invoke", f"{_handler(tmp_path)}:failing", "--event", "x", "--handler", "refusing")
    assert (done.exit_code, "names its handler already" in done.stderr) == (2, True)


def test_invoke_refuses_what_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in _run("function", "invoke", str(tmp_path / "no.py"), "--event", "x").stderr
    assert "cannot be read" in _run("function", "invoke", str(tmp_path / "no.yaml"), "--event", "x").stderr
    assert (
        "must be NAME=VALUE"
        in _run(*("function", "invoke", _handler(tmp_path), "--event", "x", "--header", "y")).stderr
    )


ACKING = """
import nuclio
async def handler(context, event):
    await context.platform.explicit_ack(nuclio.QualifiedOffset.from_event(event))
"""


def test_invoke_reads_the_function_of_a_pipeline_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "static")
    function = {
        "handler": _handler(tmp_path, ACKING),
        "ack": "explicit_only",
        "worker_allocation": "${env:MODE}",
        "dead_letters": {"file": "letters"},
    }
    file = tmp_path / "pipeline.yaml"
    pipelines = {"acks": {"source": {"any": None}, "sinks": [{"function": {**function, "username": "me"}}]}}
    file.write_text(yaml.safe_dump({"pipelines": pipelines}))
    done = _run("function", "invoke", str(file), "--event", "x")
    assert done.stdout == "event 0: not acked; explicit acks: 0/0; returned None\n"
    assert "warning: username is ignored" in done.stderr
    pipelines["acks"]["sinks"] = [{"function": {**function, "worker_allocation": "pool"}}]
    file.write_text(yaml.safe_dump({"pipelines": pipelines}))
    done = _run("function", "invoke", str(file), "--event", "x")
    assert (done.exit_code, "needs worker_allocation: static" in done.stderr) == (2, True)
    assert (
        "has no function in a pipeline 'other'"
        in _run(*("function", "invoke", str(file), "--event", "x", "--pipeline", "other")).stderr
    )


NUCLIO = """
apiVersion: "nuclio.io/v1"
kind: NuclioFunction
metadata:
  name: my.function
  annotations:
    nuclio.io/v3iostream-worker-allocation-mode: static
    other/annotation: x
spec:
  handler: HANDLER
  runtime: python:3.11
  replicas: 3
  eventTimeout: 30s
  env:
    - {name: PLAIN, value: "a${b}"}
    - {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}
  build:
    commands: [pip install requests]
  triggers:
    myStream:
      kind: v3ioStream
      url: http://v3io-webapi:8081/users/test-stream-0@cg0
      maxWorkers: 8
      password: very-secret-key
      workerAvailabilityTimeoutMilliseconds: 10000
      explicitAckMode: explicitOnly
      attributes:
        seekTo: earliest
        readBatchSize: 64
        pollingIntervalMs: 250
        sessionTimeout: 10s
        ackWindowSize: 5
    web:
      kind: http
"""


def test_convert_makes_a_pipeline_of_a_nuclio_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "function.yaml"
    file.write_text(NUCLIO.replace("HANDLER", "cli_handler:handler"))
    done = _run("convert", "nuclio", str(file))
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout) == {
        "pipelines": {
            "my-function": {
                "source": {"stream": {"name": "users.test-stream-0"}},
                "sinks": [
                    {
                        "function": {
                            "handler": "cli_handler:handler",
                            "environment": {"PLAIN": "a$${b}", "SECRET": "${env:SECRET}"},
                            "url": "http://v3io-webapi:8081/users/test-stream-0@cg0",
                            "maxWorkers": 8,
                            "workerAllocationMode": "static",
                            "seekTo": "earliest",
                            "readBatchSize": 64,
                            "pollingIntervalMs": 250,
                            "explicitAckMode": "explicitOnly",
                            "sessionTimeout": "10s",
                            "timeout": "30s",
                            "password": "${env:MY_FUNCTION_PASSWORD}",
                            "dead_letters": {"file": "./dead-letters/my-function"},
                        }
                    }
                ],
                "replicas": 3,
            }
        }
    }
    comments = [line for line in done.stdout.splitlines() if line.startswith("#   ")]
    said = {comment[4:].split(":")[0] for comment in comments}
    assert said == {
        "spec.triggers.web",
        "spec.triggers.myStream.url",
        "spec.triggers.myStream.password",
        "spec.triggers.myStream.workerAvailabilityTimeoutMilliseconds",
        "spec.triggers.myStream.attributes.ackWindowSize",
        "spec.env.SECRET",
        "spec.build",
        "metadata.annotations.other/annotation",
        "function.dead_letters",
    }
    assert "very-secret-key" not in done.stdout
    (tmp_path / "pipeline.yaml").write_text(done.stdout)
    _handler(tmp_path, ACKING)
    for name in ("SECRET", "MY_FUNCTION_PASSWORD", "PLAIN"):
        monkeypatch.setenv(name, "x")
    valid = _run("validate", str(tmp_path / "pipeline.yaml"))
    assert valid.exit_code == 0, valid.output
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("cli_handler", None)
    for name in ("pipeline.yaml", "function.yaml"):
        invoked = _run("function", "invoke", str(tmp_path / name), "--event", "x")
        assert "explicit acks: 0/0" in invoked.stdout, invoked.output
    assert os.environ["PLAIN"] == "a${b}"


def test_convert_says_what_must_be_changed_and_converts_kafka(tmp_path: Path) -> None:
    spec = {
        "handler": "main:handler",
        "triggers": {
            "k": {
                "kind": "kafka-cluster",
                "explicitAckMode": "enable",
                "batch": {"mode": "enable", "batchSize": 20, "timeout": "2s"},
                "attributes": {"brokers": ["a:9092", "b:9092"], "topics": ["t"], "consumerGroup": "g"},
            }
        },
    }
    file = tmp_path / "function.yaml"
    file.write_text(yaml.safe_dump({"metadata": {"name": "f"}, "spec": spec}))
    done = _run("convert", "nuclio", str(file))
    assert "must be changed: ack: enable needs worker_allocation: static" in done.stdout
    pipeline = yaml.safe_load(done.stdout)["pipelines"]["f"]
    assert pipeline["source"] == {"kafka": {"bootstrap_servers": "a:9092,b:9092", "topics": ["t"], "group": "g"}}
    assert pipeline["sinks"][0]["function"]["batch"] == {"size": 20, "timeout": "2s"}


def test_convert_makes_a_pipeline_of_a_kinesis_trigger_and_says_where_code_goes_that_is_in_the_file(
    tmp_path: Path,
) -> None:
    attributes = {"accessKeyID": "my-key", "secretAccessKey": "my-secret", "regionName": "eu-west-1"}
    attributes |= {"streamName": "my-stream"}
    trigger = {"kind": "kinesis", "attributes": {**attributes, "shards": ["shard-0", "shard-1"]}}
    code = base64.b64encode(b"def handler(context, event): pass").decode()
    spec = {"handler": "main:handler", "build": {"functionSourceCode": code}, "triggers": {"k": trigger}}
    file = tmp_path / "function.yaml"
    file.write_text(yaml.safe_dump({"metadata": {"name": "f"}, "spec": spec}))
    done = _run("convert", "nuclio", str(file))
    assert yaml.safe_load(done.stdout)["pipelines"]["f"]["source"] == {
        "kinesis": {"stream": "my-stream", "region": "eu-west-1"}
    }
    assert "my-key" not in done.stdout
    assert "my-secret" not in done.stdout
    assert "spec.build.functionSourceCode: decode it (base64) and save it as main.py beside this file" in done.stdout
    for name in ("accessKeyID", "secretAccessKey", "shards"):
        assert f"spec.triggers.k.attributes.{name}: not " in done.stdout
    (tmp_path / "pipeline.yaml").write_text(done.stdout)
    (tmp_path / "main.py").write_bytes(base64.b64decode(code))
    valid = _run("validate", str(tmp_path / "pipeline.yaml"))
    assert valid.exit_code == 0, valid.output


@pytest.mark.parametrize(
    ("text", "message"),
    [("spec: {}", "no spec.handler"), ("a: [", "is not YAML"), ("spec: {handler: a:b}", "no trigger for a stream")],
)
def test_convert_refuses_what_is_not_a_function_of_a_stream(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "function.yaml"
    file.write_text(text)
    done = _run("convert", "nuclio", str(file))
    assert (done.exit_code, message in done.stderr) == (2, True)


def test_validate_says_what_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    function = {
        "handler": "main:handler",
        "on_error": {"after_retries": "stop"},
        "username": "u",
        "partitions": [0],
        "password": "${env:HOME}",
    }
    pipeline = {"source": {"stream": {"name": "s"}}, "sinks": [{"function": function}]}
    file.write_text(yaml.safe_dump({"pipelines": {"f": pipeline}}))
    done = _run("validate", str(file))
    assert done.exit_code == 0, done.output
    assert "password is not used" in done.stderr
    for name in ("username", "partitions"):
        assert f"pipelines.f.sinks.function: {name} is ignored: Nuclio has deprecated it" in done.stderr

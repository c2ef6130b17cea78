"""The settings of Spark, on this machine and on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import java_gateway

from holdfast.assemble import engine_of
from holdfast.config import load_text
from holdfast.errors import UsageError
from holdfast.events import Event, Notice
from holdfast.registry import Registry
from holdfast.spark import session, task
from holdfast.spark.redaction import redaction
from holdfast.spark.session import _all_settings, _python, is_unprotected

CLUSTERS = ("spark://head:7077", "yarn", "k8s://https://api:6443")
SAFE = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.mark.parametrize("master", CLUSTERS)
def test_on_a_cluster_nothing_is_bound_to_loopback_and_workers_start_without_holdfast(master: str) -> None:
    settings = _all_settings("app", {"spark.executor.memory": "1g"}, master)
    assert settings["spark.master"] == master
    assert settings["spark.executor.memory"] == "1g"
    assert "127.0.0.1" not in settings.values()
    assert "spark.python.daemon.module" not in settings
    assert "spark.python.unix.domain.socket.enabled" not in settings


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,3]"])
def test_a_local_session_stays_on_this_machine(master: str) -> None:
    settings = _all_settings("app", {}, master)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.python.daemon.module"] == "holdfast.spark.worker_daemon"


@pytest.mark.parametrize("master", ["local[2]", *CLUSTERS])
def test_an_error_of_java_in_a_task_ends_the_task_and_not_the_jvm_unless_the_user_wants_that(master: str) -> None:
    name = "spark.executor.killOnFatalError.depth"
    assert _all_settings("app", {}, master)[name] == "0"
    assert _all_settings("app", {name: "5"}, master)[name] == "5"


@pytest.mark.parametrize("master", ["local[2]", *CLUSTERS])
def test_the_users_settings_win(master: str) -> None:
    settings = {"spark.driver.host": "10.0.0.1", "spark.ui.enabled": "true", "spark.python.daemon.module": "mine"}
    assert settings.items() <= _all_settings("app", settings, master).items()


@pytest.mark.parametrize(
    ("master", "setting", "variable", "taken"),
    [
        ("yarn", "./env/bin/python", "/opt/python", "./env/bin/python"),
        ("yarn", None, "/opt/python", "/opt/python"),
        ("yarn", None, None, sys.executable),
        ("local[2]", None, "/opt/python", sys.executable),
        ("local[2]", "/own/python", None, "/own/python"),
    ],
)
def test_the_python_of_the_executors(
    master: str, setting: str | None, variable: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    assert _python({"spark.pyspark.python": setting} if setting else {}, master) == taken


@pytest.mark.parametrize(
    ("master", "settings", "unprotected"),
    [
        ("local[2]", {}, False),
        ("yarn", {}, True),
        ("yarn", {"spark.authenticate": "true"}, True),
        ("yarn", {"spark.network.crypto.enabled": "true"}, True),
        ("yarn", SAFE, False),
        ("yarn", {"spark.authenticate": "TRUE", "spark.ssl.rpc.enabled": "true"}, False),
    ],
)
def test_a_cluster_without_authentication_or_encryption_is_unprotected(
    master: str, settings: dict[str, str], *, unprotected: bool
) -> None:
    conf = {**settings, "spark.master": master}
    assert is_unprotected(_session(conf)) is unprotected


def test_a_node_gives_spark_its_settings_and_warns_of_a_cluster_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    conf_text = "spark.executor.cores: 2, spark.executorEnv.LAKE_DSN: '${env:DSN}'"
    text = f"spark: {{master: yarn, conf: {{{conf_text}}}, py_files: [parsing.py]}}"
    given: list[Any] = []

    def start(*arguments: Any) -> Any:
        given.extend(arguments)
        return _session({"spark.master": "yarn"})

    monkeypatch.setattr(session, "start_session", start)
    monkeypatch.setattr(task, "warm_up", lambda *_given: None)
    events: list[Event] = []
    loaded = load_text(text, "shop.yaml", Registry.installed(), {"DSN": "sesame"})
    engine_of(loaded, {}, events.append).close()
    conf = {"spark.executor.cores": "2"}
    # Spark redacts what came from references, whatever its name is.
    conf |= {"spark.executorEnv.LAKE_DSN": "sesame"} | redaction(["spark.executorEnv.LAKE_DSN"], {})
    assert given == ["holdfast", conf, "yarn", [], [Path("parsing.py")], {"spark.executorEnv.LAKE_DSN"}]
    (notice,) = events
    assert isinstance(notice, Notice)
    assert "spark.authenticate" in notice.message


def test_no_secret_is_on_the_command_line_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: dict[str, str] = {}

    def launch(conf: Any, _popen: Any) -> Any:
        launched.update(conf.getAll())
        raise UsageError("no JVM in this test")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(session, "_prepare_environment", lambda *_given: None)
    conf = {"spark.executorEnv.LAKE_DSN": "sesame", "spark.hadoop.fs.s3a.secret.key": "sesame", "spark.x": "y"}
    with pytest.raises(UsageError):
        session.start_session("app", conf, secrets={"spark.executorEnv.LAKE_DSN"})
    assert launched["spark.x"] == "y"
    assert "sesame" not in launched.values()


def _session(conf: dict[str, str]) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))

"""The settings of Spark, on this machine and on a cluster."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import py4j
import pyspark
import pytest
from pyspark import java_gateway

from holdfast import engines
from holdfast.assemble import build_pipelines
from holdfast.config import load_text
from holdfast.engines import engine_of, task_modules
from holdfast.errors import UsageError
from holdfast.events import Event, Notice, SparkStarted
from holdfast.registry import Registry
from holdfast.sources.database.postgresql import Postgresql
from holdfast.sources.database.reading import DatabaseRows
from holdfast.spark import session, task
from holdfast.spark.job import _read_and_stage
from holdfast.spark.session import _all_settings, _python, check_cores, is_unprotected, redaction

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


@pytest.mark.parametrize("master", ["local[3]", "local[8,2]", *CLUSTERS])
def test_a_master_with_a_core_for_each_worker_is_taken(master: str) -> None:
    check_cores(master, 3)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[2,4]"])
def test_workers_that_would_never_begin_are_refused(master: str) -> None:
    with pytest.raises(UsageError, match=r"give local\[3\]"):
        check_cores(master, 3)


MEMORY = "spark.executorEnv.HOLDFAST_WORKER_MEMORY"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("master", "settings", "machine", "share"),
    [
        ("local[2]", {}, 17 * GIB, 8 * GIB),
        ("local", {}, 17 * GIB, 16 * GIB),
        ("local[4,2]", {"spark.driver.memory": "5g"}, 17 * GIB, 3 * GIB),
        ("local[4]", {"spark.driver.memory": "1024m"}, 17 * GIB, 4 * GIB),
        ("local[4]", {"spark.driver.memory": "5120"}, 17 * GIB, 3 * GIB),
        ("local[8]", {}, 4 * GIB, 2 * GIB),
    ],
)
def test_a_python_worker_may_take_its_share_of_the_machine(
    master: str, settings: dict[str, str], machine: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_machine_memory", lambda: machine)
    assert _all_settings("app", settings, master)[MEMORY] == str(share)
    assert _all_settings("app", settings, master, 5 * GIB)[MEMORY] == str(5 * GIB)


@pytest.mark.parametrize("content", ["3221225472\n", "max\n", "", None])
def test_the_limit_of_a_container_counts_as_the_machine(
    content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "memory.max").write_text(content)
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", (str(tmp_path / "memory.max"),))
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}.__getitem__)
    assert session._machine_memory() == (3 if content and content[0] == "3" else 8) * GIB


@pytest.mark.parametrize("master", CLUSTERS)
def test_on_a_cluster_spark_limits_the_memory_of_workers(master: str) -> None:
    assert MEMORY not in _all_settings("app", {}, master)


def test_a_worker_that_needs_more_memory_than_it_may_have_raises() -> None:
    code = (
        "from holdfast.spark.worker_daemon import limit_memory\n"
        "limit_memory()\n"
        "import pyarrow\n"
        "for take in (bytearray, pyarrow.allocate_buffer):\n"
        "    take(100 << 20)\n"
        "    try:\n"
        "        take(1 << 30)\n"
        "    except MemoryError as error:\n"
        "        print(type(error).__name__)\n"
    )
    limits = {**os.environ, "HOLDFAST_WORKER_MEMORY": str(GIB)}
    found = subprocess.run([sys.executable, "-c", code], env=limits, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["MemoryError", "ArrowMemoryError"]


def test_workers_are_forked_with_the_modules_that_the_environment_names() -> None:
    code = "import sys; from holdfast.spark.worker_daemon import preload; preload(); print('colorsys' in sys.modules)"
    modules = {**os.environ, "HOLDFAST_WORKER_PRELOAD": "no.such.module,colorsys"}
    found = subprocess.run([sys.executable, "-c", code], env=modules, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True"]


def test_workers_use_the_installed_pyspark_and_not_its_archives(tmp_path: Path) -> None:
    package = Path(pyspark.__file__).parent
    archives = [*package.glob("python/lib/*.zip"), *package.glob("jars/spark-core_*.jar")]
    other = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    code = (
        "import sys; from holdfast.spark.worker_daemon import prefer_installed_pyspark as prefer; prefer()\n"
        "import pyspark, py4j; print(pyspark.__file__, py4j.__file__)\n"
        "print(*(entry for entry in sys.path if entry.endswith(('.zip', '.jar'))))"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*archives, other]))}
    found = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    first, left = found.stdout.splitlines()
    assert first.split() == [str(package / "__init__.py"), py4j.__file__]
    assert [entry for entry in left.split() if "pyspark" in entry] == [str(other)]


REINDEX = """
pipelines:
  catalog:
    source: {database: {url: "postgresql://127.0.0.1/shop", entities: {items: {table: items, key: id}}}}
    sinks: [{opensearch: {hosts: ["http://127.0.0.1:9200"], mode: staged}}]
"""


def test_workers_of_rounds_begin_with_what_their_tasks_import() -> None:
    settings = load_text(REINDEX, "shop.yaml", Registry.installed())
    built = build_pipelines(settings, settings.pipelines, Registry.installed())
    (stager,) = (sink.stager() for sink in built["catalog"].sinks.values())
    task = pickle.dumps((partial(_read_and_stage, DatabaseRows([], None)), stager, Postgresql))
    code = (
        "import pickle, sys; from holdfast.spark.worker_daemon import preload; preload()\n"
        f"before = set(sys.modules); _, stager, _ = pickle.loads({task!r}); stager.begin().close()\n"
        "import pyarrow; pyarrow.array(['a'])\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} & "
        "{'holdfast', 'numpy', 'opensearchpy', 'pandas', 'psycopg', 'pydantic', 'pyspark'})"
    )
    modules = {**os.environ, "HOLDFAST_WORKER_PRELOAD": ",".join(task_modules(built.values()))}
    found = subprocess.run([sys.executable, "-c", code], env=modules, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


JAVA = "spark.driver.defaultJavaOptions"
QUICK = "-XX:TieredStopAtLevel=1"
PARSED = REINDEX.replace("    sinks:", "    processors: [{sql: {select: ['*']}}]\n    sinks:")
OBJECTS = "pipelines: {catalog: {source: {objects: {folder: in}}, sinks: [{files: {root: out}}]}}"
CHOSEN = f"spark: {{conf: {{{JAVA}: -Xss4m}}}}\n{REINDEX}"


@pytest.mark.parametrize(("text", "is_quick"), [(REINDEX, True), (PARSED, False), (OBJECTS, False), (CHOSEN, False)])
def test_java_that_only_plans_jobs_compiles_quickly(text: str, is_quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started = dict[str, str]()

    def start_session(_name: str, conf: dict[str, str], *_: object) -> SimpleNamespace:
        started.update(conf)
        return SimpleNamespace(version="4.2")

    monkeypatch.setattr(session, "start_session", start_session)
    monkeypatch.setattr(session, "is_unprotected", lambda _spark: False)
    settings = load_text(text, "shop.yaml", Registry.installed())
    built = build_pipelines(settings, settings.pipelines, Registry.installed())
    engines._start_spark(settings, built, lambda _: None, "local[1]", engines._conf(settings, built))
    assert (QUICK in started.get(JAVA, "")) == is_quick
    assert ("log4j2" in started[JAVA]) if is_quick else started.get(JAVA) in {None, "-Xss4m"}


def test_workers_find_modules_of_the_folder_that_the_environment_names_behind_all_others(tmp_path: Path) -> None:
    for name in ("secrets", "beside_the_file"):
        (tmp_path / f"{name}.py").write_text("")
    code = (
        "from holdfast.spark.worker_daemon import find_modules; find_modules()\n"
        "import beside_the_file, secrets; print(beside_the_file.__file__, hasattr(secrets, 'randbits'))"
    )
    folder = {**os.environ, "HOLDFAST_WORKER_MODULES": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=folder, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(tmp_path / "beside_the_file.py"), "True"]


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
    text = f"spark: {{master: yarn, conf: {{{conf_text}}}, py_files: [parsing.py], worker_memory: 3GiB}}"
    given: list[Any] = []

    def start(*arguments: Any) -> Any:
        given.extend(arguments)
        return _session({"spark.master": "yarn"})

    monkeypatch.setattr(session, "start_session", start)
    monkeypatch.setattr(task, "warm_up", lambda *_given: None)
    events: list[Event] = []
    loaded = load_text(text, "shop.yaml", Registry.installed(), {"DSN": "sesame"})
    engine_of(loaded, {}, events.append).close()
    conf = {"spark.executor.cores": "2", "spark.executorEnv.HOLDFAST_WORKER_MODULES": str(Path.cwd())}
    # Spark redacts what came from references, whatever its name is.
    conf |= {"spark.executorEnv.LAKE_DSN": "sesame"} | redaction(["spark.executorEnv.LAKE_DSN"], {})
    assert given == ["holdfast", conf, "yarn", [], [Path("parsing.py")], {"spark.executorEnv.LAKE_DSN"}, 3 * GIB]
    started, notice = events
    assert isinstance(started, SparkStarted)
    assert isinstance(notice, Notice)
    assert (started.version, started.master, "sesame" in str(events)) == ("4", "yarn", False)
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
    return SimpleNamespace(version="4", sparkContext=SimpleNamespace(getConf=lambda: conf))

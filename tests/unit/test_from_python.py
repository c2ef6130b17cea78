"""`holdfast.load`, `holdfast.run` and `holdfast.Pipeline`: settings from Python, and a node in the caller's process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import service
from holdfast.config.models import Settings
from holdfast.events import BatchCommitted, Event, PartitionFailed
from holdfast.sources.objects.config import ObjectsConfig

SOURCE = {"objects": {"folder": Path("in"), "scan": "once"}}
SINKS = ({"files": {"root": "out", "format": "jsonl"}},)


def cents(frame: Any) -> Any:
    return frame


def described(**changes: Any) -> dict[str, Any]:
    return {"pipelines": {"orders": holdfast.Pipeline(**{"source": SOURCE, "sinks": SINKS, **changes})}}


# --- settings --------------------------------------------------------------------------------------------------------


def test_a_dictionary_is_loaded_as_a_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORE", "leases.db")
    given = {"source_coordination": {"store": {"sqlite": {"path": "${env:STORE}"}}}, **described(generation=2)}
    settings = holdfast.load(given)
    text = (
        "source_coordination: {store: {sqlite: {path: '${env:STORE}'}}}\n"
        "pipelines:\n  orders:\n    source: {objects: {folder: in, scan: once}}\n    generation: 2\n"
        "    sinks: [{files: {root: out, format: jsonl}}]\n"
    )
    (tmp_path / "pipeline.yaml").write_text(text)
    of_file = holdfast.load(tmp_path / "pipeline.yaml")
    assert settings.pipelines == of_file.pipelines
    assert settings.coordination == of_file.coordination
    assert settings.coordination.store.config.path == Path("leases.db")


def test_everything_that_is_wrong_is_told_with_its_line() -> None:
    with pytest.raises(holdfast.ConfigError) as wrong:
        holdfast.load(described(source={"objects": {"foldr": "in"}}, generation="two"))
    assert "did you mean 'folder'" in str(wrong.value)
    assert "generation: two" in str(wrong.value)
    assert "settings:" in str(wrong.value)


def test_a_function_is_a_processor_by_its_name() -> None:
    chosen = holdfast.load(described(processors=[cents, {"filter": {"where": "id > 1"}}])).pipelines["orders"]
    assert [use.name for use in chosen.processors] == ["python", "filter"]
    assert chosen.processors[0].config.function == f"{__name__}:cents"


@pytest.mark.parametrize("function", [lambda frame: frame, Path.exists])
def test_a_function_that_has_no_name_to_import_is_refused(function: Any) -> None:
    with pytest.raises(holdfast.UsageError, match="cannot be imported by its name"):
        holdfast.Pipeline(source=SOURCE, sinks=SINKS, processors=[function])


def test_a_secret_may_be_plain_text_in_a_dictionary_and_is_not_shown() -> None:
    store = {"postgresql": {"host": "localhost", "database": "leases", "password": "hunter2"}}
    settings = holdfast.load({"source_coordination": {"store": store}, **described()})
    assert settings.coordination.store.config.password.reveal() == "hunter2"
    with pytest.raises(holdfast.ConfigError) as wrong:
        holdfast.load({"source_coordination": {"store": store}, **described(generation=0)})
    assert "hunter2" not in str(wrong.value)


def test_a_value_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(holdfast.UsageError, match="cannot have a set"):
        holdfast.load(described(routes={"a", "b"}))


def test_settings_are_models_that_can_be_looked_at() -> None:
    config = holdfast.load(described()).pipelines["orders"].source.config
    assert isinstance(config, ObjectsConfig)


# --- a node ----------------------------------------------------------------------------------------------------------


class FakeNode:
    """Instead of a node with Spark: reports what one would report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *events: Event, code: int = 0) -> None:
        self.pipelines: Sequence[str] = ()
        self._events, self._code = events, code
        monkeypatch.setattr(service, "run", self._run)

    def _run(self, settings: Settings, emit: Any, *, pipelines: Sequence[str], beside: Any, **_: Any) -> int:
        assert settings.pipelines
        assert beside is not None, "a node also carries out the runs of its pipelines"
        self.pipelines = pipelines
        for event in self._events:
            emit(event)
        return self._code


def test_run_returns_what_the_node_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = PartitionFailed("orders", "in|b", "it is damaged")
    seen: list[Event] = []
    node = FakeNode(monkeypatch, _committed(7, dead=2), _committed(3), failed, code=1)
    summary = holdfast.run(described(), seen.append, pipelines=["orders"])
    assert (summary.records, summary.dead_letters, summary.failed_partitions) == (10, 2, 1)
    assert not summary.complete
    assert str(summary).startswith("10 records in ")
    assert failed in seen
    assert node.pipelines == ["orders"]


def test_events_are_logged_to_stderr_unless_a_consumer_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeNode(monkeypatch, PartitionFailed("orders", "in|b", "it is damaged"))
    assert holdfast.run(holdfast.load(described())).complete
    assert "partition failed: pipeline orders" in capsys.readouterr().err
    holdfast.run(described(), lambda _event: None)
    assert capsys.readouterr().err == ""


def test_in_another_thread_signals_stay_as_they_are() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), list[Any]()

    def enter() -> None:
        with service._on_signal(lambda _number: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def _committed(records: int, dead: int = 0) -> BatchCommitted:
    return BatchCommitted("orders", "in|a", 1, records, dead)


def test_a_fault_outside_of_a_processor_says_that_there_is_no_spark_session() -> None:
    code = "import holdfast\nholdfast.fault('amount is missing')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: holdfast.fault needs a Spark session" in done.stderr

"""Functions in modules beside the configuration file are found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import engines
from holdfast.assemble import build_pipeline, load_settings
from holdfast.events import Event, SparkStarted
from holdfast.registry import Registry

TEXT = """\
pipelines:
  orders:
    source: {objects: {folder: in}}
    processors: [python: {function: "beside_the_file:clean"}]
    sinks: [files: {root: out}]
"""


def test_a_function_beside_the_file_is_found_here_and_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    started = dict[str, str]()

    def start_session(_name: str, conf: dict[str, str], *_: object) -> SimpleNamespace:
        started.update(conf)
        return SimpleNamespace(version="4.2")

    monkeypatch.setattr("holdfast.spark.session.start_session", start_session)
    monkeypatch.setattr("holdfast.spark.session.is_unprotected", lambda _spark: False)
    (tmp_path / "beside_the_file.py").write_text("def clean(frame):\n    return frame\n")
    (tmp_path / "shop.yaml").write_text(TEXT)
    settings = load_settings(tmp_path / "shop.yaml")
    assert build_pipeline(settings.pipelines["orders"], Registry.installed()).processors
    events = list[Event]()
    engines._start_spark(settings, {}, events.append, "local[1]", engines._conf(settings, {}))
    assert [event for event in events if isinstance(event, SparkStarted)] == [SparkStarted("4.2", "local[1]", 0.0)]
    assert started["spark.executorEnv.HOLDFAST_WORKER_MODULES"] == str(tmp_path)
    assert os.environ["PYTHONPATH"] == "elsewhere", "modules there would hide those of the standard library"
    assert sys.path[-1] == str(tmp_path), "installed modules come first"

"""Functions in modules beside the configuration file are found."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from holdfast import engines
from holdfast.assemble import build_pipeline, load_settings
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
    monkeypatch.setattr("holdfast.spark.session.start_session", lambda _name, conf, *_: started.update(conf))
    monkeypatch.setattr("holdfast.spark.session.is_unprotected", lambda _spark: False)
    (tmp_path / "beside_the_file.py").write_text("def clean(frame):\n    return frame\n")
    (tmp_path / "shop.yaml").write_text(TEXT)
    settings = load_settings(tmp_path / "shop.yaml")
    assert build_pipeline(settings.pipelines["orders"], Registry.installed()).processors
    engines._start_spark(settings, {}, lambda _event: None, "local[1]")
    assert started["spark.executorEnv.HOLDFAST_WORKER_MODULES"] == str(tmp_path)
    assert os.environ["PYTHONPATH"] == "elsewhere", "modules there would hide those of the standard library"
    assert sys.path[-1] == str(tmp_path), "installed modules come first"

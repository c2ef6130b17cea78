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
    (tmp_path / "beside_the_file.py").write_text("def clean(frame):\n    return frame\n")
    (tmp_path / "shop.yaml").write_text(TEXT)
    settings = load_settings(tmp_path / "shop.yaml")
    assert build_pipeline(settings.pipelines["orders"], Registry.installed()).processors
    for _ in range(2):
        engines._let_workers_find(settings.folder)
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["elsewhere", str(tmp_path)])
    assert sys.path[-1] == str(tmp_path), "installed modules come first"

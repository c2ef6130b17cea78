"""What a file says reaches the parts that it is about."""

from __future__ import annotations

from pathlib import Path

from holdfast.app import loop_settings_of, load_settings
from holdfast.flow.batch import Limits
from holdfast.flow.loop import LoopSettings

PIPELINE = """
pipelines:
  orders:
    source:
      objects: {folder: in}
    sinks:
      - files: {root: out}
"""

CHANGED = """
    batch: {max_bytes: 1000, max_records: 7, timeout: 20s}
    round: {max_batches: 5}
    generation: 2
    replicas: 3
node: {step_limit: 90s}
"""


def loop_settings(folder: Path, text: str) -> LoopSettings:
    file = folder / "pipeline.yaml"
    file.write_text(text)
    return loop_settings_of(load_settings(file), "orders")


def test_the_loop_gets_every_limit_of_the_file(tmp_path: Path) -> None:
    assert loop_settings(tmp_path, PIPELINE + CHANGED) == LoopSettings(
        limits=Limits(max_bytes=1000, max_records=7, timeout=20.0),
        max_batches=5,
        generation=2,
        replicas=3,
        step_limit=90.0,
    )


def test_without_replicas_the_share_is_that_of_the_nodes_that_are_there(tmp_path: Path) -> None:
    assert loop_settings(tmp_path, PIPELINE).replicas == 0

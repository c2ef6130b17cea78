"""For all tests: the speed of the machine and the luck of the draw decide nothing; and a disk that can be filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fuzz", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
# A change must not fail on an input that has nothing to do with it: `make fuzz` draws other inputs.
settings.register_profile("any machine", settings.get_profile("fuzz"), derandomize=True)
settings.load_profile("any machine")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 1 MiB. Only root may mount one."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)

"""What an earlier version has stored is taken over in the middle of a commit, published, proven and sent again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

FIXTURE = Path(__file__).parent.parent / "fixtures" / "b828bb8"
PATIENCE = 300
NO_TIME = {37, 97}
"""Records whose time that version's settings did not understand."""


class Site:
    """A copy of the fixture, as it was where it was made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        shutil.copytree(FIXTURE, root, dirs_exist_ok=True)
        with sqlite3.connect(root / "leases.db") as db:
            db.executescript((root / "leases.sql").read_text().replace("{folder}", str(root / "in")))
            # The node that died is long gone, whatever the clock of this machine says.
            db.execute("UPDATE lease SET due_at = 1 WHERE pipeline = '$nodes'")
            for (body,) in db.execute("SELECT body FROM lease WHERE pipeline = 'orders'").fetchall():
                spec = json.loads(body)["spec"]
                os.utime(root / "in" / spec["path"], ns=(spec["mtime_ns"], spec["mtime_ns"]))
        db.close()

    def holdfast(self, *words: str) -> str:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=self._root)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def roll_out(self, generation: int, patterns: str) -> None:
        file = self._root / "pipeline.yaml"
        text = file.read_text().replace("generation: 1", f"generation: {generation}")
        file.write_text(text.replace("[yyyy-MM-dd]", patterns))

    def ids(self) -> list[int]:
        tables = [pq.read_table(path, columns=["id"]) for path in (self._root / "out" / "in").glob("*.parquet")]
        return sorted(number for table in tables for number in table.column("id").to_pylist())

    def proofs(self) -> list[dict[str, Any]]:
        proofs: list[dict[str, Any]] = json.loads(self.holdfast("verify", "pipeline.yaml", "--deep", "--json"))
        return proofs


def test_a_later_version_goes_on_where_an_earlier_one_died(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert len(site.ids()) == 30
    log = site.holdfast("run", "pipeline.yaml")
    assert site.ids() == sorted(set(range(120)) - NO_TIME), log
    assert not any(proof["doubts"] for proof in site.proofs())

    site.roll_out(2, "[yyyy-MM-dd, dd.MM.yyyy]")
    site.holdfast("run", "pipeline.yaml")
    site.holdfast("deadletters", "redrive", "pipeline.yaml")
    assert site.ids() == list(range(120))
    assert not any(proof["doubts"] for proof in site.proofs())

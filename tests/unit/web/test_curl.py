"""The `curl` commands of the guide are run as they are written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from holdfast.assemble import StoredPipeline
from holdfast.buckets.local import LocalBucket
from holdfast.flow.batch import Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.names import dead_letter_key
from holdfast.leases.lease import Status
from holdfast.runs.next_generation import parsing_as
from holdfast.web.access import Access
from holdfast.web.tokens import ProcessToken
from tests.unit.web.serving import PATIENCE, Served, served
from tests.unit.web.test_api import LETTERS, change

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "dashboard.md"
TOKEN = "a-token-of-this-test-only"


def commands() -> list[str]:
    text = GUIDE.read_text().replace("\\\n", " ")
    return re.findall(r"^curl .*$", text, re.MULTILINE)


def bury(board: Served, folder: Path) -> None:
    """Add two dead letters of the partition `c`, of a pipeline that has run."""
    lines = [dead_letter("prod|orders", "c", at, record_fault("no time", b"x")) for at in range(2)]
    LocalBucket(folder / "out").create(dead_letter_key(Name("in", "c"), 1, 0), b"".join(lines))
    stored = StoredPipeline(board.dashboard.settings, board.store, "orders")
    stored.generations().register(parsing_as(stored, 1, "n1"), switch=True)


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    assert len(commands()) == 7
    (tmp_path / "in").mkdir()
    with served(tmp_path, Access(tokens=ProcessToken(TOKEN)), file_text=LETTERS) as board:
        board.add("a", "b", "c")
        bury(board, tmp_path)
        for key in ("a", "b"):
            change(board.store, board.dashboard.identifier("orders"), key, Status.FAILED)
        printed = ""
        for command in commands():
            here = command.replace("127.0.0.1:8600", f"127.0.0.1:{board.port}").replace("curl ", "curl -sS --fail ")
            done = subprocess.run(
                ["/bin/sh", "-c", here],
                env={"TOKEN": TOKEN, "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
            printed = done.stdout
            assert printed.startswith(("{", "["))
        assert '"outcome": "done"' in printed

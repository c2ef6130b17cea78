"""The README's first hour, step by step as it is written, with fewer orders and one node."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ORDERS, NODE = "make_orders.py", "--node replica"


def steps() -> list[str]:
    """Blocks for the shell of the section `Now yours`, in order."""
    section = (ROOT / "README.md").read_text().partition("\n### Now yours\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [text for language, text in blocks if not language and ".venv/bin/" in text]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each step prints to stdout, by the step, in a folder that has the example and nothing else."""
    folder, printed = tmp_path_factory.mktemp("readme"), dict[str, str]()
    shutil.copytree(ROOT / "examples" / "local_files", folder / "examples" / "local_files")
    for step in steps():
        lines = [line for line in step.splitlines() if not line.startswith("pkill")]
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")] or lines
        if NODE in step:
            commands = commands[:1]
        script = "\n".join(commands).replace(".venv/bin/", f"{BIN}/").replace(ORDERS, f"{ORDERS} 3")
        done = subprocess.run(["bash", "-ec", script], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        printed[step] = done.stdout
    return printed


def test_a_command_that_is_shown_with_its_output_prints_that(shown: dict[str, str]) -> None:
    compared = [step for step in shown if step.startswith("$ ")]
    assert compared
    for step in compared:
        assert shown[step] == "".join(line for line in step.splitlines(keepends=True) if not line.startswith("$ "))


def test_every_order_is_counted_once_at_the_end(shown: dict[str, str]) -> None:
    assert list(shown.values())[-1] == "150000 records, 0 duplicates\n"


def test_commands_that_look_show_the_partitions(shown: dict[str, str]) -> None:
    (listed,) = [text for step, text in shown.items() if "partitions list" in step]
    assert re.search(r"^orders\|orders-002\.jsonl +COMPLETED", listed, re.MULTILINE)

"""Nodes by the dozen on real stores under faults: nothing is lost, nothing is there twice, no rule is broken.

The short form; `make soak MINUTES=N` is the long one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(*words: str) -> subprocess.Popen[str]:
    """A module of this package in a process of its own: the nodes are forked from it, and need nothing of pytest."""
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str], within: float) -> str:
    try:
        printed, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        # As Ctrl-C does: all of it ends what it has started.
        os.killpg(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=60.0)
    return printed


@pytest.mark.slow
def test_most_of_a_minute_of_faults_on_every_store_leaves_nothing_wrong() -> None:
    running = start("tests.soak", "--minutes", "0.75")
    printed = finish(running, within=400.0)
    assert running.returncode == 0, printed
    assert printed.count("nothing is wrong") == 3


@pytest.mark.slow
def test_half_a_minute_of_faults_on_a_bucket_alone_leaves_nothing_wrong() -> None:
    running = start("tests.soak", "--stores", "object", "--minutes", "0.5", "--nodes", "8")
    printed = finish(running, within=240.0)
    assert running.returncode == 0, printed
    assert "object: nothing is wrong" in printed


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "object"])
def test_a_commit_that_comes_after_a_takeover_is_refused_and_without_a_fence_is_found_out(store: str) -> None:
    intact = start("tests.soak.late_writers", store)
    broken = start("tests.soak.late_writers", store, "--broken", "fence")
    verdict = json.loads(finish(intact, within=180.0))
    assert verdict["wrong"] == []
    assert verdict["figures"]["fenced_off"] >= 1
    assert json.loads(finish(broken, within=180.0))["wrong"]
    assert broken.returncode == 1


@pytest.mark.slow
def test_nodes_are_upgraded_one_by_one_under_load() -> None:
    running = {store: start("tests.soak.upgrade", store) for store in ("sqlite", "postgresql", "mysql")}
    verdicts = {store: json.loads(finish(process, within=240.0)) for store, process in running.items()}
    assert {store: verdict["wrong"] for store, verdict in verdicts.items()} == {store: [] for store in running}
    for verdict in verdicts.values():
        # Old and new nodes have really worked on each other's rows.
        assert verdict["figures"]["by_old_with_new_key"] > 10
        assert verdict["figures"]["commits"] > 100


def test_a_light_node_loads_no_spark() -> None:
    program = "import sys, tests.soak.nodes; print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"

"""The command as a process of its own: what it loads, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from holdfast import assemble
from holdfast.leases import transitions
from holdfast.leases.lease import Partition
from tests.unit.cli.conftest import Site

ROOT = Path(__file__).parents[3]
HEAVY = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "boto3", "botocore")
BLOCKED = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None
from holdfast.cli import main
main()
"""


def holdfast(*arguments: str, code: str = "from holdfast.cli import main; main()") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("schema",),
        ("plugins", "--json"),
        ("validate", "FILE"),
        ("nodes", "FILE"),
        ("partitions", "list", "FILE"),
    ],
    ids=" ".join,
)
def test_a_command_that_runs_no_pipeline_loads_no_spark(site: Site, command: tuple[str, ...]) -> None:
    file = site.write()
    site.store(file).close()

    result = holdfast(*(file if word == "FILE" else word for word in command), code=BLOCKED)

    assert result.returncode == 0, result.stderr
    if command[0] == "plugins":
        assert [row["problem"] for row in json.loads(result.stdout) if row["problem"]] == []


def test_help_loads_the_commands_and_what_they_all_need_only() -> None:
    listed = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"

    result = holdfast("--help", code=f"{listed}from holdfast.cli import main; main()")

    loaded = {name for name in result.stderr.split() if name.startswith("holdfast.")}
    assert {name.split(".")[1] for name in loaded} == {"cli", "errors", "audit", "observe"}
    assert {name for name in loaded if not name.startswith("holdfast.cli")} <= {
        "holdfast.errors",
        "holdfast.audit",
        "holdfast.audit.proof",
        "holdfast.observe",
        "holdfast.observe.text",
    }
    # Commands of groups are loaded when one of them is called.
    assert not loaded & {"holdfast.cli.partitions", "holdfast.cli.reindex", "holdfast.cli.deadletters"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_needs_no_settings_does_not_load_them(option: str) -> None:
    assert holdfast(option, code=BLOCKED.replace("'numpy'", "'numpy', 'pydantic', 'prometheus_client'")).returncode == 0


def test_the_module_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "holdfast", "nodes"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 2
    assert "Usage: holdfast nodes" in result.stderr


def test_a_reader_that_has_had_enough_is_no_error(site: Site) -> None:
    file = site.write()
    site.coordinator(file).create([Partition(f"partition-{number:05}") for number in range(2000)])

    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "partitions", "list", file, "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "[\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0


def test_purge_asks_on_a_real_terminal(site: Site) -> None:
    file = site.write()
    leases = site.coordinator(file)
    leases.create([Partition("a")])
    (lease,) = leases.claim(1)
    leases.write([lease], transitions.complete)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"y\n")
        result = subprocess.run(
            [sys.executable, "-m", "holdfast", "partitions", "purge", file, "--older-than", "0s"],
            cwd=ROOT,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)

    assert result.returncode == 0
    assert result.stdout == "1 partition purged\n"
    assert "Purge 1 partition of prod|orders? [y/N]" in result.stderr


def test_the_progress_of_runs_is_served_until_the_process_is_asked_to_stop(site: Site) -> None:
    file = site.write()
    pipeline = assemble.StoredPipeline(assemble.load_settings(file), site.store(file), "orders")
    pipeline.runs().add("reindex-1", configuration={"kind": "reindex"}, created_by="ann")
    code = "from holdfast.cli import main; main()"
    command = [sys.executable, "-u", "-c", code, "reindex", "serve", file, "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with connect(process.stdout.readline().strip(), open_timeout=60) as client:
                assert json.loads(client.recv(60))["status"] == "INITIALIZING"
                process.terminate()
                with pytest.raises(ConnectionClosed):
                    client.recv(60)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (-signal.SIGTERM, "")

"""The dashboard that `holdfast run --web` serves: how it starts, comes back and ends, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.unit.cli.conftest import Site

NODE = """
import sys
from holdfast import assemble
from holdfast.cli.web import beside_a_node

file, port = sys.argv[1:]
settings = assemble.load_settings(file)
with beside_a_node(file, settings, int(port), assemble.open_store(settings)):
    sys.stdin.read()
"""
"""A process that serves the dashboard as a node does, until its stdin is closed."""


@contextmanager
def node(file: str, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-c", NODE, file, str(port)]
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def printed(process: subprocess.Popen[str]) -> str:
    """The next line on stdout; empty once no process has it open any more."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def dashboards(process: subprocess.Popen[str]) -> list[int]:
    """Its children that serve a dashboard; the store has one that watches its locks."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [int(child) for child in children if b"\0web\0" in Path(f"/proc/{child}/cmdline").read_bytes()]


def url_of(line: str) -> str:
    return next(word for word in line.split() if word.startswith("http://"))


@pytest.mark.parametrize("store", [None, "in_memory: {}"], ids=["a process of its own", "a thread"])
def test_the_dashboard_is_served_beside_a_node(site: Site, store: str | None) -> None:
    with node(site.write(store=store)) as process:
        page = httpx.get(url_of(printed(process)), follow_redirects=True)

        assert page.status_code == 200
        assert len(dashboards(process)) == (0 if store else 1)


def test_a_dashboard_that_dies_comes_back(site: Site) -> None:
    with node(site.write()) as process:
        first = url_of(printed(process))
        os.kill(dashboards(process)[0], signal.SIGKILL)

        second = url_of(printed(process))

        assert second != first
        assert httpx.get(second, follow_redirects=True).status_code == 200


def test_the_dashboard_ends_with_a_node_that_is_killed(site: Site) -> None:
    with node(site.write()) as process:
        printed(process)
        process.kill()

        assert printed(process) == ""  # also the dashboard has closed it


def test_the_dashboard_ends_with_a_node_that_stops(site: Site) -> None:
    with node(site.write()) as process:
        printed(process)
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait() == 0
        assert printed(process) == ""


def test_a_node_goes_on_without_a_dashboard_whose_port_is_taken(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, node(site.write(), taken.getsockname()[1]) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]

        assert "cannot listen on 127.0.0.1" in lines[0]
        assert "the node goes on without it" in lines[1]
        assert process.poll() is None

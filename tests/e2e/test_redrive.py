"""Routes and dead letters from the command line: a parser is fixed, its letters are sent again, and all is proven."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.fleet import Node, eventually
from tests.servers.processes import free_port

pytestmark = pytest.mark.spark

CONFIG = """
source_coordination:
  store: {{sqlite: {{path: {root}/leases.db}}}}
pipelines:
  access:
    generation: {generation}
    source:
      objects: {{folder: {root}/in, schema: "id INT, status INT, at STRING", scan: {scan}}}
    processors:
      - date: {{match: [{{key: at, patterns: [{patterns}]}}], destination: day}}
    routes: {{errors: "status >= 500"}}
    sinks:
      - {{name: bad, routes: [errors], files: {{root: {root}/bad, format: jsonl}}}}
      - {{name: rest, routes: [_default], files: {{root: {root}/rest, format: jsonl}}}}
"""
PATIENCE = 300


class Site:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "pipeline.yaml"
        (root / "in").mkdir()

    def write(self, generation: int, *patterns: str, scan: str = "once") -> None:
        values = {"root": self.root, "generation": generation, "patterns": ", ".join(patterns), "scan": scan}
        self.file.write_text(CONFIG.format(**values))

    def holdfast(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=self.root)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def ids(self, sink: str) -> list[int]:
        files = sorted((self.root / sink / "in").glob("*.jsonl"))
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())

    def runs(self) -> list[tuple[str, str]]:
        rows = json.loads(self.holdfast("runs", "list", str(self.file), "--json"))
        return [(row["id"], row["status"]) for row in rows]

    def letters(self) -> dict[tuple[str, str], tuple[int, int]]:
        """By sink and reason how many wait and how many were sent again."""
        rows: list[dict[str, Any]] = json.loads(self.holdfast("deadletters", "list", str(self.file), "--json"))
        return {(row["sink"], row["reason"]): (row["waiting"], row["sent_again"]) for row in rows}


def test_letters_are_sent_again_once_into_the_sinks_of_their_routes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    rows = [(1, 200, "2026-01-01"), (2, 500, "2026-01-01"), (3, 500, "01.02.2026"), (4, 200, "01.02.2026")]
    lines = [json.dumps({"id": number, "status": status, "at": at}) for number, status, at in rows]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join([*lines, "nonsense"]) + "\n")
    site.write(1, "yyyy-MM-dd")
    site.holdfast("run", str(site.file))
    assert (site.ids("bad"), site.ids("rest")) == ([2], [1])
    no_time, no_json = "date: at is not a time: …", "it is not a JSON object"
    assert site.letters() == {
        (sink, why): (n, 0) for sink in ("bad", "rest") for why, n in ((no_time, 2), (no_json, 1))
    }

    site.write(2, "yyyy-MM-dd", "dd.MM.yyyy")
    site.holdfast("deadletters", "redrive", str(site.file), code=2)
    site.holdfast("run", str(site.file))
    printed = site.holdfast("deadletters", "redrive", str(site.file))
    assert printed.count("3 letters sent again, 1 of them became dead letters again") == 2
    assert (site.ids("bad"), site.ids("rest")) == ([2, 3], [1, 4])
    for sink in ("bad", "rest"):
        assert site.letters()[sink, no_time] == (0, 2)
        assert site.letters()[sink, no_json] == (1, 1), "it is another letter, and waits"
    nothing = site.holdfast("deadletters", "redrive", str(site.file), "--reason", "not a time")
    assert nothing.count("0 letters of 0 partitions wait") == 2

    proven = site.holdfast("verify", str(site.file), "--deep", "--all")
    assert proven.splitlines()[-1].startswith("proven: ")
    assert "each sink with routes holds every row that was routed to it" in proven
    assert proven.count("redrive-") == 2


def test_a_running_node_sends_letters_again_that_were_chosen_in_the_dashboard(tmp_path: Path) -> None:
    site = Site(tmp_path)
    rows = [(1, 200, "2026-01-01"), (2, 500, "01.02.2026"), (3, 500, "02.02.2026")]
    lines = [json.dumps({"id": number, "status": status, "at": at}) for number, status, at in rows]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    site.write(1, "yyyy-MM-dd")
    site.holdfast("run", str(site.file))
    site.write(2, "yyyy-MM-dd", "dd.MM.yyyy", scan="follow")
    port = free_port()
    node = Node(tmp_path, site.file, "keeper", "--web", str(port))
    try:
        eventually(lambda: re.search(r"token=\S+", node.said()), what="the address of the dashboard")
        (token,) = re.findall(r"token=(\S+)", node.said())
        base, headers = f"http://127.0.0.1:{port}/api/v1/pipelines/access", {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=base, headers=headers, timeout=PATIENCE) as client:
            url = "/letters:redrive"
            eventually(lambda: _waiting(client, url) == 2, what="a node that may send letters again")
            chosen = {"sink": "bad", "expect": 2, "reason": "the pattern is there now"}
            accepted = client.post(url, json=chosen)
            assert accepted.status_code == 202, accepted.text
            eventually(lambda: site.ids("bad") == [2, 3], what="the letters' records\n" + node.said())
            eventually(lambda: _waiting(client, url) == 0, what="letters that are noted as sent")
            done = [(accepted.json()["run"], "COMPLETED")]
            eventually(lambda: site.runs() == done, what="the end of the run")
        node.send(signal.SIGTERM)
        assert node.exit_code(PATIENCE) == 0
    finally:
        node.kill()


def _waiting(client: httpx.Client, url: str) -> int | None:
    """How many letters a redrive would send; None while it would be refused, or takes long."""
    found = client.get(url, params={"sink": "bad"})
    assert found.status_code in {200, 400, 409, 503}, found.text
    return int(found.json()["number"]) if found.status_code == 200 else None

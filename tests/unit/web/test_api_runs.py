"""Redrive, rewind and backfill through REST: looked at first, audited, and left to nodes as a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark import SparkContext

from holdfast.assemble import StoredPipeline
from holdfast.buckets.local import LocalBucket
from holdfast.flow.batch import Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.names import dead_letter_key
from holdfast.flow.run import Run
from holdfast.leases.lease import Lease, Progress
from holdfast.runs import rewind
from holdfast.runs.next_generation import parsing_as
from holdfast.web.access import Access
from holdfast.web.readings import Readings
from holdfast.web.tokens import TokenFile
from tests.unit.web.serving import Served, served
from tests.unit.web.test_security import FILE as TOKENS
from tests.unit.web.test_security import OPERATOR, VIEWER
from tests.unit.web.test_tokens import token_file

FILE = """\
source_coordination:
  partition_prefix: prod
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      kafka: {{bootstrap_servers: "127.0.0.1:1", topics: [orders]}}
    sinks:
      - files: {{root: {folder}/out, format: raw}}
  objects:
    source:
      objects: {{folder: {folder}/in, codec: text}}
    sinks:
      - files: {{root: {folder}/objects, format: jsonl}}
"""
LETTERS, REWIND, BACKFILL = (
    f"/api/v1/pipelines/{path}" for path in ("objects/letters:redrive", "orders:rewind", "orders:backfill")
)
WHY = {"reason": "the parser is mended"}


class Log:
    """What Kafka says of the partitions: they begin at 10, and at any time the offset was 40."""

    def starts(self, wanted: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(wanted, 10)

    def at_time(self, wanted: list[Any], _milliseconds: int) -> dict[Any, int]:
        return dict.fromkeys(wanted, 40)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A fleet with a Kafka partition at offset 90, a backup of ten messages, and two dead letters."""
    monkeypatch.setattr(rewind, "_cluster", lambda _pipeline: Log())
    (tmp_path / "in").mkdir()
    access = Access(tokens=TokenFile(token_file(tmp_path, TOKENS)))
    with served(tmp_path, access, file_text=FILE, readings=Readings(every=0.0, share=0)) as found:
        at = Progress(position={"offset": 90})
        found.store.add([Lease(found.dashboard.identifier("orders"), "orders|3", "", "orders", progress=at)])
        found.add("in|a", pipeline="objects")
        of_objects = stored(found, "objects")
        of_objects.generations().register(parsing_as(of_objects, 1, "n1"), switch=True)
        back_up(tmp_path / "out")
        bury(tmp_path / "objects", 1, "bad time", "odd")
        yield found


def back_up(root: Path, topic: str = "orders") -> None:
    """Write the manifest of a commit of ten messages."""
    file = {"key": f"{topic}/1_3_0.x", "rows": 10, "size": 1, "first": 0, "last": 9, "sha256": "0" * 64}
    manifest = {
        "commit_id": "c1",
        "pipeline": f"prod|{topic}",
        "key": f"{topic}|3",
        "stream": topic,
        "label": "3",
        "sequence": 1,
        "generation": 1,
        "incarnation": "",
        "token": 1,
        "files": [file],
        "start": {"offset": 0},
        "end": {"offset": 10},
    }
    LocalBucket(root).create(f"_holdfast/commits/{topic}/3/{1:020d}.json", json.dumps(manifest).encode())


def bury(root: Path, sequence: int, *reasons: str) -> None:
    lines = [dead_letter("prod|objects", "in|a", at, record_fault(why, b"x")) for at, why in enumerate(reasons)]
    LocalBucket(root).create(dead_letter_key(Name("in", "a"), sequence, 0), b"".join(lines))


@pytest.fixture
def client(board: Served) -> Iterator[httpx.Client]:
    with board.client(OPERATOR) as found:
        yield found


def stored(board: Served, pipeline: str) -> StoredPipeline:
    return StoredPipeline(board.dashboard.settings, board.store, pipeline)


def runs(board: Served, pipeline: str) -> list[Run]:
    return list(stored(board, pipeline).runs().list())


def entry(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/v1/audit").json()[0]
    return found


def test_a_redrive_is_looked_at_and_then_left_to_nodes(board: Served, client: httpx.Client) -> None:
    found = client.get(LETTERS, params={"sink": "files"}).json()
    assert found == {"number": 2, "partitions": [{"key": "in|a", "letters": 2}], "refused": {}, "left": 0}
    assert client.get(LETTERS, params={"sink": "files", "containing": "time"}).json()["number"] == 1
    assert client.get(LETTERS, params={"sink": "files", "key": "in|b"}).json()["number"] == 0
    assert (client.get("/api/v1/audit").json(), runs(board, "objects")) == ([], [])
    started = client.post(LETTERS, json={**WHY, "sink": "files", "containing": "time", "expect": 1})
    (run,) = runs(board, "objects")
    assert (started.status_code, started.json()["run"], started.json()["action"]) == (202, run.id, "redrive")
    assert run.configuration["reason"] == "time"
    assert SparkContext._gateway is None


def test_a_redrive_of_another_number_than_was_seen_is_refused(
    board: Served, client: httpx.Client, tmp_path: Path
) -> None:
    wanted = {**WHY, "sink": "files"}
    assert "expect" in client.post(LETTERS, json=wanted).json()["error"]
    seen = client.get(LETTERS, params={"sink": "files"}).json()["number"]
    bury(tmp_path / "objects", 2, "another one")
    refused = client.post(LETTERS, json={**wanted, "expect": seen})
    assert (refused.status_code, "3 letters match now, not 2" in refused.json()["error"]) == (409, True)
    assert (runs(board, "objects"), entry(client)["outcome"]) == ([], "refused")
    assert client.post(LETTERS, json={**wanted, "expect": 3}).status_code == 202


@pytest.mark.parametrize(("to", "first"), [("50", 50), ("2026-01-01T00:00:00Z", 40)])
def test_a_rewind_is_looked_at_and_then_left_to_nodes(
    board: Served, client: httpx.Client, tmp_path: Path, to: str, first: int
) -> None:
    chosen = {"key": "orders|3", "to": to}
    found = client.get(REWIND, params=chosen).json()
    assert (found["from"], found["to"], found["records"], found["generation"]) == (first, 90, 90 - first, 1)
    assert found["roots"] == {"files": f"{tmp_path}/out-g1"}
    assert (client.get("/api/v1/audit").json(), list(stored(board, "orders").generations().list())) == ([], [])
    started = client.post(REWIND, json={**WHY, **chosen})
    (run,) = runs(board, "orders")
    assert (started.status_code, started.json()["run"], run.created_by) == (202, run.id, "otto")
    assert {**run.configuration, "partitions": 1, "records": 90 - first} == found
    assert (entry(client)["action"], entry(client)["reason"]) == ("rewind", WHY["reason"])


def test_a_backfill_is_looked_at_and_then_left_to_nodes(board: Served, client: httpx.Client) -> None:
    found = client.get(BACKFILL, params={"backup": "orders", "between": "3..8"}).json()
    assert (found["partitions"], found["records"], found["between"]) == (1, 5, "3..8")
    assert (runs(board, "orders"), list(stored(board, "orders").generations().list())) == ([], [])
    started = client.post(BACKFILL, json={**WHY, "backup": "orders", "between": "3..8"})
    (run,) = runs(board, "orders")
    assert (started.status_code, run.configuration["kind"], run.status.value) == (202, "backfill", "INITIALIZING")
    assert SparkContext._gateway is None


def test_a_repeated_request_starts_one_run(board: Served, client: httpx.Client) -> None:
    headers, body = {"Idempotency-Key": "k1"}, {**WHY, "key": "orders|3", "to": "50"}
    first, again = (client.post(REWIND, json=body, headers=headers) for _ in range(2))
    assert (again.status_code, again.json()["run"]) == (202, first.json()["run"])
    assert len(runs(board, "orders")) == 1


@pytest.mark.parametrize(
    ("path", "chosen", "status", "error"),
    [
        (REWIND, {"key": "orders|3", "to": "5"}, 400, "Kafka no longer has offset 5 of orders|3"),
        (REWIND, {"key": "orders|3", "to": "95"}, 400, "nothing to read again from 95 on"),
        (REWIND, {"key": "orders|4", "to": "50"}, 400, "has no partition orders|4"),
        (REWIND, {"key": "orders", "to": "50"}, 400, "'orders' is not a partition of Kafka"),
        (REWIND, {"key": "orders|3", "to": "never"}, 400, "never"),
        (REWIND.replace("orders", "odd"), {"key": "orders|3", "to": "50"}, 404, "there is no pipeline 'odd'"),
        (BACKFILL, {"backup": "odd"}, 400, "there is no pipeline 'odd' in this file"),
        (BACKFILL, {"backup": "orders", "between": "50..60"}, 400, "hold no such records"),
        (BACKFILL, {"backup": "orders", "names": "dt=1"}, 400, "needs a parser"),
        (LETTERS, {"sink": "odd"}, 400, "there is no sink 'odd'"),
    ],
)
def test_what_cannot_be_started_is_said_before_and_after(
    board: Served, client: httpx.Client, path: str, chosen: dict[str, str], status: int, error: str
) -> None:
    looked = client.get(path, params=chosen)
    assert (looked.status_code, error in looked.json()["error"]) == (status, True), looked.text
    expect = {"expect": 2} if path == LETTERS else {}
    started = client.post(path, json={**WHY, **chosen, **expect})
    assert (started.status_code, error in started.json()["error"]) == (status, True), started.text
    assert (runs(board, "orders"), runs(board, "objects")) == ([], [])


def test_a_viewer_may_look_and_start_nothing(board: Served) -> None:
    with board.client(VIEWER) as client:
        assert client.get(LETTERS, params={"sink": "files"}).status_code == 200
        for path, chosen in (
            (LETTERS, {"sink": "files", "expect": 2}),
            (REWIND, {"key": "orders|3", "to": "50"}),
            (BACKFILL, {"backup": "orders"}),
        ):
            assert client.post(path, json={**WHY, **chosen}).status_code == 403
    assert (runs(board, "orders"), runs(board, "objects")) == ([], [])

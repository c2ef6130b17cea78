"""Alerts and proofs: what is wrong is named with its runbook, and a verification can be started and seen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.assemble import StoredPipeline
from holdfast.leases.lease import History, Lease, Ownership, Progress, Status
from holdfast.runs import verification
from holdfast.runs.verification import Verification, Verified
from holdfast.web.access import Access
from holdfast.web.tokens import TokenFile
from tests.unit.web.serving import FILE, Served, served, wait_for
from tests.unit.web.test_security import FILE as TOKENS
from tests.unit.web.test_security import OPERATOR, VIEWER
from tests.unit.web.test_tokens import token_file
from tests.web.fleet import node_row

WITH_FILES = """\
source_coordination:
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      kafka: {{bootstrap_servers: "kafka:9092", topics: [orders]}}
    sinks:
      - files: {{root: {folder}/files, format: jsonl}}
"""
LIMITED = FILE + "alerts: {{lag_seconds: 3}}\n"
VERIFY = "/api/v1/pipelines/orders:verify"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Served]:
    access = Access(tokens=TokenFile(token_file(tmp_path, TOKENS)))
    (tmp_path / "files").mkdir()
    with served(tmp_path, access, file_text=WITH_FILES) as found:
        yield found


@pytest.fixture
def client(board: Served) -> Iterator[httpx.Client]:
    with board.client(OPERATOR) as found:
        yield found


def test_alerts_name_partitions_nodes_and_lag_each_with_its_runbook(tmp_path: Path) -> None:
    with served(tmp_path, file_text=LIMITED) as board, board.client() as client:
        assert client.get("/alerts?format=json").json()["alerts"] == []
        assert "No alerts" in client.get("/alerts").text
    with served(tmp_path, file_text=LIMITED) as board, board.client() as client:
        orders, settings = board.dashboard.identifier("orders"), board.dashboard.settings
        failed = Lease(orders, "f", ownership=Ownership(Status.FAILED), history=History(last_error="bad JSON"))
        halted = replace(failed, key="h", history=History(halt_reason="offsets differ"))
        now = board.store.now()
        board.store.add([failed, halted, node_row(settings, "n7", "s7", now), node_row(settings, "n1", "s1", now)])
        found = client.get("/alerts?format=json").json()["alerts"]
    assert [(alert["kind"], alert["key"], alert["message"], alert["runbook"]) for alert in found] == [
        ("partition_failed", "f", "bad JSON", "docs/runbooks/partition-failed.md"),
        ("partition_halted", "h", "offsets differ", "docs/runbooks/partition-halted.md"),
        ("node_lost", None, "n7 is silent and holds 0 leases", "docs/runbooks/node-expired.md"),
        ("partition_lagging", None, "4 seconds behind, more than 3", "docs/runbooks/partition-lagging.md"),
    ]


def test_alerts_that_nodes_have_sent_are_shown_once_with_their_nodes(tmp_path: Path) -> None:
    with served(tmp_path, file_text=FILE) as board, board.client() as client:
        orders, now = board.dashboard.identifier("orders"), board.store.now()
        failed = Lease(orders, "f", ownership=Ownership(Status.FAILED), history=History(last_error="bad JSON"))
        subject = {"pipeline": orders, "key": None}
        slow = {"kind": "sink_unreachable", **subject, "message": "<b>503", "since": now - 60}
        known = {"kind": "partition_failed", "pipeline": orders, "key": "f", "message": "again", "since": now}
        later = {"kind": "of_a_later_version", **subject, "message": "", "since": now}
        rows = [sending(board, name, now, [slow, known, later]) for name in ("n1", "n2", "n7")]
        board.store.add([failed, *rows, node_row(board.dashboard.settings, "n9", "s9", now)])
        found = client.get("/api/v1/alerts").json()
        page = client.get("/alerts").text
        nodes = {row["name"]: row["alerts"] for row in client.get("/nodes?format=json").json()["nodes"]}
    kinds = [(alert["kind"], alert["key"], alert["nodes"]) for alert in found if alert["kind"] != "node_lost"]
    assert kinds == [("partition_failed", "f", None), ("sink_unreachable", None, ["n1", "n2"])]
    assert "&lt;b&gt;503" in page
    assert "seen by n1, n2" in page
    assert nodes == {"n1": 3, "n2": 3, "n7": 3, "n9": 0}


def sending(board: Served, name: str, now: float, alerts: list[dict[str, Any]]) -> Lease:
    """The row of a node that has sent these alerts; n7 is silent."""
    row = node_row(board.dashboard.settings, name, f"s-{name}", now)
    return replace(row, progress=Progress(state={**row.progress.state, "measured": {"$alerts": alerts}}))


def test_a_pipeline_that_was_never_verified_shows_the_command(client: httpx.Client) -> None:
    assert client.get("/proof?format=json").json()["proofs"] == [{"pipeline": "orders", "verdict": None}]
    assert "<code>holdfast verify pipeline.yaml --pipeline orders</code>" in client.get("/proof").text


def test_a_verification_is_started_audited_and_shown(board: Served, client: httpx.Client) -> None:
    done = client.post(VERIFY, json={"reason": "before the release"})
    assert done.status_code in {200, 202}, done.text
    stored = StoredPipeline(board.dashboard.settings, board.store, "orders")
    wait_for(lambda: (Verification(stored).latest() or Verified()).ended_at is not None)
    (proof,) = client.get("/proof?format=json").json()["proofs"]
    assert (proof["verdict"], proof["by"], proof["deep"]) == ("proven", "otto", False)
    assert "proven" in client.get("/proof?region=proofs").text
    wait_for(lambda: client.get("/api/v1/audit").json()[0]["outcome"] == "done")
    (entry,) = client.get("/api/v1/audit").json()
    assert [entry[name] for name in ("action", "who", "reason")] == ["verify", "otto", "before the release"]


def test_a_long_verification_is_seen_under_way_and_not_started_twice(
    board: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slow(*_given: object, **_named: object) -> Iterator[verification.Proof]:
        go_on.wait()
        yield from ()

    monkeypatch.setattr(verification, "proofs_of", slow)
    try:
        assert client.post(VERIFY, json={"reason": "x", "deep": True}).status_code == 202
        assert client.get("/proof?format=json").json()["proofs"][0]["verdict"] == "under way"
        refused = client.post(VERIFY, json={"reason": "x"})
        assert (refused.status_code, "is being verified" in refused.json()["error"]) == (409, True)
    finally:
        go_on.set()
    wait_for(lambda: client.post(VERIFY, json={"reason": "x"}).status_code == 200)


def test_only_operators_verify(board: Served) -> None:
    with board.client(VIEWER) as client:
        assert client.post(VERIFY, json={"reason": "x"}).status_code == 403
        assert "data-action" not in client.get("/proof").text

"""Actions through REST: audited, refused when another number matches, done once, and shown at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.leases.lease import Key, Status
from holdfast.web.access import Access
from holdfast.web.readings import Readings
from holdfast.web.tokens import TokenFile
from tests.unit.web.serving import Served, served
from tests.unit.web.test_api import change, printed
from tests.unit.web.test_security import FILE, OPERATOR, VIEWER
from tests.unit.web.test_tokens import token_file

PARTITIONS = "/api/v1/pipelines/orders/partitions"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Served]:
    access = Access(tokens=TokenFile(token_file(tmp_path, FILE)))
    with served(tmp_path, access, readings=Readings(every=3600)) as found:
        found.add("a", "b", "c")
        for key in ("a", "b"):
            change(found.store, found.dashboard.identifier("orders"), key, Status.FAILED)
        yield found


@pytest.fixture
def client(board: Served) -> Iterator[httpx.Client]:
    with board.client(OPERATOR) as found:
        yield found


def status_of(board: Served, key: str) -> Status:
    (row,) = board.store.get([Key(board.dashboard.identifier("orders"), "", key)])
    assert row is not None
    return row.status


def test_an_action_is_done_audited_and_seen_at_once(board: Served, client: httpx.Client) -> None:
    assert client.get("/api/v1/audit").json() == []
    before = client.get(f"{PARTITIONS}?status=FAILED").json()
    done = client.post(f"{PARTITIONS}:reopen", json={"keys": ["a"], "reason": "mended"})
    assert (done.status_code, done.json()["outcome"], done.json()["done"]) == (200, "done", 1), done.text
    assert status_of(board, "a") is Status.UNASSIGNED
    assert len(client.get(f"{PARTITIONS}?status=FAILED").json()) == len(before) - 1
    (entry,) = client.get("/api/v1/audit").json()
    assert [entry[name] for name in ("who", "via", "origin", "reason")] == ["otto", "api", "127.0.0.1", "mended"]
    assert [entry] == printed(board, "audit-log")


def test_a_partition_that_was_taken_since_the_person_looked_is_left_alone(board: Served, client: httpx.Client) -> None:
    (row,) = board.store.get([Key(board.dashboard.identifier("orders"), "", "a")])
    assert row is not None
    seen = row.token
    wanted = {"keys": ["a"], "expect": 1, "reason": "mended"}
    refused = client.post(f"{PARTITIONS}:reopen", json={**wanted, "token": seen + 1})
    assert (refused.status_code, refused.json()["outcome"]) == (409, "refused"), refused.text
    assert "it was taken since you looked" in refused.text
    assert status_of(board, "a") is Status.FAILED
    assert client.post(f"{PARTITIONS}:reopen", json={**wanted, "keys": ["a", "b"], "token": seen}).status_code == 400
    assert client.post(f"{PARTITIONS}:reopen", json={**wanted, "token": seen}).status_code == 200


def test_a_filter_is_refused_when_another_number_matches(board: Served, client: httpx.Client) -> None:
    wanted = {"filter": {"status": "FAILED"}, "reason": "mended"}
    assert client.post(f"{PARTITIONS}:reopen", json=wanted).status_code == 400
    refused = client.post(f"{PARTITIONS}:reopen", json={**wanted, "expect": 3})
    assert (refused.status_code, "2 partitions match now" in refused.json()["error"]) == (409, True)
    assert status_of(board, "a") is Status.FAILED
    assert client.post(f"{PARTITIONS}:reopen", json={**wanted, "expect": 2}).json()["done"] == 2
    assert status_of(board, "b") is Status.UNASSIGNED


def test_a_repeated_request_acts_once(board: Served, client: httpx.Client) -> None:
    headers, wanted = {"Idempotency-Key": "k1"}, {"keys": ["c"], "reason": "wrong file"}
    first = client.post(f"{PARTITIONS}:fail", json=wanted, headers=headers).json()
    assert client.post(f"{PARTITIONS}:reopen", json=wanted).status_code == 200
    again = client.post(f"{PARTITIONS}:fail", json=wanted, headers=headers).json()
    assert (again["id"], again["outcome"]) == (first["id"], "done")
    assert status_of(board, "c") is Status.UNASSIGNED


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/pipelines/orders:pause", {"reason": "x"}, 200),
        ("/api/v1/pipelines/orders:resume", {"reason": "x"}, 200),
        ("/api/v1/pipelines/odd:pause", {"reason": "x"}, 404),
        ("/api/v1/pipelines/orders:pause", {}, 422),
        ("/api/v1/pipelines/orders:pause", {"reason": "x", "odd": 1}, 422),
        ("/api/v1/nodes/a%2Fb:drain", {"reason": "x"}, 400),
        ("/api/v1/pipelines/orders/runs/none:stop", {"reason": "x"}, 400),
        ("/api/v1/pipelines/orders/generations:switch", {"reason": "x", "number": 7}, 400),
        (f"{PARTITIONS}:release", {"reason": "x", "keys": ["c"]}, 409),
        (f"{PARTITIONS}:release", {"reason": "x", "keys": ["none"]}, 409),
    ],
)
def test_each_action_has_a_route_and_a_clear_error(
    client: httpx.Client, path: str, body: dict[str, Any], status: int
) -> None:
    found = client.post(path, json=body)
    assert found.status_code == status, found.text
    assert status == 200 or found.json()["error"]


def test_a_viewer_may_do_nothing(board: Served) -> None:
    with board.client(VIEWER) as client:
        assert client.post(f"{PARTITIONS}:reopen", json={"keys": ["a"], "reason": "x"}).status_code == 403
    assert status_of(board, "a") is Status.FAILED

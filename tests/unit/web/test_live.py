"""The live channel, with real WebSocket clients and a real server on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from holdfast.errors import NotFound, StoreUnavailable
from holdfast.leases.lease import Status
from holdfast.web.dashboard import Dashboard
from holdfast.web.job_status import PATH
from holdfast.web.maps import MOST_CHANGES, Map
from holdfast.web.page import Page, Parameters, digests_of
from holdfast.web.readings import Readings
from tests.unit.web.serving import PATIENCE, Served, served, wait_for
from tests.unit.web.test_api import change


class Data:
    """The data of a page, as a test sets them."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {"head": 1, "counts": 1, "rows": [1]}
        self.reads = 0
        self.away = False
        self.broken = ""
        """The name of a thing whose page has a bug."""

    def read(self, _dashboard: Dashboard, parameters: Parameters) -> dict[str, Any]:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("the store does not respond")
        if parameters.get("name") == self.broken:
            raise KeyError("a bug")
        if parameters.get("name") == "nothing":
            raise NotFound("there is nothing")
        return {**self.value, "parameters": dict(parameters)}


@pytest.fixture
def data() -> Data:
    return Data()


@pytest.fixture
def board(tmp_path: Path, data: Data) -> Iterator[Served]:
    page = Page("/things/{name}", "overview.html", data.read, parameters=("status",))
    with served(tmp_path, pages=[page], readings=Readings(every=0.01, share=0)) as found:
        yield found


def client_of(board: Served, path: str = "/api/v1/live") -> Any:
    return connect(f"ws://127.0.0.1:{board.port}{path}", open_timeout=PATIENCE)


def subscribe(client: ClientConnection, *topics: str, **more: Any) -> None:
    client.send(json.dumps({"subscribe": list(topics), **more}))


def received(client: ClientConnection, wanted: Callable[[Any], bool] = lambda _message: True) -> Any:
    """The next message that is wanted."""
    while not wanted(message := json.loads(client.recv(PATIENCE))):
        pass
    return message


def test_a_tick_names_the_regions_that_have_changed(board: Served, data: Data) -> None:
    with client_of(board) as client:
        subscribe(client, "/things/a?status=FAILED&region=x")
        first = received(client)
        assert (first["page"], first["store"], first["regions"]) == ("/things/a?status=FAILED&region=x", "ok", [])
        assert first["age"] < PATIENCE
        data.value = {**data.value, "counts": 2}
        assert received(client, lambda message: message["regions"])["regions"] == ["counts"]
        data.value = {**data.value, "rows": [2], "head": 2}
        assert sorted(received(client, lambda message: message["regions"])["regions"]) == ["head", "rows"]
        later = received(client)
        assert later["regions"] == []
        assert later["snapshot"] > first["snapshot"]


def test_what_changed_since_a_page_was_made_is_named_at_once_also_to_its_first_viewer(
    board: Served, data: Data
) -> None:
    seen = digests_of(data.value)
    data.value = {**data.value, "counts": 2}
    with client_of(board) as client:
        subscribe(client, "/things/a", seen={**seen, "gone": "digest"})
        assert received(client)["regions"] == ["counts", "parameters", "gone"]
        assert received(client)["regions"] == []


def test_a_viewer_who_has_seen_the_present_state_is_named_nothing(board: Served, data: Data) -> None:
    with client_of(board) as client:
        subscribe(client, "/things/a", seen=digests_of({**data.value, "parameters": {"name": "a"}}))
        assert received(client)["regions"] == []


def test_clients_share_reads_and_without_clients_nothing_is_read(board: Served, data: Data) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(client_of(board)) for _ in range(10)]
        for client in clients:
            subscribe(client, "/things/a")
        for client in clients:
            received(client)
            received(client)
        assert data.reads < 10 * 3

    def resting() -> bool:
        import time

        before = data.reads
        time.sleep(0.1)
        return data.reads == before

    wait_for(resting)


def test_a_store_that_is_away_is_named_and_the_age_grows(board: Served, data: Data) -> None:
    with client_of(board) as client:
        subscribe(client, "/things/a")
        received(client)
        data.away = True
        first = received(client, lambda message: message["store"] != "ok")
        assert first["store"] == "the store does not respond"
        assert received(client)["age"] > first["age"]
        data.away = False
        assert received(client, lambda message: message["store"] == "ok")["age"] < PATIENCE


def test_a_page_with_a_bug_keeps_no_other_page_waiting_and_is_reported(board: Served, data: Data) -> None:
    with client_of(board) as ours, client_of(board) as theirs:
        subscribe(ours, "/things/a")
        received(ours)
        data.broken = "b"
        subscribe(theirs, "/things/b")
        assert "bug" in received(theirs)["store"]
        data.value = {**data.value, "counts": 2}
        assert received(ours, lambda message: message["regions"])["regions"] == ["counts"]
    assert "/things/b: KeyError: 'a bug'" in board.reported


def test_clients_hear_of_a_store_that_is_read_seldom_as_often_as_of_any_other(tmp_path: Path, data: Data) -> None:
    page = Page("/things/{name}", "overview.html", data.read)
    with served(tmp_path, pages=[page], readings=Readings(every=3600)) as board, client_of(board) as client:
        subscribe(client, "/things/a")
        assert [received(client)["store"] for _ in range(2)] == ["ok", "ok"]
        assert data.reads == 1


def test_a_page_that_does_not_exist_is_named(board: Served) -> None:
    with client_of(board) as client:
        subscribe(client, "/nowhere", "/things/nothing")
        assert received(client)["store"] == "there is no page /nowhere"
        assert received(client)["store"] == "there is nothing"


def test_maps_send_what_has_changed_with_numbers(board: Served) -> None:
    board.add("a", "b", "c")
    identifier = board.dashboard.identifier("orders")
    with client_of(board) as client:
        subscribe(client, "map:orders")
        first = received(client)
        assert first == {"map": "orders", "run": "", "from": first["to"], "to": first["to"], "changes": []}
        change(board.store, identifier, "b", Status.FAILED)
        second = received(client)
        assert (second["from"], second["changes"]) == (first["to"], [[1, 4]])
        board.add("aa")
        assert received(client)["from"] is None


def test_a_map_that_has_other_keys_or_too_many_changes_is_fetched_whole() -> None:
    first = Map().followed_by(b"\0" * (MOST_CHANGES + 1), same_keys=False)
    assert (first.number, first.changes) == (1, None)
    assert first.followed_by(first.cells, same_keys=True) is first
    assert first.followed_by(b"\1" + first.cells[1:], same_keys=True).changes == ((0, 1),)
    assert first.followed_by(b"\1" * (MOST_CHANGES + 1), same_keys=True).changes is None
    assert first.followed_by(first.cells, same_keys=False).changes is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"subscribe": 1}', '{"subscribe": ["/"], "seen": "x"}', "[" * 9999])
def test_a_message_that_means_nothing_closes_the_socket(board: Served, text: str) -> None:
    with client_of(board) as client:
        client.send(text)
        with pytest.raises(ConnectionClosed):
            received(client)


def test_a_client_that_does_not_read_keeps_nobody_waiting_and_gets_the_newest_state(board: Served, data: Data) -> None:
    with client_of(board) as slow, client_of(board) as quick:
        subscribe(slow, "/things/a")
        subscribe(quick, "/things/a")
        received(quick)
        for number in range(20):
            data.value = {**data.value, "counts": f"new {number}"}
            assert received(quick, lambda message: message["regions"])["regions"] == ["counts"]
        assert received(slow, lambda message: message["regions"])["regions"] == ["counts"]


def test_the_status_of_reindex_runs_is_served_too(board: Served) -> None:
    with board.client() as client:
        response = client.get(PATH)
        assert (response.status_code, response.json()) == (404, {"error": "there is no such reindex run"})
    with client_of(board, PATH) as socket:
        socket.ping().wait(PATIENCE)


def test_a_topic_that_is_named_twice_is_left_with_its_client(board: Served, data: Data) -> None:
    with client_of(board) as client:
        subscribe(client, "/things/a", "/things/a")
        received(client)
    before = -1
    # A last reading may be under way when the client goes.
    while before != data.reads:
        before = data.reads
        time.sleep(0.2)
    assert data.reads == before

"""The bad network does what it says: otherwise a soak behind it would prove nothing."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Swap
from holdfast.leases.transitions import complete, stamped
from holdfast.testing.rows import PIPELINE, make_row
from tests.servers.processes import free_port
from tests.soak.grounds import ServerGround, ground
from tests.soak.proxy import BadNetwork

INSERT = "INSERT INTO notes VALUES (1)"
COUNT = "SELECT count(*) FROM notes"


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerGround]:
    with ground(request.param, tmp_path_factory.mktemp("ground"), seed=1) as place:
        assert isinstance(place, ServerGround)
        place.run("CREATE TABLE notes (n int)")
        yield place


@pytest.fixture
def place(server: ServerGround) -> ServerGround:
    server.run("DELETE FROM notes")
    return server


def connect(ground: ServerGround, patience: int = 10) -> Any:
    """A client behind the network."""
    settings = ground.settings()
    if ground.plugin == "mysql":
        return pymysql.connect(
            host="127.0.0.1",
            port=settings["port"],
            user=settings["user"],
            database=settings["database"],
            autocommit=True,
            read_timeout=patience,
        )
    return psycopg.connect(
        host="127.0.0.1",
        port=settings["port"],
        user=settings["user"],
        dbname=settings["database"],
        sslmode="disable",
        autocommit=True,
    )


def insert(client: Any) -> None:
    with client.cursor() as cursor:
        cursor.execute(INSERT)


def insert_until_broken(client: Any) -> int:
    """How many inserts were answered before the connection broke."""
    for number in range(500):
        try:
            insert(client)
        except (psycopg.OperationalError, pymysql.Error):
            return number
    raise AssertionError("the connection does not break")


def until_true(is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def until(ground: ServerGround, rows: int) -> None:
    until_true(lambda: ground.run(COUNT) == [(rows,)])


def test_what_a_connection_has_sent_lands_again_when_it_is_repeated(place: ServerGround) -> None:
    with closing(connect(place)) as client:
        insert(client)
        until(place, 1)
        place.network.repeat(1)
        until(place, 2)
        insert(client)
    until(place, 3)


def open_store(ground: ServerGround, port: int) -> ClaimingStore:
    plugin = importlib.import_module(f"holdfast.stores.{ground.plugin}").PLUGIN
    store: ClaimingStore = plugin.build(plugin.config.model_validate({**ground.settings(), "port": port}))
    store.open()
    return store


def test_a_row_is_as_it_was_when_the_claim_of_an_earlier_owner_lands_again(place: ServerGround) -> None:
    with (
        closing(open_store(place, place.network.port)) as store,
        closing(open_store(place, place.server.port)) as later,
    ):
        store.add([make_row("a")])
        (lease,) = store.claim(ClaimRequest(PIPELINE, "me", "claim", 1))
        done = stamped(lease, complete(lease, later.now()), "done")
        assert later.swap([Swap(lease.version, done)]) == [Outcome.OK]
        before = place.network.repeated
        place.network.repeat(9)
        until_true(lambda: place.network.repeated > before)
        assert later.get([done.id]) == [done]


def test_a_request_that_is_held_lands_after_its_sender_has_gone(place: ServerGround) -> None:
    client = connect(place)
    place.network.hold_requests(1.0)
    _send_and_go(place, client)
    assert place.run(COUNT) == [(0,)]
    until(place, 1)


def test_an_answer_that_is_lost_breaks_the_connection_and_not_the_write(place: ServerGround) -> None:
    client = connect(place)
    place.network.lose_answers(1)
    answered = insert_until_broken(client)
    until(place, answered + 1)


@pytest.mark.parametrize("fault", [lambda n: n.drop(), lambda n: n.refuse(0.3)])
def test_connections_break(place: ServerGround, fault: Callable[[Any], None]) -> None:
    client = connect(place)
    fault(place.network)
    insert_until_broken(client)


def test_a_network_before_nothing_is_no_error_of_its_own(tmp_path: Path) -> None:
    with BadNetwork(free_port(), seed=1) as network, pytest.raises(psycopg.OperationalError):
        psycopg.connect(host="127.0.0.1", port=network.port, sslmode="disable", connect_timeout=5)


def _send_and_go(place: ServerGround, client: Any) -> None:
    """Send the statement and hang up without waiting for an answer."""
    if place.plugin == "mysql":
        client._execute_command(3, INSERT)
        client._force_close()
    else:
        client.pgconn.send_query(INSERT.encode())
        client.pgconn.finish()

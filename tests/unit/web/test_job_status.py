"""The channel of reindex runs, with a real WebSocket client and a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from holdfast.errors import StoreUnavailable, UsageError
from holdfast.flow.run import GroupStats, Run, RunStatus
from holdfast.web.job_status import PATH, JobStatus
from holdfast.web.server import listen

PATIENCE = 60.0
GROUPS = {
    "table": GroupStats(10, 50_000, 5, 0, 25_050, 25_000, 50),
    "database": GroupStats(10, 50_000, 4, 0, 20_050, 20_000, 50),
}
RUN = Run("reindex-2", RunStatus.RUNNING, groups=GROUPS)
MESSAGE = {
    "status": "RUNNING",
    "stats": {
        "jobStats": {"totalRecords": 100_000, "successRecords": 45_000, "failedRecords": 100},
        "entityStats": {
            "table": {"totalRecords": 50_000, "successRecords": 25_000, "failedRecords": 50},
            "database": {"totalRecords": 50_000, "successRecords": 20_000, "failedRecords": 50},
        },
    },
}


class Source:
    """The runs in the store, as a test sets them."""

    def __init__(self, *runs: Run) -> None:
        self.runs: Sequence[Run] = runs
        self.reads = 0
        self.down = False
        self.may_end = threading.Event()
        self.may_end.set()

    def read(self) -> Sequence[Run]:
        self.reads += 1
        assert self.may_end.wait(PATIENCE)
        if self.down:
            raise StoreUnavailable("no response")
        return self.runs

    def read_more_often(self, times: int) -> None:
        wanted = self.reads + times
        wait_for(lambda: self.reads >= wanted)


class Served:
    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self, query: str = "", host: str = "127.0.0.1", **settings: Any) -> Any:
        """Connect to the server under that name."""
        uri = f"ws://{host}:{self.port}{PATH}{query}"
        return connect(uri, address=("127.0.0.1", self.port), open_timeout=PATIENCE, **settings)

    def is_refused(self, **settings: Any) -> bool:
        with pytest.raises(InvalidStatus, match="403"), self.connect(**settings):
            pass
        return True

    def request(self, method: str = "GET", path: str = PATH, **headers: str) -> tuple[int, Any]:
        client = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            client.request(method, path, headers=headers)
            response = client.getresponse()
            return response.status, json.loads(response.read())
        finally:
            client.close()


@contextmanager
def serving(source: Source, every: float, **settings: Any) -> Iterator[Served]:
    import uvicorn

    app = JobStatus(source.read, every=every, **settings)
    listening = listen("127.0.0.1", 0, allow_remote=False)
    server = uvicorn.Server(uvicorn.Config(app, ws="websockets-sansio", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Served(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def received(client: ClientConnection) -> Any:
    return json.loads(client.recv(PATIENCE))


def test_a_client_gets_the_state_when_it_connects_and_then_every_change_to_the_last() -> None:
    source = Source(RUN)
    with serving(source, every=0.01) as served, served.connect() as client:
        assert received(client) == MESSAGE
        source.read_more_often(5)
        source.runs = [replace(RUN, status=RunStatus.COMPLETED)]
        assert received(client) == {**MESSAGE, "status": "COMPLETED"}
        source.read_more_often(5)
        source.runs = [Run("reindex-3", RunStatus.INITIALIZING)]
        assert received(client)["status"] == "INITIALIZING"


def test_clients_share_one_read() -> None:
    source = Source(RUN)
    with serving(source, every=3600) as served:
        assert source.reads == 0
        with ExitStack() as stack:
            clients = [stack.enter_context(served.connect()) for _ in range(10)]
            assert [received(client) for client in clients] == [MESSAGE] * 10
            assert served.request() == (200, MESSAGE)
    assert source.reads == 1


def test_a_client_that_goes_away_during_a_read_does_not_cause_another() -> None:
    source = Source(RUN)
    source.may_end.clear()
    with serving(source, every=3600) as served:
        with served.connect():
            wait_for(lambda: source.reads == 1)
        with served.connect() as client:
            source.may_end.set()
            assert received(client) == MESSAGE
    assert source.reads == 1


def test_without_clients_nothing_is_read() -> None:
    source = Source(RUN)
    with serving(source, every=0.01) as served:
        with served.connect() as client:
            received(client)
            source.read_more_often(2)

        def resting() -> bool:
            before = source.reads
            time.sleep(0.1)
            return source.reads == before

        wait_for(resting)


def test_a_client_may_choose_a_run() -> None:
    source = Source(RUN, Run("reindex-1", RunStatus.STOPPED))
    with serving(source, every=0.01) as served, served.connect("?run=reindex-1") as client:
        assert received(client)["status"] == "STOPPED"
        assert served.request(path=f"{PATH}?run=reindex-1")[1]["status"] == "STOPPED"
        assert served.request(path=f"{PATH}?run=reindex-9")[0] == 404


def test_a_client_waits_for_a_store_that_is_down_and_that_is_reported_once() -> None:
    source, reported = Source(RUN), list[str]()
    source.down = True
    with serving(source, every=0.01, report=reported.append) as served, served.connect() as client:
        source.read_more_often(3)
        assert served.request() == (503, {"error": "no response"})
        source.down = False
        assert received(client) == MESSAGE
    assert reported == ["no response"]


def test_a_page_of_another_origin_and_another_host_name_are_refused() -> None:
    with serving(Source(RUN), every=0.01, local_only=True) as served:
        here = f"http://127.0.0.1:{served.port}"
        with served.connect(origin=here) as client:
            assert received(client) == MESSAGE
        assert served.is_refused(origin="https://example.org")
        assert served.is_refused(host="example.org")
        assert served.request(Origin="https://example.org")[0] == 403
        assert served.request(Host="example.org")[0] == 403
        assert served.request(Host="[")[0] == 403


def test_other_paths_and_methods_are_refused() -> None:
    with serving(Source(RUN), every=0.01) as served:
        assert served.request(path="/")[0] == 404
        assert served.request(method="POST")[0] == 405
        assert served.is_refused(query="/other")


@pytest.mark.parametrize("path", ["/board/jobs", "/board/jobs/", f"/board/jobs{PATH}"])
def test_another_application_may_mount_it(path: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": path, "root_path": "/board/jobs", "headers": []}
    asyncio.run(JobStatus(Source(RUN).read)(scope, receive, send))
    assert sent[0]["status"] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "", "192.0.2.1"])  # noqa: S104 - nothing listens there
def test_an_address_for_other_hosts_has_to_be_allowed(host: str) -> None:
    with pytest.raises(UsageError, match="--allow-remote"):
        listen(host, 0, allow_remote=False)


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1", 0, allow_remote=False) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port, allow_remote=False)

"""REST: the same JSON as commands print, pages by key, old data with their age, and clear errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import assemble
from holdfast.assemble import StoredPipeline, audit_log_of
from holdfast.buckets.local import LocalBucket
from holdfast.cli.root import app as commands
from holdfast.errors import StoreUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.fault import dead_letter, record_fault
from holdfast.flow.generations import Generation
from holdfast.flow.names import dead_letter_key
from holdfast.leases.action import Action, Request
from holdfast.leases.controls import Controls
from holdfast.leases.lease import Lease, Ownership, Progress, Status
from holdfast.leases.store import Store
from holdfast.leases.world import host_world
from holdfast.web.readings import Readings
from tests.unit.web import serving
from tests.unit.web.serving import Served, served, wait_for

LETTERS = """\
source_coordination:
  partition_prefix: prod
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      objects: {{folder: {folder}/in, codec: text}}
    sinks:
      - files: {{root: {folder}/out, format: jsonl}}
"""
FUNCTION = """\
source_coordination:
  store:
    sqlite: {{path: {folder}/leases.db}}
pipelines:
  orders:
    source:
      stream: {{name: orders, folder: {folder}/streams}}
    sinks:
      - function: {{handler: handler.py, on_error: {{after_retries: stop}}}}
"""
LARGE = 2**63 - 1


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Served]:
    """A fleet with a node, partitions, a run, a generation and a dead letter."""
    (tmp_path / "in").mkdir()
    out = LocalBucket(tmp_path / "out")
    out.create(dead_letter_key(Name("in", "a"), 1, 0), dead_letter("prod|orders", "in|a", 7, record_fault("odd", b"4")))
    with served(tmp_path, file_text=LETTERS, readings=Readings(every=0.0, share=0)) as found:
        fill(found)
        yield found


def fill(board: Served) -> None:
    settings, store = board.dashboard.settings, board.store
    world = host_world(lambda _event: None)
    assemble.new_session(settings, store, world, pipelines=["orders"], name="n1").join()
    identifier = board.dashboard.identifier("orders")
    position = Progress(position=LARGE)
    store.add([Lease(identifier, f"in|{number:02d}", group="in", progress=position) for number in range(7)])
    stored = StoredPipeline(settings, store, "orders")
    stored.generations().register(Generation(1, "d" * 64, {"a": 1}, created_by="n1"), switch=True)
    stored.runs().add("backfill-1", configuration={"kind": "backfill"}, created_by="ana")
    Controls(store, world.new_id, board.dashboard.fleet).drain("n1", "ana")
    log = audit_log_of(settings, store)
    log.begin(Request("ana", via="cli", reason="it stops"), Action("nodes drain", "", ["n1"], 1))


def printed(board: Served, *words: str) -> Any:
    group = words[: 2 if words[0] in {"pipelines", "partitions", "runs", "generation", "deadletters"} else 1]
    result = CliRunner().invoke(
        commands, [*group, str(board.dashboard.file), *words[len(group) :], "--json"], prog_name="holdfast"
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/overview", ("status",)),
        ("/nodes", ("nodes",)),
        ("/nodes?all=true", ("nodes", "--all")),
        ("/pipelines", ("pipelines", "list")),
        ("/audit", ("audit-log",)),
        ("/pipelines/orders/partitions", ("partitions", "list")),
        ("/pipelines/orders/partitions?status=FAILED&status=CLOSED", ("partitions", "list", "--status", "failed")),
        ("/pipelines/orders/partition?key=in%7C03", ("partitions", "show", "in|03")),
        ("/pipelines/orders/runs", ("runs", "list")),
        ("/pipelines/orders/run?run=backfill-1", ("runs", "show", "backfill-1")),
        ("/pipelines/orders/generations", ("generation", "list")),
        ("/pipelines/orders/letters", ("deadletters", "list")),
        ("/pipelines/orders/letters?by_partition=true&sink=files", ("deadletters", "list", "--by-partition")),
    ],
)
def test_rest_returns_what_the_command_prints(board: Served, path: str, words: tuple[str, ...]) -> None:
    with board.client() as client:
        found = client.get(f"/api/v1{path}")
    assert found.status_code == 200, found.text
    expected = printed(board, *words)
    if words == ("status",):
        expected["at"] = found.json()["at"]
    assert found.json() == expected
    assert found.json() or "FAILED" in path


@pytest.mark.parametrize("name", ["alerts", "functions"])
def test_rest_returns_what_the_page_shows(tmp_path: Path, name: str) -> None:
    (tmp_path / "handler.py").write_text("def handler(context, event): pass\n")
    with served(tmp_path, file_text=FUNCTION, readings=Readings(every=0.0, share=0)) as board, board.client() as client:
        failed = Ownership(Status.FAILED, due_at=None)
        board.store.add([Lease(board.dashboard.identifier("orders"), "0", group="orders", ownership=failed)])
        found = client.get(f"/api/v1/{name}")
        assert found.status_code == 200, found.text
        assert found.json() == client.get(f"/{name}?format=json").json()[name]
        assert len(found.json()) == 1


def test_every_endpoint_that_reads_is_described(board: Served) -> None:
    with board.client() as client:
        described = client.get("/api/v1/openapi.json").json()["paths"]
    whole = {"overview", "nodes", "pipelines", "audit", "alerts", "functions"}
    of_pipeline = {"partitions", "partition", "map", "runs", "run", "generations", "letters"}
    wanted = {f"/api/v1/{name}" for name in whole} | {f"/api/v1/pipelines/{{pipeline}}/{name}" for name in of_pipeline}
    assert wanted <= {path for path, methods in described.items() if methods.get("get", {}).get("description")}


def test_large_integers_keep_their_digits(board: Served) -> None:
    with board.client() as client:
        assert f'"position": {LARGE}' in client.get("/api/v1/pipelines/orders/partition?key=in%7C00").text


def test_partitions_come_page_by_page(board: Served) -> None:
    found: list[str] = []
    with board.client() as client:
        address = "/api/v1/pipelines/orders/partitions?limit=3&status=UNASSIGNED"
        pages = 0
        while True:
            page = client.get(address)
            pages += 1
            found += [row["sourcePartitionKey"] for row in page.json()]
            if "next" not in page.links:
                break
            address = page.links["next"]["url"]
    assert found == [f"in|{number:02d}" for number in range(7)]
    assert pages == 3


def test_a_map_has_one_byte_per_partition(board: Served) -> None:
    identifier = board.dashboard.identifier("orders")
    with board.client() as client:
        before = client.get("/api/v1/pipelines/orders/map")
        assert (before.content, before.headers["content-type"]) == (b"\0" * 7, "application/octet-stream")
        for key, status, owner in (("in|02", Status.FAILED, None), ("in|04", Status.ASSIGNED, "nobody")):
            change(board.store, identifier, key, status, owner)
        after = client.get("/api/v1/pipelines/orders/map")
    assert after.content == bytes([0, 0, 4, 0, 5, 0, 0])
    assert int(after.headers["x-holdfast-snapshot"]) == int(before.headers["x-holdfast-snapshot"]) + 1


def change(store: Store, identifier: str, key: str, status: Status, owner: str | None = None) -> None:
    """Change the status of a row, whatever it was."""
    from holdfast.leases.lease import Key
    from holdfast.leases.store import Swap

    (row,) = store.get([Key(identifier, "", key)])
    assert row is not None
    owned = replace(row.ownership, status=status, owner=owner, version=row.ownership.version + 1)
    store.swap([Swap(row.ownership.version, replace(row, ownership=owned))])


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/pipelines/order/partitions", 404, "did you mean 'orders'"),
        ("/pipelines/orders/partition?key=nothing", 404, "nothing"),
        ("/pipelines/orders/partition", 422, "key"),
        ("/pipelines/orders/partitions?limit=100000", 422, "limit"),
        ("/pipelines/orders/partitions?status=ODD", 422, "UNASSIGNED"),
        ("/pipelines/orders/run?run=none", 404, "none"),
        ("/pipelines/orders/letters?sink=odd", 400, "it has files"),
    ],
)
def test_errors_have_a_clear_reason(board: Served, path: str, status: int, reason: str) -> None:
    with board.client() as client:
        found = client.get(f"/api/v1{path}")
    assert found.status_code == status
    assert list(found.json()) == ["error"]
    assert reason in found.json()["error"]


def test_openapi_describes_every_route(board: Served) -> None:
    with board.client() as client:
        described = client.get("/api/v1/openapi.json").json()
    assert {"/api/v1/overview", "/api/v1/pipelines/{pipeline}/partitions"} <= described["paths"].keys()
    for path, methods in described["paths"].items():
        for method in methods.values():
            assert method["description"], path


# --- a store that is away or slow ------------------------------------------------------------------------------------


class AwayStore:
    """A store that can be away, or hold every read until it is let go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.reads = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in {"now", "find", "count", "get", "snapshot", "outline"}:
            return found

        def read(*arguments: Any, **named: Any) -> Any:
            self.reads += 1
            assert self.may_go_on.wait(serving.PATIENCE)
            if self.away:
                raise StoreUnavailable("the store does not respond")
            return found(*arguments, **named)

        return read


def test_while_the_store_is_away_old_data_are_shown_with_their_age(tmp_path: Path) -> None:
    stores: list[AwayStore] = []

    def away(store: Store) -> Any:
        stores.append(AwayStore(store))
        return stores[0]

    with served(tmp_path, store=away, readings=Readings(every=0.0, share=0)) as board, board.client() as client:
        board.add("a")
        before = client.get("/api/v1/pipelines/orders/partitions")
        assert "x-holdfast-fault" not in before.headers
        stores[0].away = True
        after = client.get("/api/v1/pipelines/orders/partitions")
        assert (after.status_code, after.json()) == (200, before.json())
        assert after.headers["x-holdfast-fault"] == "the store does not respond"
        nothing = client.get("/api/v1/nodes")
        assert (nothing.status_code, nothing.json()) == (503, {"error": "the store does not respond"})
        page = client.get("/nodes")
        assert (page.status_code, '<meta http-equiv="refresh"' in page.text) == (503, True)
        stores[0].away = False
        assert "x-holdfast-fault" not in client.get("/api/v1/pipelines/orders/partitions").headers


def test_a_slow_store_keeps_nobody_waiting(tmp_path: Path) -> None:
    stores: list[AwayStore] = []

    def slow(store: Store) -> Any:
        stores.append(AwayStore(store))
        return stores[0]

    with (
        served(tmp_path, store=slow, readings=Readings(every=0.0, share=0, patience=0.05)) as board,
        board.client() as client,
    ):
        wait_for(lambda: client.get("/?format=json").status_code == 200)
        stores[0].may_go_on.clear()
        try:
            old = client.get("/?format=json")
            assert (old.status_code, old.headers["x-holdfast-fault"]) == (200, "the store takes long to respond")
            assert client.get("/api/v1/nodes").status_code == 503
            assert client.get("/healthz").text == "ok\n"
        finally:
            stores[0].may_go_on.set()
        wait_for(lambda: "x-holdfast-fault" not in client.get("/?format=json").headers)


def test_viewers_share_a_read_and_without_viewers_nothing_is_read(tmp_path: Path) -> None:
    stores: list[AwayStore] = []

    def counted(store: Store) -> Any:
        stores.append(AwayStore(store))
        return stores[0]

    with served(tmp_path, store=counted, readings=Readings(every=3600)) as board, board.client() as client:
        assert stores[0].reads == 0
        client.get("/api/v1/overview")
        reads = stores[0].reads
        assert reads > 0
        for _ in range(20):
            client.get("/api/v1/overview")
        assert stores[0].reads == reads

"""The page of functions: which version runs, the trigger as written, shards with acks and errors, and the nodes."""

from __future__ import annotations

from pathlib import Path

from holdfast.assemble import StoredPipeline
from holdfast.flow.generations import Generation
from holdfast.leases.lease import Counts, History, Lease, Order, Ownership, Progress, Status
from holdfast.web.dashboard import Dashboard
from holdfast.web.pages_functions import show_functions
from tests.web.fleet import node_row, opened


def test_a_function_shows_its_version_trigger_shards_and_nodes(tmp_path: Path) -> None:
    with opened(tmp_path) as (file, settings, store):
        orders = settings.identifier("orders")
        store.add(
            [
                node_row(settings, "n9", "s9", store.now(), 2),
                Lease(
                    orders,
                    "a",
                    order=Order(index=40),
                    ownership=Ownership(Status.ASSIGNED, "s9", 2),
                    progress=Progress({"offset": 7}, acked=((9, 12), (20, 21)), counts=Counts(8, 6, 1, 1)),
                    history=History(last_error="KeyError: 'id'"),
                ),
            ]
        )
        generations = StoredPipeline(settings, store, "orders").generations()
        generations.register(Generation(1, "d1" * 32, None, "ana"), switch=True)
        (found,) = show_functions(Dashboard(file, settings, store), {})["functions"]
    assert (found["pipeline"], found["handler"]) == ("orders", "handler.py")
    assert [found["generation"][name] for name in ("number", "digest", "by")] == [1, "d1" * 32, "ana"]
    trigger = {field["label"]: (field["value"], field["is_default"]) for field in found["trigger"]}
    assert (trigger["Max Workers"], trigger["Session Timeout"]) == (("4", False), ("10s", True))
    (shard,) = [row for row in found["shards"] if row["key"] == "a"]
    assert (shard["owner"], shard["acked"], shard["error"]) == ("n9", 4, "KeyError: 'id'")
    assert (shard["counts"]["failed"], shard["counts"]["dead"]) == (1, 1)
    (node,) = [row for row in found["nodes"] if row["name"] == "n9"]
    assert (node["workers"], node["worker_states"], node["busy"]) == (4, {"busy": 3, "idle": 1}, 3)
    assert node["shards"] == "40"


def test_the_trigger_of_a_file_with_a_secret_in_plain_text_is_not_shown(tmp_path: Path) -> None:
    with opened(tmp_path) as (file, settings, store):
        file.write_text(file.read_text().replace("workers: 4", "workers: 4\n          url: http://bob:hunter2@h/c/s@g"))
        (found,) = show_functions(Dashboard(file, settings, store), {})["functions"]
    assert found["trigger"] == []

"""The sink `opensearch` on a real OpenSearch: every record there once, whatever the server does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.audit.letters import AuditedLetters, verify_letters
from holdfast.errors import BatchError, Refused, SinkUnavailable
from holdfast.flow.batch import Name
from holdfast.flow.fault import record_fault
from holdfast.flow.letter import read_back
from holdfast.flow.sink import Publication
from holdfast.leases.lease import Counts, Lease
from holdfast.registry import Registry
from holdfast.sinks.opensearch import PLUGIN
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import make_row
from tests.servers.opensearch import OpenSearchServer
from tests.servers.opensearch_desk import Desk
from tests.servers.processes import free_port, running

LONG = {"properties": {"n": {"type": "long"}}}


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"n": number, **more} for number in range(count)]


# --- documents ---------------------------------------------------------------------------------------------------


def test_records_become_documents_and_a_batch_that_is_written_twice_is_there_once(
    opensearch_server: OpenSearchServer,
) -> None:
    desk = Desk(opensearch_server, max_bulk_documents=300)
    assert desk.verdict.startswith("OpenSearch 2.")
    for _ in range(2):
        written = desk.write(numbered(1000))
        assert (written.part["documents"], written.dead) == (1000, 0)
    assert sorted(document["n"] for document in desk.documents) == list(range(1000))


def test_an_object_that_was_overwritten_has_documents_of_its_own(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server)
    desk.write(numbered(2))
    desk.write(numbered(2, version="new"), incarnation="another etag")
    assert len(desk.documents) == 4


def test_columns_become_json_objects(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server)
    columns = {"id": [1, None], "price": [1.0, 2.5], "note": ['say "hi"', "two\nlines"], "tags": [["a"], None]}
    desk.write(pa.RecordBatch.from_pydict(columns))
    assert desk.documents == [
        {"id": 1, "price": 1.0, "note": 'say "hi"', "tags": ["a"]},
        {"price": 2.5, "note": "two\nlines"},
    ]


def test_ids_routing_and_indexes_come_from_fields(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server)
    name = desk.index
    desk = Desk(
        opensearch_server,
        index=f"{name}-{{tenant}}-{{time:%Y.%m}}",
        document_id="{tenant}:{user.id}",
        routing="{tenant}",
    )
    written = desk.write(
        [
            {"tenant": "Acme", "time": "2026-03-05T23:00:00-02:00", "user": {"id": 7}},
            {"tenant": "../x", "time": "2026-03-05", "user": {"id": 8}},
            {"tenant": "b", "user": {"id": 9}},
        ]
    )
    client = opensearch_server.client()
    found = client.get(index=f"{name}-acme-2026.03", id="Acme:7", routing="Acme")
    client.close()
    assert found["_routing"] == "Acme"
    assert written.dead == 2
    assert ["not allowed" in letter["reason"] or "lacks a field" in letter["reason"] for letter in desk.letters] == [
        True,
        True,
    ]


def test_an_older_version_never_replaces_a_newer_one_and_counts_as_done(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, document_id="{id}", version="{v}")
    desk.write([{"id": "a", "v": 5, "text": "new"}])
    written = desk.write([{"id": "a", "v": 4, "text": "old"}, {"id": "b", "v": 1, "text": "other"}])
    assert (written.part["documents"], written.part["conflicts"], written.dead) == (2, 1, 0)
    assert [document["text"] for document in desk.documents] == ["new", "other"]


def test_what_was_created_already_counts_as_done(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, action="create")
    desk.write(numbered(3))
    written = desk.write(numbered(3))
    assert (written.part["conflicts"], written.dead, len(desk.documents)) == (3, 0, 3)


def test_actions_by_a_field_update_and_delete_in_order(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, document_id="{id}", action="{op}", concurrency=1)
    written = desk.write(
        [
            {"op": "index", "id": 1, "a": 1},
            {"op": "upsert", "id": 2, "a": 2},
            {"op": "update", "id": 1, "b": 1},
            {"op": "update", "id": 3, "b": 1},
            {"op": "delete", "id": 2},
            {"op": "delete", "id": 9},
            {"op": "drop", "id": 4},
        ]
    )
    assert desk.documents == [{"op": "update", "id": 1, "a": 1, "b": 1}]
    assert written.dead == 2
    assert [letter["origin"]["item"] for letter in desk.letters] == [3, 6]
    assert "document_missing" in desk.letters[0]["reason"]


def test_an_update_that_another_write_was_faster_than_is_not_lost(
    opensearch_server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.sinks.opensearch.documents.RETRY_ON_CONFLICT", 0)
    desk = Desk(
        opensearch_server, document_id="{id}", action="{op}", version="{_item}", concurrency=8, max_bulk_documents=1
    )
    fields, retried = 0, 0
    while not retried:  # whether two requests meet at the document is the server's affair
        assert fields < 40 * 24, "no two of 960 updates met: the test shows nothing"
        written = desk.write([{"op": "upsert", "id": "a", f"f{fields + n}": fields + n} for n in range(24)])
        fields, retried = fields + 24, retried + written.part["retried"]
        assert written.dead == 0
    (document,) = desk.documents
    assert {document[f"f{number}"] for number in range(fields)} == set(range(fields))


def test_an_update_cannot_hold_more_than_its_document(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, action="update")
    written = desk.write(['{"a":1},"upsert":{"owned":true}', '{"a":1},"doc_as_upsert":true'])
    assert (desk.documents, written.dead) == ([], 2)


def test_a_delete_by_version_is_remembered_or_the_sink_says_that_it_is_not(
    opensearch_server: OpenSearchServer,
) -> None:
    client = opensearch_server.client()
    client.indices.create(index="shortlived", body={"settings": {"index.gc_deletes": "0ms"}})
    given: dict[str, Any] = {"document_id": "{id}", "action": "{op}", "version": "{v}"}
    old, gone = {"op": "index", "id": "a", "v": 1}, {"op": "delete", "id": "a", "v": 2}
    short = Desk(opensearch_server, index="shortlived", **given)
    assert "restores a deleted document; the setting is short in shortlived (0ms)" in short.verdict
    client.indices.put_settings(index="shortlived", body={"index.gc_deletes": "2d"})
    assert "remembered for at least 1d" in Desk(opensearch_server, index="shortlived", **given).verdict
    desk = Desk(opensearch_server, **given)
    assert "remembered for at least 1d" in desk.verdict
    desk.write([gone], first=1)
    desk.write([old])
    assert desk.documents == []
    settings = client.indices.get_settings(index=desk.index, flat_settings=True)[desk.index]["settings"]
    client.close()
    assert settings["index.gc_deletes"] == "1d"
    assert "deleted" not in Desk(opensearch_server).verdict


def test_a_data_stream_takes_each_record_once(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, data_stream=True, mappings={"properties": {"@timestamp": {"type": "date"}}})
    for _ in range(2):
        written = desk.write([{"@timestamp": "2026-01-01T00:00:00Z", "n": 1}, {"n": 2}])
        assert written.dead == 1
    assert [document["n"] for document in desk.documents] == [1]
    client = opensearch_server.client()
    assert client.indices.get_data_stream(name=desk.index)["data_streams"][0]["name"] == desk.index
    client.close()


def test_documents_go_through_an_ingest_pipeline_which_must_be_there(opensearch_server: OpenSearchServer) -> None:
    client = opensearch_server.client()
    client.ingest.put_pipeline(id="stamp", body={"processors": [{"set": {"field": "stamped", "value": True}}]})
    client.close()
    desk = Desk(opensearch_server, pipeline="stamp")
    desk.write(numbered(1))
    assert desk.documents == [{"n": 0, "stamped": True}]
    with pytest.raises(Refused, match="no ingest pipeline 'gone'"):
        Desk(opensearch_server, pipeline="gone")


def test_an_index_template_of_ones_own_is_put_there_at_start(opensearch_server: OpenSearchServer) -> None:
    body = {"index_patterns": ["shaped-*"], "template": {"mappings": {"properties": {"n": {"type": "keyword"}}}}}
    Desk(opensearch_server, index="shaped-a", index_template={"name": "shaped", "body": body}).write(numbered(1))
    client = opensearch_server.client()
    mapped = client.indices.get_mapping(index="shaped-a")["shaped-a"]["mappings"]
    client.close()
    assert mapped["properties"]["n"]["type"] == "keyword"


def test_requests_may_be_compressed(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, gzip=True)
    desk.write(numbered(10))
    assert len(desk.documents) == 10


# --- dead letters ------------------------------------------------------------------------------------------------


def test_a_document_that_the_index_refuses_is_a_dead_letter_with_reason_and_origin(
    opensearch_server: OpenSearchServer,
) -> None:
    desk = Desk(opensearch_server, mappings=LONG)
    for _ in range(2):
        written = desk.write([{"n": 1}, {"n": "many"}, "no object", {"n": 4}], first=100)
        assert (written.part["documents"], written.dead) == (2, 2)
    assert [document["n"] for document in desk.documents] == [1, 4]
    refused, odd = desk.letters
    assert "failed to parse field [n] of type [long]" in refused["reason"]
    assert (refused["raw"], odd["raw"]) == ('{"n": "many"}', "no object")
    assert refused["origin"] == {"pipeline": desk.pipeline, "key": "in|a.jsonl", "item": 101}


def test_dead_letters_in_a_file_are_seen_when_their_commit_is_published(
    opensearch_server: OpenSearchServer, tmp_path: Path
) -> None:
    desk = Desk(opensearch_server, mappings=LONG, dead_letters={"file": tmp_path / "letters"})
    receipt = desk.sink.receipt([desk.write([{"n": "many"}, {"n": 2}]).part])
    lease = Lease(desk.pipeline, "in|a.jsonl")
    publication = Publication(lease, desk.batch.name, {**receipt, "token": 3})
    assert not list(tmp_path.rglob("*.jsonl"))
    for _ in range(2):
        assert desk.sink.publish([publication]) == [None]
    (file,) = tmp_path.rglob("*.jsonl")
    assert "failed to parse field" in file.read_text()
    assert file.relative_to(tmp_path / "letters").parts[:2] == ("_holdfast", "deadletters")


def test_faults_of_readers_are_dead_letters_too(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server)
    staging = desk.sink.stager().begin()
    staging.bury(desk.batch, [(7, record_fault("it is no valid UTF-8", b"\xff"))])
    staging.finish(desk.batch)
    staging.close()
    (letter,) = desk.letters
    assert (letter["reason"], letter["encoding"], letter["origin"]["item"]) == ("it is no valid UTF-8", "base64", 7)


def test_an_index_that_is_blocked_is_waited_for_and_no_document_is_blamed(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, patience="1s")
    desk.write(numbered(1))
    client = opensearch_server.client()
    client.indices.put_settings(index=desk.index, body={"index.blocks.write": True})
    with pytest.raises(SinkUnavailable, match="cluster_block_exception"):
        desk.write(numbered(2))
    client.indices.put_settings(index=desk.index, body={"index.blocks.write": False})
    client.close()
    desk.write(numbered(2))
    assert (len(desk.documents), desk.letters) == (2, [])


def test_a_cluster_without_room_for_another_index_is_waited_for_and_no_document_is_blamed(
    opensearch_server: OpenSearchServer,
) -> None:
    client = opensearch_server.client()
    desk = Desk(opensearch_server, index="rooms-{tenant}", patience="1s", max_bulk_documents=10)
    limit = "cluster.max_shards_per_node"
    client.cluster.put_settings(body={"transient": {limit: 1}})
    try:
        with pytest.raises(SinkUnavailable, match="maximum shards open"):
            desk.write([{"tenant": f"t{number}"} for number in range(50)])
        with pytest.raises(SinkUnavailable, match="maximum shards open"):
            Desk(opensearch_server)
    finally:
        client.cluster.put_settings(body={"transient": {limit: None}})
    assert desk.letters == []
    desk.write([{"tenant": "t0"}])
    assert opensearch_server.count("rooms-t0") == 1
    client.indices.delete(index="rooms-*")
    client.close()


def test_a_cluster_that_is_read_only_is_waited_for_at_start_as_well(opensearch_server: OpenSearchServer) -> None:
    client = opensearch_server.client()
    desk = Desk(opensearch_server, patience="1s", mappings=LONG)
    client.cluster.put_settings(body={"transient": {"cluster.blocks.read_only_allow_delete": True}})
    try:
        with pytest.raises(SinkUnavailable, match="cluster_block_exception"):
            desk.write(numbered(2))
        with pytest.raises(SinkUnavailable, match="cluster_block_exception"):
            desk.sink.open(desk.pipeline, durable=True)
    finally:
        client.cluster.put_settings(body={"transient": {"cluster.blocks.read_only_allow_delete": None}})
    client.close()
    desk.write(numbered(2))
    assert (len(desk.documents), desk.letters) == (2, [])


# --- a server that has enough -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_server() -> Iterator[OpenSearchServer]:
    """Takes little at a time, and turns away the rest."""
    settings = {
        "thread_pool.write.queue_size": "1",
        "thread_pool.write.size": "1",
        "indexing_pressure.memory.limit": "300kb",
        "http.max_content_length": "1mb",
    }
    with running(OpenSearchServer, **settings) as server:
        yield server


def test_rejections_slow_the_sender_down_and_fail_no_document(small_server: OpenSearchServer) -> None:
    desk = Desk(small_server, max_bulk_bytes=100_000, concurrency=8, patience="60s")
    written = desk.write(numbered(8000, text="x" * 500))
    assert written.part["rejected"] > 0
    assert written.part["retried"] > 0
    assert (written.part["documents"], written.dead, small_server.count(desk.index)) == (8000, 0, 8000)
    assert written.part["limit"] < 8


def test_a_request_that_is_larger_than_the_server_ever_takes_is_cut(small_server: OpenSearchServer) -> None:
    desk = Desk(small_server, max_bulk_bytes=900_000, patience="60s")
    written = desk.write(numbered(1000, text="x" * 1000))
    assert (written.part["documents"], small_server.count(desk.index)) == (1000, 1000)


def test_413_splits_and_a_document_that_is_too_large_alone_is_a_dead_letter(small_server: OpenSearchServer) -> None:
    desk = Desk(small_server, max_bulk_bytes="10MB", patience="60s", dead_letters={"index": "large-letters"})
    records = numbered(2000, text="x" * 1000)
    records[1234]["text"] = "y" * 1_200_000
    written = desk.write(records)
    assert (written.part["documents"], written.dead) == (1999, 1)
    assert small_server.count(desk.index) == 1999
    (letter,) = small_server.documents("large-letters").values()
    assert letter["origin"]["item"] == 1234
    assert letter["size"] > 1_200_000


# --- a server that goes away --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frail_server() -> Iterator[OpenSearchServer]:
    with running(OpenSearchServer) as server:
        yield server


def test_a_server_that_restarts_in_the_middle_loses_nothing(frail_server: OpenSearchServer) -> None:
    desk = Desk(frail_server, max_bulk_documents=100, patience="120s")
    starting = threading.Thread(target=frail_server.start)

    def crash() -> None:
        frail_server.crash()
        starting.start()

    written = desk.write(numbered(5000), between=crash)
    starting.join()
    assert written.part["retried"] > 0
    assert (written.part["documents"], frail_server.count(desk.index)) == (5000, 5000)


def test_a_server_that_stays_away_is_told_of_and_the_batch_can_be_written_later(frail_server: OpenSearchServer) -> None:
    desk = Desk(frail_server, max_bulk_documents=100, patience="1s")
    with pytest.raises(SinkUnavailable, match="does not respond"):
        desk.write(numbered(1000), between=frail_server.stop)
    with pytest.raises(SinkUnavailable, match="does not respond"):
        desk.sink.open(desk.pipeline, durable=True)
    frail_server.start()
    desk.write(numbered(1000))
    assert frail_server.count(desk.index) == 1000


def test_no_server_at_all_is_unavailable_and_a_wrong_address_is_refused() -> None:
    def opened(host: str) -> None:
        config = PLUGIN.config(hosts=[host], index="a")
        PLUGIN.build("search", config, Registry.installed()).open("p", durable=True)

    with pytest.raises(SinkUnavailable):
        opened(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Refused, match="cannot be a search cluster"):
        opened("http://169.254.169.254")


def test_batches_of_one_task_share_requests_and_fail_apart(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server)
    staging = desk.sink.stager().begin()
    batches = [replace(desk.batch, id=f"b{number}", key=f"in|{number}") for number in range(50)]
    for batch in batches:
        rows = pa.RecordBatch.from_pydict({"value": ['{"n":1}', '{"n":2}']})
        staging.write(batch, pa.array([0, 10], pa.int64()), rows)
    staging.abandon(batches[7])
    parts = [staging.finish(batch) for batch in batches if batch is not batches[7]]
    staging.close()
    assert sum(part["requests"] for part in parts) == 1
    assert len(desk.documents) == 98


# --- letters that are looked at -----------------------------------------------------------------------------------


def test_letters_in_an_index_are_listed_fetched_and_marked(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, mappings=LONG)
    box = desk.sink.letter_box(desk.pipeline)
    assert list(box.letters()) == []
    desk.write([{"n": "a"}, {"n": 1}, {"n": "b"}])
    first, second = box.letters()
    assert (first.item, first.record(), second.item) == (0, b'{"n": "a"}', 2)
    assert first.refusal is None
    assert first.at is not None
    box.mark([second.id], "run1")
    assert [letter.redriven for letter in box.letters()] == [None, "run1"]
    assert [letter.item for letter in box.fetch([second.id, first.id])] == [2, 0]
    with pytest.raises(BatchError, match="is not in"):
        box.fetch([replace(first.id, number=7)])


def test_a_record_that_fails_once_more_is_another_letter(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, mappings=LONG)
    box = desk.sink.letter_box(desk.pipeline)
    desk.write([{"n": "a"}])
    (first,) = box.letters()
    desk.write([{"n": "a"}], name=Name("in", "a-run1"))
    box.mark([first.id], "run1")
    assert sorted(str(letter.redriven) for letter in box.letters()) == ["None", "run1"]


def test_a_letter_that_was_deleted_from_the_index_is_missed_by_an_audit(opensearch_server: OpenSearchServer) -> None:
    desk = Desk(opensearch_server, mappings=LONG)
    desk.write([{"n": "a"}, {"n": 1}, {"n": "b"}])
    store = MemoryStore()
    store.open()
    store.add([make_row("in|a.jsonl", pipeline=desk.pipeline, counts=Counts(3, 1, 0, 2))])
    audited = AuditedLetters(desk.pipeline, desk.sink.name, partial(read_back, desk.sink.letter_box(desk.pipeline)))
    proof = verify_letters(audited, store)
    assert (proof.verdict, proof.letters) == ("proven", 2)
    index = f"{desk.index}-deadletters"
    letter = next(iter(opensearch_server.documents(index)))
    client = opensearch_server.client()
    client.delete(index=index, id=letter)
    client.close()
    (doubt,) = verify_letters(audited, store).doubts.kept
    assert doubt.endswith("the store has counted 2 dead letters, and 1 can be read back")

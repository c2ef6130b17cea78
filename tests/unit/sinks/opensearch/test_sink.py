"""The sink on the node: receipts, what people hear, and dead letters in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from holdfast.buckets.bucket import StagedFile, StagingAttempt
from holdfast.buckets.local import LocalBucket
from holdfast.deadletters.letter_topic import LetterTopic
from holdfast.deadletters.staging import LetterFiles
from holdfast.errors import BatchError, Halt, Refused, SinkUnavailable, StagedDataGone
from holdfast.events import DocumentsIndexed
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.fault import ROW, Fault, record_fault
from holdfast.flow.letter import CommittedLetters, NewLetter, SourceRecord
from holdfast.flow.sink import Publication
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Commit, Lease, Ownership, Status
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.opensearch.bulk_body import Body
from holdfast.sinks.opensearch.config import OpenSearchConfig
from holdfast.sinks.opensearch.dead_letter_index import LetterIndex, letter_id
from holdfast.sinks.opensearch.sink import OpenSearchSink, build_sink
from holdfast.testing.flows import MemoryBucket
from holdfast.testing.sink_setting import MemoryReader
from tests.unit.sinks.opensearch.stub_server import StubServers

BATCH = StagedBatch("b1", "orders", "in|a", Name("in", "a"), token=3, generation=2)


def sink_on(bucket: MemoryBucket | None = None) -> OpenSearchSink:
    plain = build_sink("search", OpenSearchConfig(hosts=("http://search:9200",), index="orders"))
    return OpenSearchSink("search", plain.stager(), plain._setup, bucket)


def part(**receipt: Any) -> dict[str, Any]:
    sums = dict.fromkeys(("documents", "conflicts", "dead", "requests", "retried", "rejected", "size"), 0)
    return {**sums, "files": [], "limit": 4.0, **receipt}


def letter_file(bucket: MemoryBucket, *items: int, batch: StagedBatch = BATCH) -> dict[str, Any]:
    letters = LetterFiles(StagingAttempt(bucket), 1000)
    for item in items:
        letters.write(batch, [(item, record_fault("why", b"{}"))])
    (file,) = letters.finish(batch)
    return dict(file)


def publication(*files: dict[str, Any]) -> Publication:
    return Publication(Lease("orders", "in|a"), BATCH.name, {"files": list(files), "token": 3})


def test_a_receipt_is_small_and_what_it_took_is_heard_once() -> None:
    sink = sink_on()
    receipt = sink.receipt([part(documents=5, requests=1, limit=4.0), part(documents=7, dead=1, retried=3, limit=2.5)])
    assert receipt == {"documents": 12, "dead": 1, "files": []}
    (heard,) = sink.noticed()
    assert isinstance(heard, DocumentsIndexed)
    assert (heard.sink, heard.documents, heard.retried, heard.limit) == ("search", 12, 3, 2.5)
    assert sink.noticed() == []
    assert sink.receipt([]) == {"documents": 0, "dead": 0, "files": []}
    assert sink.is_visible(receipt)
    assert not sink.is_visible({**receipt, "files": [{"staged": "s", "key": "k", "sha256": "", "size": 1}]})
    assert sink.noticed() == []


def test_a_task_to_which_a_proxy_shows_a_page_finds_the_sink_unavailable(stub_servers: StubServers) -> None:
    stub = stub_servers()
    stub.status, stub.body, stub.content_type = 200, b"<html>Log in</html>", "text/html"
    config = OpenSearchConfig(hosts=(stub.url,), index="orders", patience=0.001)
    staging = build_sink("search", config).stager().begin()
    rows = pa.RecordBatch.from_pydict({"value": ['{"n":1}', '{"n":2}']})
    staging.write(BATCH, pa.array([0, 1], pa.int64()), rows)
    with pytest.raises(SinkUnavailable, match="not a response of a search cluster"):
        staging.finish(BATCH)
    staging.close()


@pytest.mark.parametrize(
    ("changed", "document_id", "fails"), [(True, "origin", True), (True, "{n}", False), (False, "origin", False)]
)
def test_a_batch_whose_records_had_rows_in_two_tasks_fails(changed: bool, document_id: str, fails: bool) -> None:
    config = OpenSearchConfig(hosts=("http://127.0.0.1:9",), index="orders", document_id=document_id)
    sink = build_sink("search", config)
    batch = replace(BATCH, changed=changed)
    parts = []
    for _ in range(2):
        staging = sink.stager().begin()
        staging._numbers[batch.id].of(pa.array([5, 6], pa.int64()))
        parts.append(staging.finish(batch))
        staging.close()
    if fails:
        with pytest.raises(BatchError, match="separated rows of the same record"):
            sink.receipt(parts)
    else:
        sink.receipt(parts)


def test_rows_that_came_apart_need_ids_of_their_own() -> None:
    config = OpenSearchConfig(hosts=("http://127.0.0.1:9",), index="orders", document_id="{n}")
    staging = build_sink("search", config).stager().begin()
    staging._numbers[BATCH.id].of(pa.array([5, 6, 5], pa.int64()))
    staging.finish(BATCH)
    staging.close()


def test_how_far_ahead_an_index_may_be_named_is_decided_once_for_a_batch() -> None:
    config = OpenSearchConfig(hosts=("http://search:9200",), index="logs-{at:%Y.%m.%d}", max_ahead=3600)
    sink = build_sink("search", config)
    batch = Batch("b1", Lease("orders", "in|a"), BATCH.name, Cut(0, 1), planned_at=1000.0)
    assert sink.stager_for([batch]).until == {"b1": 4600.0}
    receipt = sink.receipt([part(until=4600.0), part()])
    lease = Lease("orders", "in|a", commit=Commit(receipts={"search": receipt}))
    again = replace(batch, lease=lease, restages="c", planned_at=9000.0)
    assert sink.stager_for([again]).until == {"b1": 4600.0}
    old = replace(again, lease=Lease("orders", "in|a", commit=Commit(receipts={"search": {"files": []}})))
    assert sink.stager_for([old]).until == {}
    assert sink_on().stager_for([batch]).until == {}, "its index does not depend on a time"
    sink.close()


def test_without_letters_there_is_nothing_to_publish() -> None:
    assert sink_on().publish([publication(), publication()]) == [None, None]


def test_letters_are_one_file_named_by_the_lowest_item_and_published_once() -> None:
    bucket = MemoryBucket()
    sink, file = sink_on(bucket), letter_file(bucket, 40, 7, 9)
    assert (file["key"], file["rows"], file["first"], file["last"]) == (
        f"_holdfast/deadletters/in/2_a_{7:020d}.jsonl",
        3,
        7,
        40,
    )
    for _ in range(2):
        assert sink.publish([publication(file)]) == [None]
    lines = [json.loads(line) for line in (bucket.read(file["key"]) or b"").splitlines()]
    assert [line["origin"]["item"] for line in lines] == [7, 9, 40]
    sink.discard_staged([publication(file)])
    assert not list(bucket.staged_under(""))


def test_letters_are_sent_to_the_topic_when_their_files_are_published_and_a_broker_that_is_away_is_waited_for() -> None:
    bucket, brokers_respond = MemoryBucket(), False
    file = letter_file(bucket, 7)
    sent = []

    class Topic:
        def publish(self, box: CommittedLetters, publication: Publication, progress: Any) -> None:
            if box.note_name(publication.receipt, "") is None:
                return
            progress()
            assert bucket.read(file["key"]) is not None
            if not brokers_respond:
                raise SinkUnavailable("no broker")
            sent.append(publication)

    plain = sink_on(bucket)
    sink = OpenSearchSink("search", plain.stager(), plain._setup, bucket, letter_topic=cast("LetterTopic", Topic()))
    (result,) = sink.publish([publication(file)])
    assert isinstance(result, SinkUnavailable)
    brokers_respond = True
    assert sink.publish([publication(), publication(file)]) == [None, None]
    assert sent == [publication(file)]


def test_two_tasks_whose_files_of_letters_would_have_one_key_fail_the_batch() -> None:
    bucket = MemoryBucket()
    sink = sink_on(bucket)
    parts = [part(files=[letter_file(bucket, 7)], dead=1), part(files=[letter_file(bucket, 7, 9)], dead=2)]
    with pytest.raises(BatchError, match="keep the rows of a record together"):
        sink.receipt(parts)


def test_letters_that_are_gone_are_made_again_and_foreign_ones_halt() -> None:
    bucket = MemoryBucket()
    sink, file = sink_on(bucket), letter_file(bucket, 7)
    bucket.discard([file["staged"]])
    (gone,) = sink.publish([publication(file)])
    assert isinstance(gone, StagedDataGone)
    fresh = letter_file(bucket, 7)
    assert sink.mend(publication(file), {"files": [fresh], "token": 5})["token"] == 3
    bucket.create(file["key"], b"somebody else's")
    (foreign,) = sink.publish([publication(fresh)])
    assert isinstance(foreign, Halt)


def test_letters_of_a_lower_token_are_swept() -> None:
    bucket = MemoryBucket()
    sink = sink_on(bucket)
    letter_file(bucket, 7)
    lease = Lease("orders", "in|a", ownership=Ownership(Status.ASSIGNED, "n", 3))
    sink.sweep([(lease, BATCH.name)])
    assert len(list(bucket.staged_under(""))) == 1
    sink.sweep([(Lease("orders", "in|a", ownership=Ownership(Status.ASSIGNED, "n", 4)), BATCH.name)])
    assert not list(bucket.staged_under(""))


def test_a_letter_in_an_index_has_the_same_id_whenever_it_is_written() -> None:
    sent: list[Body] = []
    letters = LetterIndex("search").begin(sent.append)
    letters.write(BATCH, [(5, record_fault("why", b"\xff")), (6, record_fault("why", b"{}"))])
    (body,) = sent
    assert body.letters == "orders-deadletters"
    action, letter, *_ = [json.loads(line) for line in body.bytes().splitlines()]
    identity = letter_id("search", BATCH, NewLetter(5, record_fault("other", b""), {}))
    assert action == {"index": {"_id": f"{identity.container}.5"}}
    assert (letter["encoding"], letter["origin"]["item"], letter["number"]) == ("base64", 5, 5)
    assert letters.finish(BATCH) == []


def test_rows_of_one_record_have_letters_of_their_own() -> None:
    rows = [Fault("record", "why", raw, form=ROW) for raw in ("a", "b")]
    first, second = (letter_id("search", BATCH, NewLetter(5, fault, {})) for fault in rows)
    # The letter of a whole record has the row beside it; its id is the same as that of earlier versions.
    whole = letter_id("search", BATCH, NewLetter(5, record_fault("why", b"the record"), {"row": "b"}))
    assert first != second == whole


@pytest.mark.parametrize(("document_id", "is_sent"), [("origin", True), ("{n}", True), ("server", False)])
def test_a_row_among_several_of_its_record_is_sent_where_ids_follow_from_records(
    document_id: str, is_sent: bool
) -> None:
    bucket = MemoryBucket()
    config = OpenSearchConfig(hosts=("http://127.0.0.1:1",), index="orders", document_id=document_id)
    staging = replace(build_sink("search", config).stager(), letters=bucket).begin()
    batch = replace(BATCH, several_rows=True, reader=MemoryReader([SourceRecord({"item": 0}, b"the record")]))
    staging.bury(batch, [(0, Fault("record", "why", '{"n": "x"}', form=ROW))])
    part = staging.finish(batch)
    staging.close()
    bucket.publish([StagedFile(file["staged"], file["key"], file["sha256"]) for file in part["files"]])
    (letter,) = sink_on(bucket).letter_box("orders").letters()
    assert (letter.record(), letter.row, letter.refusal is None) == (b"the record", '{"n": "x"}', is_sent)


def test_the_box_of_letters_is_where_they_are_kept() -> None:
    bucket = MemoryBucket()
    file = letter_file(bucket, 7)
    bucket.publish([StagedFile(file["staged"], file["key"], file["sha256"])])
    (letter,) = sink_on(bucket).letter_box("orders").letters()
    assert (letter.item, letter.reason) == (7, "why")


# --- the root of dead letters ---------------------------------------------------------------------------------------


def opened(bucket: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, durable: bool = True) -> OpenSearchSink:
    """A sink of that name, on a cluster that needs nothing."""
    plain = build_sink(name, OpenSearchConfig(hosts=("http://127.0.0.1:9200",), index="orders"))
    monkeypatch.setattr(type(plain._setup), "apply", lambda _self: "ready")
    sink = OpenSearchSink(name, plain.stager(), plain._setup, bucket)
    sink.open("orders", durable=durable)
    return sink


def test_a_root_of_dead_letters_belongs_to_one_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = LocalBucket(tmp_path)
    for _ in range(2):
        opened(bucket, "search", monkeypatch).close()
    with pytest.raises(
        Refused, match="root of the dead letters of sink 'other' belongs to pipeline 'orders', sink 'se"
    ):
        opened(bucket, "other", monkeypatch)
    with pytest.raises(Refused, match="the root of sink 'files' belongs to pipeline 'orders', sink 'search'"):
        FilesSink("files", bucket).open("orders", durable=True)


def test_dead_letters_do_not_go_to_the_root_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FilesSink("files", LocalBucket(tmp_path)).open("orders", durable=True)
    with pytest.raises(Refused, match="belongs to pipeline 'orders', sink 'files'"):
        opened(LocalBucket(tmp_path), "search", monkeypatch)


def test_a_store_in_memory_has_the_root_of_dead_letters_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(LocalBucket(tmp_path), "search", monkeypatch, durable=False)
    with pytest.raises(Refused, match="another process uses the root of the dead letters"):
        opened(LocalBucket(tmp_path), "search", monkeypatch)
    first.close()
    opened(LocalBucket(tmp_path), "search", monkeypatch).close()

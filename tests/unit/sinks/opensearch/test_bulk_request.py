"""One bulk request, and what the answer to it means, whoever gave it.

The simulator has no search cluster: to its loop, a sink that cannot be reached is the same whatever was answered.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.sinks.opensearch.access import Access
from holdfast.sinks.opensearch.bulk_body import Body, RecordNumbers
from holdfast.sinks.opensearch.bulk_request import (
    BulkClient,
    BulkOutcome,
    BulkTarget,
    Busy,
    ClusterAway,
    RequestRefused,
)
from holdfast.sinks.opensearch.bulk_response import Verdicts
from holdfast.sinks.opensearch.documents import EntryBuilder
from holdfast.sinks.opensearch.templates import IndexName, Template
from tests.unit.sinks.opensearch.stub_server import StubServer, StubServers

BATCH = StagedBatch("b1", "orders", "in|a", Name("in", "a"), 3, 1)
PAGE = b"<html><title>Log in</title></html>"


def posted(stub: StubServer, rows: int = 2) -> BulkOutcome:
    values = pa.RecordBatch.from_pydict({"value": ["{}"] * rows})
    ((entries, _),) = EntryBuilder(IndexName(Template("orders"))).entries(
        BATCH, RecordNumbers(), pa.array(range(rows), pa.int64()), values
    )
    poster = BulkClient(BulkTarget(Access((stub.url,)), "orders"), 1)
    try:
        return poster.post(Body([entries]))
    finally:
        poster.close()


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (200, PAGE, "text/html"),
        (200, PAGE, "application/json"),
        (200, PAGE, None),
        (200, b"", "application/json"),
        (200, b'{"errors":false}', "application/json"),
        (200, b'{"errors":false,"items":[{"index":{"status":201}}]}', "application/json"),
        (200, b'{"errors":true,"items":[{"index":{"status":201}}]}', "application/json"),
        (200, b'{"errors":true,"items":[{"index":{"status":201}},{"index":', "application/json"),
        (200, b'{"errors":true,"items":[{"index":{"status":201}},{"index":{}}]}', "application/json"),
        (200, b'{"errors":true,"items":[{},{}]}', "application/json"),
        (302, b"", "text/html"),
        (307, b"{}", "application/json"),
        (400, PAGE, "text/html"),
        (400, b"[]", "application/json"),
        (400, b'{"error":', "application/json"),
        (403, PAGE, "text/html"),
        (404, PAGE, "text/html"),
    ],
)
def test_what_is_not_an_answer_to_the_request_means_unavailable(
    stub_servers: StubServers, status: int, body: bytes, content_type: str | None
) -> None:
    stub = stub_servers()
    stub.status, stub.body, stub.content_type = status, body, content_type
    answer = posted(stub)
    assert isinstance(answer, ClusterAway)
    assert "not a response of a search cluster" in answer.reason


def test_an_answer_about_every_document_is_one(stub_servers: StubServers) -> None:
    stub = stub_servers()
    stub.body = b'{"errors":false,"items":[{"index":{"status":201}},{"index":{"status":200}}]}'
    assert posted(stub) == Verdicts()


def refusal(kind: str, reason: str) -> bytes:
    return json.dumps({"error": {"type": kind, "reason": reason}, "status": 400}).encode()


def test_a_request_that_the_cluster_itself_refuses_is_cut(stub_servers: StubServers) -> None:
    stub = stub_servers()
    stub.status, stub.body = 400, refusal("illegal_argument_exception", "Malformed action/metadata line [1]")
    assert isinstance(posted(stub), RequestRefused)
    stub.body = refusal("validation_exception", "this cluster currently has [10]/[10] maximum shards open")
    assert isinstance(posted(stub), ClusterAway)


@pytest.mark.parametrize("body", [b"", PAGE])
def test_whoever_says_that_a_request_is_too_large_is_believed(stub_servers: StubServers, body: bytes) -> None:
    stub = stub_servers()
    stub.status, stub.body, stub.content_type = 413, body, "text/html"
    assert isinstance(posted(stub), RequestRefused)
    stub.status = 429
    assert isinstance(posted(stub), Busy)

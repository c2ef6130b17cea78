"""What an answer means for each document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.sinks.opensearch.bulk_response import Verdicts, parse_response


def answer(*outcomes: tuple[str, int, str | None]) -> str:
    def item(action: str, status: int, kind: str | None) -> Any:
        error = {} if kind is None else {"error": {"type": kind, "reason": "why"}}
        return {action: {"status": status, **error}}

    return json.dumps({"took": 1, "errors": True, "items": [item(*outcome) for outcome in outcomes]})


def verdicts(*outcomes: tuple[str, int, str | None], conflict_is_done: bool = False) -> Verdicts:
    return parse_response(answer(*outcomes), sent=len(outcomes), conflict_is_done=conflict_is_done)


def test_an_answer_without_errors_is_not_looked_into_if_it_tells_of_every_document() -> None:
    text = '{"took":3,"errors":false,"items":[{"index":{"status":201}},nonsense "status":'
    assert parse_response(text, sent=2, conflict_is_done=False) == Verdicts()
    spaced = '{"errors": false, "items": [{"index": {"status" : 201}}, {"delete": {"status" : 404}}]}'
    assert parse_response(spaced, sent=2, conflict_is_done=False) == Verdicts()


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        '{"errors":false}',
        '{"errors":false,"items":[{"index":{"status":201}}]}',
        '{"errors":false,"items":[{"index":{"status":201}},{"index":{"status":201}},{"index":{"status":201}}]}',
        '{"errors":true,"items":[{"index":{"status":201}}]}',
        '{"errors":true,"items":[{"index":{"status":201}},{"index":{"error":"?"}}]}',
        '{"errors":true,"items":[{"index":{"status":201}},7]}',
        '{"errors":true,"items":null}',
    ],
)
def test_what_is_no_answer_about_every_document_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a response of a search cluster"):
        parse_response(text, sent=2, conflict_is_done=False)


def test_a_document_to_blame_is_refused_with_the_reason() -> None:
    found = verdicts(("index", 201, None), ("index", 400, "mapper_parsing_exception"))
    assert found.refused == [(1, "400 mapper_parsing_exception: why")]
    assert not found.retry


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "opensearch_rejected_execution_exception"),
        (503, "unavailable_shards_exception"),
        (403, "cluster_block_exception"),
        (404, "index_not_found_exception"),
        (400, "index_closed_exception"),
        (403, "security_exception"),
        (429, "cluster_block_exception"),
        (429, "circuit_breaking_exception"),
        (403, "index_create_block_exception"),
        (500, "node_disconnected_exception"),
        (400, "resource_already_exists_exception"),
    ],
)
def test_errors_of_the_cluster_are_waited_for(status: int, kind: str) -> None:
    found = verdicts(("index", status, kind))
    assert (found.retry, found.refused, found.busy) == ([0], [], int(status == 429))
    assert kind in found.reason


def test_a_pipeline_that_is_missing_is_not_the_documents_fault() -> None:
    missing = {"type": "illegal_argument_exception", "reason": "pipeline with id [a] does not exist"}
    text = json.dumps({"errors": True, "items": [{"index": {"status": 400, "error": missing}}]})
    assert parse_response(text, sent=1, conflict_is_done=False).retry == [0]


@pytest.mark.parametrize("kind", ["", "normal "])
def test_a_cluster_without_room_for_another_index_is_not_the_documents_fault(kind: str) -> None:
    reason = f"Validation Failed: 1: this cluster currently has [10]/[10] maximum {kind}shards open;"
    full = {"type": "validation_exception", "reason": reason}
    for error in (full, {"type": "exception", "reason": "wrapped", "caused_by": full}):
        text = json.dumps({"errors": True, "items": [{"index": {"status": 400, "error": error}}]})
        assert parse_response(text, sent=1, conflict_is_done=False).retry == [0]


def test_a_document_is_to_blame_whatever_caused_its_refusal() -> None:
    error = {"type": "mapper_parsing_exception", "reason": "maximum shards open", "caused_by": {"type": "x"}}
    text = json.dumps({"errors": True, "items": [{"index": {"status": 400, "error": error}}]})
    assert [index for index, _ in parse_response(text, sent=1, conflict_is_done=False).refused] == [0]


def test_conflicts_are_done_where_a_version_or_a_creation_says_so_and_else_tried_again() -> None:
    conflict = "version_conflict_engine_exception"
    assert verdicts(("create", 409, conflict)).conflicts == [0]
    assert verdicts(("index", 409, conflict), conflict_is_done=True).conflicts == [0]
    assert verdicts(("delete", 409, conflict), conflict_is_done=True).conflicts == [0]
    assert verdicts(("update", 409, conflict)).retry == [0]
    assert verdicts(("update", 409, conflict), conflict_is_done=True).retry == [0]


def test_deleting_what_is_not_there_is_done_and_updating_it_is_refused() -> None:
    found = verdicts(("delete", 404, None), ("update", 404, "document_missing_exception"))
    assert [index for index, _ in found.refused] == [1]


def test_what_the_server_fails_over_is_told_apart() -> None:
    assert [index for index, _ in verdicts(("index", 500, "null_pointer_exception")).broken] == [0]

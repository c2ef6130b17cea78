"""Rows of live tables in staged indexes of a real OpenSearch."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.search_index import WRITE_ALIAS, IndexOwner, IndexPlan
from holdfast.flow.staging import staged_batch
from holdfast.registry import Registry
from holdfast.sinks.opensearch import PLUGIN
from holdfast.sinks.opensearch.staged_sink import StagedSink
from holdfast.testing.rows import make_row
from tests.servers.opensearch import OpenSearchServer

LONG = {"properties": {"n": {"type": "long"}}}


def table_rows(*rows: tuple[str, int, str | None]) -> Any:
    ids, versions, documents = zip(*rows, strict=True)
    columns = {
        "entity": ["users"] * len(rows),
        "document_id": ids,
        "document_version": pa.array(versions, pa.int64()),
        "deleted": [document is None for document in documents],
        "document": pa.array(documents, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def stage(sink: StagedSink, index: str, rows: Any) -> tuple[dict[str, Any], int]:
    """The receipt's part and the number of dead letters, by a task as Spark would run it."""
    lease = replace(make_row("users|0", pipeline="people"), spec={"entity": "users", "index": index})
    batch = Batch("b1", lease, Name("users", "0"), Cut(None, None))
    staging = pickle.loads(pickle.dumps(sink.stager_for([batch]))).begin()  # noqa: S301 - as Spark sends it
    try:
        staged = staged_batch(batch)
        dead = staging.write(staged, pa.array(range(rows.num_rows), pa.int64()), rows)
        part = staging.finish(staged)
        return part, dead + staging.late_unfit(staged)
    finally:
        staging.close()


def test_rows_go_to_the_staged_index_by_version_and_a_conflict_with_the_mapping_is_a_dead_letter(
    opensearch_server: OpenSearchServer,
) -> None:
    config = PLUGIN.config(hosts=[opensearch_server.endpoint], mode="staged", mappings=LONG)
    sink: StagedSink = PLUGIN.build("search", config, Registry.installed())
    sink.open("people", durable=True)
    indexes, index = sink.indexes(), "staged_people_r1"
    indexes.create(index, IndexOwner("people", "r1"), sink.plan({}, {}))
    first = table_rows(("a", 5, '{"n":1}'), ("b", 5, '{"n":"x"}'), ("c", 5, '{"n":3}'), ("d", 5, '{"n":4}'))
    part, dead = stage(sink, index, first)
    assert (part["documents"], part["conflicts"], dead) == (3, 0, 1)
    part, dead = stage(sink, index, table_rows(("a", 4, '{"n":0}'), ("c", 6, None), ("d", 5, '{"n":5}')))
    assert (part["documents"], part["conflicts"], dead) == (3, 1, 0)
    indexes.restore(index, IndexPlan())
    found = {
        document.id: json.loads(document.text or "") for page in indexes.pages(index, texts=True) for document in page
    }
    assert found == {"a": {"n": 1}, "d": {"n": 5}}
    (letter,) = opensearch_server.documents("people-deadletters").values()
    assert json.loads(letter["raw"]) == {
        "entity": "users",
        "document_id": "b",
        "document_version": 5,
        "deleted": False,
        "document": '{"n":"x"}',
    }
    assert "mapper_parsing_exception" in letter["reason"]


def test_rows_of_a_run_whose_writes_are_closed_fail_their_batch_and_create_no_index(
    opensearch_server: OpenSearchServer,
) -> None:
    sink: StagedSink = PLUGIN.build(
        "search", PLUGIN.config(hosts=[opensearch_server.endpoint], mode="staged"), Registry.installed()
    )
    sink.open("people", durable=True)
    indexes, index = sink.indexes(), "staged_people_closed"
    alias = f"{index}{WRITE_ALIAS}"
    indexes.create(index, IndexOwner("people", "r1"), sink.plan({}, {}))
    indexes.open_writes(index, alias)
    part, _ = stage(sink, alias, table_rows(("a", 5, '{"n":1}')))
    assert part["documents"] == 1
    assert list(indexes.find(index, ["a"])) == ["a"]
    indexes.close_writes(alias)
    with pytest.raises(BatchError, match="does not accept documents any more"):
        stage(sink, alias, table_rows(("b", 5, '{"n":2}')))
    assert not opensearch_server.client().indices.exists(alias)
    assert list(indexes.find(index, ["a", "b"])) == ["a"]

"""Routes: every row comes to the sinks whose routes it matches, and a sink without rows of a batch still takes part."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pyspark.sql import functions as sql

from holdfast.flow.manifest import decode_manifest, manifest_of
from holdfast.flow.pipeline import Routes
from holdfast.leases.lease import Counts
from holdfast.processors.filter import Filter
from tests.spark.rig import Site, failed, staged

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, status INT"
SINKS = {"bad": "jsonl", "rest": "parquet"}
BY_STATUS = Routes({"errors": "status >= 500"}, {"bad": ("errors",), "rest": ("_default",)})


def orders(*statuses: int | None) -> str:
    return "".join(json.dumps({"id": number, "status": status}) + "\n" for number, status in enumerate(statuses))


def ids(site: Site, sink: str) -> list[Any]:
    return sorted(row["id"] for row in site.rows(sink))


@pytest.mark.parametrize("processors", [(), (Filter("id >= 0"),)], ids=["plain", "behind a processor"])
def test_each_sink_gets_its_rows_and_null_matches_no_route(site: Site, processors: Any) -> None:
    site.put("a.jsonl", orders(200, 500, None, 503, 404))
    site.put("b.jsonl", orders(200, 200))
    site.reading(*processors, schema=SCHEMA, sinks=SINKS, routes=BY_STATUS)
    reports = site.run()
    assert staged(reports["a.jsonl"]).counts == Counts(processed=5, succeeded=5)
    bad, rest = (staged(reports["b.jsonl"]).receipts[sink] for sink in ("bad", "rest"))
    assert (bad["files"], bad["routed"]) == ([], {"rows": 0, "of": 2}), "a sink without rows takes part"
    assert rest["routed"] == {"rows": 2, "of": 2}
    for sink in SINKS:
        site.publish(reports, sink)
    assert ids(site, "bad") == [1, 3]
    assert ids(site, "rest") == [0, 0, 1, 2, 4]


def test_a_row_may_go_to_several_sinks_and_once_to_each(site: Site) -> None:
    site.put("a.jsonl", orders(200, 500, 503))
    routes = Routes(
        {"errors": "status >= 500", "late": "id >= 2"}, {"bad": ("errors", "late"), "late": ("late",), "too": ("late",)}
    )
    site.reading(schema=SCHEMA, sinks={"all": "jsonl", "bad": "jsonl", "late": "jsonl", "too": "jsonl"}, routes=routes)
    reports = site.run()
    assert staged(reports["a.jsonl"]).counts == Counts(processed=3, succeeded=3)
    assert "routed" not in staged(reports["a.jsonl"]).receipts["all"]
    for sink in ("all", "bad", "late", "too"):
        site.publish(reports, sink)
    assert [ids(site, sink) for sink in ("all", "bad", "late", "too")] == [[0, 1, 2], [1, 2], [2], [2]]


def test_rows_that_no_sink_takes_are_processed_and_did_not_succeed(site: Site) -> None:
    site.put("a.jsonl", orders(200, 500, 404))
    site.reading(
        schema=SCHEMA, sinks={"bad": "jsonl"}, routes=Routes({"errors": "status >= 500"}, {"bad": ("errors",)})
    )
    report = staged(site.run()["a.jsonl"])
    assert report.counts == Counts(processed=3, succeeded=1)
    assert report.receipts["bad"]["routed"] == {"rows": 1, "of": 3}


def test_faults_have_no_route_and_are_dead_letters_of_every_sink(site: Site) -> None:
    site.put("a.jsonl", orders(500) + "nonsense\n" + orders(200))
    site.reading(schema=SCHEMA, sinks=SINKS, routes=BY_STATUS)
    reports = site.run()
    assert staged(reports["a.jsonl"]).counts == Counts(processed=3, succeeded=2, dead=1)
    for sink in SINKS:
        site.publish(reports, sink)
        assert [letter["raw"] for letter in site.dead_letters(sink)] == ["nonsense"]
        assert staged(reports["a.jsonl"]).receipts[sink]["routed"] == {"rows": 2, "of": 3}


def test_rows_that_a_format_refuses_are_counted_once_for_each_set_of_routes(site: Site) -> None:
    site.put("a.jsonl", orders(200, 500))
    text = {"text": {"delimiter": "9"}}

    def lines_with_nines(frame: Any) -> Any:
        return frame.withColumn("value", sql.concat(sql.lit("9-"), sql.col("status").cast("string")))

    site.reading(lines_with_nines, schema=SCHEMA, sinks={"bad": text, "rest": text}, routes=BY_STATUS)
    assert staged(site.run()["a.jsonl"]).counts == Counts(processed=2, succeeded=0, dead=2)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("no_such_column > 1", "route 'errors': .*no_such_column"),
        ("status >>> ", "route 'errors': "),
        ("status + 1", "route 'errors' must be true or false, and is of type int"),
    ],
)
def test_a_condition_that_is_none_fails_every_batch_and_names_the_route(
    site: Site, condition: str, reason: str
) -> None:
    site.put("a.jsonl", orders(200))
    site.reading(schema=SCHEMA, sinks=SINKS, routes=Routes({"errors": condition}, {"bad": ("errors",)}))
    assert re.search(reason, failed(site.run()["a.jsonl"]).error)


def test_the_manifest_of_a_sink_with_routes_tells_its_share(site: Site) -> None:
    site.put("a.jsonl", orders(200, 500))
    site.reading(schema=SCHEMA, sinks=SINKS, routes=BY_STATUS)
    (batch,) = site.batches()
    report = staged(site.run([batch])["a.jsonl"])
    receipt = {**report.receipts["bad"], "from": batch.cut.start, "to": report.end, "token": 7}
    manifest = manifest_of(batch.lease, batch.name, receipt)
    assert manifest.routed == {"rows": 1, "of": 2}
    assert decode_manifest(manifest.encode()) == manifest

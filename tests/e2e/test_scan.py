"""A bucket is scanned into a search index by several nodes: every good record is there once, whatever happens.

Real versitygw, OpenSearch and PostgreSQL; nodes are processes of their own. Both tests share the servers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.fleet import Node
from tests.e2e.oracle import visible
from tests.e2e.scan_corpus import ERROR_EVERY, Given, count_of, damaged, difference, indexed, large, put, small, wanted
from tests.e2e.scanning import Scan, Servers, scan

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCANNED = """
    source:
      objects:
        buckets: [{{bucket: landing}}]
        s3: {s3}
        scan: follow
        interval: 2s
        on_corrupt: keep
    sinks:
      - opensearch:
          hosts: ["{search}"]
          index: orders
          mappings:
            dynamic: false
            properties: {{object: {{type: keyword}}, n: {{type: integer}}, mark: {{type: long}}}}
          settings: {{number_of_shards: 1, number_of_replicas: 0, refresh_interval: 60s}}
          patience: 2s
    batch: {{max_bytes: 4MB}}
    round: {{max_batches: 200}}
    # Neither a cluster that is away nor a node that dies counts as an attempt: a second one would fail good objects.
    retries: {{max_retries: 1, backoff: 200ms, max_backoff: 1s}}
"""
ROUTED = """
    source:
      objects:
        buckets: [{{bucket: access}}]
        s3: {s3}
        schema: "object STRING, n INT, status INT, mark BIGINT"
        scan: follow
        interval: 1s
    routes: {{errors: status >= 500}}
    sinks:
      - name: all
        files: {{root: "{root}/out", format: parquet}}
      - name: alarms
        routes: [errors]
        opensearch:
          hosts: ["{search}"]
          index: alarms
          mappings: {{dynamic: false, properties: {{object: {{type: keyword}}, mark: {{type: long}}}}}}
          patience: 1s
    retries: {{max_retries: 0}}
"""
BAD, LARGE, SMALL = 20, 5, 4975


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


# --- five thousand objects ------------------------------------------------------------------------------------------


def test_three_nodes_index_every_record_once_while_the_cluster_restarts_and_a_node_dies(
    servers: Servers, tmp_path: Path
) -> None:
    bad, many = [damaged(number) for number in range(BAD)], [large(number) for number in range(LARGE)]
    objects = [small(number, refused=number % 1000 == 7) for number in range(SMALL)]
    given = [*bad, *many, *objects]
    servers.s3.create_bucket("landing")
    settings = SCANNED.format(s3=servers.reach, search=servers.search.endpoint)
    with scan(tmp_path, servers, "orders", settings) as run:
        run.start("a", "b", "c")
        put(servers.s3, "landing", bad, many[:3], objects[:2500])
        run.all_have_joined()
        run.waits_for("work is on its way", completed=400)
        servers.search.crash()
        put(servers.s3, "landing", many[3:4], objects[2500:])
        run.all_miss_the_index()
        assert all(run.table.held_by(node) for node in run.running()), "leases are kept"
        before = run.table.statuses()["COMPLETED"]
        servers.search.start()
        run.waits_for("work goes on", completed=before + 100, failed=BAD)
        put(servers.s3, "landing", many[4:])
        victim = run.kill_one_at_work(partial(documents_of, servers))
        assert run.table.statuses()["COMPLETED"] < len(given) - BAD, "it is in the middle"
        run.waits_for("all is done", completed=len(given) - BAD, failed=BAD)
        assert run.table.statuses() == {"COMPLETED": len(given) - BAD, "FAILED": BAD}
        index_holds_what_was_given(servers, given)
        rows_tell_what_became_of_each(run, given)
        letters_tell_what_was_left_out(run, given)
        metrics_match(run, victim, given)
        run.stop()


def documents_of(servers: Servers, partition: str) -> int:
    client = servers.search.client()
    found = count_of(client, "orders", partition.removeprefix("landing|"))
    client.close()
    return found


def index_holds_what_was_given(servers: Servers, given: Sequence[Given]) -> None:
    client = servers.search.client()
    found, expected = indexed(client, "orders"), wanted(given)
    count = client.count(index="orders")["count"]
    client.close()
    assert list(difference(found, expected))[:5] == []
    assert count == sum(lines for lines, _ in expected.values())


def rows_tell_what_became_of_each(run: Scan, given: Sequence[Given]) -> None:
    """Every object has its counts; the damaged ones are FAILED with a reason that names the object and the damage."""
    rows = {row["sourcePartitionKey"]: row for row in run.partitions()}
    assert len(rows) == len(given)
    for obj in given:
        row = rows[f"landing|{obj.key}"]
        counts = (row["counts"]["processed"], row["counts"]["dead"])
        assert (obj.key, *counts) == (obj.key, obj.lines + obj.dead, obj.dead)
        assert row["sourcePartitionStatus"] == ("FAILED" if obj.complaint else "COMPLETED")
        if obj.complaint:
            assert obj.key in row["last_error"], row
            assert obj.complaint in row["last_error"], row


def letters_tell_what_was_left_out(run: Scan, given: Sequence[Given]) -> None:
    letters = run.letters()
    counts = Counter({row["partition"]: 0 for row in letters})
    for row in letters:
        counts[row["partition"]] += row["waiting"] + row["cannot_be"]
    assert counts == {f"landing|{obj.key}": obj.dead for obj in given if obj.dead}
    reasons = {row["reason"] for row in letters if row["partition"].startswith("landing|small/")}
    assert all("failed to parse field [n] of type [integer]" in reason for reason in reasons)


def metrics_match(run: Scan, victim: Node, given: Sequence[Given]) -> None:
    """Counts of living nodes, of the dead one, and what it could not report any more add up to the input."""
    living = run.running()

    def counted(metric: str, **labels: str) -> int:
        return sum(run.metric(node, metric, **labels) for node in living)

    records = counted("holdfast_records_committed_total", pipeline="orders")
    dead = counted("holdfast_dead_letters_total", pipeline="orders")
    for event in run.said(victim, "BatchCommitted"):
        records, dead = records + event["records"], dead + event["dead"]
    unreported = commits_nobody_told_of(run, given)
    assert records + unreported["records"] == sum(obj.lines + obj.dead for obj in given)
    assert dead + unreported["dead"] == sum(one.dead for one in given)
    failed = counted("holdfast_partitions_total", pipeline="orders", event="failed")
    assert failed + len(run.said(victim, "PartitionFailed")) == BAD
    # What was indexed and not committed is indexed again, and counted again.
    events = run.said(victim, "DocumentsIndexed")
    documents = counted("holdfast_documents_total", pipeline="orders", outcome="indexed")
    assert (
        documents + sum(event["documents"] for event in events)
        >= sum(obj.lines for obj in given) - unreported["records"]
    )
    refused = counted("holdfast_documents_total", pipeline="orders", outcome="refused")
    assert refused + sum(event["dead"] for event in events) >= sum(obj.refused for obj in given) - unreported["dead"]
    assert all(run.metric(node, "holdfast_unreachable_total", what="sink") for node in living)
    assert counted("holdfast_nodes_expired_total") >= 1


def commits_nobody_told_of(run: Scan, given: Sequence[Given]) -> Counter[str]:
    """Records in commits that the dead node had made when it died; others have published every one of them."""
    rolled = {event["key"] for node in run.running() for event in run.said(node, "BatchPublished", rolled_forward=True)}
    reported, unreported = run.committed(), Counter[str]()
    for obj in given:
        key, expected = f"landing|{obj.key}", Counter(records=obj.lines + obj.dead, dead=obj.dead)
        if reported.get(key) != expected:
            assert key in rolled, (key, reported.get(key), expected)
            unreported += expected - reported.get(key, Counter[str]())
    return unreported


# --- two sinks ------------------------------------------------------------------------------------------------------


def test_with_two_sinks_and_a_route_nothing_is_seen_before_both_have_it(servers: Servers, tmp_path: Path) -> None:
    first, later = [small(number) for number in range(10)], [small(number) for number in range(10, 25)]
    servers.s3.create_bucket("access")
    put(servers.s3, "access", first)
    settings = ROUTED.format(s3=servers.reach, search=servers.search.endpoint, root=tmp_path)
    with scan(tmp_path, servers, "access", settings) as run:
        run.start("a")
        run.waits_for("the first are done", completed=len(first))
        servers.search.stop()
        put(servers.s3, "access", later)
        run.all_miss_the_index()
        assert published(tmp_path / "out") == every_record_of(first)
        waiting = [row for row in run.partitions() if row["sourcePartitionStatus"] != "COMPLETED"]
        assert [row for row in waiting if row["sequence"] or row["position"] or row["receipts"]] == []
        assert waiting
        servers.search.start()
        run.waits_for("all is done", completed=len(first) + len(later))
        run.stop()
        assert published(tmp_path / "out") == every_record_of([*first, *later])
        client = servers.search.client()
        assert list(difference(indexed(client, "alarms"), wanted([*first, *later], ERROR_EVERY))) == []
        client.close()
        assert_verified(tmp_path / "a.yaml")


def published(root: Path) -> Counter[tuple[str, int]]:
    """How often each record is in the files that a plain listing shows."""
    records: Counter[tuple[str, int]] = Counter()
    for path in visible(root):
        columns = pq.read_table(path, columns=["object", "n"]).to_pydict()
        records.update(zip(columns["object"], columns["n"], strict=True))
    return records


def every_record_of(given: Sequence[Given]) -> Counter[tuple[str, int]]:
    return Counter((obj.key, n) for obj in given for n in range(obj.lines))


def assert_verified(config: Path) -> None:
    """`holdfast verify` has no doubt."""
    words = [sys.executable, "-m", "holdfast", "verify", str(config), "--deep", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout, done.stderr[-2000:]
    assert (done.returncode, [proof["doubts"] for proof in json.loads(done.stdout) if proof["doubts"]]) == (0, [])

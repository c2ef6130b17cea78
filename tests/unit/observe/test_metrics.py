from __future__ import annotations

import platform
import re
import socket
import threading
from dataclasses import MISSING
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser

from holdfast import events
from holdfast.errors import UsageError
from holdfast.events import (
    BatchCommitted,
    BatchPublished,
    DocumentsIndexed,
    Event,
    HandlerCalled,
    Heartbeat,
    HeartbeatWithheld,
    LagMeasured,
    NodeJoined,
    NodeLeft,
    Notice,
    PartitionAcquired,
    PartitionErrorRaised,
    PartitionReleased,
    PartitionsCounted,
    PartitionsCreated,
    RowsDropped,
    SessionEnded,
    StepFinished,
    Unreachable,
)
from holdfast.events.flow import DURATION_BOUNDS
from holdfast.observe.metric_table import COUNTERS, PIPELINE, SOURCE_COORDINATOR
from holdfast.observe.metrics import Metrics, metric_names

VALID_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def registry(metrics: Metrics) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(metrics)
    return made


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return registry(metrics).get_sample_value(name, labels)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics({"p|orders": "orders", "p|users": "users"})


def test_labels_carry_the_pipelines_name_without_its_prefix(metrics: Metrics) -> None:
    metrics(PartitionsCreated("p|orders", 7))
    metrics(PartitionAcquired("p|orders", "k", 1))

    assert value(metrics, "holdfast_partitions_total", pipeline="orders", event="created") == 7
    assert value(metrics, "holdfast_partitions_total", pipeline="orders", event="acquired") == 1
    assert value(metrics, "holdfast_partitions_total", pipeline="users", event="created") == 0


def test_events_of_a_pipeline_that_is_not_configured_are_not_counted(metrics: Metrics) -> None:
    before = generate_latest(registry(metrics))

    metrics(PartitionAcquired("p|orders/$discovery", "$discovery", 1))

    assert generate_latest(registry(metrics)) == before


def test_records_dead_letters_and_outcomes_of_batches(metrics: Metrics) -> None:
    metrics(BatchCommitted("p|orders", "k", 1, records=10, dead=2))
    for rows in (3, 4):
        metrics(RowsDropped("p|orders", "2-filter", rows))
    metrics(BatchPublished("p|orders", "k", 1, rolled_forward=False))
    metrics(BatchPublished("p|orders", "k", 2, rolled_forward=True))
    metrics(BatchPublished("p|orders", "k", 3, rolled_forward=True))

    assert value(metrics, "holdfast_records_committed_total", pipeline="orders") == 10
    assert value(metrics, "holdfast_dead_letters_total", pipeline="orders") == 2
    assert value(metrics, "holdfast_rows_dropped_total", pipeline="orders", processor="2-filter") == 7
    assert value(metrics, "holdfast_batches_total", pipeline="orders", outcome="committed") == 1
    assert value(metrics, "holdfast_batches_total", pipeline="orders", outcome="published") == 1
    assert value(metrics, "holdfast_batches_total", pipeline="orders", outcome="rolled_forward") == 2


def test_labels_from_the_event_itself(metrics: Metrics) -> None:
    metrics(Unreachable("store", "no answer", 1.0))
    metrics(PartitionErrorRaised("p|orders", "k", "update", "giveUp"))

    assert value(metrics, "holdfast_unreachable_total", what="store") == 1
    errors = "holdfast_partition_errors_total"
    assert value(metrics, errors, pipeline="orders", kind="update", action="giveUp") == 1


@pytest.mark.parametrize("end", [SessionEnded("s", "silent"), NodeLeft("n", "s")])
def test_usable_seconds_run_down_between_heartbeats_and_are_0_when_the_session_is_over(end: Event) -> None:
    now = [100.0]
    metrics = Metrics({}, clock=lambda: now[0])
    name = "holdfast_session_usable_seconds"

    assert value(metrics, name) == 0
    metrics(Heartbeat("s", 1, usable_for=26.5))
    now[0] += 10
    assert value(metrics, name) == 16.5
    now[0] += 60
    assert value(metrics, name) == 0
    metrics(Heartbeat("s", 2, usable_for=26.5))
    metrics(end)
    assert value(metrics, name) == 0


def test_every_metric_is_valid_for_both_formats_and_has_a_help_text(metrics: Metrics) -> None:
    text = generate_latest(registry(metrics)).decode()
    # This part of the client has no types.
    open_metrics = cast("Any", exposition).generate_latest(registry(metrics)).decode()
    families = list(cast("Any", parser).text_string_to_metric_families(open_metrics))

    assert all(VALID_NAME.fullmatch(family.name) and family.documentation for family in families)
    assert "# TYPE holdfast_batches_total counter" in text
    assert "# TYPE orders_source_coordinator_partitionsCompleted untyped" in text
    assert not [line for line in text.splitlines() if "_created" in line.partition("{")[0]]


def test_the_table_counts_every_event_with_its_own_labels() -> None:
    for metric in (*COUNTERS, *SOURCE_COORDINATOR):
        for counts in metric.counted:
            assert issubclass(counts.event, events.Event)
            of_pipeline = PIPELINE in metric.labels
            named = counts.event.__dataclass_fields__.get(PIPELINE)
            # An event that may name a pipeline, but need not, is no pipeline's.
            assert of_pipeline == (named is not None and named.default is MISSING)
            if not callable(counts.labels):
                assert len(counts.labels) + of_pipeline == len(metric.labels)


@pytest.mark.parametrize(
    ("pipelines", "names"),
    [
        (["orders"], {"orders": "orders"}),
        (["s3-scan"], {"s3-scan": "s3_scan"}),
        (["2024-logs"], {"2024-logs": "_2024_logs"}),
        (["a-b", "a_b"], {"a-b": "a_b_d44362d6", "a_b": "a_b"}),
        (["a-b_c", "a_b-c"], {"a-b_c": "a_b_c_0b7808a0", "a_b-c": "a_b_c_9a83c37c"}),
    ],
)
def test_names_of_pipelines_in_metric_names(pipelines: list[str], names: dict[str, str]) -> None:
    assert metric_names(pipelines) == names
    assert metric_names(reversed(pipelines)) == names


def test_a_taken_port_is_said_plainly(metrics: Metrics) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"metrics cannot be served on 127\.0\.0\.1:{port}: Address"):
            metrics.serve(port)


def test_a_stopped_endpoint_frees_its_port_and_may_be_stopped_again(metrics: Metrics) -> None:
    first = metrics.serve(0)
    port = first.port
    first.stop()
    first.stop()
    metrics.serve(port).stop()


def test_counting_from_several_threads_loses_nothing(metrics: Metrics) -> None:
    def count() -> None:
        for _ in range(2000):
            metrics(PartitionsCreated("p|orders", 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value(metrics, "holdfast_partitions_total", pipeline="orders", event="created") == 8000


def test_lag_is_shown_for_partitions_that_are_held_until_they_are_somebody_elses(metrics: Metrics) -> None:
    for key, records, seconds in (("t|0", 70, None), ("t|1", 5, 2.5), ("t|0", 40, 1.5)):
        metrics(LagMeasured("p|orders", key, records, seconds))
    metrics(LagMeasured("p|orders/$runs", "t|0", 9, 9.0))
    at = {"pipeline": "orders", "partition": "t|0"}
    assert (value(metrics, "holdfast_lag_records", **at), value(metrics, "holdfast_lag_seconds", **at)) == (40, 1.5)
    metrics(PartitionReleased("p|orders", "t|0"))
    assert value(metrics, "holdfast_lag_records", **at) is None
    assert value(metrics, "holdfast_lag_records", pipeline="orders", partition="t|1") == 5
    metrics(SessionEnded("s", "too late"))
    assert value(metrics, "holdfast_lag_records", pipeline="orders", partition="t|1") is None


def test_documents_of_a_search_index_and_the_last_limit(metrics: Metrics) -> None:
    counts = {"documents": 10, "conflicts": 2, "dead": 1, "requests": 3, "retried": 4, "rejected": 5, "size": 600}
    for limit in (4.0, 2.5):
        metrics(DocumentsIndexed("p|orders", "search", **counts, limit=limit))
    metrics(DocumentsIndexed("p|unknown", "search", **counts, limit=1.0))
    labels = {"pipeline": "orders", "sink": "search"}
    outcomes = {"indexed": 20.0, "conflict": 4.0, "refused": 2.0}
    assert {
        outcome: value(metrics, "holdfast_documents_total", **labels, outcome=outcome) for outcome in outcomes
    } == outcomes
    reasons = {"any": 8.0, "rejected": 10.0}
    assert {
        reason: value(metrics, "holdfast_documents_resent_total", **labels, reason=reason) for reason in reasons
    } == reasons
    assert value(metrics, "holdfast_bulk_requests_total", **labels) == 6
    assert value(metrics, "holdfast_bulk_bytes_total", **labels) == 1200
    assert value(metrics, "holdfast_bulk_limit", **labels) == 2.5


def test_durations_are_a_histogram_by_step(metrics: Metrics) -> None:
    metrics(StepFinished("p|orders", "plan", 0.02))
    metrics(StepFinished("p|orders", "plan", 0.7))
    metrics(BatchCommitted("p|orders", "k", 1, records=1, dead=0, size=300, seconds=2000.0))
    metrics(BatchCommitted("p|orders", "k", 2, records=1, dead=0, size=200))
    metrics(HandlerCalled("p|orders", (4, *[0] * (len(DURATION_BOUNDS) - 1), 2), 1000.5))
    metrics(StepFinished("p|others", "plan", 1.0))

    name = "holdfast_duration_seconds"
    plan = {"pipeline": "orders", "step": "plan"}
    assert [value(metrics, f"{name}_bucket", **plan, le=le) for le in ("0.01", "0.05", "1.0", "+Inf")] == [0, 1, 2, 2]
    assert value(metrics, f"{name}_sum", **plan) == pytest.approx(0.72)
    assert value(metrics, f"{name}_count", pipeline="orders", step="batch") == 1
    assert value(metrics, f"{name}_bucket", pipeline="orders", step="batch", le="900.0") == 0
    assert value(metrics, f"{name}_count", pipeline="orders", step="handler") == 6
    assert value(metrics, f"{name}_count", pipeline="users", step="commit") == 0
    assert value(metrics, "holdfast_bytes_committed_total", pipeline="orders") == 500


def test_partitions_by_status_and_versions(metrics: Metrics) -> None:
    metrics(PartitionsCounted("p|orders", {"FAILED": 3, "ASSIGNED": 1}))
    metrics(PartitionsCounted("p|orders", {"FAILED": 2, "ASSIGNED": 2}))
    assert value(metrics, "holdfast_partitions_by_status", pipeline="orders", status="FAILED") == 2
    text = generate_latest(registry(metrics)).decode()
    assert f'holdfast_build_info{{python="{platform.python_version()}",spark="' in text


def probed(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_probes_follow_the_life_of_a_node() -> None:
    now = [100.0]
    metrics = Metrics({}, clock=lambda: now[0])
    endpoint = metrics.serve(0)
    seen = []
    for event in (
        Notice("it starts"),
        NodeJoined("n", "s"),
        Unreachable("store", "no route to host", 1.0),
        Heartbeat("s", 1, usable_for=26.0),
        Unreachable("sink", "no route to host", 1.0),
        HeartbeatWithheld("s", "publish", 3.0),
        Heartbeat("s", 2, usable_for=26.0),
        NodeLeft("n", "s"),
    ):
        metrics(event)
        seen.append((probed(endpoint.port, "/healthz")[0], probed(endpoint.port, "/readyz")))
    metrics(NodeJoined("n", "s2"))
    metrics(Heartbeat("s2", 1, usable_for=26.0))
    now[0] += 26.0
    seen.append((probed(endpoint.port, "/healthz")[0], probed(endpoint.port, "/readyz")))
    assert "holdfast_build_info" in probed(endpoint.port, "/metrics")[1]
    endpoint.stop()
    ready = (200, (200, "ok\n"))
    assert seen == [
        (200, (503, "the node has not joined\n")),
        ready,
        (200, (503, "the store does not respond: no route to host\n")),
        ready,
        ready,
        (503, (503, "the loop hangs in its step 'publish'\n")),
        ready,
        (200, (503, "the node has not joined\n")),
        (200, (503, "the session was not renewed in time\n")),
    ]

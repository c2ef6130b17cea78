"""The Grafana board and the alert rules of `deploy/` on a real Prometheus that scrapes a node's endpoint."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import (
    AlertRaised,
    AttemptFailed,
    BatchCommitted,
    BatchPublished,
    DocumentsIndexed,
    HandlerCalled,
    Heartbeat,
    LagMeasured,
    PartitionAcquired,
    PartitionsCounted,
    StepFinished,
    Unreachable,
)
from holdfast.events.flow import DURATION_BOUNDS
from holdfast.observe.metrics import Metrics
from tests.servers.processes import running
from tests.servers.prometheus import PrometheusServer

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
KEY = "orders|0"


def work(metrics: Metrics, sequence: int) -> None:
    """What a node does in one second, as its metrics see it."""
    pipeline, handled = "p|orders", (1,) * (len(DURATION_BOUNDS) + 1)
    for event in (
        Heartbeat("s", sequence, 26.0),
        PartitionAcquired(pipeline, KEY, 1),
        AttemptFailed(pipeline, KEY, 1, "no"),
        BatchCommitted(pipeline, KEY, sequence, 10, 1, size=1000, seconds=2.0),
        BatchPublished(pipeline, KEY, sequence, rolled_forward=False),
        *(StepFinished(pipeline, step, 0.02) for step in ("plan", "commit", "publish")),
        HandlerCalled(pipeline, handled, 3.0),
        LagMeasured(pipeline, KEY, 7, 3.5),
        PartitionsCounted(pipeline, {"ASSIGNED": 1, "FAILED": 2}),
        DocumentsIndexed(pipeline, "search", 5, 0, 0, requests=1, retried=0, rejected=0, size=50, limit=2.0),
        Unreachable("sink", "away", 1.0),
        AlertRaised("records_lost", pipeline, KEY, "records are gone"),
    ):
        metrics(event)


@pytest.fixture(scope="module")
def prometheus() -> Iterator[PrometheusServer]:
    metrics, stopped = Metrics({"p|orders": "orders"}), threading.Event()

    def keep_working() -> None:
        for sequence in itertools.count(1):
            work(metrics, sequence)
            if stopped.wait(0.5):
                return

    thread, endpoint = threading.Thread(target=keep_working), metrics.serve(0)
    thread.start()
    rules = str(DEPLOY / "prometheus" / "holdfast-alerts.yml")
    try:
        with running(PrometheusServer, target=f"127.0.0.1:{endpoint.port}", rules=rules) as server:
            yield server
    finally:
        stopped.set()
        thread.join()
        endpoint.stop()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_panel_has_data(prometheus: PrometheusServer, expression: str) -> None:
    query = expression.replace("$__rate_interval", "1m").replace("$pipeline", ".*")
    assert all(result["value"][1] != "NaN" for result in prometheus.result(query))


def test_an_alert_of_the_node_fires(prometheus: PrometheusServer) -> None:
    (alert,) = prometheus.result('ALERTS{alertname="HoldfastRecordsLost", alertstate="firing"}')
    assert alert["metric"]["pipeline"] == "orders"


def test_the_board_offers_the_pipelines(prometheus: PrometheusServer) -> None:
    prometheus.result("holdfast_records_committed_total")
    (query,) = [variable["query"] for variable in BOARD["templating"]["list"] if variable["name"] == "pipeline"]
    metric, label = query["query"].removeprefix("label_values(").removesuffix(")").split(", ")
    assert prometheus.get(f"label/{label}/values", **{"match[]": metric}) == ["orders"]


def test_the_board_shows_every_metric_of_durations_bytes_status_and_versions() -> None:
    shown = " ".join(EXPRESSIONS)
    for metric in ("duration_seconds", "bytes_committed_total", "partitions_by_status", "build_info", "lag_seconds"):
        assert f"holdfast_{metric}" in shown

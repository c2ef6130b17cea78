from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.events import AlertCleared, AlertRaised, BatchCommitted, LagMeasured, PartitionReleased, SessionEnded
from holdfast.flow.run import GroupStats, Run, RunStatus, new_row
from holdfast.leases import transitions
from holdfast.leases.controls import Controls
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Counts, Lease, Partition, Progress
from holdfast.leases.query import Query
from holdfast.leases.session import NodeInfo, Session, SessionTiming
from holdfast.leases.sums import PartitionSum, SumsRows, sums
from holdfast.leases.world import host_world
from holdfast.observe.measurements import MOST_BYTES, MOST_PIPELINES, RATED, Measurements
from holdfast.observe.overview import MOST_ENDED_RUNS, MOST_FAILURES, overview
from holdfast.stores.memory import MemoryStore
from holdfast.testing.faults import PlainStore

FLEET = "$nodes"
PIPELINES = {"orders": "prod|orders"}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def joined(store: MemoryStore, name: str) -> Session:
    info = NodeInfo(name, f"host-{name}:1", pipelines=("prod|orders",))
    session = Session(store, host_world(lambda _: None), FLEET, info, SessionTiming())
    session.join()
    return session


def coordinator(store: MemoryStore, session: Session, run: str = "") -> Coordinator:
    return Coordinator(store, host_world(lambda _: None), session, "prod|orders", run=run, policy=ClaimPolicy())


def test_one_look_has_pipelines_nodes_runs_and_failures(store: MemoryStore) -> None:
    session = joined(store, "replica1")
    leases = coordinator(store, session)
    leases.create([Partition(key) for key in "abcd"])
    first, second, *_ = leases.claim(3)
    leases.write([first], lambda row, now: transitions.halt(row, "two manifests disagree", now))
    counted = Progress(counts=Counts(processed=10, succeeded=8, dead=2))
    leases.write([second], lambda row, _: replace(row, progress=counted))
    Controls(store, lambda: uuid.uuid4().hex, FLEET).pause("prod|orders", "me")

    found = overview(store, FLEET, PIPELINES)

    (pipeline,) = found["pipelines"]
    assert pipeline == {
        "pipeline": "orders",
        "state": "paused",
        "nodes": 1,
        "partitions": {"UNASSIGNED": 1, "ASSIGNED": 2, "CLOSED": 0, "COMPLETED": 0, "FAILED": 1},
        "counts": {"processed": 10, "succeeded": 8, "failed": 0, "dead": 2},
        "lag_records": None,
        "lag_seconds": None,
        "records_per_second": None,
    }
    (node,) = found["nodes"]
    assert (node["name"], node["leases"], node["alive"], node["drained"]) == ("replica1", 2, True, False)
    (failure,) = found["failures"]
    assert (failure["pipeline"], failure["key"], failure["error"]) == ("orders", first.key, "two manifests disagree")
    assert found["at"].endswith("Z")


def test_lag_and_rate_come_with_the_heartbeats_of_nodes_that_are_alive(store: MemoryStore) -> None:
    for name, records in (("replica1", 5), ("replica2", 7), ("gone", 1000)):
        session, measurements = joined(store, name), Measurements()
        measurements(LagMeasured("prod|orders", f"{name}|0", records, 2.0 * records))
        session.measured = measurements.sent
        session.heartbeat()
        if name == "gone":
            session.leave()

    (pipeline,) = overview(store, FLEET, PIPELINES)["pipelines"]
    assert (pipeline["nodes"], pipeline["lag_records"], pipeline["lag_seconds"]) == (2, 12, 14.0)


def test_runs_that_are_open_are_shown_and_the_last_that_have_ended(store: MemoryStore) -> None:
    group = GroupStats(partitions=4, total=100, completed=1, failed_partitions=1, processed=50)
    running = Run("open", RunStatus.RUNNING, groups={"users": group}, created_at=1.0, rate=10.0)
    ended = [Run(f"r{n}", RunStatus.COMPLETED, created_at=float(n)) for n in range(2, 12)]
    store.add([new_row("prod|orders", run, "w") for run in (running, *ended)])
    leases = coordinator(store, joined(store, "replica1"), run="open")
    leases.create([Partition(str(number)) for number in range(MOST_FAILURES + 5)])
    leases.write(leases.claim(MOST_FAILURES + 3), lambda row, now: transitions.halt(row, "no", now))

    found = overview(store, FLEET, PIPELINES)

    assert [run["run"] for run in found["runs"]] == ["r11", "r10", "r9", "r8", "r7", "open"]
    assert len(found["runs"]) == MOST_ENDED_RUNS + 1
    shown = found["runs"][-1]
    assert (shown["partitions"], shown["completed"], shown["failed_partitions"]) == (4, 1, 1)
    assert (shown["records"], shown["total"], shown["seconds_left"]) == (50, 100, 5.0)
    assert [failure["run"] for failure in found["failures"]] == ["open"] * MOST_FAILURES


class Counting(PlainStore):
    """Counts the rows of partitions that are read."""

    rows = 0

    def find(self, query: Query) -> list[Lease]:
        found = super().find(query)
        self.rows += len(found) if query.pipeline == "prod|orders" else 0
        return found


class Summing(Counting, SumsRows):
    def sums(self, pipeline: str, run: str) -> list[PartitionSum]:
        return sums(self.inner, pipeline, run)


def test_a_store_that_sums_is_not_asked_for_rows(store: MemoryStore) -> None:
    coordinator(store, joined(store, "replica1")).create([Partition(str(number)) for number in range(50)])
    plain, summing = Counting(store), Summing(store)
    assert overview(plain, FLEET, PIPELINES)["pipelines"] == overview(summing, FLEET, PIPELINES)["pipelines"]
    assert (plain.rows, summing.rows) == (50, 0)


class Away(PlainStore):
    def find(self, query: Query) -> list[Lease]:
        raise StoreUnavailable("away")


def test_a_store_that_does_not_respond_is_not_shown_as_empty(store: MemoryStore) -> None:
    with pytest.raises(StoreUnavailable):
        overview(Away(store), FLEET, PIPELINES)


# --- measurements ----------------------------------------------------------------------------------------------------


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_that_of_the_last_minute() -> None:
    time = Time()
    measurements = Measurements(time)
    measurements(BatchCommitted("p", "a", 1, records=600, dead=0))
    assert measurements.sent() == {"p": {"lag_records": None, "lag_seconds": None, "records_per_second": 600 / RATED}}
    time.now += RATED + 1
    assert measurements.sent()["p"]["records_per_second"] == 0.0


def test_a_partition_that_is_no_longer_held_has_no_lag() -> None:
    measurements = Measurements()
    for key in "abc":
        measurements(LagMeasured("p", key, 5, None))
    measurements(PartitionReleased("p", "a"))
    assert measurements.sent()["p"]["lag_records"] == 10
    measurements(SessionEnded("s", "silent"))
    assert measurements.sent() == {}


def test_a_row_names_the_pipelines_that_are_furthest_behind() -> None:
    measurements = Measurements()
    for number in range(MOST_PIPELINES + 5):
        measurements(LagMeasured(f"p{number}", "a", number, 1.0))
    assert list(measurements.sent()) == [f"p{number}" for number in range(MOST_PIPELINES + 4, 4, -1)]


def test_alerts_that_are_open_and_workers_are_sent() -> None:
    now = [50.0]
    measurements = Measurements(now=lambda: now[0])
    measurements.workers = {"p": lambda: {"busy": 2, "idle": 1}}
    measurements(AlertRaised("sink_unreachable", "p", None, "503"))
    now[0] = 60.0
    measurements(AlertRaised("lagging", "p", "a", "x" * 500))
    measurements(AlertRaised("sink_unreachable", "p", None, "504"))
    sent = measurements.sent()
    assert sent["p"]["workers"] == {"busy": 2, "idle": 1}
    assert [(alert["kind"], alert["since"]) for alert in sent["$alerts"]] == [
        ("sink_unreachable", 50.0),
        ("lagging", 60.0),
    ]
    assert sent["$alerts"][0]["message"] == "504"
    measurements(AlertCleared("sink_unreachable", "p", None, "it responds"))
    measurements(AlertCleared("lagging", "p", "a", "caught up"))
    assert "$alerts" not in measurements.sent()


def test_what_is_sent_stays_small() -> None:
    measurements = Measurements()
    measurements.workers = {f"pipeline-{number}": lambda: {"busy": 4, "starting": 4} for number in range(40)}
    for number in range(40):
        measurements(LagMeasured(f"pipeline-{number}", "a", number, 1.0))
        measurements(AlertRaised("lagging", f"pipeline-{number}", "🙂" * 100, "🙂" * 1000))
    sent = measurements.sent()
    assert len(json.dumps(sent, ensure_ascii=False).encode()) <= MOST_BYTES
    assert next(iter(sent)) == "pipeline-39"
    assert sent["$alerts"][0]["pipeline"] == "pipeline-39"
    measurements(AlertRaised("lagging", "p", "k" * 5000, "far behind"))
    assert len(json.dumps(measurements.sent(), ensure_ascii=False).encode()) <= MOST_BYTES

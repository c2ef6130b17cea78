"""Each kind of alert is raised within 30 seconds, once, and cleared when it is over."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast.config.alerts import AlertSettings
from holdfast.errors import Interrupted, StoreUnavailable
from holdfast.events import (
    AlertCleared,
    AlertRaised,
    BatchCommitted,
    BatchPublished,
    DeadLettersBeyondTolerance,
    DeadLettersNearTolerance,
    DiscoveryFailed,
    DiscoveryFinished,
    Event,
    FinalizingFailed,
    FolderFinalized,
    Heartbeat,
    HeartbeatWithheld,
    LagMeasured,
    NodeExpired,
    NodeJoined,
    NodeLeft,
    PartitionAcquired,
    PartitionClosed,
    PartitionCompleted,
    PartitionFailed,
    PartitionHalted,
    PartitionHandedOff,
    PartitionLost,
    PartitionReleased,
    RecordsLost,
    RoundSubmitted,
    SessionEnded,
    TopicDenied,
    Unreachable,
    WaitsBehindTransaction,
)
from holdfast.leases.writes import until_answered
from holdfast.observe import alerts as alerts_module
from holdfast.observe.alert_kinds import KINDS, runbook
from holdfast.observe.alerts import ASSUMED_REACHABLE_AFTER, MOST_OF_A_KIND, Alerts, alerting
from holdfast.observe.consumers import Reporter
from holdfast.observe.log import Log
from holdfast.observe.metrics import Metrics
from holdfast.testing.worlds import TurnableClock, make_world

ROOT = Path(__file__).parents[3]
HOUR = 3600.0

AT_ONCE: list[tuple[Event, str, str | None, str | None]] = [
    (PartitionFailed("orders", "k", "cannot parse"), "partition_failed", "orders", "k"),
    (PartitionHalted("orders", "k", "store and bucket disagree"), "partition_halted", "orders", "k"),
    (DeadLettersBeyondTolerance("orders", "k", 11, 90, 10, "not JSON"), "dead_letters_beyond_tolerance", "orders", "k"),
    (DeadLettersNearTolerance("orders", "k", 6, 90, 10), "dead_letters_near_tolerance", "orders", "k"),
    (LagMeasured("orders", "k", 1001, 1.0), "partition_lagging", "orders", "k"),
    (WaitsBehindTransaction("orders", "k", 10, "now", 900.0), "transaction_open", "orders", "k"),
    (TopicDenied("orders", "k", "not authorized"), "topic_denied", "orders", "k"),
    (RecordsLost("orders", "k", 10, 25), "records_lost", "orders", "k"),
    (PartitionLost("orders", "k", "another token"), "lease_lost", "orders", "k"),
    (SessionEnded("host:1:a", "it could not be renewed in time"), "session_lost", None, None),
    (NodeExpired("host:2:b", "host:1:a"), "node_lost", None, "host:2:b"),
    (HeartbeatWithheld("host:1:a", "plan", 12.0), "heartbeat_withheld", None, None),
    (DiscoveryFailed("orders", "no such folder"), "discovery_failed", "orders", None),
    (FinalizingFailed("orders", "clicks", "dt=1", 1, "no metastore"), "finalizing_failed", "orders", None),
]
OUTSIDE = [
    (Unreachable("store", "no answer", 5.0), "store_unreachable", None),
    (Unreachable("source", "no answer", 5.0, "orders"), "source_unreachable", "orders"),
    (Unreachable("sink", "no answer", 5.0, "orders"), "sink_unreachable", "orders"),
]
ENDS: dict[type[Event], Event] = {
    type(event): event
    for event in (
        PartitionAcquired("orders", "k", 2),
        BatchCommitted("orders", "k", 1, 1, 0),
        LagMeasured("orders", "k", 0, 0.0),
        PartitionReleased("orders", "k"),
        PartitionHandedOff("orders", "k", "host:2:b"),
        PartitionLost("orders", "k", "another token"),
        PartitionClosed("orders", "k", 1.0),
        PartitionCompleted("orders", "k", 10),
        PartitionFailed("orders", "k", "cannot parse"),
        PartitionHalted("orders", "k", "store and bucket disagree"),
        SessionEnded("host:1:a", "silent"),
        NodeLeft("replica1", "host:1:a"),
        NodeJoined("replica1", "host:1:a"),
        Heartbeat("host:1:a", 7, 26.5),
        DiscoveryFinished("orders", 3, 1, exhausted=False),
        FolderFinalized("orders", "clicks", "dt=1", 2, 30, 0),
        RoundSubmitted("orders", 2),
        BatchPublished("orders", "k", 1, rolled_forward=False),
    )
}


class Watch:
    """Alerts on a clock that a test turns, and what they emitted, with the time since the beginning."""

    def __init__(self, settings: AlertSettings) -> None:
        self.clock = TurnableClock()
        self.began = self.clock.monotonic()
        self.emitted: list[tuple[float, Event]] = []
        self.see = Alerts(settings, self._tell, self.clock.monotonic)

    def pass_time(self, seconds: float) -> None:
        """As it passes for a node: with a tick every second."""
        for _ in range(int(seconds)):
            self.clock.turn(1.0)
            self.see.tick()
        self.clock.turn(seconds - int(seconds))

    def pass_hour(self) -> None:
        self.clock.turn(HOUR)
        self.see.tick()

    @property
    def raised(self) -> list[AlertRaised]:
        return [event for _, event in self.emitted if isinstance(event, AlertRaised)]

    @property
    def cleared(self) -> list[AlertCleared]:
        return [event for _, event in self.emitted if isinstance(event, AlertCleared)]

    def _tell(self, event: Event) -> None:
        self.emitted.append((self.clock.monotonic() - self.began, event))


@pytest.fixture
def watch() -> Watch:
    return Watch(AlertSettings(lag_records=1000, lag_seconds=60))


def name(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def tell_again_and_again(watch: Watch, event: Unreachable, seconds: float) -> None:
    for _ in range(int(seconds / event.retry_in)):
        watch.see(event)
        watch.pass_time(event.retry_in)


# --- at once ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("event", "kind", "pipeline", "key"), AT_ONCE, ids=name)
def test_a_fact_is_raised_at_once(watch: Watch, event: Event, kind: str, pipeline: str | None, key: str | None) -> None:
    watch.see(event)

    (alert,) = watch.raised
    assert (alert.kind, alert.pipeline, alert.key) == (kind, pipeline, key)
    assert alert.message
    assert alert.level == "error"


def test_the_message_says_what_happened(watch: Watch) -> None:
    for event, *_ in AT_ONCE:
        watch.see(event)

    assert [alert.message for alert in watch.raised] == [
        "its retries are used up: cannot parse",
        "store and bucket disagree",
        "11 of 90 records are dead letters, 10 are allowed: not JSON",
        "6 of 90 records are dead letters, 10 are allowed",
        "1001 records behind, more than 1000",
        "has waited behind an open transaction since now, at offset 10",
        "the brokers deny access to the topic: not authorized",
        "the source has deleted 10 to 25 (exclusive) before they were read",
        "another token",
        "session host:1:a has ended: it could not be renewed in time",
        "session host:2:b has sent no heartbeat",
        "step plan is 12 s over its limit",
        "no such folder",
        "clicks/dt=1: no metastore",
    ]


@pytest.mark.parametrize(("event", "kind", "pipeline", "key"), AT_ONCE, ids=name)
def test_what_is_told_again_is_raised_again_only_after_a_while(
    watch: Watch, event: Event, kind: str, pipeline: str | None, key: str | None
) -> None:
    for _ in range(7):
        watch.see(event)
        watch.see.tick()
        watch.clock.turn(HOUR / 6)

    assert [round(at) for at, _ in watch.emitted] == [0, 3600]
    assert watch.cleared == []


@pytest.mark.parametrize(("event", "kind", "pipeline", "key"), AT_ONCE, ids=name)
def test_what_is_not_told_again_is_cleared_after_a_while(
    watch: Watch, event: Event, kind: str, pipeline: str | None, key: str | None
) -> None:
    watch.see(event)
    watch.clock.turn(HOUR - 1)
    watch.see.tick()
    assert watch.cleared == []

    watch.pass_time(1)
    assert watch.cleared == [AlertCleared(kind, pipeline, key, "not seen again for 1h")]
    watch.pass_hour()
    assert len(watch.emitted) == 2

    watch.see(event)
    assert len(watch.raised) == 2


@pytest.mark.parametrize(
    ("event", "kind", "end"),
    [(event, kind, ENDS[end]) for event, kind, *_ in AT_ONCE for end in KINDS[kind].ended_by],
    ids=name,
)
def test_what_is_proved_to_be_over_is_cleared(watch: Watch, event: Event, kind: str, end: Event) -> None:
    watch.see(event)
    (before,) = watch.raised
    watch.see(end)

    (cleared,) = watch.cleared
    assert (cleared.kind, cleared.pipeline, cleared.key) == (kind, before.pipeline, before.key)
    watch.see(event)
    assert [alert.kind for alert in watch.raised].count(kind) == 2


def test_partitions_have_alerts_of_their_own(watch: Watch) -> None:
    partitions = [("orders", "a"), ("orders", "b"), ("users", "a")]
    for pipeline, key in partitions:
        watch.see(PartitionFailed(pipeline, key, "cannot parse"))
    watch.see(PartitionAcquired("orders", "a", 2))
    watch.see(PartitionAcquired("users", "b", 2))

    assert [(alert.pipeline, alert.key) for alert in watch.raised] == partitions
    assert watch.cleared == [AlertCleared("partition_failed", "orders", "a", "partition acquired")]


def test_nodes_that_die_one_after_the_other_are_each_told_of(watch: Watch) -> None:
    for session in ("a", "b", "a"):
        watch.see(NodeExpired(session, "me"))

    assert [alert.key for alert in watch.raised] == ["a", "b"]


def test_what_is_normal_raises_nothing(watch: Watch) -> None:
    normal = [end for kind, end in ENDS.items() if kind not in {type(event) for event, *_ in AT_ONCE}]
    for event in normal:
        watch.see(event)
    watch.pass_time(30)

    assert watch.emitted == []


def test_there_are_never_more_alerts_than_can_be_followed(watch: Watch) -> None:
    for number in range(MOST_OF_A_KIND + 1):
        watch.see(PartitionFailed("orders", str(number), "cannot parse"))

    assert len(watch.raised) == MOST_OF_A_KIND + 1
    assert watch.cleared == [
        AlertCleared("partition_failed", "orders", "0", "there are too many alerts of this kind to track")
    ]


# --- lag -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "seconds", "message"),
    [
        (1000, 60.0, None),
        (1001, 60.0, "1001 records behind, more than 1000"),
        (0, 60.5, "60 seconds behind, more than 60"),
        (5000, 99.0, "5000 records behind, more than 1000; 99 seconds behind, more than 60"),
        (None, 61.0, "61 seconds behind, more than 60"),
        (None, None, None),
    ],
)
def test_lag_and_age_over_their_limits(
    watch: Watch, records: int | None, seconds: float | None, message: str | None
) -> None:
    watch.see(LagMeasured("orders", "k", records, seconds))

    assert [alert.message for alert in watch.raised] == ([message] if message else [])


def test_lag_that_comes_near_what_the_source_keeps_needs_no_limit_of_its_own() -> None:
    watch = Watch(AlertSettings())
    watch.see(LagMeasured("orders", "k", 5, 49.0, kept=100.0))
    assert watch.emitted == []
    watch.see(LagMeasured("orders", "k", 5, 51.0, kept=100.0))
    assert [alert.message for alert in watch.raised] == ["51 seconds behind, more than 50"]


def test_without_a_limit_no_lag_is_too_much() -> None:
    watch = Watch(AlertSettings())
    watch.see(LagMeasured("orders", "k", 10**12, 10.0**9))

    assert watch.emitted == []


def test_a_partition_that_has_caught_up_is_cleared_and_one_of_which_nothing_is_known_is_not(watch: Watch) -> None:
    watch.see(LagMeasured("orders", "k", 1001, 5.0))
    watch.see(LagMeasured("orders", "k", None, 5.0))
    watch.see(LagMeasured("orders", "other", 1000, 5.0))
    assert watch.cleared == []

    watch.see(LagMeasured("orders", "k", 1000, 5.0))
    assert watch.cleared == [AlertCleared("partition_lagging", "orders", "k", "lag measured")]


# --- something outside -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("event", "kind", "pipeline"), OUTSIDE, ids=name)
def test_something_outside_that_stays_away_is_raised_within_30_seconds_and_once(
    watch: Watch, event: Unreachable, kind: str, pipeline: str | None
) -> None:
    tell_again_and_again(watch, event, 60)

    ((at, alert),) = watch.emitted
    assert alert == AlertRaised(kind, pipeline, None, f"the {event.what} does not respond: no answer")
    assert 20 <= at <= 30


@pytest.mark.parametrize("jitter", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("call", [0.0, 3.0, 8.0])
@pytest.mark.parametrize(("first", "longest"), [(0.5, 10.0), (0.5, 30.0), (5.0, 5.0)])
def test_it_is_raised_within_30_seconds_however_the_tries_are_spread(
    watch: Watch, first: float, longest: float, call: float, jitter: float
) -> None:
    """Pauses as the store's, the publisher's and the source's callers make them; each call fails after `call`."""
    pause = first
    while watch.clock.monotonic() - watch.began < 60:
        watch.see(Unreachable("store", "no answer", pause * jitter))
        watch.pass_time(pause * jitter + call)
        pause = min(pause * 2, longest)

    assert 20 <= watch.emitted[0][0] <= 30
    assert len(watch.emitted) == 1


def test_the_real_caller_of_a_store_that_is_away_is_heard() -> None:
    watch = Watch(AlertSettings())
    watch.clock.on_wait = watch.see.tick
    world = make_world(clock=watch.clock)

    def answer() -> None:
        watch.see(world.events[-1]) if world.events else None
        raise StoreUnavailable("connection refused")

    watch.clock.interrupt_after(9)
    with pytest.raises(Interrupted):
        until_answered(world, "store", answer)

    ((at, alert),) = watch.emitted
    assert alert == AlertRaised("store_unreachable", None, None, "the store does not respond: connection refused")
    assert at <= 30


def test_one_call_without_an_answer_is_no_alert(watch: Watch) -> None:
    watch.see(Unreachable("store", "no answer", 10.0))
    watch.pass_time(2 * ASSUMED_REACHABLE_AFTER)

    assert watch.emitted == []


def test_an_outage_that_is_over_before_is_no_alert_and_the_next_one_counts_from_its_own_begin(watch: Watch) -> None:
    for _ in range(3):
        tell_again_and_again(watch, Unreachable("store", "no answer", 1.0), 18)
        watch.see(Heartbeat("s", 1, 26.5))

    assert watch.emitted == []


@pytest.mark.parametrize(
    ("event", "kind", "end"),
    [(event, kind, ENDS[end]) for event, kind, _ in OUTSIDE for end in KINDS[kind].ended_by],
    ids=name,
)
def test_what_answers_again_is_cleared(watch: Watch, event: Unreachable, kind: str, end: Event) -> None:
    tell_again_and_again(watch, event, 30)
    watch.see(end)

    assert watch.cleared[0].kind == kind
    tell_again_and_again(watch, event, 30)
    assert len(watch.raised) == 2


@pytest.mark.parametrize(("event", "kind", "pipeline"), OUTSIDE, ids=name)
def test_what_is_not_tried_in_vain_any_more_is_cleared(
    watch: Watch, event: Unreachable, kind: str, pipeline: str | None
) -> None:
    tell_again_and_again(watch, event, 30)
    watch.pass_time(ASSUMED_REACHABLE_AFTER - 1)
    assert watch.cleared == []

    watch.pass_time(2)
    assert watch.cleared == [AlertCleared(kind, pipeline, None, "not seen again for 5m")]


def test_another_pipelines_sink_proves_nothing(watch: Watch) -> None:
    for _ in range(30):
        watch.see(Unreachable("sink", "no answer", 1.0, "orders"))
        watch.pass_time(1)
        watch.see(BatchPublished("users", "k", 1, rolled_forward=False))

    assert [(alert.kind, alert.pipeline) for alert in watch.raised] == [("sink_unreachable", "orders")]
    assert watch.cleared == []


def test_a_sink_that_is_noticed_only_by_long_jobs_is_raised_with_the_second(watch: Watch) -> None:
    for _ in range(2):
        watch.see(Unreachable("sink", "the disk is full", 5.0, "orders"))
        watch.pass_time(125)

    assert [at for at, _ in watch.emitted] == [125]


def test_a_long_outage_is_raised_again_after_a_while(watch: Watch) -> None:
    tell_again_and_again(watch, Unreachable("store", "no answer", 10.0), 2 * HOUR)

    assert [at for at, _ in watch.emitted] == [20, 3620]


def test_something_outside_of_which_nothing_is_known_is_raised_under_its_own_name(watch: Watch) -> None:
    tell_again_and_again(watch, Unreachable("registry", "no answer", 5.0), 30)

    (alert,) = watch.raised
    assert (alert.kind, runbook(alert.kind)) == ("registry_unreachable", "docs/runbooks/README.md")


def test_the_limits_are_those_of_the_settings() -> None:
    watch = Watch(AlertSettings(unreachable_after=3, repeat_after=60))
    tell_again_and_again(watch, Unreachable("store", "no answer", 1.0), 70)

    assert [at for at, _ in watch.emitted] == [3, 63]


# --- where they go ---------------------------------------------------------------------------------------------------


def _value(metrics: Metrics, metric: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry.get_sample_value(metric, labels)


def test_alerts_are_logged_and_counted() -> None:
    stream, clock = io.StringIO(), TurnableClock()
    metrics = Metrics({"p|orders": "orders"})
    emit = Reporter([Log(stream, form="json"), metrics])
    alerts = Alerts(AlertSettings(), emit, clock.monotonic)
    active: Callable[[], Any] = lambda: _value(  # noqa: E731
        metrics, "holdfast_alert_active", kind="partition_failed", pipeline="orders"
    )
    assert active() == 0
    assert _value(metrics, "holdfast_alerts_total", kind="partition_failed") == 0

    for key in ("a", "b", "a"):
        alerts(PartitionFailed("p|orders", key, "cannot parse"))
    assert active() == 2
    alerts(PartitionAcquired("p|orders", "a", 2))
    assert active() == 1
    clock.turn(HOUR)
    alerts(PartitionFailed("p|orders", "b", "cannot parse"))
    assert active() == 1
    assert _value(metrics, "holdfast_alerts_total", kind="partition_failed") == 3

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["key"]) for line in lines] == [
        ("AlertRaised", "error", "a"),
        ("AlertRaised", "error", "b"),
        ("AlertCleared", "info", "a"),
        ("AlertRaised", "error", "b"),
    ]


def test_every_kind_is_a_metric_from_the_start_and_goes_back_to_0() -> None:
    metrics = Metrics({"p|orders": "orders"})
    for kind in KINDS.values():
        labels = {"kind": kind.name, "pipeline": "orders" if kind.of_pipeline else ""}
        assert _value(metrics, "holdfast_alerts_total", kind=kind.name) == 0
        assert _value(metrics, "holdfast_alert_active", **labels) == 0

    metrics(AlertRaised("sink_unreachable", None, None, "no answer"))
    assert _value(metrics, "holdfast_alert_active", kind="sink_unreachable", pipeline="") == 1
    metrics(AlertCleared("sink_unreachable", None, None, "batch published"))
    assert _value(metrics, "holdfast_alert_active", kind="sink_unreachable", pipeline="") == 0


def test_a_running_node_raises_what_only_time_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_module, "TICK", 0.01)
    raised = threading.Event()

    def consumer(event: Event) -> None:
        if isinstance(event, AlertRaised):
            raised.set()

    before = threading.active_count()
    with alerting(AlertSettings(unreachable_after=0.05), "replica1", [consumer]) as alerts:
        alerts(Unreachable("store", "no answer", 60.0))
        assert raised.wait(10)
    assert threading.active_count() == before


# --- the documents ---------------------------------------------------------------------------------------------------


def test_every_kind_is_proved_here() -> None:
    assert {kind for _, kind, *_ in AT_ONCE} | {kind for _, kind, _ in OUTSIDE} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_kind_is_explained_and_has_a_runbook(kind: Any) -> None:
    assert (ROOT / runbook(kind.name)).is_file()
    page = (ROOT / "docs/how-to/alerts.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind.name}`")]
    assert f"(../runbooks/{kind.runbook})" in row

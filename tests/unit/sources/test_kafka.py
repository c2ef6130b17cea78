"""The source `kafka` on the node, over a fake cluster: what is found, what is due, what halts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.errors import BatchError, Halt
from holdfast.events import LagMeasured, Notice, RecordsLost, TopicDenied, WaitsBehindTransaction
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan, Wait
from holdfast.leases.lease import Commit, Lease, Progress, new_lease
from holdfast.sources.kafka.cluster import Cluster, Glimpse, LogEnd, Topic, TopicPartition, _log_end
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.source import KafkaSource

LIMITS = Limits()


class FakeCluster(Cluster):
    """Topics as first and end offsets by partition."""

    def __init__(self, **topics: list[tuple[int, int]]) -> None:
        super().__init__({}, "read_committed")
        self.logs = {
            TopicPartition(name, number): log for name, logs in topics.items() for number, log in enumerate(logs)
        }
        self.ids = {name: f"id-{name}" for name in topics}
        self.epochs: dict[TopicPartition, list[int]] = {}
        """The offset at which each leader began, by its epoch; the last one leads."""
        self.epoch_requests: list[Mapping[TopicPartition, tuple[int, int]]] = []
        self.highs: dict[TopicPartition, int] = {}
        """High watermarks, where they are beyond the last stable offset."""
        self.made_at: dict[TopicPartition, float] = {}
        self.size = 256
        self.groups: dict[TopicPartition, int] = {}
        self.kept: float | None = None

    def topics(self, wanted: Callable[[str], bool]) -> list[Topic]:
        return self.described([name for name in sorted(self.ids) if wanted(name)])

    def described(self, names: Sequence[str]) -> list[Topic]:
        parts = {name: tuple(at.partition for at in self.logs if at.topic == name) for name in names}
        return [Topic(name, self.ids[name], parts[name]) for name in names if name in self.ids]

    def ends(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        stable = {tp: self.logs[tp][1] for tp in topic_partitions if tp in self.logs}
        epochs = {tp: len(begun) - 1 for tp, begun in self.epochs.items()}
        return {tp: LogEnd(end, self.highs.get(tp, end), epochs.get(tp)) for tp, end in stable.items()}

    def continued(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, bool]:
        self.epoch_requests.append(positions)
        begun = {tp: self.epochs[tp][epoch + 1] for tp, (_, epoch) in positions.items()}
        return {tp: begun[tp] >= offset for tp, (offset, _) in positions.items()}

    def starts(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][0] for tp in topic_partitions if tp in self.logs}

    def at_time(self, topic_partitions: Sequence[TopicPartition], milliseconds: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, milliseconds // 1000)

    def committed(self, group: str, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        assert group == "old"
        return {tp: at for tp, at in self.groups.items() if tp in topic_partitions}

    def peek(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Glimpse]:
        return {tp: Glimpse(self.made_at[tp], self.size) for tp in positions if tp in self.made_at}

    def retention(self, topics: Sequence[str]) -> dict[str, float | None]:
        return dict.fromkeys(topics, self.kept)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Stand:
    """A source, its cluster and a clock."""

    def __init__(self, cluster: FakeCluster, **settings: Any) -> None:
        self.cluster, self.clock = cluster, Clock()
        chosen = {"topics": ("orders",), **settings}
        config = KafkaConfig.model_validate({"bootstrap_servers": "nowhere:1", "commit_offsets": False, **chosen})
        self.source = KafkaSource(config, cluster, self.clock)

    def found(self, state: dict[str, Any] | None = None) -> dict[str, Lease]:
        return {
            partition.key: new_lease("archive", partition, "w", now=0.0)
            for partition in self.source.discover({} if state is None else state)
        }

    def plan(self, *leases: Lease) -> Any:
        plans: Sequence[Plan] = self.source.plan(leases, LIMITS)
        return plans[0] if len(leases) == 1 else plans


def at(lease: Lease, offset: int) -> Lease:
    return replace(lease, progress=Progress(position={"offset": offset}))


def test_every_partition_of_every_wanted_topic_is_found_in_order() -> None:
    cluster = FakeCluster(orders=[(0, 1), (0, 1)], audit=[(0, 1)], orders_test=[(0, 1)], __offsets=[(0, 1)])
    stand = Stand(cluster, topics=["audit"], topics_pattern=".*", exclude=".*_test")
    assert list(stand.found()) == ["audit|0", "orders|0", "orders|1"]
    lease = stand.found()["orders|1"]
    assert stand.source.name(lease) == Name("orders", "1")
    assert lease.commit.incarnation == "id-orders"


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, 5),
        ({"start": "latest"}, 90),
        ({"start": "offset", "start_offset": 30}, 30),
        ({"start": "time", "start_time": "1970-01-01T00:00:40"}, 40),
        ({"start": "group", "start_group": "old"}, 50),
    ],
)
def test_the_start_setting_holds_for_partitions_of_the_first_discovery(settings: dict[str, Any], first: int) -> None:
    cluster = FakeCluster(orders=[(5, 90)])
    cluster.groups = {TopicPartition("orders", 0): 50}
    stand = Stand(cluster, upload={"max_age": "1s"}, **settings)
    state: dict[str, Any] = {}
    lease = stand.found(state)["orders|0"]
    cluster.logs[TopicPartition("orders", 0)] = (5, 100)
    cluster.made_at[TopicPartition("orders", 0)] = 0.0
    assert stand.plan(lease).start == {"offset": first}
    cluster.logs[TopicPartition("orders", 1)] = (7, 100)
    cluster.made_at[TopicPartition("orders", 1)] = 0.0
    assert stand.plan(stand.found(state)["orders|1"]).start == {"offset": 7}


def test_a_backlog_is_cut_into_batches_and_the_rest_waits_until_it_is_old() -> None:
    stand = Stand(FakeCluster(orders=[(0, 10_000)]), upload={"max_bytes": "25600", "max_age": "1m"})
    lease = stand.found()["orders|0"]
    cut = stand.plan(lease)
    assert isinstance(cut, Cut)
    assert (cut.start, cut.end, cut.max_bytes) == ({"offset": 0}, {"offset": 105}, 25600)
    stand.source.staged(Batch("b", lease, Name("orders", "0"), cut), {"offset": 105}, rows=105, size=105 * 100)
    assert stand.plan(at(lease, 105)).end == {"offset": 105 + 269}
    stand.source.staged(Batch("b", lease, Name("orders", "0"), cut), {"offset": 9990}, rows=1000, size=100_000)
    assert stand.plan(at(lease, 9990)) == Wait(1.0)
    stand.clock.now += 61.0
    assert stand.plan(at(lease, 9990)).end == {"offset": 10_000}


def test_what_a_batch_left_over_has_waited_since_the_batch_was_planned() -> None:
    stand = Stand(FakeCluster(orders=[(0, 110)]), upload={"max_bytes": "25600", "max_age": "1m"})
    lease = stand.found()["orders|0"]
    cut = stand.plan(lease)
    stand.clock.now += 61.0
    stand.source.staged(Batch("b", lease, Name("orders", "0"), cut), {"offset": 105}, rows=105, size=105 * 100)
    assert stand.plan(at(lease, 105)).end == {"offset": 110}


def test_the_first_batch_goes_by_the_size_of_the_first_record() -> None:
    stand = Stand(FakeCluster(orders=[(0, 10_000)]), upload={"max_bytes": "25600"})
    stand.cluster.made_at[TopicPartition("orders", 0)], stand.cluster.size = stand.clock.now, 2560
    assert stand.plan(stand.found()["orders|0"]).end == {"offset": 11}


def test_records_without_any_bytes_are_planned_like_others() -> None:
    stand = Stand(FakeCluster(orders=[(50, 5000)]), on_loss="record")
    live = stand.found()["orders|0"]
    stand.source.staged(Batch("b", live, Name("orders", "0"), Cut(None, None)), {"offset": 10}, rows=10, size=0)
    assert stand.plan(at(live, 10)).end == {"offset": 5000}
    assert stand.plan(bounded(stand, 100, 200)).end == {"offset": 200}


def test_a_record_that_waited_while_nobody_looked_is_as_old_as_it_says() -> None:
    stand = Stand(FakeCluster(orders=[(0, 3)]), upload={"max_age": "1m"})
    lease = at(stand.found()["orders|0"], 1)
    stand.cluster.made_at[TopicPartition("orders", 0)] = stand.clock.now - 59.0
    assert isinstance(stand.plan(lease), Wait)
    stand.clock.now += 1.0
    assert isinstance(stand.plan(lease), Cut)


def test_partitions_that_are_planned_at_different_times_do_not_hide_each_other() -> None:
    stand = Stand(FakeCluster(orders=[(0, 3)], audit=[(0, 3)]), topics=["orders", "audit"], upload={"max_age": "1s"})
    leases = stand.found()
    for lease in leases.values():
        stand.plan(lease)
    stand.clock.now += 2.0
    assert all(isinstance(stand.plan(lease), Cut) for lease in leases.values())


def test_topics_have_policies_of_their_own() -> None:
    uploads = [{"match": "fast.*", "max_age": "1s"}]
    stand = Stand(FakeCluster(orders=[(0, 3)], fast=[(0, 3)]), topics=["orders", "fast"], uploads=uploads)
    leases = stand.found()
    stand.plan(*leases.values())
    stand.clock.now += 2.0
    fast, slow = stand.plan(leases["fast|0"], leases["orders|0"])
    assert isinstance(fast, Cut)
    assert isinstance(slow, Wait)


def test_records_that_were_deleted_before_they_were_read_halt_the_partition_and_are_reported() -> None:
    stand = Stand(FakeCluster(orders=[(40, 90)]))
    assert isinstance(stand.plan(at(stand.found()["orders|0"], 10)), Halt)
    lost = [event for event in stand.source.noticed() if isinstance(event, RecordsLost)]
    assert [(event.key, event.start, event.end) for event in lost] == [("orders|0", 10, 40)]


def test_the_gap_is_recorded_instead_if_the_setting_says_so() -> None:
    stand = Stand(FakeCluster(orders=[(40, 90)]), on_loss="record")
    cut = stand.plan(at(stand.found()["orders|0"], 10))
    assert (cut.start, cut.end, cut.gaps) == ({"offset": 10}, {"offset": 90}, ((10, 40),))
    assert [type(event) for event in stand.source.noticed()] == [LagMeasured, RecordsLost]


def test_a_log_that_ends_before_the_position_halts_the_partition() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    assert "lost records" in str(stand.plan(at(stand.found()["orders|0"], 91)))


def test_a_topic_that_was_created_anew_halts_its_partitions() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    lease = at(stand.found()["orders|0"], 10)
    stand.cluster.ids["orders"] = "another"
    assert isinstance(stand.plan(lease), Halt)
    unknown = replace(lease, commit=Commit(incarnation=""))
    assert not isinstance(stand.plan(unknown), Halt)


@pytest.mark.parametrize("end", [0, 200])
def test_a_topic_that_was_created_anew_a_moment_after_the_last_look_is_not_taken_for_the_old_one(end: int) -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    lease = at(stand.found()["orders|0"], 90)
    assert isinstance(stand.plan(lease), Wait)
    stand.cluster.ids["orders"], stand.cluster.logs[TopicPartition("orders", 0)] = "another", (0, end)
    plan = stand.plan(lease)
    assert isinstance(plan, Halt)
    assert "created again" in str(plan)


def test_what_was_read_of_a_topic_that_was_created_anew_meanwhile_is_doubted() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)], audit=[(0, 90)]), topics=["orders", "audit"])
    cut = Cut({"offset": 0}, {"offset": 90})
    batches = [Batch(key, lease, Name("t", "0"), cut) for key, lease in stand.found().items()]
    assert stand.source.doubts(batches) == {}
    stand.cluster.ids["orders"] = "another"
    assert list(stand.source.doubts(batches)) == ["orders|0"]
    of_a_gap = replace(batches[1], cut=replace(cut, gaps=((0, 90),)))
    assert stand.source.doubts([of_a_gap]) == {}  # nothing was read


def test_a_topic_that_is_gone_is_waited_for() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    lease = at(stand.found()["orders|0"], 10)
    stand.cluster.logs.clear()
    stand.cluster.ids.clear()
    assert isinstance(stand.plan(lease), Wait)


def test_a_position_that_is_no_offset_is_no_fresh_start() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    lease = replace(stand.found()["orders|0"], progress=Progress(position={"line": 3}))
    assert isinstance(stand.plan(lease), BatchError)


def test_lag_is_told_in_records_and_in_seconds() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    stand.cluster.made_at[TopicPartition("orders", 0)] = stand.clock.now - 12.0
    stand.plan(at(stand.found()["orders|0"], 80))
    (lag,) = [event for event in stand.source.noticed() if isinstance(event, LagMeasured)]
    assert (lag.records, lag.seconds) == (10, 12.0)


def test_lag_in_seconds_does_not_follow_a_wrong_wall_clock() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    right = stand.clock.now
    stand.source.use_clock(lambda: right)
    stand.clock.now += 86_400.0
    stand.cluster.made_at[TopicPartition("orders", 0)] = right - 12.0
    stand.plan(at(stand.found()["orders|0"], 80))
    (lag,) = [event for event in stand.source.noticed() if isinstance(event, LagMeasured)]
    assert lag.seconds == 12.0


def test_a_start_warns_of_missing_topics_and_of_short_retention() -> None:
    cluster = FakeCluster(orders=[(0, 1)])
    cluster.kept = 400.0
    stand = Stand(cluster, topics=["orders", "later"], upload={"max_age": "5m"})
    stand.source.open()
    notices = [event.message for event in stand.source.noticed() if isinstance(event, Notice)]
    assert len(notices) == 2
    assert "later does not exist" in notices[0]
    assert "keeps records for 400 s" in notices[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": ()},
        {"topics_pattern": "("},
        {"start": "offset"},
        {"start_time": "2026-01-01"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        KafkaConfig.model_validate({"bootstrap_servers": "b:1", "topics": ("t",), **wrong})


# --- a run over a part of the past -----------------------------------------------------------------------------------


def bounded(stand: Stand, start: int, end: int) -> Lease:
    live = stand.found()["orders|0"]
    return replace(live, run="r1", spec={**live.spec, "start": start, "end": end})


def test_a_run_reads_up_to_its_end_at_once_and_in_batches_of_the_upload_policy() -> None:
    stand = Stand(FakeCluster(orders=[(0, 100)]), upload={"max_records": 30, "max_age": "1h"})
    row = bounded(stand, 20, 75)
    cuts = [stand.plan(row), stand.plan(at(row, 50))]
    assert [(cut.start["offset"], cut.end["offset"], cut.last) for cut in cuts] == [(20, 50, False), (50, 75, True)]
    assert stand.plan(at(row, 75)) == Done()


def test_a_run_whose_records_are_gone_fails_and_reads_nothing_else() -> None:
    gone = Stand(FakeCluster(orders=[(30, 100)]))
    assert "use a backfill" in str(gone.plan(bounded(gone, 20, 75)))
    truncated = Stand(FakeCluster(orders=[(0, 40)]))
    row = bounded(truncated, 20, 75)
    assert truncated.plan(row).end == {"offset": 40}
    assert isinstance(truncated.plan(at(row, 40)), Halt)


def test_the_extent_of_a_partition_is_what_is_left_to_read() -> None:
    stand = Stand(FakeCluster(orders=[(5, 5), (5, 9), (5, 9)]))
    empty, unread, behind = stand.found().values()
    assert stand.source.extents([empty, unread, at(behind, 8)]) == [(5, 5), (5, 9), (8, 9)]
    latest = Stand(stand.cluster, start="latest").found()["orders|1"]
    gone = replace(latest, spec={**latest.spec, "topic": "gone"})
    assert stand.source.extents([latest, gone]) == [(9, 9), None]


# --- a first offset that is pinned -----------------------------------------------------------------------------------

PINNED = [
    {"start": "group", "start_group": "old"},
    {"start": "offset", "start_offset": 30},
    {"start": "time", "start_time": "1970-01-01T00:00:30"},
    {"start": "latest"},
]


@pytest.mark.parametrize("settings", PINNED, ids=lambda settings: settings["start"])
@pytest.mark.parametrize("on_loss", ["halt", "record"])
def test_records_behind_a_pinned_start_that_were_deleted_before_the_first_batch_are_lost(
    settings: dict[str, Any], on_loss: str
) -> None:
    cluster = FakeCluster(orders=[(5, 30)])
    cluster.groups = {TopicPartition("orders", 0): 30}
    stand = Stand(cluster, on_loss=on_loss, **settings)
    lease = stand.found()["orders|0"]
    cluster.logs[TopicPartition("orders", 0)] = (40, 90)
    plan = stand.plan(lease)
    lost = [event for event in stand.source.noticed() if isinstance(event, RecordsLost)]
    assert [(event.start, event.end) for event in lost] == [(30, 40)]
    if on_loss == "halt":
        assert isinstance(plan, Halt)
    else:
        assert (plan.start, plan.end, plan.gaps) == ({"offset": 30}, {"offset": 90}, ((30, 40),))


def test_a_group_that_has_read_more_than_the_log_has_is_not_waited_for_in_silence() -> None:
    cluster = FakeCluster(orders=[(0, 20)])
    cluster.groups = {TopicPartition("orders", 0): 500}
    stand = Stand(cluster, start="group", start_group="old")
    assert "ends at 20, before offset 500" in str(stand.plan(stand.found()["orders|0"]))
    ahead = Stand(cluster, start="offset", start_offset=500)
    assert isinstance(ahead.plan(ahead.found()["orders|0"]), Wait)


# --- behind an open transaction --------------------------------------------------------------------------------------


def test_lag_counts_what_lies_behind_an_open_transaction() -> None:
    stand = Stand(FakeCluster(orders=[(0, 100)]))
    stand.cluster.highs[TopicPartition("orders", 0)] = 1_000_000
    stand.cluster.made_at[TopicPartition("orders", 0)] = stand.clock.now - 12.0
    assert isinstance(stand.plan(at(stand.found()["orders|0"], 100)), Wait)
    (lag,) = [event for event in stand.source.noticed() if isinstance(event, LagMeasured)]
    assert (lag.records, lag.seconds) == (999_900, 12.0)


def test_a_transaction_that_hangs_is_told_and_again_while_it_lasts() -> None:
    stand = Stand(FakeCluster(orders=[(0, 100)]))
    topic_partition = TopicPartition("orders", 0)
    stand.cluster.highs[topic_partition], stand.cluster.made_at[topic_partition] = 200, stand.clock.now
    lease = at(stand.found()["orders|0"], 100)

    def reported_after(seconds: float) -> list[WaitsBehindTransaction]:
        stand.clock.now += seconds
        stand.plan(lease)
        return [event for event in stand.source.noticed() if isinstance(event, WaitsBehindTransaction)]

    assert reported_after(0) == []
    assert reported_after(59) == []
    assert reported_after(1) == [WaitsBehindTransaction("archive", "orders|0", 100, "1970-01-12T13:46:40Z", 60.0)]
    assert reported_after(30) == []
    assert [event.seconds for event in reported_after(30)] == [120.0]
    stand.cluster.logs[topic_partition] = (0, 200)
    assert reported_after(300) == []


def test_the_extent_of_a_partition_reaches_beyond_an_open_transaction() -> None:
    stand = Stand(FakeCluster(orders=[(0, 100)]))
    stand.cluster.highs[TopicPartition("orders", 0)] = 1_000_000
    assert stand.source.extents([at(stand.found()["orders|0"], 100)]) == [(100, 1_000_000)]


def test_a_run_waits_for_an_open_transaction_and_does_not_take_it_for_a_loss() -> None:
    stand = Stand(FakeCluster(orders=[(0, 40)]))
    stand.cluster.highs[TopicPartition("orders", 0)] = 100
    row = bounded(stand, 20, 75)
    assert stand.plan(row).end == {"offset": 40}
    assert isinstance(stand.plan(at(row, 40)), Wait)


# --- a topic that is deleted -----------------------------------------------------------------------------------------


def deleted_with(stand: Stand, lease: Lease) -> Any:
    """The plan, a while after the topic is gone."""
    stand.plan(lease)
    stand.source.noticed()
    stand.cluster.logs.clear()
    stand.cluster.ids.clear()
    assert isinstance(stand.plan(lease), Wait)
    stand.clock.now += 61.0
    return stand.plan(lease)


def test_unread_records_of_a_topic_that_is_deleted_are_lost() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    plan = deleted_with(stand, at(stand.found()["orders|0"], 10))
    assert isinstance(plan, Halt)
    assert plan.lost == (10, 90)
    (event,) = stand.source.noticed()
    assert event == RecordsLost("archive", "orders|0", 10, 90)


def test_unread_records_of_a_topic_that_is_deleted_are_a_gap_if_the_setting_says_so() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]), on_loss="record")
    lease = at(stand.found()["orders|0"], 10)
    cut = deleted_with(stand, lease)
    assert (cut.start, cut.end, cut.gaps) == ({"offset": 10}, {"offset": 90}, ((10, 90),))
    assert stand.source.doubts([Batch("b", lease, Name("orders", "0"), cut)]) == {}
    assert isinstance(stand.plan(at(lease, 90)), Wait)


def test_a_node_that_never_saw_the_topic_knows_of_its_end_by_the_last_commit() -> None:
    cluster = FakeCluster(orders=[(0, 90)])
    lease = Stand(cluster).found()["orders|0"]
    cluster.logs.clear()
    cluster.ids.clear()
    stand = Stand(cluster)
    behind = replace(lease, progress=Progress({"offset": 10}, state={"end": 70}))
    assert deleted_with(stand, behind).lost == (10, 70)


def test_a_topic_that_is_deleted_when_all_of_it_was_read_is_told_once() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    lease = at(stand.found()["orders|0"], 90)
    assert isinstance(deleted_with(stand, lease), Wait)
    stand.plan(lease)
    (event,) = stand.source.noticed()
    assert isinstance(event, Notice)
    assert "orders|0 was deleted; all records that were seen, up to offset 90" in event.message


def test_a_run_over_a_topic_that_is_deleted_fails() -> None:
    stand = Stand(FakeCluster(orders=[(0, 100)]))
    assert "use a backfill" in str(deleted_with(stand, bounded(stand, 20, 75)))


def test_unread_records_of_a_topic_that_was_created_anew_are_lost_too() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]))
    lease = at(stand.found()["orders|0"], 10)
    stand.plan(lease)
    stand.cluster.ids["orders"], stand.cluster.logs[TopicPartition("orders", 0)] = "another", (0, 5)
    assert stand.plan(lease).lost == (10, 90)


def test_a_topic_that_was_created_anew_halts_a_partition_that_it_does_not_have() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90), (0, 90)]))
    lease = at(stand.found()["orders|1"], 90)
    stand.cluster.ids["orders"] = "another"
    del stand.cluster.logs[TopicPartition("orders", 1)]
    assert isinstance(stand.plan(lease), Halt)


def test_new_partitions_of_a_topic_that_was_created_anew_are_not_mixed_with_the_old_ones() -> None:
    stand, state = Stand(FakeCluster(orders=[(0, 90)], audit=[(0, 90)]), topics=["orders", "audit"]), dict[str, Any]()
    assert list(stand.found(state)) == ["audit|0", "orders|0"]
    stand.cluster.ids["orders"] = "another"
    stand.cluster.logs |= {TopicPartition("orders", 1): (0, 5), TopicPartition("audit", 1): (0, 5)}
    assert list(stand.found(state)) == ["audit|0", "audit|1"]
    assert list(stand.found(state)) == ["audit|0", "audit|1"]
    (event,) = [event for event in stand.source.noticed() if isinstance(event, Notice)]
    assert "orders was deleted and created again" in event.message


# --- a topic that may not be read ------------------------------------------------------------------------------------


def test_a_topic_that_is_denied_holds_up_no_other_and_is_told_every_minute() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)], audit=[(0, 90)]), topics=["orders", "audit"], upload={"max_age": "1s"})
    leases = stand.found()
    stand.plan(*leases.values())
    stand.cluster.denied["audit"] = "not authorized"
    stand.clock.now += 70.0
    for _ in range(3):
        stand.clock.now += 20.0
        audit, orders = stand.plan(leases["audit|0"], leases["orders|0"])
        assert isinstance(audit, Wait)
        assert isinstance(orders, Cut)
    assert [event for event in stand.source.noticed() if isinstance(event, TopicDenied)] == [
        TopicDenied("archive", "audit|0", "not authorized")
    ]


def test_the_start_setting_holds_for_a_topic_that_was_denied_at_first() -> None:
    stand = Stand(FakeCluster(orders=[(0, 90)]), topics=["orders", "audit"], start="latest")
    stand.cluster.denied["audit"] = "not authorized"
    state: dict[str, Any] = {}
    assert [lease.spec["start"] for lease in stand.found(state).values()] == [90]
    stand.found(state)
    stand.cluster.denied.clear()
    stand.cluster.ids["audit"], stand.cluster.logs[TopicPartition("audit", 0)] = "id", (0, 70)
    assert stand.found(state)["audit|0"].spec["start"] == 70
    stand.cluster.logs[TopicPartition("audit", 1)] = (0, 70)
    assert stand.found(state)["audit|1"].spec["start"] == "earliest"


# --- a log that was truncated and written again -----------------------------------------------------------------------


def test_a_commit_keeps_the_epoch_and_the_end_of_the_log_that_it_was_planned_by() -> None:
    stand = Stand(FakeCluster(orders=[(0, 10_000)]), upload={"max_bytes": "25600"})
    stand.cluster.epochs[TopicPartition("orders", 0)] = [0, 50, 60]
    assert stand.plan(stand.found()["orders|0"]).state == {"end": 10_000, "epoch": 2}


@pytest.mark.parametrize("stored", [True, False])
def test_a_log_that_was_truncated_and_filled_again_halts_its_partition(*, stored: bool) -> None:
    stand, topic_partition = Stand(FakeCluster(orders=[(0, 90)])), TopicPartition("orders", 0)
    stand.cluster.epochs[topic_partition] = [0]
    lease = replace(
        stand.found()["orders|0"], progress=Progress({"offset": 80}, state={"end": 90, "epoch": 0} if stored else None)
    )
    if not stored:
        stand.plan(lease)
    stand.cluster.epochs[topic_partition], stand.cluster.logs[topic_partition] = [0, 70], (0, 200)
    halt = stand.plan(lease)
    assert isinstance(halt, Halt)
    assert "truncated below offset 80" in str(halt)
    reopened = replace(lease, history=replace(lease.history, last_error=str(halt)))
    assert not isinstance(stand.plan(reopened), Halt)
    assert not isinstance(stand.plan(at(lease, 90)), Halt)


def test_a_change_of_the_leader_alone_halts_nothing_and_is_asked_about_once() -> None:
    stand, topic_partition = Stand(FakeCluster(orders=[(0, 90)])), TopicPartition("orders", 0)
    lease = replace(stand.found()["orders|0"], progress=Progress({"offset": 80}, state={"end": 90, "epoch": 0}))
    stand.cluster.epochs[topic_partition] = [0, 90]
    for _ in range(3):
        assert isinstance(stand.plan(lease), Wait)
    assert stand.cluster.epoch_requests == [{topic_partition: (80, 0)}]


def test_a_leader_that_was_deposed_is_not_believed() -> None:
    stand, topic_partition = (
        Stand(FakeCluster(orders=[(0, 90)]), upload={"max_records": 5}),
        TopicPartition("orders", 0),
    )
    lease = replace(stand.found()["orders|0"], progress=Progress({"offset": 80}, state={"end": 90, "epoch": 3}))
    stand.cluster.epochs[topic_partition] = [0, 50]
    assert isinstance(stand.plan(lease), Wait)
    assert stand.cluster.epoch_requests == []


@pytest.mark.parametrize(
    ("error", "away"),
    [
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 30000 milliseconds", True),
        ("ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node", True),
        ("Caused by: org.apache.kafka.common.errors.DisconnectException", True),
        ("KafkaIllegalStateException: Some data may have been lost: OffsetOutOfRangeException: is out of range", False),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [t]", False),
        ("Traceback (most recent call last):\nTimeoutException: the handler's own", False),
    ],
)
def test_an_error_of_spark_tells_whether_the_brokers_did_not_answer(error: str, *, away: bool) -> None:
    assert Stand(FakeCluster()).source.is_away(error) is away


def test_the_epoch_is_that_of_the_leader_who_told_what_may_be_read() -> None:
    def response(offset: int, epoch: int) -> Any:
        return SimpleNamespace(offset=offset, leader_epoch=epoch)

    # Between the two answers another broker began to lead, and has taken ten records.
    assert _log_end(stable=response(210, 2), high=response(200, 1)) == LogEnd(210, 210, 2)
    assert _log_end(stable=response(200, 1), high=response(210, 2)) == LogEnd(200, 210, 1)

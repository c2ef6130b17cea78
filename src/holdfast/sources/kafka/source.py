"""The source `kafka` on the node: which partitions there are, and where the next batch of each ends.

Kafka is the buffer: nothing is kept on local disk, and the position in the lease is the only one that counts.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, Halt, Refused
from holdfast.events import Event, LagMeasured, Notice, RecordsLost, WaitsBehindTransaction
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan, Wait
from holdfast.flow.policy import Backlog, Due, decide
from holdfast.flow.source import Source
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.kafka.cluster import Cluster, LogEnd, Place, Topic
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.group import GroupOffsets
from holdfast.sources.kafka.logs import CHECK_EVERY, Logs
from holdfast.sources.kafka.properties import client_properties
from holdfast.sources.kafka.starting import starts_of
from holdfast.sources.kafka.tracking import Tracking

if TYPE_CHECKING:
    from holdfast.sources.kafka.again import MessagesOfLetters

EARLIEST = "earliest"
TELL_EVERY = 60.0
"""Seconds until an open transaction is told of, and told of again."""
NEAR_RETENTION = 0.5
"""Part of a topic's retention from which on `max_age` is near it, and lag raises an alert."""


class KafkaSource(Source):
    """Topics of one cluster. Each partition of a topic is a lease that lives as long as the topic."""

    lives_long = True
    connectors = ("kafka",)

    def __init__(
        self, config: KafkaConfig, cluster: Cluster | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._cluster = cluster or Cluster(client_properties(config), config.isolation)
        self._now = now
        self._tracking = Tracking(self._time)
        self._noticed: list[Event] = []
        self._groups: dict[str, GroupOffsets] = {}
        self._logs = Logs(self._cluster, self._time)
        self._told_open: dict[Place, float] = {}
        self._told_lost: set[tuple[Place, int]] = set()
        self.rediscover_after = config.discovery_interval

    def keep_time(self, now: Callable[[], float]) -> None:
        self._now = now

    def _time(self) -> float:
        return self._now()

    def open(self) -> None:
        """As the interface says; also warns of records that Kafka may delete before they are due."""
        found = self._cluster.topics(self._is_wanted)
        missing = set(self._config.topics) - {topic.name for topic in found}
        for name in sorted(missing):
            self._noticed.append(Notice(f"topic {name} does not exist yet; it is read once it does"))
        self._logs.learn_retention({topic.name for topic in found})
        for name, kept in self._logs.kept.items():
            age = self._config.policy_of(name).max_age
            if kept is not None and age > kept * NEAR_RETENTION:
                self._noticed.append(
                    Notice(f"topic {name} keeps records for {kept:g} s, and max_age is {age:g} s: raise one, lower one")
                )

    def _is_wanted(self, topic: str) -> bool:
        config = self._config
        if config.exclude is not None and re.fullmatch(config.exclude, topic):
            return False
        if topic in config.topics:
            return True
        # What begins with two underscores is Kafka's own, unless it is asked for by name.
        by_pattern = config.topics_pattern is not None and re.fullmatch(config.topics_pattern, topic) is not None
        return by_pattern and not topic.startswith("__")

    # --- discovery ---------------------------------------------------------------------------------------------

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        """All partitions of all wanted topics. The start setting holds for those of the first complete run."""
        topics = self._cluster.topics(self._is_wanted)
        places = [Place(topic.name, number) for topic in topics for number in topic.partitions]
        begins = {} if state.get("started") else starts_of(self._config, self._cluster, places)
        for topic in topics:
            for number in topic.partitions:
                place = Place(topic.name, number)
                yield self._partition(topic, place, begins.get(place, EARLIEST))
        state["started"] = True

    def _partition(self, topic: Topic, place: Place, begin: int | str) -> Partition:
        return Partition(
            key=f"{place.topic}|{place.partition}",
            group=place.topic,
            spec={"topic": place.topic, "partition": place.partition, "start": begin},
            index=place.partition,
            incarnation=topic.id,
        )

    def name(self, lease: Lease) -> Name:
        return Name(lease.spec["topic"], str(lease.spec["partition"]))

    # --- plan --------------------------------------------------------------------------------------------------

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        places = {place_of(lease): lease for lease in leases}
        ends = self._cluster.ends(places)
        self._logs.check(places)
        positions = {place: self._position(place, lease) for place, lease in places.items()}
        for place, position in positions.items():
            if position is not None and place in ends:
                self._tracking.look(place, position, ends[place].high)
        # Asked after the ends and not from memory: else the records of a topic created anew pass for those of the old.
        self._logs.learn_ids(
            {place.topic for place, position in positions.items() if not _all_read(ends.get(place), position)}
        )
        unknown = {place: at for place, at in self._tracking.unseen().items() if place in places}
        if unknown:
            self._tracking.glimpse(self._cluster.peek(unknown))
        return [self._next(place, lease, ends.get(place), limits) for place, lease in places.items()]

    def _position(self, place: Place, lease: Lease) -> int | None:
        """The next offset to read; None if that cannot be told."""
        told = lease.progress.position
        if told is None:
            begin = lease.spec["start"]
            return self._logs.firsts.get(place) if begin == EARLIEST else int(begin)
        offset = told.get("offset") if isinstance(told, dict) else None
        return offset if isinstance(offset, int) and offset >= 0 else None

    def _next(self, place: Place, lease: Lease, log: LogEnd | None, limits: Limits) -> Plan:
        if place.topic not in self._logs.ids or log is None or place not in self._logs.firsts:
            return Wait(min(CHECK_EVERY, self._config.discovery_interval))  # deleted, or not served right now
        if lease.commit.incarnation and self._logs.ids[place.topic] != lease.commit.incarnation:
            return Halt(f"topic {place.topic} was deleted and created anew: its offsets mean other records now")
        position = self._position(place, lease)
        if position is None:
            return BatchError(f"the position {lease.progress.position!r} is no offset")
        if lease.spec.get("end") is not None:
            return self._bounded(place, position, log, lease.spec["end"], limits)
        return self._live(place, lease, position, log, limits)

    def _live(self, place: Place, lease: Lease, position: int, log: LogEnd, limits: Limits) -> Plan:
        self._tell_lag(place, lease, log.high - position)
        first = self._logs.firsts[place]
        if log.high < position:
            if lease.progress.position is None and self._config.start == "offset":
                return Wait(self._config.poll_interval)  # a person has chosen an offset that is still to come
            return Halt(_ends_before(place, log.high, position))
        if first > position:
            return self._after_loss(place, lease, (position, first), log.stable, limits)
        if log.stable <= position:
            self._tell_transaction(place, lease, position, log)
            return Wait(self._config.poll_interval)
        return self._due(place, position, log.stable, limits)

    def _bounded(self, place: Place, position: int, log: LogEnd, bound: int, limits: Limits) -> Plan:
        """A run reads up to an offset that was there when it was made, and as fast as it can."""
        if position >= bound:
            return Done()
        if self._logs.firsts[place] > position:
            return BatchError(f"offsets from {position} on are not in Kafka any more; use a backfill from a backup")
        if log.high <= position:
            return Halt(_ends_before(place, log.high, bound))
        if log.stable <= position:
            return Wait(self._config.poll_interval)
        policy = self._config.policy_of(place.topic)
        most = min(self._most(place), policy.max_records or sys.maxsize, limits.max_records or sys.maxsize)
        until = min(log.stable, bound, position + most)
        return self._cut(place, position, until, limits, last=until == bound)

    def _tell_lag(self, place: Place, lease: Lease, records: int) -> None:
        seconds = self._tracking.lag_seconds(place)
        kept = self._logs.kept.get(place.topic)
        self._noticed.append(LagMeasured(lease.pipeline, lease.key, max(records, 0), seconds, kept))

    def _tell_transaction(self, place: Place, lease: Lease, position: int, log: LogEnd) -> None:
        """Everything that can be read is read; tell if an open transaction has kept back the rest for long."""
        now, stood = self._time(), self._tracking.stood(place)
        if log.high <= position or stood < TELL_EVERY or now < self._told_open.get(place, 0.0) + TELL_EVERY:
            return
        self._told_open[place] = now
        waited = self._tracking.age(place)
        since = datetime.fromtimestamp(now - waited, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._noticed.append(WaitsBehindTransaction(lease.pipeline, lease.key, position, since, round(waited, 1)))

    def _after_loss(self, place: Place, lease: Lease, lost: tuple[int, int], end: int, limits: Limits) -> Plan:
        """`lost`: the offsets [from, to) that were to be read next and are not in Kafka any more."""
        position, first = lost
        if (place, first) not in self._told_lost:
            self._told_lost.add((place, first))
            self._noticed.append(RecordsLost(lease.pipeline, lease.key, position, first))
        if self._config.on_loss == "halt":
            return Halt(
                f"offsets {position} to {first - 1} of {lease.key} were deleted by the brokers before they were read; "
                "`on_loss: record` records the gap and goes on",
                lost=lost,
            )
        return self._cut(place, position, min(end, first + self._most(place)), limits, gaps=(lost,))

    def _most(self, place: Place) -> int:
        policy = self._config.policy_of(place.topic)
        return max(1, int(policy.max_bytes / self._tracking.mean_bytes(place)))

    def _due(self, place: Place, position: int, end: int, limits: Limits) -> Plan:
        backlog = Backlog(end - position, self._tracking.mean_bytes(place), self._tracking.age(place), now=self._time())
        decision = decide(self._config.policy_of(place.topic), backlog)
        if isinstance(decision, Due):
            most = limits.max_records or decision.records
            return self._cut(place, position, position + min(decision.records, most), limits)
        return Wait(min(decision.seconds, self._config.poll_interval))

    def _cut(
        self,
        place: Place,
        start: int,
        end: int,
        limits: Limits,
        gaps: tuple[tuple[int, int], ...] = (),
        *,
        last: bool = False,
    ) -> Cut:
        most = min(self._config.policy_of(place.topic).max_bytes, limits.max_bytes)
        size = int((end - start) * self._tracking.mean_bytes(place))
        return Cut(self.position(start), self.position(end), last=last, size=size, max_bytes=most, gaps=gaps)

    # --- afterwards --------------------------------------------------------------------------------------------

    def doubts(self, batches: Sequence[Batch]) -> dict[str, str]:
        """Those of a topic that was created anew between the plan and the read."""
        known = {batch.id: (place_of(batch.lease).topic, batch.lease.commit.incarnation) for batch in batches}
        now = {topic.name: topic.id for topic in self._cluster.described(sorted({name for name, _ in known.values()}))}
        return {
            batch_id: f"topic {name} is not the one any more that was planned to be read"
            for batch_id, (name, planned) in known.items()
            if planned and now.get(name) != planned
        }

    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        self._tracking.learn(place_of(batch.lease), end["offset"], rows, size)

    def published(self, leases: Sequence[Lease]) -> None:
        if not self._config.commit_offsets:
            return
        for lease in leases:
            if lease.run or lease.progress.position is None:
                continue
            group = self._config.group or f"holdfast-{lease.pipeline}"
            if group not in self._groups:
                self._groups[group] = GroupOffsets(client_properties(self._config), group)
            self._groups[group].advance({place_of(lease): lease.progress.position["offset"]})

    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        places = [place_of(lease) for lease in leases]
        ends, starts = self._cluster.ends(places), self._cluster.starts(places)
        return [
            (_next_offset(lease, starts[place]), ends[place].high) if place in ends and place in starts else None
            for place, lease in zip(places, leases, strict=True)
        ]

    def noticed(self) -> list[Event]:
        for group in self._groups.values():
            if (trouble := group.trouble()) is not None:
                self._noticed.append(Notice(trouble))
        told, self._noticed = self._noticed, []
        return told

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._cluster.close()

    # --- for Spark ---------------------------------------------------------------------------------------------

    def rebuilder(self) -> MessagesOfLetters:
        from holdfast.sources.kafka.again import MessagesOfLetters

        return MessagesOfLetters()

    def read(self, spark: Any, batches: Sequence[Batch]) -> Any:
        from holdfast.sources.kafka.reading import frame

        return frame(spark, self._config, batches)

    def narrowed(self, spark: Any, batches: Sequence[Batch], wanted: frozenset[str]) -> Any:
        from holdfast.sources.kafka.reading import frame

        return frame(spark, self._config, batches, wanted)


def _next_offset(lease: Lease, first: int) -> int:
    """What would be read next, if the log begins at `first`."""
    told, begin = lease.progress.position, lease.spec["start"]
    if told is not None:
        return int(told["offset"])
    return first if begin == EARLIEST else int(begin)


def _all_read(log: LogEnd | None, position: int | None) -> bool:
    return log is not None and log.high == position


def _ends_before(place: Place, end: int, offset: int) -> str:
    return f"the log of {place.topic} ends at {end}, before offset {offset}: the brokers lost records"


def place_of(lease: Lease) -> Place:
    """Which Kafka partition a lease stands for. Raises `Refused` for one of another source."""
    try:
        return Place(str(lease.spec["topic"]), int(lease.spec["partition"]))
    except (KeyError, TypeError, ValueError) as wrong:
        raise Refused(f"lease {lease.key} is not of a Kafka partition; give this pipeline another name") from wrong

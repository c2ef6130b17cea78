"""The source `kafka` on the node: which partitions there are, and where the next batch of each ends.

Kafka is the buffer: nothing is kept on local disk, and the position in the lease is the only one that counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.events import Event, Notice
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.source import (
    FixedColumns,
    HearsOfPublishing,
    HearsOfStaging,
    KnowsExtents,
    MayChange,
    OffsetPositions,
    ReadsByConnector,
    Rebuilds,
    Source,
    UsesStoreClock,
)
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.kafka.cluster import Cluster, Place, Topic
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.group import GroupOffsets
from holdfast.sources.kafka.planning import EARLIEST, Planner, place_of, range_of
from holdfast.sources.kafka.properties import client_properties
from holdfast.sources.kafka.starting import starts_of

if TYPE_CHECKING:
    from holdfast.sources.kafka.again import MessagesOfLetters

NEAR_RETENTION = 0.5
"""Part of a topic's retention from which on `max_age` is near it, and lag raises an alert."""

_TIMED_OUT = re.compile(
    r"java\.util\.concurrent\.TimeoutException: Cannot fetch record"
    r"|org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|NotLeaderOrFollower)Exception"
)
"""In what Spark says when its consumer has waited in vain for the brokers."""


class KafkaSource(
    Source,
    FixedColumns,
    OffsetPositions,
    HearsOfStaging,
    HearsOfPublishing,
    KnowsExtents,
    Rebuilds,
    MayChange,
    ReadsByConnector,
    UsesStoreClock,
    ReportsEvents,
):
    """Topics of one cluster. Each partition of a topic is a lease that lives as long as the topic."""

    lives_long = True
    connectors = ("kafka",)

    def __init__(
        self, config: KafkaConfig, cluster: Cluster | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._cluster = cluster or Cluster(client_properties(config), config.isolation)
        self._now = now
        self._noticed: list[Event] = []
        self._planner = Planner(config, self._cluster, self._time, self._tell)
        self._groups: dict[str, GroupOffsets] = {}
        self._told_anew: set[str] = set()
        self.rediscover_after = config.discovery_interval

    def use_clock(self, now: Callable[[], float]) -> None:
        self._now = now

    def _tell(self, event: Event) -> None:
        self._noticed.append(event)

    def _time(self) -> float:
        return self._now()

    def open(self) -> None:
        """As the interface says; also warns of records that Kafka may delete before they are due."""
        found = self._cluster.topics(self._is_wanted)
        for name in self._missing(found):
            denied = self._cluster.denied.get(name)
            told = "does not exist yet; it is read once it does" if denied is None else f"may not be read: {denied}"
            self._tell(Notice(f"topic {name} {told}"))
        self._planner.logs.learn_retention({topic.name for topic in found})
        for name, kept in self._planner.logs.kept.items():
            age = self._config.policy_of(name).max_age
            if kept is not None and age > kept * NEAR_RETENTION:
                self._tell(
                    Notice(f"topic {name} keeps records for {kept:g} s, and max_age is {age:g} s: raise one, lower one")
                )

    def _missing(self, found: Sequence[Topic]) -> list[str]:
        """Topics that the settings name and that were not found; the cluster knows then which of them are denied."""
        missing = sorted(set(self._config.topics) - {topic.name for topic in found})
        self._cluster.described(missing)  # a list of all topics leaves out what may not be read
        return missing

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
        """All partitions of all wanted topics. The start setting holds for those of the first complete run.

        For a topic that was denied then it holds when it is found. A topic that was created anew is left out.
        """
        topics = self._cluster.topics(self._is_wanted)
        denied = [name for name in self._missing(topics) if name in self._cluster.denied]
        late = set(state.get("denied", ())) if state.get("started") else {topic.name for topic in topics}
        topics = [topic for topic in topics if self._is_the_first(topic, state.setdefault("ids", {}))]
        places = [Place(topic.name, number) for topic in topics for number in topic.partitions if topic.name in late]
        begins = starts_of(self._config, self._cluster, places) if places else {}
        for topic in topics:
            for number in topic.partitions:
                place = Place(topic.name, number)
                yield self._partition(topic, place, begins.get(place, EARLIEST))
        kept = set(state.get("denied", ())) - {topic.name for topic in topics}
        state["denied"] = sorted(kept | (set() if state.get("started") else set(denied)))
        state["started"] = True

    def _is_the_first(self, topic: Topic, ids: dict[str, str]) -> bool:
        """Whether no other topic of that name was read: its partitions must not be mixed with those of the other."""
        if not topic.id or ids.setdefault(topic.name, topic.id) == topic.id:
            return True
        if topic.id not in self._told_anew:
            self._told_anew.add(topic.id)
            self._tell(Notice(f"topic {topic.name} was deleted and created anew; its partitions are not read"))
        return False

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
        return self._planner.plan(leases, limits)

    # --- afterwards --------------------------------------------------------------------------------------------

    def doubts(self, batches: Sequence[Batch]) -> dict[str, str]:
        """Those of a topic that was deleted, or created anew, between the plan and the read."""
        read = [batch for batch in batches if range_of(batch) is not None]
        known = {batch.id: (place_of(batch.lease).topic, batch.lease.commit.incarnation) for batch in read}
        now = {topic.name: topic.id for topic in self._cluster.described(sorted({name for name, _ in known.values()}))}
        return {
            batch_id: f"topic {name} is not the one any more that was planned to be read"
            for batch_id, (name, planned) in known.items()
            if planned and now.get(name) != planned
        }

    def is_away(self, error: str) -> bool:
        return _TIMED_OUT.search(error) is not None

    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        self._planner.tracking.learn(place_of(batch.lease), end["offset"], rows, size)

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
                self._tell(Notice(trouble))
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

    def columns(self) -> Any:
        from holdfast.sources.kafka.reading import data_columns

        return data_columns(self._config)

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        from holdfast.sources.kafka.reading import frame

        return frame(spark, self._config, batches, columns)


def _next_offset(lease: Lease, first: int) -> int:
    """What would be read next, if the log begins at `first`."""
    told, begin = lease.progress.position, lease.spec["start"]
    if told is not None:
        return int(told["offset"])
    return first if begin == EARLIEST else int(begin)

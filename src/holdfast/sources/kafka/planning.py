"""Decides where the next batch of each Kafka partition ends, and whether it may be read at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.errors import BatchError, Halt, Refused
from holdfast.events import Event
from holdfast.flow.batch import Batch, Cut, Done, Limits, Plan, Wait
from holdfast.flow.upload_policy import Backlog, Due, decide
from holdfast.leases.lease import Json, Lease
from holdfast.sources.kafka.cluster import Cluster, LogEnd, TopicPartition
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.logs import CHECK_EVERY, Doubt, LeaderEpochs, Logs, ReadPosition, Reports, Tracking
from holdfast.sources.kafka.shard_reader import TOPIC_ID

EARLIEST = "earliest"
GONE_AFTER = 60.0
"""Seconds for which brokers must report a topic as missing before it counts as deleted: a broker may have outdated
metadata."""


class Look(NamedTuple):
    """A partition as it is at one moment."""

    topic_partition: TopicPartition
    lease: Lease
    position: int | None
    """The next offset to read; None if it is unknown."""
    log: LogEnd | None
    """None if no broker serves the partition right now."""


class Planner:
    """Plans batches of one node. `now` is seconds since 1970; events go to `emit`."""

    def __init__(
        self, config: KafkaConfig, cluster: Cluster, now: Callable[[], float], emit: Callable[[Event], None]
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._now = now
        self.logs = Logs(cluster, now)
        self.tracking = Tracking(now)
        self._epochs = LeaderEpochs(cluster)
        self._reports = Reports(emit, now)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        """Implements `Source.plan`. Raises `SourceUnavailable`."""
        looks = self._looks(leases)
        readable = [look for look in looks if self._is_same_topic(look)]
        for look in readable:
            if look.position is not None and look.log is not None:
                self.tracking.look(look.topic_partition, look.position, look.log.high)
        self._glimpse({look.topic_partition for look in readable})
        doubts = self._epochs.doubts(
            {look.topic_partition: _read_position(look) for look in readable if _was_read(look)}
        )
        return [self._next(look, doubts.get(look.topic_partition), limits) for look in looks]

    def begin(self, leases: Sequence[Lease]) -> list[Plan]:
        """Implements `ShardedStream.begin`. Raises `SourceUnavailable`."""
        # Leader epochs are not compared: the state of the row is that of its last bounded batch.
        return [self._unplanned(look, Limits()) or self._without_end(look) for look in self._looks(leases)]

    def _looks(self, leases: Sequence[Lease]) -> list[Look]:
        topic_partitions = {topic_partition_of(lease): lease for lease in leases}
        ends = self._cluster.ends(topic_partitions)
        self.logs.check(topic_partitions)
        looks = [Look(tp, lease, self._position(tp, lease), ends.get(tp)) for tp, lease in topic_partitions.items()]
        # Looked up after the ends: else records of a topic created again would be taken for those of the old one.
        self.logs.learn_ids(
            {look.topic_partition.topic for look in looks if look.log is None or look.log.high != look.position}
        )
        return looks

    def _position(self, topic_partition: TopicPartition, lease: Lease) -> int | None:
        position = lease.progress.position
        if position is None:
            begin = lease.spec["start"]
            return self.logs.firsts.get(topic_partition) if begin == EARLIEST else int(begin)
        offset = position.get("offset") if isinstance(position, dict) else None
        return offset if isinstance(offset, int) and offset >= 0 else None

    def _is_same_topic(self, look: Look) -> bool:
        planned = look.lease.commit.incarnation
        return look.topic_partition.topic in self.logs.ids and planned in (
            "",
            self.logs.ids[look.topic_partition.topic],
        )

    def _glimpse(self, topic_partitions: set[TopicPartition]) -> None:
        unknown = {tp: at for tp, at in self.tracking.unseen().items() if tp in topic_partitions}
        if unknown:
            self.tracking.glimpse(self._cluster.peek(unknown))

    # --- one partition -----------------------------------------------------------------------------------------

    def _next(self, look: Look, doubt: Doubt | None, limits: Limits) -> Plan:
        if (plan := self._unplanned(look, limits)) is not None:
            return plan
        assert look.position is not None
        assert look.log is not None
        if look.lease.spec.get("end") is not None:
            return self._bounded(look, look.position, look.log, limits)
        return self._stopped_by(look, doubt) or self._live(look, look.position, look.log, limits)

    def _unplanned(self, look: Look, limits: Limits) -> Plan | None:
        """The plan of a partition that cannot be read as it is; None if it can."""
        topic = look.topic_partition.topic
        if (denied := self._cluster.denied.get(topic)) is not None:
            self._reports.denied(look.lease, denied)
            return self._later()
        if topic not in self.logs.ids:
            return self._without_topic(look, limits)
        if not self._is_same_topic(look):
            return self._created_again(look)
        if look.log is None or look.topic_partition not in self.logs.firsts:
            return self._later()  # not served right now
        if look.position is None:
            return BatchError(f"the position {look.lease.progress.position!r} is not an offset")
        return None

    def _without_end(self, look: Look) -> Plan:
        """Plan for a task that reads on its own, and compares the topic's id with that of the position."""
        assert look.position is not None
        assert look.log is not None
        plan = self._live(look, look.position, look.log, Limits())
        if isinstance(plan, Halt) or look.log.high < look.position:
            return plan
        offset = plan.gaps[-1][1] if isinstance(plan, Cut) and plan.gaps else look.position
        return Cut({"offset": offset, TOPIC_ID: self.logs.ids[look.topic_partition.topic]}, None)

    def _later(self) -> Wait:
        return Wait(min(CHECK_EVERY, self._config.discovery_interval))

    def _without_topic(self, look: Look, limits: Limits) -> Plan:
        """Plan for a deleted topic: records that were seen and not read are lost."""
        topic, position = look.topic_partition.topic, look.position
        if self.logs.gone_for(topic) < GONE_AFTER:
            return self._later()
        if look.lease.spec.get("end") is not None:
            return BatchError(f"topic {topic} was deleted; use a backfill from a backup")
        end = self._seen_end(look)
        if position is None or end <= position:
            self._reports.deleted(look.lease, position)
            return self._later()
        why = f"topic {topic} was deleted before offsets {position} to {end - 1} of {look.lease.key} were read"
        return self._after_loss(look, (position, end), end, limits, why)

    def _created_again(self, look: Look) -> Halt:
        lost = None
        if look.position is not None and (end := self._seen_end(look)) > look.position:
            lost = (look.position, end)
            self._reports.lost(look.lease, *lost)
        topic = look.topic_partition.topic
        return Halt(f"topic {topic} was deleted and created again: its offsets now refer to other records", lost=lost)

    def _seen_end(self, look: Look) -> int:
        """Return where the log ended when it was last seen by this node or by the one that planned the last batch."""
        return max(self.tracking.seen_end(look.topic_partition), int(_state(look.lease).get("end", -1)))

    def _stopped_by(self, look: Look, doubt: Doubt | None) -> Plan | None:
        """Return the plan that stops reading after a leader change; None if reading may continue."""
        if doubt is None:
            return None
        if not doubt.truncated:
            return self._later()
        # The row stores this message, and it is compared below: its words must not change.
        halt = Halt(
            f"the log of {look.topic_partition.topic} was truncated below offset {look.position} and written again "
            f"after the leader of epoch {doubt.epoch}: the brokers lost records"
        )
        if look.lease.history.last_error != str(halt):
            return halt
        # A person has read this message and reopened the partition.
        self._epochs.accept(look.topic_partition, _read_position(look))
        return None

    def _live(self, look: Look, position: int, log: LogEnd, limits: Limits) -> Plan:
        topic_partition, lease = look.topic_partition, look.lease
        self._reports.lag(
            lease,
            log.high - position,
            self.tracking.lag_seconds(topic_partition),
            self.logs.kept.get(topic_partition.topic),
        )
        first = self.logs.firsts[topic_partition]
        if log.high < position:
            if lease.progress.position is None and self._config.start == "offset":
                return Wait(self._config.poll_interval)  # the configured start offset is still to come
            return Halt(_ends_before(topic_partition, log.high, position))
        if first > position:
            why = f"offsets {position} to {first - 1} of {lease.key} were deleted by the brokers before they were read"
            return self._after_loss(look, (position, first), log.stable, limits, why)
        if log.stable <= position:
            if log.high > position:
                self._reports.transaction(
                    lease, position, self.tracking.stood(topic_partition), self.tracking.age(topic_partition)
                )
            return Wait(self._config.poll_interval)
        return self._due(look, position, log.stable, limits)

    def _bounded(self, look: Look, position: int, log: LogEnd, limits: Limits) -> Plan:
        """Plan for a run: it reads up to a fixed offset, as fast as it can."""
        bound = int(look.lease.spec["end"])
        if position >= bound:
            return Done()
        if self.logs.firsts[look.topic_partition] > position:
            return BatchError(f"offsets from {position} on are no longer in Kafka; use a backfill from a backup")
        if log.high <= position:
            return Halt(_ends_before(look.topic_partition, log.high, bound))
        if log.stable <= position:
            return Wait(self._config.poll_interval)
        policy = self._config.policy_of(look.topic_partition.topic)
        limit = min(
            self._largest(look.topic_partition), policy.max_records or sys.maxsize, limits.max_records or sys.maxsize
        )
        until = min(log.stable, bound, position + limit)
        return self._cut(look, position, until, limits, last=until == bound)

    def _after_loss(self, look: Look, lost: tuple[int, int], end: int, limits: Limits, why: str) -> Plan:
        """Plan after a loss. `lost`: the offsets [from, to) that were to be read next and are no longer in Kafka."""
        position, first = lost
        self._reports.lost(look.lease, position, first)
        if self._config.on_loss == "halt":
            return Halt(f"{why}; `on_loss: record` records the gap and continues", lost=lost)
        return self._cut(look, position, min(end, first + self._largest(look.topic_partition)), limits, gaps=(lost,))

    # --- how much ----------------------------------------------------------------------------------------------

    def _largest(self, topic_partition: TopicPartition) -> int:
        policy = self._config.policy_of(topic_partition.topic)
        return max(1, int(policy.max_bytes / self.tracking.mean_bytes(topic_partition)))

    def _due(self, look: Look, position: int, end: int, limits: Limits) -> Plan:
        topic_partition = look.topic_partition
        backlog = Backlog(
            end - position,
            self.tracking.mean_bytes(topic_partition),
            self.tracking.age(topic_partition),
            now=self._now(),
        )
        decision = decide(self._config.policy_of(topic_partition.topic), backlog)
        if isinstance(decision, Due):
            records = min(decision.records, limits.max_records or decision.records)
            return self._cut(look, position, position + records, limits)
        return Wait(min(decision.seconds, self._config.poll_interval))

    def _cut(
        self,
        look: Look,
        start: int,
        end: int,
        limits: Limits,
        gaps: tuple[tuple[int, int], ...] = (),
        *,
        last: bool = False,
    ) -> Cut:
        max_bytes = min(self._config.policy_of(look.topic_partition.topic).max_bytes, limits.max_bytes)
        size = int((end - start) * self.tracking.mean_bytes(look.topic_partition))
        return Cut({"offset": start}, {"offset": end}, last, size, max_bytes, gaps, state=_state_at(look))


def topic_partition_of(lease: Lease) -> TopicPartition:
    """Return the Kafka partition of a lease. Raises `Refused` for a lease of another source."""
    try:
        return TopicPartition(str(lease.spec["topic"]), int(lease.spec["partition"]))
    except (KeyError, TypeError, ValueError) as wrong:
        raise Refused(
            f"lease {lease.key} does not belong to a Kafka partition; give this pipeline another name"
        ) from wrong


def range_of(batch: Batch) -> tuple[int, int] | None:
    """Return the offsets to read: the batch without the gap at its start; None if all of it is a gap."""
    end = int(batch.cut.end["offset"])
    first = max([int(batch.cut.start["offset"]), *(gap_end for _, gap_end in batch.cut.gaps)])
    return (first, end) if first < end else None


def _state(lease: Lease) -> dict[str, Json]:
    state = lease.progress.state
    return state if isinstance(state, dict) else {}


def _state_at(look: Look) -> Json:
    """Return the log's end and leader epoch at planning time, to be stored in the row."""
    if look.log is None or look.lease.run:
        return None
    return {"end": look.log.high} | ({} if look.log.epoch is None else {"epoch": look.log.epoch})


def _was_read(look: Look) -> bool:
    return look.lease.progress.position is not None and look.position is not None and look.log is not None


def _read_position(look: Look) -> ReadPosition:
    epoch = _state(look.lease).get("epoch")
    return ReadPosition(look.position or 0, epoch if isinstance(epoch, int) else None, look.log and look.log.epoch)


def _ends_before(topic_partition: TopicPartition, end: int, offset: int) -> str:
    return f"the log of {topic_partition.topic} ends at {end}, before offset {offset}: the brokers lost records"

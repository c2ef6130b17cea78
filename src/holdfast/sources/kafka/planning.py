"""Where the next batch of each Kafka partition ends, and what must be decided before one may be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.errors import BatchError, Halt, Refused
from holdfast.events import Event
from holdfast.flow.batch import Batch, Cut, Done, Limits, Plan, Wait
from holdfast.flow.upload_policy import Backlog, Due, decide
from holdfast.leases.lease import Json, Lease
from holdfast.sources.kafka.cluster import Cluster, LogEnd, Place
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.epochs import Doubt, Epochs, Read
from holdfast.sources.kafka.logs import CHECK_EVERY, Logs
from holdfast.sources.kafka.telling import Telling
from holdfast.sources.kafka.tracking import Tracking

EARLIEST = "earliest"
GONE_AFTER = 60.0
"""Seconds for which brokers must say that there is no such topic before that is believed: one may not know it yet."""


class Look(NamedTuple):
    """One partition at one time."""

    place: Place
    lease: Lease
    position: int | None
    """The next offset to read; None if that cannot be told."""
    log: LogEnd | None
    """None if nobody serves it right now."""


class Planner:
    """Of one node. `now` is seconds since 1970; what people should hear goes to `tell`."""

    def __init__(
        self, config: KafkaConfig, cluster: Cluster, now: Callable[[], float], tell: Callable[[Event], None]
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._now = now
        self.logs = Logs(cluster, now)
        self.tracking = Tracking(now)
        self._epochs = Epochs(cluster)
        self._telling = Telling(tell, now)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        """As the source's. Raises `SourceUnavailable`."""
        places = {place_of(lease): lease for lease in leases}
        ends = self._cluster.ends(places)
        self.logs.check(places)
        looks = [Look(place, lease, self._position(place, lease), ends.get(place)) for place, lease in places.items()]
        # Asked after the ends and not from memory: else the records of a topic created anew pass for those of the old.
        self.logs.learn_ids({look.place.topic for look in looks if look.log is None or look.log.high != look.position})
        readable = [look for look in looks if self._is_same_topic(look)]
        for look in readable:
            if look.position is not None and look.log is not None:
                self.tracking.look(look.place, look.position, look.log.high)
        self._glimpse({look.place for look in readable})
        doubts = self._epochs.doubts({look.place: _read(look) for look in readable if _was_read(look)})
        return [self._next(look, doubts.get(look.place), limits) for look in looks]

    def _position(self, place: Place, lease: Lease) -> int | None:
        told = lease.progress.position
        if told is None:
            begin = lease.spec["start"]
            return self.logs.firsts.get(place) if begin == EARLIEST else int(begin)
        offset = told.get("offset") if isinstance(told, dict) else None
        return offset if isinstance(offset, int) and offset >= 0 else None

    def _is_same_topic(self, look: Look) -> bool:
        planned = look.lease.commit.incarnation
        return look.place.topic in self.logs.ids and planned in ("", self.logs.ids[look.place.topic])

    def _glimpse(self, places: set[Place]) -> None:
        unknown = {place: at for place, at in self.tracking.unseen().items() if place in places}
        if unknown:
            self.tracking.glimpse(self._cluster.peek(unknown))

    # --- one partition -----------------------------------------------------------------------------------------

    def _next(self, look: Look, doubt: Doubt | None, limits: Limits) -> Plan:
        topic = look.place.topic
        if (denied := self._cluster.denied.get(topic)) is not None:
            self._telling.denied(look.lease, denied)
            return self._later()
        if topic not in self.logs.ids:
            return self._without_topic(look, limits)
        if not self._is_same_topic(look):
            return self._created_anew(look)
        if look.log is None or look.place not in self.logs.firsts:
            return self._later()  # not served right now
        if look.position is None:
            return BatchError(f"the position {look.lease.progress.position!r} is no offset")
        if look.lease.spec.get("end") is not None:
            return self._bounded(look, look.position, look.log, limits)
        return self._stopped_by(look, doubt) or self._live(look, look.position, look.log, limits)

    def _later(self) -> Wait:
        return Wait(min(CHECK_EVERY, self._config.discovery_interval))

    def _without_topic(self, look: Look, limits: Limits) -> Plan:
        """The topic was deleted. What was seen of it and not read is lost."""
        topic, position = look.place.topic, look.position
        if self.logs.gone_for(topic) < GONE_AFTER:
            return self._later()
        if look.lease.spec.get("end") is not None:
            return BatchError(f"topic {topic} was deleted; use a backfill from a backup")
        end = self._seen_end(look)
        if position is None or end <= position:
            self._telling.deleted(look.lease, position)
            return self._later()
        why = f"topic {topic} was deleted before offsets {position} to {end - 1} of {look.lease.key} were read"
        return self._after_loss(look, (position, end), end, limits, why)

    def _created_anew(self, look: Look) -> Halt:
        lost = None
        if look.position is not None and (end := self._seen_end(look)) > look.position:
            lost = (look.position, end)
            self._telling.lost(look.lease, *lost)
        topic = look.place.topic
        return Halt(f"topic {topic} was deleted and created anew: its offsets mean other records now", lost=lost)

    def _seen_end(self, look: Look) -> int:
        """Where the log ended when it was last seen, by this node or by whoever planned the last batch."""
        return max(self.tracking.seen_end(look.place), int(_state(look.lease).get("end", -1)))

    def _stopped_by(self, look: Look, doubt: Doubt | None) -> Plan | None:
        """What keeps from reading on, if the leader has changed since; None if nothing does."""
        if doubt is None:
            return None
        if not doubt.truncated:
            return self._later()
        halt = Halt(
            f"the log of {look.place.topic} was truncated below offset {look.position} and written anew, since the "
            f"leader of epoch {doubt.epoch}: the brokers lost records"
        )
        if look.lease.history.last_error != str(halt):
            return halt
        # A person has read this very sentence and has reopened the partition.
        self._epochs.accept(look.place, _read(look))
        return None

    def _live(self, look: Look, position: int, log: LogEnd, limits: Limits) -> Plan:
        place, lease = look.place, look.lease
        self._telling.lag(lease, log.high - position, self.tracking.lag_seconds(place), self.logs.kept.get(place.topic))
        first = self.logs.firsts[place]
        if log.high < position:
            if lease.progress.position is None and self._config.start == "offset":
                return Wait(self._config.poll_interval)  # a person has chosen an offset that is still to come
            return Halt(_ends_before(place, log.high, position))
        if first > position:
            why = f"offsets {position} to {first - 1} of {lease.key} were deleted by the brokers before they were read"
            return self._after_loss(look, (position, first), log.stable, limits, why)
        if log.stable <= position:
            if log.high > position:
                self._telling.transaction(lease, position, self.tracking.stood(place), self.tracking.age(place))
            return Wait(self._config.poll_interval)
        return self._due(look, position, log.stable, limits)

    def _bounded(self, look: Look, position: int, log: LogEnd, limits: Limits) -> Plan:
        """A run reads up to an offset that was there when it was made, and as fast as it can."""
        bound = int(look.lease.spec["end"])
        if position >= bound:
            return Done()
        if self.logs.firsts[look.place] > position:
            return BatchError(f"offsets from {position} on are not in Kafka any more; use a backfill from a backup")
        if log.high <= position:
            return Halt(_ends_before(look.place, log.high, bound))
        if log.stable <= position:
            return Wait(self._config.poll_interval)
        policy = self._config.policy_of(look.place.topic)
        most = min(self._most(look.place), policy.max_records or sys.maxsize, limits.max_records or sys.maxsize)
        until = min(log.stable, bound, position + most)
        return self._cut(look, position, until, limits, last=until == bound)

    def _after_loss(self, look: Look, lost: tuple[int, int], end: int, limits: Limits, why: str) -> Plan:
        """`lost`: the offsets [from, to) that were to be read next and are not in Kafka any more."""
        position, first = lost
        self._telling.lost(look.lease, position, first)
        if self._config.on_loss == "halt":
            return Halt(f"{why}; `on_loss: record` records the gap and goes on", lost=lost)
        return self._cut(look, position, min(end, first + self._most(look.place)), limits, gaps=(lost,))

    # --- how much ----------------------------------------------------------------------------------------------

    def _most(self, place: Place) -> int:
        policy = self._config.policy_of(place.topic)
        return max(1, int(policy.max_bytes / self.tracking.mean_bytes(place)))

    def _due(self, look: Look, position: int, end: int, limits: Limits) -> Plan:
        place = look.place
        backlog = Backlog(end - position, self.tracking.mean_bytes(place), self.tracking.age(place), now=self._now())
        decision = decide(self._config.policy_of(place.topic), backlog)
        if isinstance(decision, Due):
            most = limits.max_records or decision.records
            return self._cut(look, position, position + min(decision.records, most), limits)
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
        most = min(self._config.policy_of(look.place.topic).max_bytes, limits.max_bytes)
        size = int((end - start) * self.tracking.mean_bytes(look.place))
        return Cut({"offset": start}, {"offset": end}, last, size, most, gaps, state=_state_at(look))


def place_of(lease: Lease) -> Place:
    """Which Kafka partition a lease stands for. Raises `Refused` for one of another source."""
    try:
        return Place(str(lease.spec["topic"]), int(lease.spec["partition"]))
    except (KeyError, TypeError, ValueError) as wrong:
        raise Refused(f"lease {lease.key} is not of a Kafka partition; give this pipeline another name") from wrong


def range_of(batch: Batch) -> tuple[int, int] | None:
    """What is read: the batch without the gap at its beginning; None if it is nothing but a gap."""
    end = int(batch.cut.end["offset"])
    first = max([int(batch.cut.start["offset"]), *(gap_end for _, gap_end in batch.cut.gaps)])
    return (first, end) if first < end else None


def _state(lease: Lease) -> dict[str, Json]:
    told = lease.progress.state
    return told if isinstance(told, dict) else {}


def _state_at(look: Look) -> Json:
    """What a row keeps of the look at which its last batch was planned: the log's end and its leader's epoch."""
    if look.log is None or look.lease.run:
        return None
    return {"end": look.log.high} | ({} if look.log.epoch is None else {"epoch": look.log.epoch})


def _was_read(look: Look) -> bool:
    return look.lease.progress.position is not None and look.position is not None and look.log is not None


def _read(look: Look) -> Read:
    epoch = _state(look.lease).get("epoch")
    return Read(look.position or 0, epoch if isinstance(epoch, int) else None, look.log and look.log.epoch)


def _ends_before(place: Place, end: int, offset: int) -> str:
    return f"the log of {place.topic} ends at {end}, before offset {offset}: the brokers lost records"

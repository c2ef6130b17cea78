"""Holdings: the leases of one pipeline on one node, the progress of each, how many there may be, and at what pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.flow.batch import Batch, Name
from holdfast.flow.engine import Engine, Report
from holdfast.flow.source import Source, WeighsPartitions
from holdfast.leases.lease import Lease
from holdfast.leases.world import Clock

SUSPECT_AFTER_TAKEOVERS = 2
GROWTH = 20
"""How many times `max_batches` a node may hold while partitions are tiny."""
STEP = 4
"""How many times as many partitions a node holds after each round of tiny ones, which costs a Spark job."""
ROUNDS = 2
UNBOUNDED = 1_000_000


@dataclass
class Held:
    """A lease that this node holds."""

    lease: Lease
    name: Name
    admitted: bool = False
    """Whether the sinks have checked that they have no more commits of this partition than its row."""
    batch: Batch | None = None
    cancel_at: float = 0.0
    sent_at: float = 0.0
    """When the last batch was sent, by the node's clock."""
    found_pending: bool = False
    """Whether an earlier owner made the pending commit."""
    complete_after_publish: bool = False
    gone: tuple[str, ...] = ()
    """Sinks whose staged data of the pending commit is gone and must be staged again."""
    hand_to: str | None = None
    """The session that this lease is handed to as soon as it is at rest."""
    wait_until: float = 0.0
    waits: int = 0
    deferred: list[Report] = field(default_factory=list)
    """Reports of the running batch that came while a commit of it was not published yet."""

    @property
    def pending(self) -> bool:
        """Whether a commit waits to be published."""
        return self.lease.commit.receipts is not None

    @property
    def restaging(self) -> bool:
        """Whether the running batch stages a pending commit once more."""
        return self.batch is not None and self.batch.restages is not None

    @property
    def at_rest(self) -> bool:
        """Whether no batch is running and no commit waits to be published."""
        return self.batch is None and not self.pending

    @property
    def suspect(self) -> bool:
        """Whether the lease should run apart from others, because it may have caused their batches to fail."""
        return self.deadly or self.lease.history.attempts > 0

    @property
    def deadly(self) -> bool:
        """Whether batches of this lease may have killed their nodes."""
        return self.lease.history.takeovers >= SUSPECT_AFTER_TAKEOVERS

    def put_off(self, until: float) -> None:
        """Start no work on the lease until then."""
        self.wait_until = until
        self.waits += 1


class Holdings:
    """The leases that one pipeline holds on this node, by key and by batch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_key: dict[str, Held] = {}
        self._by_batch: dict[str, Held] = {}

    @property
    def endless(self) -> bool:
        """Whether batches run until they are drained."""
        return self._engine.endless

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._by_key.values()))

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def get(self, key: str) -> Held | None:
        return self._by_key.get(key)

    def add(self, held: Held) -> None:
        self._by_key[held.lease.key] = held

    def drop(self, held: Held) -> None:
        """Forget the lease; reports of its batch are ignored from now on."""
        # The same partition may have come back to this node under another token.
        if self._by_key.get(held.lease.key) is held:
            del self._by_key[held.lease.key]
        self.recall(held)

    def send(self, held: Held, batch: Batch, cancel_at: float) -> None:
        """Note that the batch is running."""
        held.batch, held.cancel_at = batch, cancel_at
        self._by_batch[batch.id] = held

    def recall(self, held: Held) -> None:
        """Note that the batch is no longer running."""
        if held.batch is not None:
            self._by_batch.pop(held.batch.id, None)
            held.batch, held.deferred = None, []

    def cancel(self, helds: Sequence[Held]) -> None:
        """Stop the batches of these leases without waiting."""
        self._engine.cancel([held.batch.id for held in helds if held.batch is not None])
        for held in helds:
            self.recall(held)

    def drain(self, helds: Sequence[Held]) -> None:
        """Let long-lived batches of these leases finish the records that they have read."""
        if carried := [held.batch.id for held in helds if held.batch is not None]:
            self._engine.drain(carried)

    def acknowledge(self, held: Held, row: Lease) -> None:
        """Pass the acks of other nodes, which are in the row of a lease, to its batch. May be repeated."""
        if held.batch is not None and row.progress.forwarded:
            self._engine.acknowledge(held.batch.id, row.progress.forwarded)

    def published(self, held: Held) -> None:
        """Note that the lease has no pending commit any more; its long-lived batch may report the next one."""
        if held.batch is not None:
            self._engine.published([held.batch.id])

    def take_deferred(self) -> list[Report]:
        """The deferred reports of leases without a pending commit, in the order in which they came."""
        if not self._by_batch:
            return []
        ready = [held for held in self._by_batch.values() if held.deferred and not held.pending]
        reports = [report for held in ready for report in held.deferred]
        for held in ready:
            held.deferred = []
        return reports

    def carrying(self, batch_id: str) -> Held | None:
        """The lease of that batch; None if the batch was cancelled or abandoned."""
        return self._by_batch.get(batch_id)

    @property
    def running(self) -> list[Held]:
        """The leases of which a batch is running."""
        return list(self._by_batch.values())

    def where(self, wanted: Callable[[Held], bool]) -> list[Held]:
        # A node that waits for work asks several times in every turn.
        return [held for held in self._by_key.values() if wanted(held)] if self._by_key else []

    def ready(self, now: float, wanted: Callable[[Held], bool]) -> list[Held]:
        """Like `where`, without leases that are put off; `now` is the node's own clock."""
        if not self._by_key:
            return []
        return [held for held in self._by_key.values() if held.wait_until <= now and wanted(held)]

    def clear(self) -> None:
        self._by_key.clear()
        self._by_batch.clear()


class Pace:
    """The pace of one pipeline or run on one node: how fast it reads, and how fast it may. Called by the loop's thread.

    Records that were read leave a debt of time behind; no round begins before it is paid. The limit may be changed at
    any time, and holds from the next round on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paid_at = 0.0
        self._since = clock.monotonic()
        self._records = 0
        self.limit: float | None = None
        """Records per second; None: no limit."""
        self.most_leases = UNBOUNDED
        """How many leases the node holds at most, so that the last ones are shared."""

    @property
    def rate(self) -> float:
        """Records per second that the node has read since it began."""
        return self._records / max(1.0, self._clock.monotonic() - self._since)

    @property
    def allows(self) -> bool:
        """Whether a round may begin now."""
        return self.limit is None or self._clock.monotonic() >= self._paid_at

    def learn(self, records: int) -> None:
        """Note that this many records were read."""
        self._records += records
        if self.limit is not None:
            self._paid_at = max(self._paid_at, self._clock.monotonic()) + records / self.limit


class Capacity:
    """How many leases a node holds: its whole share where partitions live long, else as many as two rounds carry.

    With two rounds, the next partitions are read while the previous ones are committed. A round may carry more
    partitions while they are tiny, because its fixed costs would dominate otherwise. The number grows step by step, so
    that a node never takes many large partitions away from others because the ones before them were small. It holds
    fewer large partitions, because the leases of a dead node wait until its session has ended.
    """

    def __init__(self, source: Source, batches: int, pace: Pace) -> None:
        """`batches`: how many ordinary batches are held at a time, or carried by one round if partitions live long."""
        self._pace = pace
        self._source = source
        self._weighing = source if isinstance(source, WeighsPartitions) else None
        self._ordinary = self._most = batches

    @property
    def round_size(self) -> int:
        """Batches that one round carries now."""
        if self._pace.limit is not None:
            return 1  # so that the limit is kept from second to second
        return self._most if self._source.lives_long else max(1, self._most // ROUNDS)

    @property
    def may_begin(self) -> bool:
        """Whether the pace allows a round now."""
        return self._pace.allows

    def room(self, held: Sequence[Lease], idle: int) -> int:
        """How many more leases may be taken, when `idle` of the held ones have no batch yet."""
        if self._source.lives_long:
            return UNBOUNDED - len(held)
        if self._weighing is None or not self._weighing.is_light(held):
            self._most = max(self._ordinary, self._most // 2)
        elif held and not idle:
            self._most = min(STEP * self._most, GROWTH * self._ordinary)
        return min(self._most - len(held), self.round_size - idle, self._pace.most_leases - len(held))


def waves(reports: Sequence[Report]) -> list[list[Report]]:
    """The reports in waves, at most one per batch in each: a write is derived from the row that the last one left."""
    found: list[list[Report]] = []
    seen: dict[str, int] = {}
    for report in reports:
        index = seen.get(report.batch_id, 0)
        seen[report.batch_id] = index + 1
        if index == len(found):
            found.append([])
        found[index].append(report)
    return found

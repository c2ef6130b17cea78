"""Acks of records whose partition this node does not hold: they go to the present owner, through its row.

An ack says that a record is done, no matter which node sends it and how late. So it needs no token: it is added to the
row as the row is now, and only the owner, under its token, turns it into progress. The owner finds it whenever it reads
or writes its row, which keeps the ack until the owner, or the next one, has committed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from holdfast.errors import StoreUnavailable, TransitionRefused
from holdfast.events import Notice, Unreachable
from holdfast.flow.batch import Name
from holdfast.flow.engine import Engine
from holdfast.flow.source import Source
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Key, Lease, Status, joined
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.transitions import stamped
from holdfast.leases.world import World

EVERY = 0.5
"""Seconds between two writes: acks that come one by one are written together."""
MOST_WAITING = 10_000
MOST_FORWARDED = 256
"""Ranges of acks that a row keeps for its owner."""


class ForeignAcks:
    """Writes the acks of one pipeline's handlers for other nodes. Used by the node's thread."""

    def __init__(self, coordinator: Coordinator, source: Source, engine: Engine) -> None:
        self._coordinator = coordinator
        self._source = source
        self._engine = engine
        self._waiting: dict[Name, set[int]] = {}
        self._keys: dict[Name, Key] = {}
        self._next = 0.0

    def turn(self) -> None:
        """Write what is waiting, if it is time. Blocks on the store; what cannot be written waits."""
        for name, offsets in self._engine.take_foreign_acks().items():
            self._waiting.setdefault(name, set()).update(offsets)
        clock = self._coordinator.world.clock
        if self._waiting and clock.monotonic() >= self._next:
            self._next = clock.monotonic() + EVERY
            self._write_waiting()

    def flush(self) -> None:
        """Write what is waiting now, because the node leaves. Blocks once, and gives up what cannot be written."""
        self._next = 0.0
        self.turn()

    def _write_waiting(self) -> None:
        try:
            self._find_keys()
            self._write()
        except StoreUnavailable as away:
            self._coordinator.world.emit(Unreachable("store", str(away), EVERY))
        self._drop_surplus()

    def _find_keys(self) -> None:
        if self._waiting.keys() <= self._keys.keys():
            return
        coordinator = self._coordinator
        rows = coordinator.store.find(Query(coordinator.pipeline, coordinator.run))
        self._keys = {self._source.name(row): row.id for row in rows if row.unreadable is None}
        if len({name.stream for name in self._keys}) == 1:
            # Old clients of Nuclio give no name of the stream.
            self._keys |= {Name("", name.label): key for name, key in self._keys.items()}
        for name in self._waiting.keys() - self._keys.keys():
            self._give_up(name, "the pipeline has no such shard")

    def _write(self) -> None:
        if not self._waiting:
            return
        acks: defaultdict[Key, set[int]] = defaultdict(set)  # two names may be those of one shard
        for name, offsets in self._waiting.items():
            acks[self._keys[name]] |= offsets
        written = forward_acks(self._coordinator.store, self._coordinator.world, acks)
        for name in [name for name in self._waiting if self._keys[name] in written.done]:
            del self._waiting[name]

    def _drop_surplus(self) -> None:
        for name in [name for name, offsets in self._waiting.items() if len(offsets) > MOST_WAITING]:
            self._give_up(name, "its owner does not take them, and too many wait")

    def _give_up(self, name: Name, why: str) -> None:
        number = len(self._waiting.pop(name))
        self._coordinator.world.emit(
            Notice(f"{number} acks of {name.stream} {name.label} have no effect, and their records come again: {why}")
        )


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The result of forwarding acks.

    Acks of leases in neither field were overtaken by another write: try them again.
    """

    done: Collection[Key] = ()
    refused: Mapping[Key, str] = field(default_factory=dict)
    """Why the acks of these leases cannot be kept now."""


def forward_acks(store: Store, world: World, acks: Mapping[Key, Collection[int]]) -> Forwarded:
    """Add the acks to the rows of these leases. Blocks; may be repeated. Raises `StoreUnavailable`."""
    rows, now = dict(zip(acks, store.get(list(acks)), strict=True)), store.now()
    refused, done, swaps = dict[Key, str](), set[Key](), dict[Key, Swap]()
    for key, row in rows.items():
        if row is None or row.unreadable is not None:
            refused[key] = f"there is no readable row of {key.key!r}"
            continue
        try:
            noted = forward(row, acks[key], now)
        except TransitionRefused as full:
            refused[key] = str(full)
            continue
        if noted is row:
            done.add(key)
        else:
            swaps[key] = Swap(row.version, stamped(row, noted, world.new_id()))
    outcomes = store.swap(list(swaps.values())) if swaps else []
    done |= {key for key, outcome in zip(swaps, outcomes, strict=True) if outcome is Outcome.OK}
    return Forwarded(done, refused)


def forward(lease: Lease, offsets: Collection[int], now: float) -> Lease:
    """Note these acks. Needs no owner and may be repeated; raises `TransitionRefused` if too many wait."""
    before = lease.progress.forwarded
    ranges = joined([*before, *((offset, offset + 1) for offset in offsets)])
    if lease.status is Status.COMPLETED or ranges == before:
        return lease
    if len(ranges) > MOST_FORWARDED:
        raise TransitionRefused(f"{lease.key!r} has {MOST_FORWARDED} acks that its owner has not taken yet")
    history = replace(lease.history, updated_at=now)
    return replace(lease, progress=replace(lease.progress, forwarded=ranges), history=history)

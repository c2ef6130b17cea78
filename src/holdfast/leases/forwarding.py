"""Acks of nodes that do not own the lease: its row keeps them until the owner, or the next one, has committed them.

An ack says that a record is done, whoever says it and however late. So it needs no token: it is added to the row as
the row is now, and only the owner, under its token, turns it into progress. The owner finds it whenever it reads or
writes its row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from holdfast.errors import TransitionRefused
from holdfast.leases.lease import Key, Lease, Status, joined
from holdfast.leases.store import Outcome, Store, Swap
from holdfast.leases.transitions import stamped
from holdfast.leases.world import World

MOST_FORWARDED = 256
"""Ranges of acks that a row keeps for its owner."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What became of some acks. Those that are in neither were overtaken by another write: try again."""

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
    known = lease.progress.forwarded
    ranges = joined([*known, *((offset, offset + 1) for offset in offsets)])
    if lease.status is Status.COMPLETED or ranges == known:
        return lease
    if len(ranges) > MOST_FORWARDED:
        raise TransitionRefused(f"{lease.key!r} has {MOST_FORWARDED} acks that its owner has not taken yet")
    history = replace(lease.history, updated_at=now)
    return replace(lease, progress=replace(lease.progress, forwarded=ranges), history=history)

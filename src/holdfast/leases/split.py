"""A split: the rest of a partition is shared with new partitions, so that other nodes help with it. Pure.

It takes three steps. `split` shortens the row and names the new partitions in it, in one write: from then on the rest
belongs to them. Then their rows are added, which may be repeated. `split_done` removes the names. The owner of the row
finishes an interrupted split before it reads on, so that a node that dies in between loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from holdfast.errors import TransitionRefused
from holdfast.leases.lease import Json, Lease, Partition, Status

NOTE = "split"


@dataclass(frozen=True, slots=True)
class Split:
    """What the owner keeps of a partition, and what becomes new partitions. Together they cover what was left."""

    spec: Mapping[str, Json]
    estimated_count: int
    children: Sequence[Partition]
    """Their keys are made of the key of the partition; what is given here is not used."""


def split(lease: Lease, made: Split, expected: Lease, now: float) -> Lease:
    """Shorten the partition. `expected` is the lease for which the split was made; it must not have moved since."""
    if lease.status is not Status.ASSIGNED or lease.commit.receipts is not None or unfinished_split(lease):
        raise TransitionRefused(f"{lease.key!r} cannot be split now")
    if (lease.commit.sequence, lease.spec) != (expected.commit.sequence, expected.spec):
        raise TransitionRefused(f"{lease.key!r} has moved on since the split was made")
    number = _note(lease).get("number", 0) + len(made.children)
    order, count = lease.order, made.estimated_count
    return replace(
        lease,
        spec=made.spec,
        order=replace(
            order,
            estimated_count=count,
            work_units=max(1, round(order.work_units * count / max(1, order.estimated_count or count))),
            range_end=order.range_start + count if isinstance(order.range_start, int) else order.range_end,
        ),
        progress=_with_note(lease, {"number": number, "children": _named(lease, made.children, number)}),
        history=replace(lease.history, updated_at=now),
    )


def split_done(lease: Lease, now: float) -> Lease:
    """Record that the rows of the new partitions exist. May be repeated."""
    if not unfinished_split(lease):
        return lease
    note = {"number": _note(lease)["number"]}
    return replace(lease, progress=_with_note(lease, note), history=replace(lease.history, updated_at=now))


def unfinished_split(lease: Lease) -> list[Partition]:
    """The partitions of a split whose rows may be missing; none if no split is unfinished."""
    return [Partition(**child) for child in _note(lease).get("children", ())]


def _named(lease: Lease, children: Sequence[Partition], number: int) -> list[Json]:
    """The children as JSON, under keys that no other split of this partition has given."""
    first = number - len(children) + 1
    return [asdict(replace(child, key=f"{lease.key}/{first + index}")) for index, child in enumerate(children)]


def _note(lease: Lease) -> Mapping[str, Json]:
    state = lease.progress.state
    return state.get(NOTE) or {} if isinstance(state, dict) else {}


def _with_note(lease: Lease, note: Mapping[str, Json]) -> Json:
    state = lease.progress.state
    return replace(lease.progress, state={**(state if isinstance(state, dict) else {}), NOTE: note})

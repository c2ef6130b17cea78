"""The token floor: what keeps the fence when rows are deleted and made anew.

Before a row is deleted, the pipeline's floor is raised to its token and version, whichever is higher. A row that is
made later starts with both there, so that no write which was derived from the deleted row finds its version again.

A row may still be made below the floor: its maker read the floor just before it was raised, or its request was late.
So whoever takes a lease reads the floor once more and lifts the lease above it before any work begins. That is enough:
the floor was raised before the old row was deleted, this before the new one could be added, and this before it could
be taken, so that a read after the taking sees the floor that matters. Until it is lifted, a late write of the deleted
row may land; the row then says what it said before it was deleted, as if it had never been.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Store


def floor_of(pipeline: str) -> Key:
    """Where the pipeline's token floor is kept; its runs share it."""
    return Key(f"{pipeline}/$floor", "", "$floor")


def read_floor(store: Store, pipeline: str) -> int:
    """The floor as it is now; 0 where nothing was ever deleted. Raises `StoreUnavailable`."""
    (row,) = store.get([floor_of(pipeline)])
    return 0 if row is None else row.token


def height(lease: Lease) -> int:
    """The floor that rows made after the deletion of this one need."""
    return max(lease.token, lease.version)


def lifted(lease: Lease, floor: int) -> Lease:
    """The lease under a token and version above the floor; itself if it is there already."""
    if lease.token > floor:
        return lease
    own = lease.ownership
    return replace(lease, ownership=replace(own, token=floor + 1, version=max(own.version, floor)))

"""The token floor: keeps the fence when rows are deleted and added later.

The rule: a row is deleted only if it is COMPLETED without receipts, the pipeline's floor was raised above its token and
version *before* its last write, and that is at least `REST` ago. A row that is added later starts with token and
version at the floor. `Operator.purge` raises the floor and then strips rows to tombstones, which `Operator.forget`
deletes when they have rested. A store that expires rows by itself raises the floor before it writes a row with a time
to expire.

Proven, if each row is added with a floor that was read at most `REST` before its request lands: nobody works under a
token that a deleted row of the key has had, and no write that was derived from a deleted row lands on a later row of
the key, however late it is. The reason: a row that is added after the deletion comes from a node that read the floor
after it was raised, and no version of the deleted row reaches that floor.

Assumed, not proven: no request to *add* rows lands more than `REST` after the floor for it was read (the floor is read
before every try), minus the error of the clock of `Store.now`. Only a process that is frozen between the two calls, or
a network that delays a request for so long, could break it.
"""

from __future__ import annotations

from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Store

REST = 86_400.0
"""Minimum number of seconds from the last write of a row until it may be deleted."""


def floor_of(pipeline: str) -> Key:
    """The key of the pipeline's token floor; its runs share it."""
    return Key(f"{pipeline}/$floor", "", "$floor")


def read_floor(store: Store, pipeline: str) -> int:
    """The current floor; 0 if nothing was ever purged. Raises `StoreUnavailable`."""
    (row,) = store.get([floor_of(pipeline)])
    return 0 if row is None else row.token


def height(lease: Lease) -> int:
    """The floor for rows that are added after this one was purged and deleted."""
    tombstone = lease.version + 1
    return max(lease.token, tombstone + 1)

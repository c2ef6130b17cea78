"""The token floor: what keeps the fence when rows are deleted and made anew.

The rule: a row is deleted only if it is COMPLETED without receipts, the pipeline's floor was raised above its token and
version *before* its last write, and that is at least `REST` ago. A row that is made later starts with token and version
at the floor. `Operator.purge` raises the floor and then strips rows to tombstones, which `Operator.forget` deletes when
they have rested. A store that expires rows by itself raises the floor before it writes one with a time to expire.

Proven, if each row is made with a floor that was read at most `REST` before its request lands: nobody works under a
token that a deleted row of the key has had, and no write that was derived from a deleted row lands on another one,
however late it is. The reason: what is added after the deletion was sent by somebody who read the floor after it was
raised, and no version of the deleted row reaches that floor.

Assumed, not proven: no request to *add* rows lands more than `REST` after the floor for it was read (the floor is read
anew for every try), less what the clock that `Store.now` tells is wrong by. Only a process that is frozen between the
two calls, or a network that keeps a request for so long, could break it.
"""

from __future__ import annotations

from holdfast.leases.lease import Key, Lease
from holdfast.leases.store import Store

REST = 86_400.0
"""Seconds from the last write of a row until it may be deleted, at least."""


def floor_of(pipeline: str) -> Key:
    """Where the pipeline's token floor is kept; its runs share it."""
    return Key(f"{pipeline}/$floor", "", "$floor")


def read_floor(store: Store, pipeline: str) -> int:
    """The floor as it is now; 0 where nothing was ever purged. Raises `StoreUnavailable`."""
    (row,) = store.get([floor_of(pipeline)])
    return 0 if row is None else row.token


def height(lease: Lease) -> int:
    """The floor that rows need which are made after this one was purged and deleted."""
    tombstone = lease.version + 1
    return max(lease.token, tombstone + 1)

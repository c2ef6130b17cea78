"""When DynamoDB may delete a row by its TTL, and how fencing survives the deletion.

Only a COMPLETED row without receipts expires, `ttl` after its last write; a row that is reopened has no expiry time.
Administrative rows of a pipeline (`$floor`, `$runs`, `$generations` and so on) never expire; ended sessions do, because
their keys are never used again.

A row that is added after such a deletion must not begin with a token or version that was used before. Hence the
pipeline's token floor is raised above a row *before* that row is written with a time to expire. Between the two and the
deletion lies `ttl`, which is at least `holdfast.leases.token_floor.REST`; so the proof there holds, with this write
instead of the purge. The floor goes up in steps: of rows that were added at the same time, only the first to complete
raises it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from holdfast.leases.lease import Key, Lease, Ownership, Status
from holdfast.leases.store import Store, Swap
from holdfast.leases.token_floor import floor_of, height
from holdfast.leases.transitions import stamped
from holdfast.stores.dynamodb.items import is_indexed

STEP = 100
_NODES = "$nodes"


def may_expire(lease: Lease) -> bool:
    """Whether this row may be deleted by the TTL without loss."""
    is_done = lease.status is Status.COMPLETED and lease.commit.receipts is None and lease.unreadable is None
    return is_done and (is_indexed(lease.pipeline) or _is_session(lease))


def _is_session(lease: Lease) -> bool:
    return lease.pipeline == _NODES or lease.pipeline.endswith(f"|{_NODES}")


class Floors:
    """Token floors that this process has read. Floors never sink, so cached values stay valid."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[str, int] = {}

    def raise_above(self, leases: Sequence[Lease]) -> None:
        """Raise the floors of the pipelines above the rows that may expire. Raises `StoreUnavailable`."""
        needed: dict[str, int] = {}
        for lease in leases:
            if may_expire(lease) and not _is_session(lease):
                needed[lease.pipeline] = max(height(lease), needed.get(lease.pipeline, 0))
        for pipeline, floor in needed.items():
            if self._seen.get(pipeline, 0) < floor:
                self._seen[pipeline] = self._raise(floor_of(pipeline), -(-floor // STEP) * STEP)

    def _raise(self, key: Key, floor: int) -> int:
        while True:
            (row,) = self._store.get([key])
            if row is None:
                ownership = Ownership(Status.COMPLETED, write_id=uuid.uuid4().hex, due_at=None)
                self._store.add([Lease(key.pipeline, key.key, ownership=ownership)])
            elif row.token >= floor:
                return row.token
            else:
                higher = replace(row, ownership=replace(row.ownership, token=floor))
                self._store.swap([Swap(row.version, stamped(row, higher, uuid.uuid4().hex))])

"""Nodes that lack a guard on purpose, to see that the oracle notices. Nothing of this is in the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.leases.store import ClaimingStore, Outcome, Store, Swap
from holdfast.testing.faults import PlainStore
from tests.soak.hazards import WrappedStore
from tests.soak.orders import PULL, SHARE


class UnfencedTable(PlainStore):
    """Writes a row whoever has changed it meanwhile: neither version nor token holds a late writer up."""

    def recent(self, max_age: float) -> Store:
        return UnfencedTable(self.inner.recent(max_age))

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return [
            self._forced(swap) if outcome is Outcome.CONFLICT and swap.lease.pipeline in (PULL, SHARE) else outcome
            for swap, outcome in zip(swaps, self.inner.swap(swaps), strict=True)
        ]

    def _forced(self, swap: Swap) -> Outcome:
        (row,) = self.inner.get([swap.lease.id])
        if row is None:
            return Outcome.CONFLICT
        ownership = replace(swap.lease.ownership, version=row.version + 1)
        (outcome,) = self.inner.swap([Swap(row.version, replace(swap.lease, ownership=ownership))])
        return outcome


class UnfencedStore(WrappedStore, UnfencedTable):
    """As `UnfencedTable`, for a store that claims in one step."""

    def recent(self, max_age: float) -> Store:
        return self


class ForgetfulTable(PlainStore):
    """Keeps no receipts: whoever takes over from a node that died after a commit finds nothing to publish."""

    def recent(self, max_age: float) -> Store:
        return ForgetfulTable(self.inner.recent(max_age))

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        forgotten = [replace(swap.lease, commit=replace(swap.lease.commit, receipts=None)) for swap in swaps]
        return self.inner.swap([Swap(swap.version, lease) for swap, lease in zip(swaps, forgotten, strict=True)])


def break_table(store: Store, guard: str) -> Store:
    """The store itself without that guard, below the hazards."""
    return ForgetfulTable(store) if guard == "receipts" else store


def break_guard(store: Store, guard: str) -> Store:
    """The store without that guard, above the hazards; as it is if none is named, or one of `break_table`."""
    if guard == "receipts":
        return store
    if guard not in ("", "fence"):
        raise ValueError(f"nobody can take the guard {guard!r} away")
    if not guard:
        return store
    return UnfencedStore(store) if isinstance(store, ClaimingStore) else UnfencedTable(store)

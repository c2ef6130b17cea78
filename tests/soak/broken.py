"""Nodes that lack a guard on purpose, to see that the oracle notices. Nothing of this is in the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.leases.store import ClaimingStore, Outcome, Swap
from tests.soak.hazards import WrappedStore
from tests.soak.orders import PULL, SHARE


class UnfencedStore(WrappedStore):
    """Writes a row whoever has changed it meanwhile: neither version nor token holds a late writer up."""

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


def break_guard(store: ClaimingStore, guard: str) -> ClaimingStore:
    """The store without that guard; as it is if none is named."""
    if guard not in ("", "fence"):
        raise ValueError(f"nobody can take the guard {guard!r} away")
    return UnfencedStore(store) if guard else store

"""The simulated store itself: the memory store's table, whose writes the oracle sees, and which may lose them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.leases.lease import Key, Lease
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimRequest, Outcome, Swap
from holdfast.leases.transitions import is_stripped, stamped
from holdfast.stores.memory import MemoryStore
from tests.simulation.faults import STORE_CALLS, CallFaults, Faults
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import EPOCH, PIPELINE, Oracle

CALL_LIKELY = 0.1


class FrozenRows(MemoryStore):
    """The memory store without copies: rows are frozen, and nobody here changes their JSON in place."""

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return [self._row(key) for key in keys]

    def find(self, query: Query) -> list[Lease]:
        return self._find(query)

    def claim(self, request: ClaimRequest) -> list[Lease]:
        table = self._tables.get((request.pipeline, request.run))
        return [] if table is None else table.claim(request, self._now())

    def _incoming(self, lease: Lease) -> Lease:
        return lease


class StoreServer:
    """The table itself. It may lose writes that it had acknowledged, and somebody else may touch a row."""

    def __init__(self, kernel: Kernel, faults: Faults, oracle: Oracle, ttl: float) -> None:
        self.kernel = kernel
        self.faults = CallFaults(faults, STORE_CALLS, CALL_LIKELY)
        self.strike = faults.strike
        self.down_until = 0.0
        self.memory = FrozenRows(self.now)
        self._oracle = oracle
        self._ttl = ttl
        self._all_faults = faults
        self._haunted = any(faults[kind] for kind in ("row_touched", "row_rolled_back", "store_rolled_back"))
        self._rollbacks_left = 1 + kernel.below(2)
        self._backup: dict[Key, Lease] = {}

    def now(self) -> float:
        return EPOCH + self.kernel.now

    def add(self, leases: Sequence[Lease], sender: Host) -> list[Outcome]:
        outcomes = self.memory.add(leases)
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome is Outcome.OK:
                self._oracle.row_written(lease, sender)
        return outcomes

    def swap(self, swaps: Sequence[Swap], sender: Host) -> list[Outcome]:
        before = dict(self._oracle.rows) if self._haunted else {}
        outcomes = self.memory.swap(swaps)
        for swap, outcome in zip(swaps, outcomes, strict=True):
            if outcome is Outcome.OK:
                self._oracle.row_written(swap.lease, sender)
                if self._haunted and swap.lease.pipeline == PIPELINE:
                    self._haunt(swap.lease, sender, before)
        return outcomes

    def claim(self, request: ClaimRequest, sender: Host) -> list[Lease]:
        claimed = self.memory.claim(request)
        for lease in claimed:
            self._oracle.row_written(lease, sender)
        return claimed

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        before = self.memory.get([lease.id for lease in leases])
        outcomes = self.memory.remove(leases)
        for row, outcome in zip(before, outcomes, strict=True):
            if row is not None and outcome is Outcome.OK:
                self._oracle.row_removed(row)
        return outcomes

    # --- what may happen to a row that was just written -----------------------------------------------------------

    def _haunt(self, row: Lease, sender: Host, before: dict[Key, Lease]) -> None:
        dice, faults = self.kernel.dice, self._all_faults
        if not is_stripped(row) and faults.happens(dice, "row_touched", 0.4):
            # A person, or a sweep: the row is the same but for its version, and the last write id is covered. Neither
            # changes a tombstone.
            touched = stamped(row, row, "somebody")
            self.memory.swap([Swap(row.version, touched)])
            self._oracle.row_written(touched, sender)
        if self._rollbacks_left and faults.happens(dice, "row_rolled_back", 0.5):
            self._rollbacks_left -= 1
            self.kernel.after(self._ttl * dice.random() ** 2, self._restore_row, before[row.id])
        if self._rollbacks_left and faults.happens(dice, "store_rolled_back", 0.5):
            self._rollbacks_left -= 1
            # Fail-over to a replica that lags a little, or a restore from a backup that is older.
            rows = before if dice.random() < 0.7 else self._backup
            self.kernel.after(self._ttl * dice.random() ** 2, self._restore, rows)
        if dice.random() < 0.2:
            self._backup = before

    def _restore(self, rows: dict[Key, Lease]) -> None:
        """Every row as it was before; rows that came later are gone."""
        if not self._all_faults.active:
            return
        self.memory = FrozenRows(self.now)
        self.memory.add(list(rows.values()))
        self._oracle.rolled_back(dict(rows))
        self.kernel.note("store", "rolled back", f"to {len(rows)} rows")

    def _restore_row(self, earlier: Lease) -> None:
        """One row as it was before. It needs an identity of its own: the table remembers the one that was there."""
        present = self._oracle.rows.get(earlier.id)
        if present is not None and self._all_faults.active:
            self.memory.remove([present])
            self.memory.add([replace(earlier)])
            self._oracle.rolled_back({**self._oracle.rows, earlier.id: earlier})
            self.kernel.note("store", f"row {earlier.key} rolled back", f"to version {earlier.version}")
            self._touch_often(earlier)

    def _touch_often(self, row: Lease) -> None:
        """Somebody looks after a row that has lost writes: its version passes the one that its owner knows."""
        for _ in range(self.kernel.below(5) if self._all_faults["row_touched"] else 0):
            touched = stamped(row, row, "somebody")
            self.memory.swap([Swap(row.version, touched)])
            self._oracle.rows[row.id] = row = touched

"""The simulated store: the semantics of the memory store behind an unreliable network.

The server applies each request at one moment of virtual time and tells the oracle of every row that changes. A client
belongs to one process of one node; what it sends may be lost, late or doubled, as its answer may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.errors import AnswerLost, StoreUnavailable
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Query, Snapshot, Store, Swap
from holdfast.leases.transitions import stamped
from holdfast.stores.memory import MemoryStore
from tests.simulation.faults import STORE_CALLS, CallFaults, Faults
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE, Oracle

T = TypeVar("T")
EPOCH = 1_000_000.0
"""The store's time when the world begins; no node's clock shows anything like it."""
CALL_LIKELY = 0.1
READS_ARE_SAFER = 0.2
"""Reads make up most calls and matter less: they are in trouble this much less often than writes."""


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
        return self.memory.remove(leases)

    # --- what may happen to a row that was just written -----------------------------------------------------------

    def _haunt(self, row: Lease, sender: Host, before: dict[Key, Lease]) -> None:
        dice, faults = self.kernel.dice, self._all_faults
        if faults.happens(dice, "row_touched", 0.4):
            # A person, or a sweep: the row is the same but for its version, and the last write id is covered.
            touched = stamped(row, row, "somebody")
            self.memory.swap([Swap(row.version, touched)])
            self._oracle.row_written(touched, sender)
        if self._rollbacks_left and faults.happens(dice, "row_rolled_back", 0.5):
            self._rollbacks_left -= 1
            self.kernel.after(self._ttl * dice.random() ** 2, self._restore_row, before[row.id])
        if self._rollbacks_left and faults.happens(dice, "store_rolled_back", 0.5):
            self._rollbacks_left -= 1
            self.kernel.after(self._ttl * dice.random() ** 2, self._restore, before)

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


class StoreClient(Store):
    """A node's connection. Every call is a point where the node gives way to the others."""

    def __init__(self, server: StoreServer, host: Host, latency: float, ttl: float) -> None:
        self._server = server
        self._host = host
        self._kernel = host.kernel
        self._trouble = server.faults
        self._read_trouble = server.faults.total * READS_ARE_SAFER
        self._latency = latency
        self._ttl = ttl

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def now(self) -> float:
        return self._read("now", self._server.now)

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return self._read("get", lambda: self._server.memory.get(keys))

    def find(self, query: Query) -> list[Lease]:
        return self._read("find", lambda: self._server.memory.find(query))

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self._read("snapshot", lambda: self._server.memory.snapshot(pipeline, sessions, run))

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return self._read("count", lambda: self._server.memory.count(pipeline, run))

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        unknown = [Outcome.UNKNOWN] * len(leases)
        return self._write("add", lambda: self._server.add(leases, self._host), lambda: unknown)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        unknown = [Outcome.UNKNOWN] * len(swaps)
        return self._write("swap", lambda: self._server.swap(swaps, self._host), lambda: unknown)

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        unknown = [Outcome.UNKNOWN] * len(leases)
        return self._write("remove", lambda: self._server.remove(leases), lambda: unknown)

    # --- the network ----------------------------------------------------------------------------------------------

    def _read(self, name: str, ask: Callable[[], T]) -> T:
        host, kernel = self._host, self._kernel
        host.touch()
        roll = kernel.random()
        if roll < self._read_trouble or self._server.down_until > kernel.now:
            return self._troubled_read(name, ask, roll / READS_ARE_SAFER)
        answer = ask()
        host.sleep(self._latency * roll)
        if kernel.trace is not None:
            kernel.note(host.name, f"store.{name}", _shown(answer))
        return answer

    def _write(self, name: str, send: Callable[[], T], unknown: Callable[[], T]) -> T:
        host, kernel = self._host, self._kernel
        host.touch()
        roll = kernel.random()
        if roll < self._trouble.total or self._server.down_until > kernel.now:
            return self._troubled_write(name, send, unknown, roll)
        answer = send()
        if kernel.trace is not None:
            kernel.note(host.name, f"store.{name}", _shown(answer))
        host.sleep(self._latency * roll)
        return answer

    def _troubled_read(self, name: str, ask: Callable[[], T], roll: float) -> T:
        self._refuse_while_down(name)
        fault = self._trouble.pick(roll)
        if fault == "store_slow":
            self._server.strike(fault)
            self._host.sleep(self._ttl * self._kernel.random())
        elif fault is not None:
            self._server.strike("store_request_lost")
            self._time_out(name, "lost")
            raise StoreUnavailable("no answer")
        answer = ask()
        self._host.sleep(self._latency * self._kernel.random())
        self._kernel.note(self._host.name, f"store.{name}", _shown(answer))
        return answer

    def _troubled_write(self, name: str, send: Callable[[], T], unknown: Callable[[], T], roll: float) -> T:
        self._refuse_while_down(name)
        fault = self._trouble.pick(roll)
        if fault is not None:
            self._server.strike(fault)
        if fault == "store_request_lost":
            self._time_out(name, "request lost")
            return unknown()
        if fault == "store_write_late":
            delay = 4 * self._ttl * self._kernel.random() ** 2
            self._later(name, send, delay)
            self._time_out(name, f"will be applied {delay:.3f} s late")
            return unknown()
        if fault == "store_write_twice":
            return self._twice(name, send)
        if fault == "store_slow":
            self._host.sleep(self._ttl * self._kernel.random())
        answer = send()
        self._kernel.note(self._host.name, f"store.{name}", _shown(answer))
        if fault == "store_answer_lost":
            self._time_out(name, "answer lost")
            return unknown()
        self._host.sleep(self._latency * self._kernel.random())
        return answer

    def _twice(self, name: str, send: Callable[[], T]) -> T:
        """A driver that repeats a request on its own: the answer may be that of the second one, or come before it."""
        first = send()
        if self._kernel.random() < 0.5:
            self._later(name, send, 2 * self._ttl * self._kernel.random())
            self._host.sleep(self._latency * self._kernel.random())
            return first
        self._host.sleep(self._latency * self._kernel.random())
        answer = send()
        self._kernel.note(self._host.name, f"store.{name} again", _shown(answer))
        self._host.sleep(self._latency * self._kernel.random())
        return answer

    def _later(self, name: str, send: Callable[[], object], delay: float) -> None:
        def land(_: object) -> None:
            self._kernel.note(self._host.name, f"store.{name} lands late", _shown(send()))

        self._kernel.after(delay, land)

    def _refuse_while_down(self, name: str) -> None:
        if self._server.down_until > self._kernel.now:
            self._host.sleep(self._latency * self._kernel.random())
            self._kernel.note(self._host.name, f"store.{name}", "store is down")
            raise StoreUnavailable("the store is down")

    def _time_out(self, name: str, why: str) -> None:
        self._kernel.note(self._host.name, f"store.{name}", why)
        self._host.sleep(self._ttl * (0.1 + 0.4 * self._kernel.random()))


class ClaimingStoreClient(StoreClient, ClaimingStore):
    """As `StoreClient`, for a store that claims in one statement."""

    def claim(self, request: ClaimRequest) -> list[Lease]:
        def lost() -> list[Lease]:
            raise AnswerLost("the claim may have been applied")

        return self._write("claim", lambda: self._server.claim(request, self._host), lost)


def _shown(answer: object) -> str:
    if isinstance(answer, list):
        return "[" + ", ".join(_shown(item) for item in answer) + "]"
    if isinstance(answer, Lease):
        own, commit = answer.ownership, answer.commit
        pending = " pending" if commit.receipts is not None else ""
        return (
            f"{answer.key} {own.status} of {own.owner} token {own.token} version {own.version}"
            f" sequence {commit.sequence}{pending} position {answer.progress.position}"
        )
    return answer.name if isinstance(answer, Outcome) else str(answer)

"""Wrappers of a store that misbehave on purpose."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Literal, TypeAlias, TypeVar

from holdfast.errors import AnswerLost, StoreUnavailable
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Snapshot, Store, Swap

T = TypeVar("T")
Verb: TypeAlias = Literal["now", "add", "get", "find", "snapshot", "swap", "remove", "count", "claim"]


class Fault(Enum):
    """What happens to one call. A method that cannot return UNKNOWN raises `AnswerLost` instead."""

    AWAY = "raises StoreUnavailable; nothing was sent"
    ANSWER_LOST = "is applied, then raises AnswerLost"
    UNKNOWN = "is applied, then returns UNKNOWN for each row"
    REQUEST_LOST = "is never applied, and returns UNKNOWN for each row"
    LATE = "returns UNKNOWN for each row, and is applied when `deliver` is called"


class LossyTable(Store):
    """Passes every call to the inner store, except those for which a fault was ordered. It has no `claim`."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.durable, self.shared, self.max_body_bytes = inner.durable, inner.shared, inner.max_body_bytes
        self.has_clock, self.charges_for_reads = inner.has_clock, inner.charges_for_reads
        self._ordered: dict[Verb, deque[Fault | None]] = defaultdict(deque)
        self._under_way: list[Callable[[], object]] = []

    def order(self, verb: Verb, *faults: Fault | None) -> None:
        """Set the faults of the next calls of this method, in order; None lets a call pass."""
        self._ordered[verb].extend(faults)

    def deliver(self) -> None:
        """Apply, in order, the calls that were held back by `Fault.LATE`."""
        calls, self._under_way = self._under_way, []
        for call in calls:
            call()

    def open(self) -> None:
        self.inner.open()

    def close(self) -> None:
        self.inner.close()

    def now(self) -> float:
        return self._raising("now", self.inner.now)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._answering("add", len(leases), lambda: self.inner.add(leases))

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return self._raising("get", lambda: self.inner.get(keys))

    def find(self, query: Query) -> list[Lease]:
        return self._raising("find", lambda: self.inner.find(query))

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self._raising("snapshot", lambda: self.inner.snapshot(pipeline, sessions, run))

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._answering("swap", len(swaps), lambda: self.inner.swap(swaps))

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._answering("remove", len(leases), lambda: self.inner.remove(leases))

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return self._raising("count", lambda: self.inner.count(pipeline, run))

    def _answering(self, verb: Verb, rows: int, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        fault = self._next_fault(verb)
        if fault in (Fault.UNKNOWN, Fault.REQUEST_LOST, Fault.LATE):
            self._apply(fault, call)
            return [Outcome.UNKNOWN] * rows
        return self._met(fault, call)

    def _raising(self, verb: Verb, call: Callable[[], T]) -> T:
        return self._met(self._next_fault(verb), call)

    def _met(self, fault: Fault | None, call: Callable[[], T]) -> T:
        if fault is None:
            return call()
        if fault is Fault.AWAY:
            raise StoreUnavailable("the test makes the store unavailable")
        self._apply(fault, call)
        raise AnswerLost("the test dropped the response")

    def _apply(self, fault: Fault | None, call: Callable[[], object]) -> None:
        if fault is Fault.LATE:
            self._under_way.append(call)
        elif fault is not Fault.REQUEST_LOST:
            call()

    def _next_fault(self, verb: Verb) -> Fault | None:
        ordered = self._ordered[verb]
        return ordered.popleft() if ordered else None


class LossyStore(LossyTable, ClaimingStore):
    """Like `LossyTable`, for a store that claims in one step."""

    def __init__(self, inner: ClaimingStore) -> None:
        super().__init__(inner)
        self._claim = inner.claim

    def claim(self, request: ClaimRequest) -> list[Lease]:
        return self._raising("claim", lambda: self._claim(request))


class PlainStore(Store):
    """Hides that the inner store can claim in one step, so that the coordinator must find and swap."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.durable, self.shared, self.max_body_bytes = inner.durable, inner.shared, inner.max_body_bytes
        self.has_clock, self.charges_for_reads = inner.has_clock, inner.charges_for_reads

    def open(self) -> None:
        self.inner.open()

    def close(self) -> None:
        self.inner.close()

    def now(self) -> float:
        return self.inner.now()

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self.inner.add(leases)

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return self.inner.get(keys)

    def find(self, query: Query) -> list[Lease]:
        return self.inner.find(query)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self.inner.snapshot(pipeline, sessions, run)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self.inner.swap(swaps)

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self.inner.remove(leases)

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return self.inner.count(pipeline, run)

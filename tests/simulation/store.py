"""A node's connection to the simulated store.

The server applies each request at one moment of virtual time. A client belongs to one process of one node; what it
sends may be lost, late or doubled, as its answer may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from holdfast.errors import AnswerLost, HoldfastError, StoreUnavailable
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Snapshot, Store, Swap
from tests.simulation.host import Host
from tests.simulation.store_server import StoreServer

T = TypeVar("T")
Input = TypeVar("Input")
READS_ARE_SAFER = 0.2
"""Reads make up most calls and matter less: they are in trouble this much less often than writes."""


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
        host.risk()
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


class ProductStoreClient(StoreClient):
    """A node's connection on which a store of the product works: only the line and the server are simulated.

    Every request is a moment of its own, so that others come between the requests of one batch.
    """

    has_clock = False
    _store: Store

    def get(self, keys: Sequence[Key]) -> list[Lease | None]:
        return self._store.get(keys)

    def find(self, query: Query) -> list[Lease]:
        return self._store.find(query)

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        return self._store.snapshot(pipeline, sessions, run)

    def count(self, pipeline: str, run: str = "") -> Mapping[Status, int]:
        return self._store.count(pipeline, run)

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._store.add(leases)

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._store.swap(swaps)

    def remove(self, leases: Sequence[Lease]) -> list[Outcome]:
        return self._store.remove(leases)

    def _rows(self) -> list[Lease]:
        return [row for table in self._server.memory._tables.values() for row in table.rows.values()]


def one_after_the_other(do: Callable[[Input], T], inputs: Iterable[Input]) -> list[T]:
    """`do` of each; as with threads, an error of one does not keep the others from being sent."""
    results, errors = list[T](), list[HoldfastError]()
    for each in inputs:
        try:
            results.append(do(each))
        except HoldfastError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


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
        owned, commit = answer.ownership, answer.commit
        pending = " pending" if commit.receipts is not None else ""
        return (
            f"{answer.key} {owned.status} of {owned.owner} token {owned.token} version {owned.version}"
            f" sequence {commit.sequence}{pending} position {answer.progress.position}"
        )
    return answer.name if isinstance(answer, Outcome) else str(answer)

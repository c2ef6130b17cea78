"""Stores that are wrong on purpose: the suite must find each of them out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.leases.columns import OutlineRow
from holdfast.leases.lease import UNFINISHED, Key, Lease
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Snapshot, Store, Swap
from holdfast.stores.memory import MemoryStore
from holdfast.testing.stores import StoreBehaviour, StoreMachine
from holdfast.testing.worlds import TurnableClock


class Suite(StoreBehaviour):
    """The behaviour of one store, run by hand."""

    def __init__(self, make: Callable[[Callable[[], float]], MemoryStore]) -> None:
        self.clock = TurnableClock(1_763_220_000.0)
        self.table = make(self.clock.monotonic)
        self.setup_method()

    def make_store(self) -> Store:
        return self.table

    def pass_time(self, seconds: float) -> None:
        self.clock.turn(seconds)

    def corrupt(self, store: Store, key: Key) -> None:
        self.corrupt_bytes(store, key, b"{not json")

    def corrupt_bytes(self, store: Store, key: Key, body: bytes) -> None:
        table = self.table._tables[key.pipeline, key.run]
        table.put(replace(table.rows[key.key], unreadable=body.decode("utf-8", "surrogateescape")))


class ClientClock(MemoryStore):
    """`now()` is the clock of this process."""

    def now(self) -> float:
        return time.time()


class ClientDate(MemoryStore):
    def now(self) -> float:
        return datetime.now(UTC).timestamp()


class WholeSeconds(MemoryStore):
    """`now()` has no fractions."""

    def now(self) -> float:
        return float(int(super().now()))


class CutShort(MemoryStore):
    """Times are kept in milliseconds."""

    def add(self, leases: Sequence[Lease]) -> list[Outcome]:
        return super().add([_cut(lease) for lease in leases])


def _cut(lease: Lease) -> Lease:
    due_at = lease.ownership.due_at
    return replace(
        lease, ownership=replace(lease.ownership, due_at=None if due_at is None else int(due_at * 1000) / 1000)
    )


class Torn(MemoryStore):
    """Sessions and leases of two moments, said to be of one."""

    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        nodes = super().snapshot(pipeline, sessions, run).sessions
        time.sleep(0.001)
        return Snapshot(nodes, super().snapshot(pipeline, sessions, run).leases, consistent=True)


class Shuffled(MemoryStore):
    """Rows in no order of their own where the query does not name one status of one run."""

    def find(self, query: Query) -> list[Lease]:
        if query.run is not None and (query.statuses or not query.due):
            return super().find(query)
        return super().find(replace(query, limit=None))[::-1][: query.limit]


class ShuffledSnapshot(MemoryStore):
    def snapshot(self, pipeline: str, sessions: str, run: str = "") -> Snapshot:
        seen = super().snapshot(pipeline, sessions, run)
        return Snapshot(seen.sessions[::-1], seen.leases[::-1], seen.consistent)


class ShuffledOutline(MemoryStore):
    """Outlines in order of run, as a table has them whose primary key begins with the run."""

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        return sorted(super().outline(pipeline, run), key=lambda row: (row.run, row.key))


class StaleOutline(MemoryStore):
    """Outlines are read once and kept."""

    kept: list[OutlineRow] | None = None

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        self.kept = self.kept or super().outline(pipeline, run)
        return self.kept


class CuratedOutline(MemoryStore):
    """Rows that cannot be decoded are left out, as if they did not exist."""

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        readable = {row.key for row in self.find(Query(pipeline, run)) if row.unreadable is None}
        return [row for row in super().outline(pipeline, run) if row.key in readable]


class UnfinishedOutline(MemoryStore):
    """Only what an index of unfinished rows holds."""

    def outline(self, pipeline: str, run: str | None = "") -> list[OutlineRow]:
        return [row for row in super().outline(pipeline, run) if row.status in UNFINISHED]


class LosesBytes(MemoryStore):
    """What is not UTF-8 is replaced when the row is written back."""

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return super().swap([replace(swap, lease=_replaced(swap.lease)) for swap in swaps])


def _replaced(lease: Lease) -> Lease:
    if lease.unreadable is None:
        return lease
    return replace(lease, unreadable=lease.unreadable.encode("utf-8", "replace").decode())


BROKEN: list[tuple[type[MemoryStore], Callable[[Suite], None]]] = [
    (ClientClock, Suite.test_time_is_that_of_the_server_and_not_of_this_process),
    (ClientDate, Suite.test_time_is_that_of_the_server_and_not_of_this_process),
    (WholeSeconds, Suite.test_now_tells_fractions_of_a_second),
    (CutShort, Suite.test_due_times_are_kept_to_the_microsecond),
    (Torn, Suite.test_a_snapshot_that_says_so_is_of_one_moment),
    (Shuffled, Suite.test_due_rows_of_any_status_come_in_order_of_claim_finished_ones_last),
    (Shuffled, Suite.test_rows_of_all_runs_come_by_key_and_then_by_run),
    (ShuffledSnapshot, Suite.test_snapshots_come_by_key_and_then_by_run),
    (ShuffledOutline, Suite.test_outlines_are_of_one_run_or_of_all_by_key_and_then_by_run),
    (StaleOutline, Suite.test_outlines_follow_every_change),
    (CuratedOutline, Suite.test_a_row_that_cannot_be_decoded_is_in_the_outline),
    (UnfinishedOutline, Suite.test_an_outline_has_the_columns_of_every_row),
    (LosesBytes, Suite.test_a_body_that_is_not_utf8_is_failed_and_kept_byte_by_byte),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda part: part.__name__)
def test_a_broken_store_fails_the_check_that_a_right_one_passes(
    broken: type[MemoryStore], check: Callable[[Suite], None]
) -> None:
    check(Suite(MemoryStore))
    with pytest.raises(AssertionError):
        check(Suite(broken))


class Nameless(StoreBehaviour):
    """Says nothing of its store."""


class NamelessMachine(StoreMachine):
    pass


class TimelessMachine(StoreMachine):
    def make_store(self) -> Store:
        return MemoryStore()


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: Nameless().make_store(), r"Nameless must define make_store\(\): it returns"),
        (NamelessMachine, r"NamelessMachine must define make_store\(\)"),
        (lambda: TimelessMachine().pass_time(1.0), r"TimelessMachine must define pass_time\(seconds\)"),
    ],
)
def test_what_a_subclass_does_not_define_is_told_in_words(use: Callable[[], object], words: str) -> None:
    with pytest.raises(NotImplementedError, match=words):
        use()

"""The behaviour that every store must show. Subclass both classes to test your own.

    class TestMyStore(StoreBehaviour):
        def make_store(self) -> Store:
            return MyStore(...)          # a new handle on one table; the table is empty when a test begins

    class MyMachine(StoreMachine):
        def make_store(self) -> Store: ...
        def pass_time(self, seconds: float) -> None: ...

    TestMyStoreAgainstTheModel = MyMachine.TestCase

`StoreSetting` lists what else may be defined: how to set the store's clock, how to corrupt a row, how to make a handle
in another process. `docs/how-to/write-a-store.md` leads through all of it.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from types import ModuleType
from typing import Any

import pytest

from holdfast.leases import store as stores
from holdfast.leases.action import Action, ActionOutcome, Request, Verdict
from holdfast.leases.audit_log import AuditLog
from holdfast.leases.columns import OutlineRow, columns, outline_of
from holdfast.leases.lease import Key, Status
from holdfast.leases.query import Query
from holdfast.leases.store import ClaimingStore, ClaimRequest, Outcome, Store, Swap
from holdfast.testing.rows import ODD_TEXTS, PIPELINE, assigned_row, make_row, touched
from holdfast.testing.store_claims import ClaimBehaviour
from holdfast.testing.store_machine import StoreMachine
from holdfast.testing.store_policies import PolicyBehaviour
from holdfast.testing.store_rows import RowBehaviour
from holdfast.testing.store_setting import StoreSetting

__all__ = ["StoreBehaviour", "StoreMachine", "StoreSetting"]
HOUR, DAY = 3600.0, 86400.0
ANA = Request("ana", "web", "10.0.0.7", "a bad object")
RELEASE = Action("partitions release", "events", ["a", "b"])
DONE = ActionOutcome(Verdict.DONE, "2 partitions were released", done=2)


class OutlineBehaviour(StoreSetting):
    """An outline has the columns of every row, as `find` returns them."""

    def test_an_outline_has_the_columns_of_every_row(self) -> None:
        due_at = self.store.now() + 5.123456
        numbers = {"token": 1 << 40, "version": 7, "priority": -3, "ordinal": 1 << 50}
        row = assigned_row("k", "me", run="1", group="g", due_at=due_at, **numbers)
        self.store.add([row, *(make_row(status.value, run="1", status=status) for status in Status)])
        outline = {each.key: each for each in self.store.outline(PIPELINE, "1")}
        wanted = OutlineRow("k", "1", "ASSIGNED", "me", 7)
        assert outline.pop("k") == wanted
        assert [each.status for each in outline.values()] == sorted(Status)

    def test_outlines_are_of_one_run_or_of_all_by_key_and_then_by_run(self) -> None:
        self.store.add([make_row(key, run=run) for run in ("2", "", "1") for key in ("b", "a")])
        self.store.add([make_row("x", pipeline="other")])
        assert self._keys(self.store.outline(PIPELINE)) == [("a", ""), ("b", "")]
        assert self._keys(self.store.outline(PIPELINE, "2")) == [("a", "2"), ("b", "2")]
        every = [(key, run) for key in ("a", "b") for run in ("", "1", "2")]
        assert self._keys(self.store.outline(PIPELINE, None)) == every
        assert self.store.outline("none") == self.store.outline(PIPELINE, "3") == []

    def test_outlines_of_odd_keys_come_byte_by_byte(self) -> None:
        self.store.add([assigned_row(key, key[:60]) for key in ODD_TEXTS])
        outline = self.store.outline(PIPELINE)
        assert [each.key for each in outline] == sorted(ODD_TEXTS, key=lambda key: key.encode())
        assert [each.owner for each in outline] == [each.key[:60] for each in outline]

    def test_outlines_follow_every_change(self) -> None:
        row, store = make_row("a"), self.store
        store.add([row, make_row("b")])
        changed = touched(row, status=Status.ASSIGNED, owner="me", due_at=None)
        assert store.swap([Swap(0, changed)]) == [Outcome.OK]
        assert self.another_store().outline(PIPELINE)[0] == outline_of(columns(changed))
        if isinstance(store, ClaimingStore):
            (taken,) = store.claim(ClaimRequest(PIPELINE, "you", "w"))
            assert store.outline(PIPELINE)[1] == outline_of(columns(taken))
        store.remove([changed])
        assert [each.key for each in store.outline(PIPELINE)] == ["b"]

    def test_a_row_that_cannot_be_decoded_is_in_the_outline(self) -> None:
        row = make_row("bad", group="g", version=3, due_at=0.0)
        self.store.add([make_row("a"), row])
        self.corrupt(self.store, Key(PIPELINE, "", "bad"))
        assert self.another_store().outline(PIPELINE)[1:] == [outline_of(columns(row))]

    def test_the_outline_of_a_store_that_reads_whole_rows_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stores, "OUTLINE_PAGE", 2)
        runs = ("", "1", "2", "3", "4")
        self.store.add([make_row(key, run=run) for run in runs for key in "abcde"])
        for run in (None, "", "3", "5"):
            assert Store.outline(self.store, PIPELINE, run) == self.store.outline(PIPELINE, run)

    def test_pages_of_one_status_go_on_after_the_last_key(self) -> None:
        statuses = (Status.FAILED, Status.UNASSIGNED)
        self.store.add([make_row(f"k{number}", status=statuses[number % 2]) for number in range(9)])
        query, pages = Query(PIPELINE, statuses=(Status.FAILED,), limit=2), list[list[str]]()
        while page := self.store.find(query):
            pages.append([row.key for row in page])
            query = replace(query, after_key=page[-1].key)
        assert pages == [["k0", "k2"], ["k4", "k6"], ["k8"]]

    def _keys(self, outline: list[OutlineRow]) -> list[tuple[str, str]]:
        return [(row.key, row.run) for row in outline]


class ClockBehaviour(StoreSetting):
    """Times are the store's own and are never cut short."""

    def test_time_is_that_of_the_server_and_not_of_this_process(self) -> None:
        before = self.store.now()
        with wall_clock_turned(self.store, DAY):
            moments = [self.store.now(), self.another_store().now()]
        assert all(abs(moment - before) < HOUR for moment in moments), (
            "now() follows the clock of this process; it must be the server's, which all nodes share"
        )

    def test_now_tells_fractions_of_a_second(self) -> None:
        moments = [self.store.now()]
        for _ in range(4):
            self.pass_time(self.tick)
            moments.append(self.store.now())
        steps = [later - earlier for earlier, later in pairwise(moments)]
        assert min(steps) >= 0.9 * self.tick, f"now() went on by {steps} while {self.tick} s passed each time"

    def test_due_times_are_kept_to_the_microsecond(self) -> None:
        second = float(int(self.store.now())) - 10.0
        due_at = {"c": second + 1e-6, "b": second + 2e-6, "a": second + 3e-6}
        self.store.add([make_row(key, status=Status.CLOSED, due_at=moment) for key, moment in due_at.items()])
        found = self.store.find(Query(PIPELINE, statuses=(Status.CLOSED,), due=True))
        assert [(row.key, row.ownership.due_at) for row in found] == list(due_at.items())


@contextmanager
def wall_clock_turned(store: Store, seconds: float) -> Iterator[None]:
    """Shift the clock of this process for the modules of the store's package.

    Drivers keep the real clock: a request that is signed with a wrong time would be refused.
    """
    package = type(store).__module__.partition(".")[0]
    fakes = _turned_clocks(seconds)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package and name != __name__:
                for attribute, value in list(vars(module).items()):
                    if id(value) in fakes:
                        patch.setattr(module, attribute, fakes[id(value)])
        yield


def _turned_clocks(seconds: float) -> dict[int, Any]:
    """Shifted replacements of the functions and modules that return the wall clock, by the id of the original."""
    by = dt.timedelta(seconds=seconds)

    class TurnedDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return dt.datetime.now(tz) + by

        @classmethod
        def utcnow(cls) -> Any:
            return dt.datetime.now(dt.UTC).replace(tzinfo=None) + by

    turned = {"time": lambda: time.time() + seconds, "time_ns": lambda: time.time_ns() + int(seconds * 1e9)}
    return {
        id(time): _module_like(time, turned),
        id(dt): _module_like(dt, {"datetime": TurnedDatetime}),
        id(time.time): turned["time"],
        id(time.time_ns): turned["time_ns"],
        id(dt.datetime): TurnedDatetime,
    }


def _module_like(module: ModuleType, changes: dict[str, Any]) -> ModuleType:
    made = ModuleType(module.__name__)
    vars(made).update({**vars(module), **changes})
    return made


class AuditBehaviour(StoreSetting):
    """Actions of people are kept, in order, once for each request, and within bounds."""

    _numbers: Iterator[int]

    def setup_method(self) -> None:
        super().setup_method()
        self._numbers = count(100_000, -1)

    def test_an_action_is_kept_before_and_after_it_was_done(self) -> None:
        log = self._log()
        entry = log.begin(replace(ANA, reason=" ".join(ODD_TEXTS)), RELEASE)
        (begun,) = AuditLog(self.another_store(), str, "f|$nodes").list()
        assert (begun.id, begun.outcome.verdict) == (entry.id, Verdict.UNKNOWN)
        log.end(entry, DONE)
        shown = AuditLog(self.another_store(), str, "f|$nodes").show(entry.id)
        assert (shown.fields, shown.outcome.verdict, shown.outcome.done) == (entry.fields, Verdict.DONE, 2)

    def test_the_newest_action_comes_first_page_by_page_and_logins_among_them(self) -> None:
        log = self._log()
        made = [part.begin(ANA, RELEASE).id for part in (log, log.logins, log, log, log.logins)]
        assert [entry.id for entry in log.list()] == made[::-1]
        first = log.list(limit=2)
        assert [entry.id for entry in [*first, *log.list(after=first[-1].id)]] == made[::-1]
        assert max(float(entry.fields["at"]) for entry in first) <= self.store.now() + self.tick

    def test_a_request_that_is_repeated_by_another_process_is_not_carried_out(self) -> None:
        once = replace(ANA, idempotency_key="k1")
        first = self._log().begin(once, RELEASE)
        self._log().end(first, DONE)
        repeated = AuditLog(self.another_store(), lambda: uuid.uuid4().hex, "f|$nodes").begin(once, RELEASE)
        assert (first.repeated, repeated.repeated, repeated.id, repeated.outcome.done) == (False, True, first.id, 2)
        assert not self._log().begin(replace(once, who="ben"), RELEASE).repeated

    def test_the_oldest_actions_are_removed_and_logins_push_none_out(self) -> None:
        log = replace(self._log(), most=4)
        kept = [log.end(log.begin(ANA, RELEASE), DONE).id for _ in range(6)][-4:]
        logins = replace(log.logins, most=3)
        for _ in range(9):
            logins.end(logins.begin(ANA, Action("log in")), DONE)
        ids = {entry.id for entry in log.list()}
        assert set(kept) <= ids
        assert len(ids) == len(kept) + 3

    def test_what_is_too_old_is_removed_with_its_request(self) -> None:
        log, once = self._log(), replace(ANA, idempotency_key="k1")
        log.end(log.begin(once, RELEASE), DONE)
        assert len(log.list()) == 1
        self.pass_time(self.tick)
        replace(log, kept_seconds=0.0).purge()
        assert log.list() == []
        assert not log.begin(once, RELEASE).repeated

    def _log(self) -> AuditLog:
        # Ids become smaller, as keys do: the clock of a store may stand still during a test.
        return AuditLog(self.store, lambda: f"{next(self._numbers):06d}-{uuid.uuid4().hex}", "f|$nodes")


class StoreBehaviour(RowBehaviour, OutlineBehaviour, ClockBehaviour, ClaimBehaviour, PolicyBehaviour, AuditBehaviour):
    """The guarantees of a store, and the behaviour of the policies above it."""

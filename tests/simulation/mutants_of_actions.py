"""Mutants of audited actions, and of runs that people leave to nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.leases.action import Action, Entry, Request
from holdfast.leases.audit_log import AuditLog
from holdfast.leases.lease import Lease
from holdfast.runs.audited import Auditor, Report
from holdfast.runs.lock import RunLock
from tests.simulation.mutation import Put, mutant


@mutant("detached")
def a_repeated_request_is_done_a_second_time(put: Put) -> None:
    original = AuditLog.begin

    def begin(self: AuditLog, request: Request, action: Action) -> Entry:
        entry = original(self, request, action)
        return Entry(entry.id, entry.fields, entry.outcome)

    put(AuditLog, "begin", begin)


@mutant("detached")
def an_action_is_done_before_it_is_audited(put: Put) -> None:
    def perform(self: Auditor, action: Action, act: Callable[[], Any], outcome_of: Callable[[Any], Any]) -> Report[Any]:
        result = act()
        entry = self.log.begin(self.request, action)
        return Report(self.log.end(entry, outcome_of(result)), (result,))

    put(Auditor, "perform", perform)


@mutant("detached")
def whoever_finds_an_entry_takes_it_for_its_own(put: Put) -> None:
    original = AuditLog._ensure

    def ensure(self: AuditLog, row: Lease) -> tuple[Lease, bool]:
        return original(self, row)[0], True

    put(AuditLog, "_ensure", ensure)


@mutant("detached")
def each_request_has_an_entry_of_its_own(put: Put) -> None:
    def once(self: AuditLog, request: Request, _key: str, action: Action) -> Entry:
        return self._add(self._new_key(), request, action)

    put(AuditLog, "_once", once)


@mutant("detached")
def a_run_that_was_left_to_nodes_is_driven_by_all_of_them(put: Put) -> None:
    put(RunLock, "acquire", lambda self, run_id, names=(), *, instead=False: 1)

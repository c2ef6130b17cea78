"""Audited actions: an entry in the audit log, then the action, then its outcome. Without an entry nothing is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    NotCreatedYet,
    PartitionNotFound,
    Refused,
    RowTooLarge,
    TransitionRefused,
    UsageError,
)
from holdfast.leases.action import Action, ActionOutcome, Entry, Request, Verdict
from holdfast.leases.audit_log import AuditLog

T = TypeVar("T")

NOTHING_DONE = (ConfigError, UsageError, Refused, TransitionRefused, PartitionNotFound, RowTooLarge, NotCreatedYet)
"""Errors that are raised before anything is changed."""


@dataclass(frozen=True)
class Report(Generic[T]):
    """What became of an action."""

    entry: Entry
    """Its entry in the audit log, with the outcome."""
    results: tuple[T, ...]
    """What the action returned; empty if the request was repeated, and an earlier one has acted."""

    @property
    def outcome(self) -> ActionOutcome:
        return self.entry.outcome

    @property
    def result(self) -> T:
        """What the action returned.

        Raises `UsageError` if an earlier request with the same idempotency key has acted.
        """
        for result in self.results:
            return result
        raise UsageError(
            f"the outcome of the first request with this idempotency key is "
            f"{self.outcome.verdict.value}: {self.outcome.message}"
        )


def _done(_result: object) -> ActionOutcome:
    return ActionOutcome(Verdict.DONE, "")


@dataclass(frozen=True)
class Auditor:
    """Performs the actions of one request, each with its entry in the audit log."""

    log: AuditLog
    request: Request

    def perform(
        self,
        action: Action,
        act: Callable[[], T],
        outcome_of: Callable[[T], ActionOutcome] = _done,
        *,
        nothing_done: tuple[type[Exception], ...] = NOTHING_DONE,
    ) -> Report[T]:
        """Perform the action, unless a request with the same idempotency key has done so. Raises what `act` raises.

        Raises `NotAudited` if the entry cannot be written; nothing was done then. The outcome is `refused` for errors
        of `nothing_done`, and unknown for all others.
        """
        entry = self.log.begin(self.request, action)
        if entry.repeated:
            return Report(entry, ())
        try:
            result = act()
            outcome = outcome_of(result)
        except (Exception, KeyboardInterrupt) as error:
            self.log.end(entry, _outcome_of_error(error, nothing_done))
            raise
        return Report(self.log.end(entry, outcome), (result,))


def _outcome_of_error(error: BaseException, nothing_done: tuple[type[Exception], ...]) -> ActionOutcome:
    verdict = Verdict.REFUSED if isinstance(error, nothing_done) else Verdict.UNKNOWN
    message = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return ActionOutcome(verdict, message, error=type(error).__name__)

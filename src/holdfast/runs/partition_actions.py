"""Actions of a person on the partitions of a pipeline: by their keys, or on all that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

from holdfast.assemble import StoredPipeline
from holdfast.errors import HoldfastError, PartitionError, SelectionChanged, TransitionRefused, UsageError
from holdfast.leases.action import MOST_KEYS, Action, ActionOutcome, Verdict
from holdfast.leases.lease import Json, Lease, Status
from holdfast.leases.operator import Operator
from holdfast.runs.audited import Auditor, Report

PURGE_CHUNK = 500
REFUSALS = (TransitionRefused, PartitionError)
"""Errors that are about one partition; after any other, the rest is not tried."""
REOPENABLE = (Status.FAILED, Status.CLOSED, Status.COMPLETED)


@dataclass(frozen=True)
class Selection:
    """Partitions with these keys, or all that match; `expect` is the number that a person has seen."""

    keys: Sequence[str] = ()
    statuses: tuple[Status, ...] = ()
    owner: str | None = None
    """The session that owns them."""
    group: str | None = None
    prefix: str = ""
    """What their keys begin with."""
    run: str = ""
    """Partitions of this run, instead of those of the live pipeline."""
    expect: int | None = None
    token: int | None = None
    """The token that the person has seen; for a single key."""

    @property
    def by_filter(self) -> bool:
        return bool(self.statuses or self.owner is not None or self.group is not None or self.prefix)

    def check(self, row: Lease) -> None:
        """Raise `TransitionRefused` if the row does not match the filter, or was taken since the person looked."""
        if self.token not in {None, row.token}:
            raise TransitionRefused(
                f"{row.key!r} is {row.status} of {row.owner} with token {row.token}, not {self.token}: it was taken "
                "since you looked; look at it and repeat it"
            )
        if not self.matches(row):
            raise TransitionRefused(f"{row.key!r} is {row.status} of {row.owner}, and no longer matches")

    def matches(self, row: Lease) -> bool:
        """Whether the row matches the filter."""
        return (
            (not self.statuses or row.status in self.statuses)
            and self.owner in {None, row.owner}
            and self.group in {None, row.group}
            and row.key.startswith(self.prefix)
        )

    def parameters(self) -> dict[str, Json]:
        """What was given, without the keys."""
        given = {**asdict(self), "statuses": [status.value for status in self.statuses]}
        return {name: value for name, value in given.items() if name != "keys" and value not in (None, "", [])}


@dataclass
class Changes:
    """What was changed so far, and what could not be."""

    each: Callable[[Lease], object]
    done: int = 0
    errors: list[HoldfastError] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if not self.errors:
            return Verdict.DONE
        if not isinstance(self.errors[-1], REFUSALS):
            return Verdict.UNKNOWN
        return Verdict.PARTLY if self.done else Verdict.REFUSED

    def outcome(self, word: str) -> ActionOutcome:
        problems = [str(error) for error in self.errors]
        kinds = {type(error).__name__ for error in self.errors}
        message = f"{_number(self.done)} {word}" + (f", {len(problems)} could not be" if problems else "")
        return ActionOutcome(self.verdict, message, self.done, problems, error=kinds.pop() if len(kinds) == 1 else None)


@dataclass(frozen=True)
class PartitionActions:
    """Actions on the partitions of one pipeline.

    A partition that cannot be changed is listed as a problem in the outcome, and the others are changed; with `halt`,
    those after it are left as they are. `each` is called with every row that was changed.
    """

    pipeline: StoredPipeline
    auditor: Auditor
    each: Callable[[Lease], object] = lambda _row: None
    halt: bool = False

    def release(self, chosen: Selection) -> Report[Changes]:
        """Take partitions away from their owners. Late writes of the owners are refused."""
        return self._change("release", chosen, lambda operator, key: operator.release(key), "released")

    def reopen(self, chosen: Selection) -> Report[Changes]:
        """Let FAILED, CLOSED or COMPLETED partitions be claimed again, each from its position."""
        return self._change("reopen", chosen, lambda operator, key: operator.reopen(key), "reopened")

    def fail(self, chosen: Selection, reason: str) -> Report[Changes]:
        """Stop work on partitions until they are reopened."""
        return self._change("fail", chosen, lambda operator, key: operator.fail(key, reason), "failed", reason=reason)

    def purge(self, older_than: float, expect: int | None = None) -> Report[Changes]:
        """Reduce partitions that were completed at least that many seconds ago to their keys and tokens."""
        operator = self.pipeline.operator()
        given = {"older_than": older_than}
        return self._shrink("purge", given, lambda: operator.purgeable(older_than), operator.purge, "purged", expect)

    def forget(self, expect: int | None = None) -> Report[Changes]:
        """Delete the rows of partitions that were purged at least a day ago."""
        operator = self.pipeline.operator()
        return self._shrink("forget", {}, operator.forgettable, operator.forget, "forgotten", expect)

    def matching(self, chosen: Selection) -> list[str]:
        """The keys of the partitions that are chosen. Raises `UsageError` if neither keys nor a filter are given."""
        if bool(chosen.keys) == chosen.by_filter:
            raise UsageError("give the keys of partitions, or a filter, and not both")
        if chosen.token is not None and len(chosen.keys) != 1:
            raise UsageError("a token belongs to a single key")
        if chosen.keys:
            return list(dict.fromkeys(chosen.keys))
        rows = self.pipeline.operator(chosen.run).rows(chosen.statuses)
        return [row.key for row in rows if chosen.matches(row)]

    def _change(
        self, name: str, chosen: Selection, change: Callable[[Operator, str], Lease], word: str, **given: Json
    ) -> Report[Changes]:
        keys = self.matching(chosen)
        action = Action(
            f"partitions {name}",
            self.pipeline.name,
            keys[:MOST_KEYS],
            len(keys),
            {**chosen.parameters(), **given},
            named=list(chosen.keys),
        )
        operator = replace(self.pipeline.operator(chosen.run), check=chosen.check, by=self.auditor.request.who)

        def act() -> Changes:
            _check_number(len(keys), chosen.expect)
            return self._each(keys, lambda key: change(operator, key))

        return self.auditor.perform(action, act, lambda changes: changes.outcome(word))

    def _each(self, keys: Sequence[str], change: Callable[[str], Lease]) -> Changes:
        changes = Changes(self.each)
        for key in keys:
            try:
                row = change(key)
            except HoldfastError as error:
                changes.errors.append(error)
                if self.halt or not isinstance(error, REFUSALS):
                    break
            else:
                changes.done += 1
                changes.each(row)
        return changes

    def _shrink(
        self,
        name: str,
        given: dict[str, Json],
        find: Callable[[], Iterator[Lease]],
        change: Callable[[list[Lease]], int],
        word: str,
        expect: int | None,
    ) -> Report[Changes]:
        number = sum(1 for _ in find())
        action = Action(f"partitions {name}", self.pipeline.name, number=number, parameters={**given, "expect": expect})

        def act() -> Changes:
            _check_number(number, expect)
            # Rows that match only since they were counted are left for the next time.
            changes, rows = Changes(self.each), islice(find(), number)
            while chunk := list(islice(rows, PURGE_CHUNK)):
                changes.done += change(chunk)
            return changes

        return self.auditor.perform(action, act, lambda changes: changes.outcome(word))


def _check_number(found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise SelectionChanged(found, expected)


def _number(count: int) -> str:
    return f"{count} partition" if count == 1 else f"{count} partitions"

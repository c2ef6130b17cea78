"""Mutants of the DynamoDB store, over a table whose index is behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import AnswerLost
from holdfast.leases.lease import Lease
from holdfast.leases.store import Outcome
from holdfast.stores.dynamodb import store
from holdfast.stores.dynamodb.client import ConditionFailed
from holdfast.stores.dynamodb.store import DynamodbStore
from tests.simulation.mutation import Put, mutant


@mutant("index")
def a_row_of_another_version_counts_as_written(put: Put) -> None:
    def outcome(write: Callable[[int], None], index: int) -> Outcome:
        try:
            write(index)
        except ConditionFailed:
            return Outcome.OK
        except AnswerLost:
            return Outcome.UNKNOWN
        return Outcome.OK

    put(store, "_outcome", outcome)


@mutant("index", start=159)
def a_row_that_was_not_sent_counts_as_written(put: Put) -> None:
    write_each = DynamodbStore._write_each

    def hopeful(self: DynamodbStore, leases: Sequence[Lease], write: Callable[[int], Any]) -> list[Outcome]:
        outcomes = write_each(self, leases, write)
        return [Outcome.OK if outcome is Outcome.UNKNOWN else outcome for outcome in outcomes]

    put(DynamodbStore, "_write_each", hopeful)

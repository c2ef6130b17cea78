"""Mutants of the source `kafka`: what is lost, kept back or replaced in a log must be reported, never skipped.

Tests of the source kill them: the logs of the simulator keep every record, have one leader, and their topics stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from holdfast.flow.batch import Batch, Limits, Plan, Wait
from holdfast.leases import transitions
from holdfast.sources.kafka import planning
from holdfast.sources.kafka.cluster import LogEnd
from holdfast.sources.kafka.logs import LeaderEpochs
from holdfast.sources.kafka.planning import Look, Planner
from holdfast.sources.kafka.source import KafkaSource
from holdfast.spark import engine as engines
from tests.simulation.mutation import Put, mutant_of_test

SOURCE = "tests/unit/sources/test_kafka.py::"
ENGINE = "tests/unit/spark/test_engine_failures.py::"
LOGS_STAY = "nothing is ever deleted from the logs of the simulator, and they are never led by another broker"
NO_SPARK = "the simulator has an engine of its own in place of Spark's"


@mutant_of_test(
    killed_by=f"{SOURCE}test_records_behind_a_pinned_start_that_were_deleted_before_the_first_batch_are_lost",
    because=LOGS_STAY,
)
def what_is_deleted_behind_a_pinned_start_is_skipped(put: Put) -> None:
    original = Planner._live

    def live(self: Planner, look: Look, position: int, log: LogEnd, limits: Limits) -> Plan:
        first = self.logs.firsts[look.topic_partition]
        return original(self, look, position if look.lease.progress.position else max(position, first), log, limits)

    put(Planner, "_live", live)


@mutant_of_test(
    killed_by=f"{SOURCE}test_lag_counts_what_lies_behind_an_open_transaction",
    because="lag is for people, and no oracle reads it",
)
def lag_ends_at_the_last_stable_offset(put: Put) -> None:
    original = Planner._live

    def live(self: Planner, look: Look, position: int, log: LogEnd, limits: Limits) -> Plan:
        return original(self, look, position, LogEnd(log.stable, log.stable, log.epoch), limits)

    put(Planner, "_live", live)


@mutant_of_test(
    killed_by=f"{SOURCE}test_lag_in_seconds_does_not_follow_a_wrong_wall_clock",
    because="lag is for people, and no oracle reads it",
)
def a_source_goes_by_the_hosts_clock(put: Put) -> None:
    put(KafkaSource, "use_clock", lambda self, now: None)


@mutant_of_test(killed_by=f"{SOURCE}test_unread_records_of_a_topic_that_is_deleted_are_lost", because=LOGS_STAY)
def a_topic_that_is_deleted_is_waited_for(put: Put) -> None:
    put(Planner, "_without_topic", lambda self, look, limits: Wait(5.0))


@mutant_of_test(
    killed_by=f"{SOURCE}test_a_node_that_never_saw_the_topic_knows_of_its_end_by_the_last_commit", because=LOGS_STAY
)
def only_what_this_node_saw_can_be_lost(put: Put) -> None:
    put(Planner, "_seen_end", lambda self, look: self.tracking.seen_end(look.topic_partition))


@mutant_of_test(
    killed_by=f"{SOURCE}test_new_partitions_of_a_topic_that_was_created_anew_are_not_mixed_with_the_old_ones",
    because=LOGS_STAY,
)
def partitions_of_another_topic_of_the_name_are_found(put: Put) -> None:
    put(KafkaSource, "_is_first_incarnation", lambda self, topic, ids: True)


@mutant_of_test(
    killed_by=f"{SOURCE}test_a_log_that_was_truncated_and_filled_again_halts_its_partition", because=LOGS_STAY
)
def nobody_asks_for_the_leaders_epoch(put: Put) -> None:
    put(LeaderEpochs, "doubts", lambda self, read: {})


@mutant_of_test(killed_by=f"{SOURCE}test_a_leader_that_was_deposed_is_not_believed", because=LOGS_STAY)
def an_earlier_epoch_is_as_good_as_the_known_one(put: Put) -> None:
    original = LeaderEpochs.doubts

    def doubts(self: LeaderEpochs, read: Any) -> Any:
        return original(self, {tp: at for tp, at in read.items() if (at.current_epoch or 0) >= (at.epoch or 0)})

    put(LeaderEpochs, "doubts", doubts)


@mutant_of_test(
    killed_by=f"{SOURCE}test_a_commit_keeps_the_epoch_and_the_end_of_the_log_that_it_was_planned_by", because=LOGS_STAY
)
def a_commit_does_not_say_which_log_it_was_planned_by(put: Put) -> None:
    put(planning, "_state_at", lambda look: None)


@mutant_of_test(
    killed_by="tests/unit/audit/test_verify.py"
    "::test_a_partition_that_is_halted_because_its_source_lost_records_is_doubted",
    because=LOGS_STAY,
)
def a_row_does_not_keep_what_was_lost(put: Put) -> None:
    original = transitions.halt
    put(transitions, "halt", lambda lease, reason, now, lost=None: original(lease, reason, now))


@mutant_of_test(killed_by=f"{ENGINE}test_a_time_out_of_the_source_inside_a_task_counts_no_attempt", because=NO_SPARK)
def a_time_out_of_the_source_counts_an_attempt(put: Put) -> None:
    put(engines, "_after_failure", _asking(is_away=lambda error: False))


@mutant_of_test(
    killed_by=f"{ENGINE}test_what_is_gone_is_left_out_at_once_and_the_others_are_read_together", because=NO_SPARK
)
def what_is_gone_is_found_by_halves(put: Put) -> None:
    put(engines, "_after_failure", _asking(doubts=lambda batches: {}))


def _asking(**answers: Any) -> Any:
    """As `_after_failure`, with a source that answers otherwise."""
    original = engines._after_failure

    def after_failure(source: Any, batches: Sequence[Batch], error: Exception) -> Any:
        attributes = {"doubts": source.doubts, "is_away": source.is_away, **answers}
        return original(SimpleNamespace(**attributes), batches, error)  # type: ignore[arg-type]

    return after_failure

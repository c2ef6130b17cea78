"""When a batch is due: full, old enough, or struck by the clock; and never otherwise."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.flow.upload_policy import SLACK, Backlog, Due, NotYet, UploadPolicy, decide

POLICY = UploadPolicy(max_bytes=1000, max_age=60.0)


def backlog(records: int, age: float = 0.0, mean: float = 10.0, now: float = 1_000_000.0) -> Backlog:
    return Backlog(records, mean, age, now)


def test_nothing_to_read_is_never_due() -> None:
    assert decide(POLICY, backlog(0, age=1e9)) == NotYet(math.inf)


def test_enough_for_a_full_batch_is_due_at_once_with_a_little_more_than_the_mean_suggests() -> None:
    assert decide(POLICY, backlog(5000)) == Due(math.ceil(100 * SLACK))
    assert decide(POLICY, backlog(100)) == Due(100)
    assert isinstance(decide(POLICY, backlog(99)), NotYet)


def test_records_may_be_the_limit_and_are_counted_exactly() -> None:
    policy = UploadPolicy(max_bytes=1000, max_records=40, max_age=60.0)
    assert decide(policy, backlog(5000)) == Due(40)


def test_a_small_batch_is_due_when_its_oldest_record_is_old_enough() -> None:
    assert decide(POLICY, backlog(3, age=59.0)) == NotYet(1.0)
    assert decide(POLICY, backlog(3, age=60.0)) == Due(3)


def test_what_came_before_a_stroke_of_the_clock_is_due_after_it() -> None:
    aligned = UploadPolicy(max_bytes=1000, max_age=3600.0, every=300.0)
    stroke = 300.0 * 4000
    assert decide(aligned, backlog(3, age=10.0, now=stroke + 5.0)) == Due(3)
    assert decide(aligned, backlog(3, age=4.0, now=stroke + 5.0)) == NotYet(295.0)


def test_a_record_larger_than_a_batch_is_a_batch() -> None:
    assert decide(POLICY, backlog(2, mean=5000.0)) == Due(2)


def test_the_slack_does_not_lead_beyond_the_number_of_records() -> None:
    assert decide(UploadPolicy(max_bytes=21, max_records=22), backlog(100, mean=1.0)) == Due(22)


@given(
    st.integers(1, 10**9),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(1, 10**9),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_a_batch_is_never_larger_than_what_is_there_and_a_wait_is_never_over(
    records: int, mean: float, age: float, most: int, most_records: int | None
) -> None:
    policy = UploadPolicy(most, most_records, max_age=100.0)
    decision = decide(policy, Backlog(records, mean, age, 0.0))
    if isinstance(decision, Due):
        assert 1 <= decision.records <= min(records, most_records or records)
    else:
        assert 0 < decision.seconds <= 100.0

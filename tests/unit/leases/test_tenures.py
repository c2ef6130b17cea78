from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.leases import transitions
from holdfast.leases.codec import decode, encode_body, take_stored
from holdfast.leases.columns import columns
from holdfast.leases.lease import Lease, Status
from holdfast.leases.operator import Operator
from holdfast.leases.store import ClaimRequest
from holdfast.leases.tenures import MOST_TENURES, Tenure, taken_over_from, tenures_of
from holdfast.leases.transitions import RetryLimits
from holdfast.observe.insights import partition
from holdfast.observe.timeline import timeline
from holdfast.stores.memory import MemoryStore
from holdfast.testing.rows import PIPELINE, make_row

LIMITS = RetryLimits()
ENDS: list[tuple[str, Callable[[Lease], Lease]]] = [
    ("released", lambda row: transitions.release(row, 20.0)),
    ("handed_off", lambda row: transitions.hand_off(row, "b", 20.0)),
    ("closed", lambda row: transitions.close(row, 20.0, 30.0)),
    ("completed", lambda row: transitions.close(row, 20.0, 30.0, max_closed=1)),
    ("completed", lambda row: transitions.complete(row, 20.0)),
    ("attempt_failed", lambda row: transitions.fail_attempt(row, "bad", LIMITS, 20.0)),
    ("halted", lambda row: transitions.halt(row, "bad", 20.0)),
    ("set_aside", lambda row: transitions.set_aside(row, {"run": 1}, "replaced", 20.0)),
    ("died", lambda row: transitions.orphan(row, 20.0, "node a", LIMITS)),
]


def _due(row: Lease) -> Lease:
    return replace(row, ownership=replace(row.ownership, due_at=1.0))


def _taken(owner: str = "a", now: float = 10.0, row: Lease | None = None) -> Lease:
    return transitions.take(row or make_row("k", created_at=1.0), owner, now)


@pytest.mark.parametrize(("how", "end"), ENDS)
def test_the_change_that_ends_a_tenure_records_it(how: str, end: Callable[[Lease], Lease]) -> None:
    assert tenures_of(end(_taken())) == [Tenure(1, "a", 10.0, 20.0, 0, how)]


def test_a_person_who_releases_or_fails_a_partition_is_named() -> None:
    store = MemoryStore(now=lambda: 20.0)
    store.add([_taken(), _taken(row=make_row("l", created_at=1.0))])
    operator = Operator(store, lambda: "w", PIPELINE, by="ana" * 100)
    (released,), (failed,) = tenures_of(operator.release("k")), tenures_of(operator.fail("l", "bad"))
    assert (released.how, released.by, failed.how) == ("released", ("ana" * 100)[:100], "halted")
    assert failed.by == released.by


def test_what_ends_no_tenure_records_none() -> None:
    row = transitions.release(_taken(), 20.0)
    for change in (transitions.reopen, lambda row, now: transitions.halt(row, "bad", now)):
        assert tenures_of(change(row, 30.0)) == tenures_of(row)


def test_the_last_tenures_are_kept() -> None:
    row = make_row("k", created_at=1.0)
    for number in range(2 * MOST_TENURES):
        row = transitions.release(_taken(f"n{number}", 10.0 * number, row), 10.0 * number + 5.0)
    assert [tenure.token for tenure in tenures_of(row)] == list(range(MOST_TENURES + 1, 2 * MOST_TENURES + 1))


def test_an_owner_that_was_ended_and_goes_on_has_one_tenure() -> None:
    orphaned = transitions.orphan(_taken(), 20.0, "node a", LIMITS)
    assert tenures_of(transitions.release(orphaned, 30.0)) == [Tenure(1, "a", 10.0, 30.0, 0, "released")]
    taken = _taken("b", 30.0, orphaned)
    assert tenures_of(taken) == [Tenure(1, "a", 10.0, 20.0, 0, "died")]


def test_tenures_never_go_back_when_the_clock_does() -> None:
    row = transitions.release(_taken("a", 100.0), 50.0)
    row = transitions.release(_taken("b", 10.0, row), 20.0)
    assert [(tenure.since, tenure.until) for tenure in tenures_of(row)] == [(100.0, 100.0), (100.0, 100.0)]


def test_whom_it_was_taken_over_from_is_true_or_none() -> None:
    orphaned = transitions.orphan(_taken(), 20.0, "node a", LIMITS)
    assert taken_over_from(orphaned) is None, "nobody has taken it yet"
    taken = _taken("b", 30.0, orphaned)
    assert taken_over_from(taken) == partition(taken)["taken_over_from"] == "a"
    released = transitions.release(taken, 40.0)
    assert taken_over_from(released) is None
    assert taken_over_from(_taken("c", 50.0, released)) is None, "it was handed back"
    unrecorded = replace(taken, ownership=replace(taken.ownership, token=9))
    assert taken_over_from(unrecorded) is None


def test_a_stored_row_is_taken_as_a_decoded_one_is() -> None:
    row = replace(_due(_taken()), commit=replace(_taken().commit, sequence=7))
    request = ClaimRequest(PIPELINE, "b", "w")
    taken = take_stored(columns(row), encode_body(row), request, 20.0)
    assert decode(taken.row, taken.body) == taken.lease == request.take(row, 20.0)
    assert tenures_of(taken.lease) == [Tenure(1, "a", 10.0, 20.0, 7, "lapsed")]
    assert [each["how"] for each in timeline(transitions.release(_taken("c", 40.0, _due(taken.lease)), 50.0))] == [
        "lapsed",
        "lapsed",
        "released",
    ]


def test_an_owner_that_takes_what_it_held_itself_has_taken_it_from_nobody() -> None:
    taken = _taken("a", 20.0, _due(_taken("a")))
    assert tenures_of(taken) == [Tenure(1, "a", 10.0, 20.0, 0, "lapsed")]
    assert taken_over_from(taken) is None
    assert taken_over_from(_taken("b", 30.0, _due(taken))) == "a"


def test_a_death_that_is_recorded_stays_as_it_was_when_the_lease_is_taken() -> None:
    orphaned = transitions.orphan(_taken(), 20.0, "node a", LIMITS)
    request = ClaimRequest(PIPELINE, "b", "w")
    taken = take_stored(columns(orphaned), encode_body(orphaned), request, 30.0)
    assert tenures_of(taken.lease) == [Tenure(1, "a", 10.0, 20.0, 0, "died")]


@pytest.mark.parametrize("strange", [7, "x", [[]], [None], [["a"] * 7], [[1, "a", None, None, 0, "x", None]], {"a": 1}])
def test_tenures_that_are_none_disturb_nothing(strange: object) -> None:
    row = _due(_taken())
    body = json.dumps({**json.loads(encode_body(row)), "tenures": strange})
    read = decode(columns(row), body)
    assert tenures_of(read) == []
    assert json.loads(encode_body(read))["tenures"] == strange
    taken = take_stored(columns(row), body, ClaimRequest(PIPELINE, "b", "w"), 20.0)
    assert [tenure.token for tenure in tenures_of(transitions.release(taken.lease, 30.0))] == [1, 2]


def test_rows_without_tenures_are_read_and_rows_with_them_survive_a_round_trip() -> None:
    row = _taken("b", 30.0, transitions.release(_taken(), 20.0))
    body = json.loads(encode_body(row))
    assert decode(columns(row), json.dumps(body)) == row
    del body["tenures"]
    assert tenures_of(decode(columns(row), json.dumps(body))) == []


# --- as pages show it ------------------------------------------------------------------------------------------------


def test_a_timeline_has_what_ended_what_is_missing_and_what_runs() -> None:
    row = transitions.release(_taken("a", 10.0), 20.0)
    # Two owners came and went, and no row has recorded them.
    row = replace(row, ownership=replace(row.ownership, token=3))
    row = transitions.release(_taken("d", 40.0, row), 50.0, by="ana")
    shown = [
        (each["token"], each["owner"], each["since"], each["until"], each["how"], each["by"]) for each in timeline(row)
    ]
    ended = [
        (1, "a", 10.0, 20.0, "released", None),
        (3, None, 20.0, 40.0, "not_recorded", None),
        (4, "d", 40.0, 50.0, "released", "ana"),
    ]
    assert shown == ended
    assert timeline(row)[0]["from"] == "1970-01-01T00:00:10.000Z"
    running = timeline(_taken("e", 60.0, row))[-1]
    assert (running["owner"], running["since"], running["until"], running["how"]) == ("e", 60.0, None, "running")


def test_a_partition_that_nobody_has_held_has_an_empty_timeline() -> None:
    assert timeline(make_row("k")) == []


def test_an_owner_that_was_ended_runs_until_somebody_takes_the_partition() -> None:
    orphaned = transitions.orphan(_taken(), 20.0, "node a", LIMITS)
    assert [each["how"] for each in timeline(orphaned)] == ["running"]
    assert [each["how"] for each in timeline(_taken("b", 30.0, orphaned))] == ["died", "running"]


def test_the_token_of_setting_aside_is_not_a_gap() -> None:
    row = transitions.set_aside(_taken(), {"run": 1}, "replaced", 20.0)
    assert row.status is Status.FAILED
    assert [each["how"] for each in timeline(row)] == ["set_aside"]
    again = _taken("b", 40.0, transitions.restart(row, None, 2, 30.0))
    assert [each["how"] for each in timeline(again)] == ["set_aside", "running"]

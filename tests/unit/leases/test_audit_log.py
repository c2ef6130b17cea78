from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.errors import NotAudited, PartitionNotFound, UsageError
from holdfast.leases import audit_log
from holdfast.leases.action import NOT_RECORDED, Action, ActionOutcome, Entry, Request, Verdict
from holdfast.leases.audit_log import KEPT_SECONDS, AuditLog
from holdfast.leases.codec import encode_body
from holdfast.leases.lease import Key
from holdfast.leases.query import Query
from holdfast.testing.faults import Fault
from holdfast.testing.worlds import make_world
from tests.unit.leases.rig import Rig

FLEET = "$nodes"
ANA = Request("ana", "web", "10.0.0.7", "a bad object")
RELEASE = Action("partitions release", "events", ["a", "b"])
DONE = ActionOutcome(Verdict.DONE, "2 partitions were released", done=2)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.clock.turn(1_800_000_000.0)
    return rig


@pytest.fixture
def log(rig: Rig) -> AuditLog:
    return AuditLog(rig.store, make_world("cli").new_id, FLEET)


def once(key: str, who: str = "ana") -> Request:
    return Request(who, "api", idempotency_key=key)


def test_an_action_is_written_before_it_is_done_and_its_outcome_afterwards(rig: Rig, log: AuditLog) -> None:
    entry = log.begin(ANA, RELEASE)
    (before,) = log.list()
    assert before.outcome == ActionOutcome(Verdict.UNKNOWN, NOT_RECORDED)
    rig.clock.turn(3.0)
    log.end(entry, DONE)
    assert log.show(entry.id).row() == {
        "id": entry.id,
        "at": rig.clock.monotonic() - 3.0,
        "who": "ana",
        "via": "web",
        "origin": "10.0.0.7",
        "reason": "a bad object",
        "action": "partitions release",
        "pipeline": "events",
        "keys": ["a", "b"],
        "number": 2,
        "parameters": {},
        "outcome": "done",
        "message": "2 partitions were released",
        "done": 2,
        "problems": [],
        "run": None,
        "error": None,
        "ended_at": rig.clock.monotonic(),
    }


def test_the_newest_comes_first_and_pages_follow_each_other(rig: Rig, log: AuditLog) -> None:
    made = []
    for _ in range(5):
        rig.clock.turn(1.0)
        made.append(log.begin(ANA, RELEASE).id)
    first = log.list(limit=2)
    rest = log.list(after=first[-1].id)
    assert [entry.id for entry in [*first, *rest]] == made[::-1]


@pytest.mark.parametrize("verb", ["now", "add"])
def test_without_an_entry_nothing_may_be_done(rig: Rig, log: AuditLog, verb: str) -> None:
    rig.store.order(verb, Fault.AWAY)  # type: ignore[arg-type]
    with pytest.raises(NotAudited, match="nothing was done, because the audit log cannot be written"):
        log.begin(ANA, RELEASE)
    assert log.list() == []


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.REQUEST_LOST, Fault.LATE])
def test_a_lost_response_leaves_one_entry_that_is_its_own(rig: Rig, log: AuditLog, fault: Fault) -> None:
    rig.store.order("add", fault)
    entry = log.begin(ANA, RELEASE)
    rig.store.deliver()
    assert not entry.repeated
    rig.store.order("swap", fault)
    log.end(entry, DONE)
    rig.store.deliver()
    (stored,) = log.list()
    assert (stored.id, stored.outcome.verdict, stored.outcome.done) == (entry.id, Verdict.DONE, 2)


def test_a_store_that_never_responds_means_that_nothing_is_done(rig: Rig, log: AuditLog) -> None:
    rig.store.order("add", *[Fault.REQUEST_LOST] * audit_log.TRIES)
    with pytest.raises(NotAudited):
        log.begin(ANA, RELEASE)


def test_an_outcome_that_cannot_be_written_is_unknown_and_not_an_error(rig: Rig, log: AuditLog) -> None:
    entry = log.begin(ANA, RELEASE)
    rig.store.order("swap", Fault.AWAY)
    assert log.end(entry, DONE).outcome == DONE
    assert log.show(entry.id).outcome.verdict is Verdict.UNKNOWN


def test_a_repeated_request_gets_the_outcome_of_the_first(log: AuditLog) -> None:
    first = log.begin(once("k1"), RELEASE)
    under_way = log.begin(once("k1"), RELEASE)
    assert (under_way.repeated, under_way.id, under_way.outcome.verdict) == (True, first.id, Verdict.UNKNOWN)
    log.end(first, DONE)
    repeated = log.begin(once("k1"), RELEASE)
    assert (repeated.repeated, repeated.outcome.message) == (True, DONE.message)
    assert not log.begin(once("k2"), RELEASE).repeated
    assert not log.begin(once("k1", who="ben"), RELEASE).repeated


def test_a_process_that_died_before_its_entry_leaves_the_request_to_the_next(rig: Rig, log: AuditLog) -> None:
    rig.store.order("add", None, Fault.AWAY)
    with pytest.raises(NotAudited):
        log.begin(once("k1"), RELEASE)
    assert not log.begin(once("k1"), RELEASE).repeated
    assert log.begin(once("k1"), RELEASE).repeated


def test_a_request_whose_entry_may_be_there_says_that_its_key_is_used_up(rig: Rig, log: AuditLog) -> None:
    rig.store.order("add", None, Fault.UNKNOWN)
    rig.store.order("get", Fault.AWAY)
    with pytest.raises(NotAudited, match=r"nothing was done.*repeat it with a new idempotency key"):
        log.begin(once("k1"), RELEASE)
    assert log.begin(once("k1"), RELEASE).repeated
    assert not log.begin(once("k2"), RELEASE).repeated
    rig.store.order("add", Fault.AWAY)
    with pytest.raises(NotAudited) as without_key:
        log.begin(ANA, RELEASE)
    assert "idempotency" not in str(without_key.value)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.REQUEST_LOST, Fault.LATE])
def test_two_people_with_one_key_act_once(rig: Rig, log: AuditLog, fault: Fault) -> None:
    # Both requests have looked before either has written: the first one's answers are lost.
    rig.store.order("add", fault, fault)
    entries = [
        log.begin(once("k1"), RELEASE),
        AuditLog(rig.store, make_world("b").new_id, FLEET).begin(once("k1"), RELEASE),
    ]
    rig.store.deliver()
    assert [entry.repeated for entry in entries] == [False, True]
    assert len(log.list()) == 1


def test_a_key_belongs_to_one_action(log: AuditLog) -> None:
    log.begin(once("k1"), RELEASE)
    with pytest.raises(UsageError, match="used for another action"):
        log.begin(once("k1"), Action("partitions release", "events", ["a"]))


def test_entries_are_bounded_however_long_and_hostile_the_text(rig: Rig, log: AuditLog) -> None:
    hostile = "<script>\0\ud800\n" * 1000
    keys = [f"{number}{hostile}" for number in range(100)]
    entry = log.begin(
        Request(hostile, "api", hostile, hostile, hostile),
        Action(hostile, hostile, keys, parameters={hostile: [hostile, {"x": hostile}]}),
    )
    log.end(entry, ActionOutcome(Verdict.PARTLY, hostile, 1, [hostile] * 1000))
    (row,) = rig.table.get([Key(f"{FLEET}/$audit", "", entry.id)])
    assert row is not None
    assert len(encode_body(row)) < 64 * 1024
    shown = log.show(entry.id).row()
    assert (shown["number"], len(shown["keys"]), shown["outcome"]) == (100, 20, "partly")
    assert "\0" not in json.dumps(shown, ensure_ascii=False)
    json.dumps(shown, ensure_ascii=False).encode()


def test_old_entries_and_their_requests_are_removed(rig: Rig, log: AuditLog) -> None:
    old = log.begin(once("k1"), RELEASE)
    rig.clock.turn(KEPT_SECONDS - 1.0)
    log.end(log.begin(ANA, RELEASE), DONE)
    assert log.show(old.id).id == old.id
    rig.clock.turn(2.0)
    log.end(log.begin(ANA, RELEASE), DONE)
    with pytest.raises(PartitionNotFound):
        log.show(old.id)
    assert len(log.list()) == 2
    assert not log.begin(once("k1"), RELEASE).repeated


def test_old_requests_without_an_entry_are_removed(rig: Rig, log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "CHUNK", 2)
    for number in range(5):
        rig.store.order("add", None, Fault.AWAY)
        with pytest.raises(NotAudited):
            log.begin(once(f"k{number}"), RELEASE)
    kept = log.begin(once("kept"), RELEASE)
    assert requests_of(rig) == 6
    rig.clock.turn(KEPT_SECONDS - 1.0)
    log.purge()
    assert requests_of(rig) == 6
    log.end(log.begin(once("new"), RELEASE), DONE)
    rig.clock.turn(2.0)
    log.purge()
    assert requests_of(rig) == 1
    assert kept.id not in [entry.id for entry in log.list()]
    assert log.begin(once("new"), RELEASE).repeated


def requests_of(rig: Rig) -> int:
    return len(rig.table.find(Query(f"{FLEET}/$requests")))


def test_a_crash_while_old_entries_are_removed_lets_no_request_be_done_twice(rig: Rig, log: AuditLog) -> None:
    log.begin(once("k1"), RELEASE)
    rig.clock.turn(KEPT_SECONDS + 1.0)
    rig.store.order("remove", None, Fault.REQUEST_LOST)
    log.purge()
    # The request is gone before its entry: the entry of before is not found under the key any more.
    again = log.begin(once("k1"), RELEASE)
    log.purge()
    assert [entry.id for entry in log.list()] == [again.id]


def test_too_many_entries_are_removed_from_the_oldest(rig: Rig, log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "SLACK", 4)
    monkeypatch.setattr(audit_log, "CHUNK", 8)
    log = replace(log, most=20)
    made: list[Entry] = []
    for _ in range(60):
        rig.clock.turn(1.0)
        made.append(log.begin(ANA, RELEASE))
        log.end(made[-1], DONE)
        assert len(log.list()) <= 26
    assert [entry.id for entry in log.list(limit=20)] == [entry.id for entry in made[:-21:-1]]


def test_what_cannot_be_read_is_shown_as_such(rig: Rig, log: AuditLog) -> None:
    entry = log.begin(ANA, RELEASE)
    log.end(entry, ActionOutcome())
    row = rig.row(entry.id, f"{FLEET}/$audit")
    assert ActionOutcome.of({"outcome": "of a later version"}).verdict is Verdict.UNKNOWN
    assert ActionOutcome.of(row.progress.state).message == NOT_RECORDED


def test_a_store_whose_clock_has_just_begun_removes_nothing() -> None:
    log = AuditLog(Rig().store, make_world("cli").new_id, FLEET)
    entry = log.end(log.begin(ANA, RELEASE), DONE)
    assert [kept.id for kept in log.list()] == [entry.id]


def test_logins_are_among_the_entries_and_push_no_action_out(rig: Rig, log: AuditLog) -> None:
    action = log.end(log.begin(ANA, RELEASE), DONE)
    logins = replace(log.logins, most=20)
    for _ in range(60):
        rig.clock.turn(1.0)
        logins.end(logins.begin(Request("", "web"), Action("log in")), ActionOutcome(Verdict.REFUSED, "no"))
    rig.clock.turn(1.0)
    last = log.end(log.begin(ANA, RELEASE), DONE)
    ids = [entry.id for entry in log.list()]
    assert (ids[0], ids[-1], len(ids)) == (last.id, action.id, 2 + 20)
    assert [entry.id for entry in logins.list()] == ids[1:-1]
    pages = [*log.list(limit=7), *log.list(after=ids[6], limit=9), *log.list(after=ids[15])]
    assert [entry.id for entry in pages] == ids


def test_the_bounds_are_those_that_are_documented(log: AuditLog) -> None:
    assert (log.most, log.logins.most, log.kept_seconds) == (10_000, 1_000, 30 * 86_400.0)

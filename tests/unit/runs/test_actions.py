"""Every action of a person: audited before it is done, refused when what the person saw has changed, done once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import assemble
from holdfast.errors import (
    LeaseLost,
    NotAudited,
    Refused,
    SelectionChanged,
    StoreUnavailable,
    UsageError,
)
from holdfast.leases import transitions
from holdfast.leases.action import Entry, Request, Verdict
from holdfast.leases.coordinator import Coordinator
from holdfast.leases.lease import Key, Lease, Partition, Status
from holdfast.leases.store import Outcome, Swap
from holdfast.runs.actions import Actions, PipelineActions
from holdfast.runs.partition_actions import PartitionActions, Selection
from holdfast.runs.rewind import Rewind
from holdfast.stores.memory import MemoryStore
from holdfast.testing.faults import Fault, LossyStore
from holdfast.testing.worlds import make_world

FILE = """\
source_coordination:
  partition_prefix: prod
  store:
    in_memory:
pipelines:
  orders:
    source:
      tests.unit.cli.fakes:SOURCE:
    sinks:
      - tests.unit.cli.fakes:SINK:
"""
ANA = Request("ana", "web", "10.0.0.7", "a bad object")


class Interleaved(LossyStore):
    """A store in which something happens right before the next swap of a live partition."""

    before_swap: Callable[[], object] | None = None

    def swap(self, swaps: Sequence[Swap]) -> list[Outcome]:
        happens, self.before_swap = self.before_swap, None
        if happens is not None and not swaps[0].lease.pipeline.endswith("$audit"):
            happens()
        return super().swap(swaps)


class Place:
    """A store with a node on it, and the actions of a person."""

    def __init__(self, folder: Path) -> None:
        (folder / "pipeline.yaml").write_text(FILE)
        self.settings = assemble.load_settings(folder / "pipeline.yaml")
        self.store = Interleaved(MemoryStore())
        self.world = make_world("a")
        self.stored = assemble.StoredPipeline(self.settings, self.store, "orders")
        session = assemble.new_session(self.settings, self.store, self.world, pipelines=["orders"], name="replica1")
        session.join()
        self.leases: Coordinator = assemble.coordinator_of(self.stored, self.world, session)

    def actions(self, request: Request = ANA) -> Actions:
        return Actions(self.settings, self.store, request)

    def partitions(self, request: Request = ANA, **settings: Any) -> PartitionActions:
        return self.actions(request).pipeline("orders").partitions(**settings)

    def entries(self) -> list[Entry]:
        return assemble.audit_log_of(self.settings, self.store).list()

    def row(self, key: str) -> Lease:
        (row,) = self.store.get([Key(self.stored.identifier, "", key)])
        assert row is not None
        return row

    def held(self, *keys: str) -> list[Lease]:
        self.leases.create([Partition(key, group="g") for key in keys])
        return self.leases.claim(len(keys))

    def failed(self, *keys: str) -> None:
        self.held(*keys)
        for key in keys:
            self.stored.operator().fail(key, "bad record")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_action_is_in_the_log_with_who_why_what_and_its_outcome(place: Place) -> None:
    place.held("a", "b")
    report = place.partitions().release(Selection(keys=["a", "b"]))
    assert (report.result.done, place.row("a").status) == (2, Status.UNASSIGNED)
    (entry,) = place.entries()
    row = entry.row()
    assert {name: row[name] for name in ("who", "via", "origin", "reason", "action", "pipeline", "keys", "number")} == {
        "who": "ana",
        "via": "web",
        "origin": "10.0.0.7",
        "reason": "a bad object",
        "action": "partitions release",
        "pipeline": "orders",
        "keys": ["a", "b"],
        "number": 2,
    }
    assert (row["outcome"], row["message"], row["done"]) == ("done", "2 partitions released", 2)


@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.ANSWER_LOST])
def test_without_the_log_nothing_is_done(place: Place, fault: Fault) -> None:
    place.held("a")
    place.store.order("add", fault)
    with pytest.raises(NotAudited, match="nothing was done"):
        place.partitions().release(Selection(keys=["a"]))
    assert place.row("a").status is Status.ASSIGNED
    place.store.order("add", fault)
    with pytest.raises(NotAudited):
        place.actions().pause("orders")
    assert place.actions()._controls.paused() == set()


def test_a_process_that_dies_before_the_action_leaves_an_entry_with_an_unknown_outcome(place: Place) -> None:
    place.held("a")

    def die() -> None:
        raise KeyboardInterrupt

    place.store.before_swap = die
    with pytest.raises(KeyboardInterrupt):
        place.partitions().release(Selection(keys=["a"]))
    (entry,) = place.entries()
    assert (entry.outcome.verdict, entry.fields["keys"]) == (Verdict.UNKNOWN, ["a"])
    assert place.row("a").status is Status.ASSIGNED


def test_a_refused_action_is_in_the_log_with_the_reason(place: Place) -> None:
    place.held("a")
    report = place.partitions().reopen(Selection(keys=["a", "nothing"]))
    assert [type(error).__name__ for error in report.result.errors] == ["TransitionRefused", "PartitionNotFound"]
    assert report.outcome.verdict is Verdict.REFUSED
    with pytest.raises(UsageError, match="there is no node 'replica7'"):
        place.actions().drain("replica7")
    drain, reopen = place.entries()
    assert (drain.outcome.verdict, drain.outcome.error) == (Verdict.REFUSED, "UsageError")
    assert len(reopen.outcome.problems) == 2


def test_what_can_be_done_is_done_and_the_rest_is_named(place: Place) -> None:
    place.failed("a", "c")
    place.held("b")
    seen: list[str] = []
    report = place.partitions(each=lambda row: seen.append(row.key)).reopen(Selection(keys=["a", "b", "c"]))
    assert (report.outcome.verdict, report.outcome.done, seen) == (Verdict.PARTLY, 2, ["a", "c"])
    assert "'b' is being worked on" in report.outcome.problems[0]


def test_a_command_ends_with_the_first_partition_that_cannot_be_changed(place: Place) -> None:
    place.failed("a", "c")
    place.held("b")
    report = place.partitions(halt=True).reopen(Selection(keys=["a", "b", "c"]))
    assert (report.outcome.verdict, place.row("c").status) == (Verdict.PARTLY, Status.FAILED)


def test_a_store_that_goes_away_half_way_leaves_an_unknown_outcome(place: Place) -> None:
    place.failed("a", "b", "c")
    place.store.order("swap", None, Fault.AWAY)
    report = place.partitions().reopen(Selection(statuses=(Status.FAILED,), expect=3))
    assert (report.outcome.verdict, report.outcome.done, report.outcome.error) == (
        Verdict.UNKNOWN,
        1,
        "StoreUnavailable",
    )
    assert isinstance(report.result.errors[0], StoreUnavailable)


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        (Selection(statuses=(Status.FAILED,)), {"a1", "a2", "b1"}),
        (Selection(statuses=(Status.FAILED,), prefix="a"), {"a1", "a2"}),
        (Selection(group="g", prefix="b"), {"b1", "b2"}),
    ],
)
def test_a_filter_chooses_all_that_match(place: Place, chosen: Selection, keys: set[str]) -> None:
    place.failed("a1", "a2", "b1")
    place.held("b2")
    assert set(place.partitions().matching(chosen)) == keys
    assert set(place.partitions().matching(Selection(owner=place.row("b2").owner))) == {"b2"}


def test_another_number_than_the_person_has_seen_is_refused(place: Place) -> None:
    place.failed("a", "b")
    with pytest.raises(SelectionChanged, match="2 partitions match now, not 3; nothing was changed"):
        place.partitions().reopen(Selection(statuses=(Status.FAILED,), expect=3))
    assert place.row("a").status is Status.FAILED
    (entry,) = place.entries()
    assert (entry.outcome.verdict, entry.fields["number"], entry.fields["parameters"]["expect"]) == (
        Verdict.REFUSED,
        2,
        3,
    )
    assert place.partitions().reopen(Selection(statuses=(Status.FAILED,), expect=2)).outcome.done == 2


def test_a_partition_that_no_longer_matches_when_its_turn_comes_is_left(place: Place) -> None:
    place.held("a", "b")
    owner = place.row("a").owner

    def completed() -> None:
        place.leases.write([place.row("a")], transitions.complete)

    place.store.before_swap = completed
    report = place.partitions().fail(Selection(statuses=(Status.ASSIGNED,), owner=owner), "wrong bucket")
    assert (report.outcome.verdict, place.row("a").status, place.row("b").status) == (
        Verdict.PARTLY,
        Status.COMPLETED,
        Status.FAILED,
    )
    assert "no longer matches" in report.outcome.problems[0]


@pytest.mark.parametrize("chosen", [Selection(), Selection(keys=["a"], prefix="a")])
def test_partitions_are_chosen_by_keys_or_by_a_filter(place: Place, chosen: Selection) -> None:
    with pytest.raises(UsageError, match="give the keys of partitions, or a filter"):
        place.partitions().release(chosen)
    assert place.entries() == []


def test_a_release_while_the_owner_commits_keeps_the_commit_or_refuses_it(place: Place) -> None:
    first, second = place.held("a", "b")

    def commit() -> None:
        (stored,) = place.leases.write(
            [first], lambda row, _now: replace(row, progress=replace(row.progress, position={"offset": 7}))
        )
        assert isinstance(stored, Lease)

    # The commit lands between the read and the write of the release: the release is derived from the committed row.
    place.store.before_swap = commit
    place.partitions().release(Selection(keys=["a"]))
    assert (place.row("a").status, place.row("a").progress.position) == (Status.UNASSIGNED, {"offset": 7})
    # The release lands first: the commit of the former owner is refused, also when another owner has it.
    place.partitions().release(Selection(keys=["b"]))
    place.leases.claim(2)
    (late,) = place.leases.write(
        [second], lambda row, _now: replace(row, progress=replace(row.progress, position={"offset": 9}))
    )
    assert isinstance(late, LeaseLost)
    assert place.row("b").progress.position is None


def once(key: str) -> Request:
    return Request("ana", "api", idempotency_key=key)


def test_a_repeated_request_is_not_done_a_second_time(place: Place) -> None:
    place.failed("a", "b")
    chosen = Selection(statuses=(Status.FAILED,), expect=2)
    first = place.partitions(once("k1")).reopen(chosen)
    place.stored.operator().fail("a", "still bad")
    second = place.partitions(once("k1")).reopen(chosen)
    assert (second.entry.id, second.outcome.verdict, second.outcome.done, second.results) == (
        first.entry.id,
        Verdict.DONE,
        2,
        (),
    )
    assert place.row("a").status is Status.FAILED
    with pytest.raises(UsageError, match="is done: 2 partitions reopened"):
        _ = second.result
    assert len(place.entries()) == 1


def test_a_repeated_request_that_was_refused_gets_the_refusal(place: Place) -> None:
    place.failed("a")
    chosen = Selection(statuses=(Status.FAILED,), expect=5)
    with pytest.raises(SelectionChanged):
        place.partitions(once("k1")).reopen(chosen)
    again = place.partitions(once("k1")).reopen(chosen)
    assert (again.outcome.verdict, again.outcome.error) == (Verdict.REFUSED, "SelectionChanged")


def test_controls_are_audited(place: Place) -> None:
    actions = place.actions()
    actions.pause("orders")
    actions.drain("replica1")
    assert actions._controls.drained() == {"replica1"}
    actions.undrain("replica1")
    actions.resume("orders")
    assert actions._controls.paused() == actions._controls.drained() == set()
    made = [(entry.fields["action"], entry.outcome.verdict.value) for entry in place.entries()]
    assert sorted(made) == [
        ("drain", "done"),
        ("pipelines pause", "done"),
        ("pipelines resume", "done"),
        ("undrain", "done"),
    ]


def test_runs_are_stopped_resumed_and_throttled(place: Place) -> None:
    place.stored.runs().add("redrive-1", configuration={"kind": "redrive"}, created_by="ben")
    actions = place.actions().pipeline("orders")
    assert actions.stop_run("redrive-1").outcome.message == "run redrive-1 is STOPPED"
    assert actions.resume_run("redrive-1").outcome.run == "redrive-1"
    assert actions.throttle_run("redrive-1", 50.0).result.throttle == 50.0
    for act in (actions.stop_run, actions.resume_run, actions.join_run, actions.promote):
        with pytest.raises(UsageError, match="there is no run 'redrive-2'; `holdfast runs list` shows all runs"):
            act("redrive-2")
    refused = [entry for entry in place.entries() if entry.outcome.verdict is Verdict.REFUSED]
    assert len(refused) == 4


def test_what_cannot_be_started_is_refused_and_audited(place: Place) -> None:
    actions = place.actions().pipeline("orders")
    with pytest.raises(UsageError, match="does not read Kafka"):
        actions.rewind(Rewind("t", 0, "5"))
    with pytest.raises(UsageError, match="there is no generation 3"):
        actions.switch_generation(3)
    assert {entry.fields["action"] for entry in place.entries()} == {"rewind", "generation switch"}


def test_a_replacement_that_is_refused_may_have_set_the_partition_aside(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out() -> None:
        raise Refused("a redrive is not finished")

    monkeypatch.setattr(PipelineActions, "_replacement", lambda *_: SimpleNamespace(carry_out=carry_out))
    with pytest.raises(Refused):
        place.actions().pipeline("orders").replace(Rewind("orders", 0, "7"))
    (entry,) = place.entries()
    assert (entry.outcome.verdict, entry.outcome.message) == (Verdict.UNKNOWN, "a redrive is not finished")

"""The timeline of a partition: tenures that are recorded, gaps, and where they are drawn."""

from __future__ import annotations

from pathlib import Path

from holdfast.leases.lease import Commit, History, Lease, Ownership, Status
from holdfast.web.access import Access
from holdfast.web.timeline import Tenure, tenures_of, timeline
from holdfast.web.tokens import TokenFile
from tests.unit.web.serving import served
from tests.unit.web.test_security import FILE, OPERATOR
from tests.unit.web.test_tokens import token_file

NAMES: dict[str | None, str] = {"s1": "n1", "s2": "n2"}


def test_the_owner_of_an_assigned_partition_holds_it_until_now() -> None:
    row = Lease("p", "k", ownership=Ownership(Status.ASSIGNED, "s1", 4), history=History(claimed_at=100.0))
    assert tenures_of(row) == [Tenure(4, "s1", 100.0, None, 0)]
    drawn = timeline(tenures_of(row), NAMES, now=195.0)
    assert (drawn["from"], drawn["to"]) == (100.0, 200.0)
    (lane,) = drawn["lanes"]
    assert lane["owner"] == "n1"
    assert [(bar["from"], bar["to"]) for bar in lane["tenures"]] == [(100.0, 200.0)]


def test_the_last_owner_of_a_finished_partition_is_known_from_its_row() -> None:
    past = History(claimed_at=100.0, completed_at=150.0, done_by="s2")
    row = Lease("p", "k", ownership=Ownership(Status.FAILED, None, 2), commit=Commit(sequence=7), history=past)
    (tenure,) = tenures_of(row)
    assert tenure == Tenure(2, "s2", 100.0, 150.0, 7, "failed")
    assert timeline([tenure], NAMES, 160.0)["lanes"][0]["tenures"][0]["sign"] == "✕"


def test_a_partition_that_nobody_has_held_has_no_tenures() -> None:
    assert tenures_of(Lease("p", "k")) == []
    assert timeline([], NAMES, 0.0)["tenures"] == []


def test_a_gap_in_the_tokens_is_not_recorded() -> None:
    later = [Tenure(1, "s1", 10.0, 20.0), Tenure(4, "s2", 50.0, None)]
    drawn = timeline([later[0], Tenure(2, None, 20.0, 50.0, how="not recorded"), later[1]], NAMES, 60.0)
    assert [row["owner"] for row in drawn["tenures"]] == ["n2", "not recorded", "n1"]


def test_ticks_are_few_and_inside() -> None:
    for length in (60, 900, 7200, 90_000, 3_000_000):
        drawn = timeline([Tenure(1, "s1", 1_000_000.0, None)], NAMES, 1_000_000.0 + length)
        assert 1 <= len(drawn["ticks"]) <= 7
        assert all(drawn["from"] <= tick["at"] <= drawn["to"] for tick in drawn["ticks"])


def test_recorded_tenures_say_how_they_ended_and_by_whom_and_gaps_are_not_recorded() -> None:
    recorded = [
        [1, "s1", 10.0, 20.0, 3, "released", "ana"],
        [2, "s2", 20.0, 30.0, 5, "died", None],
        [5, "s1", 40.0, 50.0, 5, "attempt_failed", None],
    ]
    past = History(claimed_at=60.0, tenures=recorded)
    row = Lease("p", "k", ownership=Ownership(Status.ASSIGNED, "s2", 6), history=past)
    drawn = timeline(tenures_of(row), NAMES, 95.0)
    assert [(each["token"], each["owner"], each["how"], each["by"]) for each in reversed(drawn["tenures"])] == [
        (1, "n1", "released", "ana"),
        (2, "n2", "died", ""),
        (3, "not recorded", "not recorded", ""),
        (5, "n1", "attempt_failed", ""),
        (6, "n2", "", ""),
    ]
    bars = {
        lane["owner"]: [(bar["from"], bar["to"], bar["sign"]) for bar in lane["tenures"]] for lane in drawn["lanes"]
    }
    assert bars == {
        "n1": [(10.0, 20.0, "→"), (40.0, 50.0, "✕")],
        "n2": [(20.0, 30.0, "✝"), (60.0, 100.0, "")],
        "not recorded": [(30.0, 40.0, "")],
    }


def test_the_page_shows_who_has_released_a_partition(tmp_path: Path) -> None:
    access = Access(tokens=TokenFile(token_file(tmp_path, FILE)))
    with served(tmp_path, access) as board, board.client(OPERATOR) as client:
        past = History(claimed_at=board.store.now() - 60)
        held = Ownership(Status.ASSIGNED, "s1", 1, due_at=None)
        board.store.add([Lease(board.dashboard.identifier("orders"), "k", ownership=held, history=past)])
        done = client.post(
            "/api/v1/pipelines/orders/partitions:release", json={"keys": ["k"], "reason": "its node hangs"}
        )
        assert done.status_code == 200, done.text
        page = "/pipelines/orders/partition?key=k"
        (tenure,) = client.get(f"{page}&format=json").json()["timeline"]["tenures"]
        assert [tenure[name] for name in ("token", "owner", "how", "by")] == [1, "s1", "released", "otto"]
        assert "released by otto" in client.get(f"{page}&region=timeline").text

"""Files that a plan has moved away, to be written again, cause no doubt as long as all is where the plan says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.leases import transitions
from tests.unit.audit.archive import Archive

PLAN = "_holdfast/replaced/p1/plan.json"


class Rewound:
    """Commits 0-10, 10-20, 20-30, of which the last two are replaced."""

    def __init__(self, root: Path) -> None:
        self.archive = Archive(root)
        self.archive.commit(0, 10)
        self.old = [self.archive.commit(start, start + 10)["files"][0]["key"] for start in (10, 20)]

    def plan(self, *, done: bool, moved: int = 2, **fields: Any) -> None:
        """Write the plan, and carry out the first moves."""
        moves = [{"from": key, "to": f"_holdfast/replaced/p1/{key}"} for key in self.old]
        plan = {"pipeline": "prod|archive", "topic": "orders", "partition": 0, "from": 10, "to": 30, "generation": 2}
        self.archive.write(PLAN, json.dumps({**plan, "moves": moves, "state": "moving", **fields}).encode())
        if done:
            self.archive.write(PLAN.replace("plan.json", "done.json"), b"{}")
        for move in moves[:moved]:
            self.archive.move(move["from"], move["to"])


@pytest.fixture
def rewound(tmp_path: Path) -> Rewound:
    return Rewound(tmp_path)


@pytest.mark.parametrize("deep", [False, True])
def test_a_range_that_was_written_again_is_proven_once(rewound: Rewound, deep: bool) -> None:
    rewound.plan(done=True)
    rewound.archive.commit(10, 18, generation=2)
    rewound.archive.commit(18, 40, generation=2)
    proof = rewound.archive.proof(deep=deep, generation=2)
    assert proof.doubts.sentences() == []
    assert (proof.start, proof.end) == ({"offset": 0}, {"offset": 40})
    assert (proof.commits, proof.files, proof.rows, proof.absent, proof.replaced) == (3, 3, 40, 0, 2)
    assert proof.notes.sentences() == ["offsets 10 to 29 are written again by plan p1"]


def test_a_hole_that_is_not_filled_yet_is_told_with_the_position_at_its_beginning(rewound: Rewound) -> None:
    rewound.plan(done=True)
    rewound.archive.set_row(position=10)
    proof = rewound.archive.proof()
    assert (proof.verdict, proof.end, proof.rows, proof.replaced) == ("proven", {"offset": 10}, 10, 2)


def test_a_plan_under_way_is_told(rewound: Rewound) -> None:
    rewound.plan(done=False, moved=1)
    proof = rewound.archive.proof()
    assert proof.verdict == "proven"
    (note,) = proof.notes.sentences()
    assert note.startswith(
        "1 files of commit 2 were moved away and have not been written again yet: a plan is under way"
    )


def test_moved_files_that_nothing_replaces_are_a_doubt_when_the_plan_is_done(rewound: Rewound) -> None:
    rewound.plan(done=True)
    assert rewound.archive.doubts() == [
        f"1 files of commit {sequence} were moved away and have not been written again yet" for sequence in (2, 3)
    ]


def test_an_old_file_that_readers_still_see_is_a_doubt(rewound: Rewound) -> None:
    rewound.plan(done=True, moved=1)
    rewound.archive.commit(10, 30, generation=2)
    doubts = rewound.archive.doubts()
    assert f"{rewound.old[1]} still exists; plan p1 says that it was moved away" in doubts
    assert "1 files of commit 3 were not moved, although plan p1 replaces them" in doubts


def test_an_old_file_that_the_plan_forgot_is_a_doubt(rewound: Rewound) -> None:
    rewound.plan(done=True, moved=2)
    move = {"from": rewound.old[0], "to": f"_holdfast/replaced/p1/{rewound.old[0]}"}
    rewound.plan(done=True, moved=0, moves=[move])
    rewound.archive.commit(10, 30, generation=2)
    doubts = rewound.archive.doubts()
    assert f"{rewound.old[1]} is missing; manifest 3 names it" in doubts
    assert f"_holdfast/replaced/p1/{rewound.old[1]} belongs to no commit" in doubts


def test_a_moved_file_that_is_lost_is_a_doubt(rewound: Rewound) -> None:
    rewound.plan(done=True)
    rewound.archive.commit(10, 30, generation=2)
    rewound.archive.path(f"_holdfast/replaced/p1/{rewound.old[0]}").unlink()
    assert f"_holdfast/replaced/p1/{rewound.old[0]} is missing; manifest 2 names it" in rewound.archive.doubts()


def test_a_plan_that_begins_inside_a_commit_is_a_doubt(rewound: Rewound) -> None:
    rewound.plan(done=True, **{"from": 15})
    rewound.archive.commit(15, 30, generation=2)
    assert "plan p1 begins at 15, in the middle of commit 2" in rewound.archive.doubts()


def test_a_step_back_that_no_plan_explains_is_a_doubt(rewound: Rewound) -> None:
    rewound.plan(done=True)
    rewound.archive.commit(12, 30, generation=2)
    assert "offsets 12 to 29 are in two commits, between manifests 3 and 4" in rewound.archive.doubts()


def test_a_plan_that_cannot_be_read_is_a_doubt(rewound: Rewound) -> None:
    rewound.archive.write(PLAN, b"{}")
    assert rewound.archive.doubts() == [f"{PLAN} cannot be read: KeyError: 'topic'"]


def test_a_plan_of_another_partition_explains_nothing(rewound: Rewound) -> None:
    rewound.plan(done=True, partition=1)
    assert f"{rewound.old[0]} is missing; manifest 2 names it" in rewound.archive.doubts()


def test_a_plan_whose_moves_are_done_is_under_way_until_the_store_goes_back(rewound: Rewound) -> None:
    rewound.plan(done=True)
    row = rewound.archive.row()
    aside = transitions.set_aside(row, {"plan": "p1", "from": 10, "asked": 12}, "plan p1", 5.0)
    rewound.archive.put(aside)
    proof = rewound.archive.proof()
    assert proof.verdict == "proven"
    assert proof.notes.sentences()[0] == "the partition is halted: plan p1"


def test_two_plans_may_follow_each_other_before_anything_is_written_again(rewound: Rewound) -> None:
    rewound.plan(done=True)
    first = "orders/1_0_00000000000000000000.parquet"
    earlier = {"topic": "orders", "partition": 0, "from": 0, "to": 10, "generation": 3}
    moved = {"from": first, "to": f"_holdfast/replaced/p2/{first}"}
    rewound.archive.write("_holdfast/replaced/p2/plan.json", json.dumps({**earlier, "moves": [moved]}).encode())
    rewound.archive.write("_holdfast/replaced/p2/done.json", b"{}")
    rewound.archive.move(moved["from"], moved["to"])
    rewound.archive.commit(0, 30, generation=3)
    proof = rewound.archive.proof()
    assert proof.doubts.sentences() == []
    assert (proof.commits, proof.rows, proof.replaced) == (1, 30, 3)

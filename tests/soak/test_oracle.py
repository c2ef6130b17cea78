"""The oracle finds what is wrong with a history and with an output, and nothing in good ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.soak.history import Version
from tests.soak.idle import gaps
from tests.soak.oracle import commits, judge
from tests.soak.orders import PULL
from tests.soak.output import judge_output

EXPECTED = {PULL: {"a": 2}}


def session(name: str, status: str = "ASSIGNED", version: int = 1) -> Version:
    return Version(0.0, False, "$nodes", name, status, name, 1, version, None, {"position": None, "sequence": 0})


def row(version: int, status: str, owner: str | None, token: int, **body: Any) -> Version:
    fields = {"position": None, "sequence": 0, **body}
    return Version(float(version), False, PULL, "a", status, owner, token, version, fields.pop("due_at", None), fields)


def receipts(start: int, end: int, token: int) -> dict[str, Any]:
    return {"files": {"from": start, "to": end, "token": token}}


FIRST = {"position": 1, "sequence": 1, "commit_id": "c1"}
SECOND = {"position": 2, "sequence": 2, "commit_id": "c2"}


def good() -> list[Version]:
    """One owner commits and dies before it has published; the next one publishes, commits and completes."""
    return [
        session("n1"),
        session("n2"),
        row(0, "UNASSIGNED", None, 0),
        row(1, "ASSIGNED", "n1", 1),
        row(2, "ASSIGNED", "n1", 1, **FIRST, receipts=receipts(0, 1, 1)),
        session("n1", "COMPLETED", 2),
        row(3, "ASSIGNED", "n1", 1, **FIRST, receipts=receipts(0, 1, 1), due_at=3.0),
        row(4, "ASSIGNED", "n2", 2, **FIRST, receipts=receipts(0, 1, 1)),
        row(5, "ASSIGNED", "n2", 2, **FIRST),
        row(6, "ASSIGNED", "n2", 2, **SECOND, receipts=receipts(1, 2, 2)),
        row(7, "COMPLETED", None, 2, **SECOND),
    ]


def changed(version: int, **changes: Any) -> list[Version]:
    """The good history with one version of the row changed; place 0 is its first."""
    history = good()
    at = next(index for index, row in enumerate(history) if row.pipeline == PULL and row.version == version)
    body: dict[str, Any] = {
        name: changes.pop(name) for name in ("position", "sequence", "commit_id", "receipts") if name in changes
    }
    history[at] = history[at]._replace(body={**history[at].body, **body}, **changes)
    return history


def without(history: list[Version], version: int) -> list[Version]:
    return [row for row in history if row.pipeline != PULL or row.version != version]


def test_nothing_is_wrong_with_a_good_history() -> None:
    assert judge(good(), EXPECTED) == []


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        (changed(4, token=1), "taken without a new token"),
        (changed(4, token=1), "token 1 belongs to n1 and n2"),
        (changed(4, token=3), "token goes up by more than one"),
        (changed(5, token=1, owner="n1"), "token goes down"),
        (changed(5, token=3, owner=None, status="UNASSIGNED"), "a new token, and nobody took it"),
        (without(good(), 3), "version does not go up by one"),
        (without(good(), 5), "a commit while another waits to be published"),
        (changed(6, sequence=3), "sequence does not go up by one"),
        (changed(6, sequence=1), "progress without a commit"),
        (changed(6, position=0, receipts=receipts(1, 0, 2)), "position goes back"),
        (changed(6, receipts=receipts(0, 2, 2)), "a commit of another range"),
        (changed(6, receipts=receipts(1, 2, 1)), "a commit of what was staged under another token"),
        (changed(6, owner="n1"), "a commit by somebody else than the owner"),
        (changed(5, receipts=receipts(0, 1, 1), sequence=2, commit_id="c9"), "a commit while another waits"),
        (changed(7, gone=True), "the row was deleted"),
        (changed(7, status="FAILED"), "it did not reach its end at 2"),
        (changed(7, position=1), "it did not reach its end at 2"),
        (changed(5, due_at=5.0), "free for others while its owner lives"),
        ([*good(), row(8, "ASSIGNED", "n2", 3, **SECOND)], "a completed partition is written"),
        ([*good(), session("n1", version=3)], "session n1: it had ended and is written"),
        (changed(0, token=4), "it does not begin as a new row"),
        ([one for one in good() if one.pipeline != PULL], "it was never found"),
        ([*good(), row(0, "COMPLETED", None, 0)._replace(key="b")], "there should be no such partition"),
    ],
)
def test_a_bad_history_is_found_out(history: list[Version], wrong: str) -> None:
    assert any(wrong in complaint for complaint in judge(history, EXPECTED)), judge(history, EXPECTED)


def write_output(folder: Path, *files: tuple[str, str]) -> None:
    for name, text in files:
        path = folder / PULL / PULL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for sequence in (1, 2):
        path = folder / PULL / "_holdfast" / "commits" / PULL / "a" / f"{sequence:020d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"key": "a", "sequence": sequence, "commit_id": f"c{sequence}"}))


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ([("1", "a 0\n"), ("2", "a 1\n")], []),
        ([("1", "a 0\n")], ["pull/a: item 1 is lost"]),
        ([("1", "a 0\n"), ("2", "a 1\na 0\n")], ["pull/a: item 0 is there 2 times instead of 1"]),
        ([("1", "a 0\na 1\na 2\n")], ["pull/a: item 2 is there 1 times instead of 0"]),
    ],
)
def test_what_is_lost_or_there_twice_is_found_out(
    tmp_path: Path, files: list[tuple[str, str]], wrong: list[str]
) -> None:
    write_output(tmp_path, *((f"{name}.txt", text) for name, text in files))
    assert judge_output(tmp_path, EXPECTED, commits(good(), EXPECTED)) == wrong


def test_a_manifest_that_no_commit_has_decided_is_found_out(tmp_path: Path) -> None:
    write_output(tmp_path, ("1.txt", "a 0\na 1\n"))
    decided = {**commits(good(), EXPECTED), (PULL, "a", 2): "another"}
    assert judge_output(tmp_path, EXPECTED, decided) == ["pull/a: commit 2 of the history and its manifest disagree"]


def test_a_partition_is_idle_until_it_is_taken_and_when_its_owner_has_gone() -> None:
    history = [
        row(0, "UNASSIGNED", None, 0)._replace(at=10.0),
        row(1, "ASSIGNED", "n1", 1)._replace(at=11.0),
        row(2, "ASSIGNED", "n1", 1)._replace(at=12.0),
        session("n2", "COMPLETED")._replace(at=13.0),
        session("n1", "COMPLETED")._replace(at=14.0),
        row(3, "ASSIGNED", "n1", 1, due_at=15.0)._replace(at=15.0),
        row(4, "ASSIGNED", "n3", 2)._replace(at=18.0),
        row(5, "ASSIGNED", "n4", 3)._replace(at=20.0),
        row(6, "UNASSIGNED", None, 3)._replace(at=21.0),
        row(7, "ASSIGNED", "n3", 4)._replace(at=23.0),
        row(8, "COMPLETED", None, 4)._replace(at=24.0),
    ]
    assert gaps(history, [PULL]) == [(4.0, (PULL, "a")), (2.0, (PULL, "a")), (1.0, (PULL, "a"))]


def test_a_partition_that_the_same_node_takes_again_was_idle_in_between() -> None:
    history = [
        row(1, "ASSIGNED", "n1", 1)._replace(at=11.0),
        row(2, "UNASSIGNED", None, 1)._replace(at=12.0),
        row(3, "ASSIGNED", "n1", 2)._replace(at=15.0),
    ]
    assert gaps(history, [PULL]) == [(3.0, (PULL, "a"))]

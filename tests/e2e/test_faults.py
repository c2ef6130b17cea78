"""Twenty faults, each within a phase, on three nodes that share one PostgreSQL; nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from tests.e2e.arena import Feeder, arena
from tests.e2e.fleet import eventually
from tests.e2e.oracle import Lister, Verdict, judge
from tests.e2e.strikes import Kind, Phase, Striker, drawn

SEED = 20
FAULTS = 20


def test_every_kind_of_fault_meets_every_phase_three_times() -> None:
    met = Counter((fault.kind, fault.phase) for fault in drawn(SEED, FAULTS))
    assert all(met[pair] >= 3 for pair in product(Kind, Phase))
    assert {fault.delivered for fault in drawn(SEED, FAULTS) if fault.phase is Phase.COMMIT} == {True, False}


@pytest.mark.spark
@pytest.mark.slow
def test_twenty_kills_and_pauses_in_stage_commit_and_publish_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with arena(tmp_path, "a", "b", "c") as field, Lister(tmp_path / "out") as lister:
        with Feeder(tmp_path, field.table) as feeder:
            eventually(lambda: field.table.statuses()["COMPLETED"] >= 3, what="Spark is warm and files are done")
            striker = Striker(field, SEED)
            for fault in drawn(SEED, FAULTS):
                striker.strike(fault)
        field.drain(feeder.files, within=300)
    assert lister.complaints == []
    assert lister.listings > FAULTS
    assert judge(tmp_path / "in", tmp_path / "out") == Verdict()
    assert any('"rolled_forward": true' in path.read_text() for path in tmp_path.glob("*.log"))

"""The short form of the chaos: some minutes, every kind of fault. `make chaos-archive MINUTES=N` is the long one."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.__main__ import report
from tests.chaos.chaos import Terms, chaos
from tests.chaos.faults import COMMON, RARE, drawn, kill

SEED = 34
FAULTS = 14


def test_the_short_form_has_every_fault_and_two_kills() -> None:
    struck = Counter(islice(drawn(SEED), FAULTS))
    assert struck.keys() == COMMON.keys() | RARE.keys()
    assert struck[kill] >= 2


@pytest.mark.spark
@pytest.mark.slow
def test_under_chaos_nothing_is_lost_doubled_or_changed(tmp_path: Path) -> None:
    notes: list[str] = []
    verdict = chaos(tmp_path, Terms(SEED, faults=FAULTS), notes.append)
    (tmp_path / "chaos.txt").write_text("\n".join([*notes, report(verdict, SEED)]))
    assert verdict.wrong == [], "\n".join([*notes, report(verdict, SEED)])
    assert verdict.struck.total() >= FAULTS
    assert verdict.figures["generations"] >= 2

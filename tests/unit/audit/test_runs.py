"""Files of a rewind or backfill are proven against the rows of their runs, which may share a root."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.audit.archive import Archive


def test_a_root_that_runs_share_is_proven_against_all_of_them(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for label, run in (("0", "r1"), ("1", "r2")):
        archive.commit(100, 110, label=label, generation=2)
        archive.put(replace(archive.row(label), run=run))
        archive.put(replace(archive.row(label), progress=replace(archive.row(label).progress, position={"offset": 5})))
    assert archive.doubts(runs=("r1", "r2"), generation=2, deep=True) == []
    assert [proof.verdict for proof in archive.proofs(runs=("r1",), generation=2)][:2] == ["proven", "doubt"]
    assert archive.doubts(generation=2) != []

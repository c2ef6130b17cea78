"""What `verify` says of redriven dead letters: partitions of the same key, with commits of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.audit.proof import PartitionProof
from holdfast.leases.lease import Commit, Counts, History, Lease, Progress
from tests.unit.audit.archive import PIPELINE, Archive

RUN = "redrive-0123456789ab"
LABEL = f"0-{RUN}"


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Ten offsets, of which 2 and 7 were dead; both were sent again, and 7 is dead once more."""
    made = Archive(tmp_path)
    made.commit(0, 10, files=[made.data_file([0, 1, 3, 4, 5, 6, 8, 9]), made.dead_letters([2, 7])])
    files = [made.data_file([2], label=LABEL), made.dead_letters([7], label=LABEL)]
    manifest: dict[str, Any] = {
        **made.manifests["0"][0],
        "label": LABEL,
        "commit_id": "sent",
        "start": {"offset": 0},
        "end": {"offset": 2},
        "files": files,
    }
    made.rewrite(manifest)
    made.store.add([row(2)])
    return made


def row(processed: int) -> Lease:
    """The row of the redrive: its position counts letters."""
    return Lease(
        PIPELINE,
        "orders|0",
        RUN,
        progress=Progress({"offset": 2}, counts=Counts(processed=processed)),
        commit=Commit(1, 1, "topic-id", "sent"),
        history=History(created_at=1.0),
    )


def proofs(archive: Archive, *, deep: bool = False) -> list[PartitionProof]:
    found = archive.proofs(deep=deep, redrives=(RUN,))
    assert found[-1].doubts.sentences() == []
    return [proof for proof in found if isinstance(proof, PartitionProof)]


@pytest.mark.parametrize("deep", [False, True])
def test_both_are_proven_each_by_its_own_row(archive: Archive, deep: bool) -> None:
    verdicts = {proof.key: (proof.verdict, proof.rows, proof.dead_letters) for proof in proofs(archive, deep=deep)}
    assert verdicts == {"orders|0": ("proven", 8, 2), f"orders|0 ({RUN})": ("proven", 1, 1)}


def test_rows_that_were_sent_again_and_are_gone_are_a_doubt(archive: Archive) -> None:
    archive.path(f"orders/1_{LABEL}_{2:020d}.parquet").unlink()
    assert [sentence for proof in proofs(archive) for sentence in proof.doubts.sentences()] == [
        f"orders/1_{LABEL}_{2:020d}.parquet is missing; manifest 1 names it"
    ]


def test_a_redrive_that_was_committed_and_has_no_manifest_is_a_doubt(archive: Archive) -> None:
    archive.manifest_path(1, LABEL).unlink()
    found = archive.proofs(redrives=(RUN,))
    assert "manifest 1 is missing" in [sentence for proof in found for sentence in proof.doubts.sentences()]


def test_what_the_store_has_counted_otherwise_is_a_doubt(archive: Archive) -> None:
    archive.put(row(3))
    (doubt,) = [sentence for proof in proofs(archive) for sentence in proof.doubts.sentences()]
    assert doubt == "the store has counted 3 rows, and the manifests have 2"


def test_a_run_that_the_store_does_not_know_is_a_doubt(archive: Archive) -> None:
    assert archive.doubts() != []

"""The files that redrives have written for one partition, beside the live commits and under separate labels.

A range that is written again in place contains the redriven records too, so their files are moved away as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.errors import PartitionNotFound, Refused
from holdfast.flow.batch import Name
from holdfast.flow.manifest import decode_manifest
from holdfast.flow.names import OURS, folder
from holdfast.flow.run import RunStatus
from holdfast.flow.runs import Runs
from holdfast.flow.sink import Sink
from holdfast.leases.operator import Operator
from holdfast.runs.letter_selection import KIND, fence
from holdfast.runs.replace_plan import REPLACED, ReplacementPlan, decode_plan


@dataclass(frozen=True)
class Redriven:
    """The redriven records of one partition, in one root."""

    bucket: Bucket
    key: str
    name: Name

    def files(self) -> list[Mapping[str, Any]]:
        """Return files in manifests of redrives, dead letters included, without those moved by earlier plans."""
        named = list(self._named())
        moved = {key for plan in self._plans() for key in plan.files} if named else set()
        return [file for file in named if file["key"] not in moved]

    def _named(self) -> Iterator[Mapping[str, Any]]:
        for key in list(self.bucket.keys(f"{OURS}/commits/{folder(self.name)}-{KIND}-")):
            manifest = decode_manifest(self.bucket.read(key) or b"")
            if manifest.key == self.key:
                yield from manifest.files

    def _plans(self) -> Iterator[ReplacementPlan]:
        for key in list(self.bucket.keys(f"{REPLACED}/")):
            plan_id, _, name = key.removeprefix(f"{REPLACED}/").partition("/")
            if name == "plan.json":
                yield decode_plan(plan_id, self.bucket.read(key) or b"")

    def discard_staged(self) -> None:
        """Delete files staged by redrives; all redrives are fenced, and their commits are published."""
        staged = self.bucket.staged_under(f"{OURS}/staging/{folder(self.name)}-{KIND}-")
        self.bucket.discard([handle for _, handle in staged])


def fence_redrives(runs: Runs, rows_of: Callable[[str], Operator], key: str, sinks: Mapping[str, Sink]) -> None:
    """Prevent redrives from committing to the partition, and publish what they have committed. May be repeated.

    A redrive that is still selecting its letters is ended. A later one ignores the partition while it is set aside.
    Raises `Refused` if something cannot be published.
    """
    for run in list(runs.list()):
        configuration = run.configuration
        if not isinstance(configuration, dict) or configuration.get("kind") != KIND:
            continue
        if run.status is RunStatus.INITIALIZING:
            runs.fail(run.id, f"files of {key} are being replaced; redrive the dead letters after that")
        rows = rows_of(run.id)
        try:
            row = rows.show(key)
        except PartitionNotFound:
            continue
        if row.commit.receipts is not None and configuration["sink"] not in sinks:
            raise Refused(
                f"run {run.id} has an unpublished commit of sink {configuration['sink']!r}, which no longer exists"
            )
        fence(rows, row, sinks.get(configuration["sink"]), configuration["sink"], f"files of {key} are being replaced")


def lowest_straddling(files: Iterable[Mapping[str, Any]], start: int) -> int | None:
    """Return the lowest first offset of files with records on both sides of `start`; None if there are none."""
    return min((file["first"] for file in files if file["first"] < start <= file["last"]), default=None)


def redriven_from(files: Sequence[Mapping[str, Any]], start: int) -> tuple[str, ...]:
    """Return the keys of the files whose records are all at or after that offset."""
    return tuple(file["key"] for file in files if file["first"] >= start)

"""What is replaced: the plan by which the old files of a range are moved away, recorded before the first move.

    <root>/_holdfast/replaced/<plan>/plan.json     created once: which files are moved where
    <root>/_holdfast/replaced/<plan>/<old key>     the old files
    <root>/_holdfast/replaced/<plan>/done.json     created once, after the last move

Every step may be repeated by any process, so that carrying out an interrupted plan again finishes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.buckets.bucket import Bucket
from holdfast.errors import Halt, PartitionNotFound
from holdfast.flow.batch import Name
from holdfast.flow.manifest import Manifest, decode_manifest, first_offset
from holdfast.flow.names import OURS, folder
from holdfast.flow.run import RunStatus
from holdfast.flow.runs import Runs
from holdfast.flow.sink import Sink
from holdfast.leases.operator import Operator
from holdfast.runs.letter_selection import KIND, fence

REPLACED = f"{OURS}/replaced"


@dataclass(frozen=True, slots=True)
class ReplacementPlan:
    """Offsets [start, end) of a partition that are written again with that generation, and their old files."""

    id: str
    pipeline: str
    topic: str
    partition: int
    start: int
    end: int
    generation: int
    files: tuple[str, ...]

    @property
    def key(self) -> str:
        return plan_key(self.id)

    @property
    def done_key(self) -> str:
        return f"{REPLACED}/{self.id}/done.json"

    @property
    def moves(self) -> Iterator[tuple[str, str]]:
        """Yields the old and the new key of every file."""
        return ((key, f"{REPLACED}/{self.id}/{key}") for key in self.files)

    def encode(self) -> bytes:
        document: dict[str, Any] = asdict(self)
        del document["id"], document["files"]
        document["from"], document["to"] = document.pop("start"), document.pop("end")
        moves = [{"from": old, "to": new} for old, new in self.moves]
        return json.dumps({**document, "moves": moves, "state": "moving"}, sort_keys=True).encode()


def plan_key(plan_id: str) -> str:
    return f"{REPLACED}/{plan_id}/plan.json"


def decode_plan(plan_id: str, data: bytes) -> ReplacementPlan:
    """Decode a plan. Raises `Halt` if that fails."""
    try:
        document = json.loads(data)
        partition = (document["pipeline"], document["topic"], document["partition"])
        files = tuple(move["from"] for move in document["moves"])
        return ReplacementPlan(plan_id, *partition, document["from"], document["to"], document["generation"], files)
    except (ValueError, TypeError, KeyError) as broken:
        raise Halt(f"the plan {plan_key(plan_id)} cannot be read: {broken}") from broken


def commit_start(manifests: Iterable[Manifest], offset: int) -> int:
    """Return the first offset of the commit that holds the offset: only whole commits are replaced.

    `manifests` are standing ones in order. For an offset before all of them, returns the start of the first; for an
    offset after all of them, that offset.
    """
    for manifest in manifests:
        if offset < manifest.end["offset"]:
            return first_offset(manifest)
    return offset


def files_from(manifests: Sequence[Manifest], start: int) -> tuple[str, ...]:
    """Return the keys of all files, dead letters included, of the commits from that offset on."""
    chosen = [manifest for manifest in manifests if first_offset(manifest) >= start]
    return tuple(sorted(file["key"] for manifest in chosen for file in manifest.files))


@dataclass(frozen=True)
class Redriven:
    """The files that redrives have written for one partition, beside the live commits and under separate labels.

    A range that is written again in place contains the redriven records too, so their files are moved away as well.
    """

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
        fence(rows, row, sinks, f"files of {key} are being replaced")


def lowest_straddling(files: Iterable[Mapping[str, Any]], start: int) -> int | None:
    """Return the lowest first offset of files with records on both sides of `start`; None if there are none."""
    return min((file["first"] for file in files if file["first"] < start <= file["last"]), default=None)


def redriven_from(files: Sequence[Mapping[str, Any]], start: int) -> tuple[str, ...]:
    """Return the keys of the files whose records are all at or after that offset."""
    return tuple(file["key"] for file in files if file["first"] >= start)

"""The plan by which the old files of a range are moved away; it is recorded before the first move.

    <root>/_holdfast/replaced/<plan>/plan.json     created once: which files are moved where
    <root>/_holdfast/replaced/<plan>/<old key>     the old files
    <root>/_holdfast/replaced/<plan>/done.json     created once, after the last move

Every step may be repeated by any process, so that carrying out an interrupted plan again finishes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import Halt
from holdfast.flow.manifest import Manifest, first_offset
from holdfast.flow.names import OURS

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

    `manifests` are standing ones in order. An offset before all of them returns the start of the first; an offset after
    all of them returns itself.
    """
    for manifest in manifests:
        if offset < manifest.end["offset"]:
            return first_offset(manifest)
    return offset


def files_from(manifests: Sequence[Manifest], start: int) -> tuple[str, ...]:
    """Return the keys of all files, dead letters included, of the commits from that offset on."""
    chosen = [manifest for manifest in manifests if first_offset(manifest) >= start]
    return tuple(sorted(file["key"] for manifest in chosen for file in manifest.files))

"""The manifest of a commit: created once beside the data, never changed. The second witness of what was decided.

It is written before the first file of the commit becomes visible. Two nodes that publish the same commit write the same
manifest; a manifest that names other files means that store and bucket disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import Halt
from holdfast.flow.batch import Name
from holdfast.leases.lease import Json, Lease


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one commit made visible in one sink."""

    commit_id: str
    pipeline: str
    key: str
    stream: str
    label: str
    sequence: int
    generation: int
    incarnation: str
    token: int
    start: Json
    end: Json
    files: tuple[Mapping[str, Any], ...]
    """Per file: key, rows, size, sha256, first and last item; of a file with a place, the place."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Items [from, to) that the source had lost before they were read."""
    routed: Mapping[str, int] | None = None
    """Of a sink with routes: how many `rows` it was given, `of` how many that the batch had."""

    def encode(self) -> bytes:
        """The same manifest gives the same bytes."""
        # Neither `asdict`, which copies, nor indented, which is written without C: there may be thousands of files.
        told = {name: getattr(self, name) for name in Manifest.__slots__}
        if self.routed is None:
            del told["routed"]  # as versions wrote it that knew no routes
        return json.dumps(told, sort_keys=True, ensure_ascii=False).encode()

    def agrees_with(self, other: Manifest) -> bool:
        """Whether both tell of the same commit and the same bytes under the same names."""
        return self.commit_id == other.commit_id and _content(self) == _content(other)


def _content(manifest: Manifest) -> set[tuple[str, str]]:
    return {(file["key"], file["sha256"]) for file in manifest.files}


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes. Raises `Halt` when they are none: a witness that cannot be read is no witness."""
    try:
        told = json.loads(data)
        return Manifest(**{**told, "files": tuple(told["files"]), "gaps": _gaps(told)})
    except (ValueError, TypeError, KeyError) as broken:
        raise Halt(f"a manifest cannot be read: {broken}") from broken


def standing(newest_first: Iterable[Manifest], offset: int = 0) -> list[Manifest]:
    """Of a partition's manifests those whose files are the ones to read, in order, from the one with the offset on.

    Where work began anew at an earlier offset (`holdfast rewind --replace`), what had been there before is replaced.
    No more manifests are taken than are needed.
    """
    chain: list[Manifest] = []
    for manifest in newest_first:
        if chain and manifest.end["offset"] > first_offset(chain[-1]):
            continue
        chain.append(manifest)
        if first_offset(manifest) <= offset:
            break
    return chain[::-1]


def first_offset(manifest: Manifest) -> int:
    """Where a commit of offsets begins."""
    return int(manifest.start["offset"]) if manifest.start else 0


def manifest_of(lease: Lease, name: Name, receipt: Json) -> Manifest:
    """The manifest of the row's pending commit for the sink that gave this receipt."""
    files = tuple({k: v for k, v in file.items() if k != "staged"} for file in receipt["files"])
    commit = lease.commit
    return Manifest(
        commit_id=commit.commit_id,
        pipeline=lease.pipeline,
        key=lease.key,
        stream=name.stream,
        label=name.label,
        sequence=commit.sequence,
        generation=commit.generation,
        incarnation=commit.incarnation,
        token=receipt["token"],
        start=receipt["from"],
        end=receipt["to"],
        files=files,
        gaps=_gaps(receipt),
        routed=receipt.get("routed"),
    )


def _gaps(told: Json) -> tuple[tuple[int, int], ...]:
    return tuple((first, end) for first, end in told.get("gaps", ()))

"""The manifest of a commit: created once beside the data, never changed. A second record of each commit.

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
    """The files that one commit made visible in one sink."""

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
    """Per file: key, rows, size, sha256, first and last item, and its output folder, if it has one, as `place`."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Items [from, to) that the source had lost before they were read."""
    routed: Mapping[str, int] | None = None
    """For a sink with routes: how many `rows` it was given, `of` how many in the batch."""
    skipped: int = 0
    """Rows that the sink's format cannot hold, and that a setting leaves out."""

    def encode(self) -> bytes:
        """The manifest as bytes; equal manifests give equal bytes."""
        # Neither `asdict`, which copies, nor indented, which is written without C: there may be thousands of files.
        fields = {name: getattr(self, name) for name in Manifest.__slots__}
        if self.routed is None:
            del fields["routed"]  # as versions without routes wrote it
        if not self.skipped:
            del fields["skipped"]  # as versions without the setting wrote it
        return json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()

    def agrees_with(self, other: Manifest) -> bool:
        """Whether both record the same commit and the same bytes under the same names."""
        return self.commit_id == other.commit_id and _content(self) == _content(other)


def _content(manifest: Manifest) -> set[tuple[str, str]]:
    return {(file["key"], file["sha256"]) for file in manifest.files}


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes. Raises `Halt` if they are not a manifest."""
    try:
        fields = json.loads(data)
        return Manifest(**{**fields, "files": tuple(fields["files"]), "gaps": _gaps(fields)})
    except (ValueError, TypeError, KeyError) as broken:
        raise Halt(f"a manifest cannot be read: {broken}") from broken


def standing(newest_first: Iterable[Manifest], offset: int = 0) -> list[Manifest]:
    """The manifests of a partition whose files are valid, in order, from the one that holds the offset.

    Where work was restarted at an earlier offset (`holdfast rewind --replace`), later manifests replace earlier ones.
    Takes no more manifests than it needs.
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
    """The offset at which a commit begins."""
    return int(manifest.start["offset"]) if manifest.start else 0


def manifest_of(lease: Lease, name: Name, receipt: Json) -> Manifest:
    """The manifest of the row's pending commit for the sink of this receipt."""
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
        skipped=receipt.get("skipped", 0),
    )


def _gaps(fields: Json) -> tuple[tuple[int, int], ...]:
    return tuple((first, end) for first, end in fields.get("gaps", ()))

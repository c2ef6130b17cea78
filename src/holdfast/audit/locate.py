"""Finds the file, gap or dead letter of a message, and the backup files with the raw records of output files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.audit.contents import offsets_in
from holdfast.audit.documents import Manifest, ManifestFile, Plan, offset_of
from holdfast.audit.manifests import Manifests, commit_folders, manifest_in, plans_of
from holdfast.audit.sink import AuditedSink
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.leases.store import Store

BY_OFFSET = "the offsets in it"
BY_RANGE = "its manifest: the format keeps no offsets"
_NAME = re.compile(r"(?P<stream>[^/]+)/(?:.*/)?\d+_(?P<label>\d+)_(?P<first>\d+)\.[^/]+")
"""Usual file names; other files are searched for in all manifests."""


@dataclass(frozen=True, slots=True)
class Found:
    """Offsets, and where they are."""

    offsets: str
    found_in: str
    """`file`, `dead letter`, `gap`, or why there is no file."""
    file: str | None = None
    evidence: str | None = None
    """How it is known that the offsets are in the file."""
    root: str | None = None
    by_route: bool = False
    """The offsets are in no file, and the sink has routes: the record may have gone to another sink."""

    def row(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return {
            "offsets": self.offsets,
            "place": self.found_in,
            "file": self.file,
            "told_by": self.evidence,
            "root": self.root,
            "by_route": self.by_route,
        }


def locate_offset(audited: AuditedSink, store: Store, topic: str, partition: str, offset: int) -> list[Found]:
    """Return where the message is in this sink; several files if it cannot be decided which of them holds it."""
    if not audited.offsets:
        raise UsageError("messages have offsets only in pipelines that read Kafka")
    manifests = Manifests(audited, store, topic, partition)
    manifest = manifests.holding(offset)
    if manifest is None:
        return [Found(str(offset), _why_nowhere(manifests, offset), root=audited.root.location)]
    return list(_in_commit(audited, manifests, manifest, offset))


def _why_nowhere(manifests: Manifests, offset: int) -> str:
    first, position = manifests.first_offset(), offset_of(manifests.row.progress.position)
    if position is None or offset >= position:
        return "not yet committed"
    if first is not None and offset < first:
        return f"before the first offset that was read, {first}"
    return "being published"


def _in_commit(audited: AuditedSink, manifests: Manifests, manifest: Manifest, offset: int) -> Iterator[Found]:
    root = audited.root.location
    if any(first <= offset < end for first, end in manifest.gaps):
        yield Found(str(offset), f"gap: lost by the source, recorded in commit {manifest.sequence}", root=root)
        return
    candidates = [file for file in manifest.files if file.first <= offset <= file.last]
    located = [(file, current_key(manifests.plans, file)) for file in candidates]
    checked = [(file, at, _holds(audited, manifest, file, at, offset)) for file, at in located]
    certain = [(file, at) for file, at, holds in checked if holds]
    for file, at in certain:
        yield Found(str(offset), _kind(file, at), at, BY_OFFSET, root)
    if certain:
        return
    possible = [(file, at) for file, at, holds in checked if holds is None]
    for file, at in possible:
        kind = _kind(file, at) if len(possible) == 1 else f"one of {len(possible)} files"
        yield Found(str(offset), kind, at, BY_RANGE, root)
    if not possible:
        by_route = manifest.share is not None and manifest.share.elsewhere > 0
        reasons = "compacted, a transaction marker, or filtered out"
        reasons += ", or routed to other sinks only" * by_route + ", or skipped by the format" * bool(manifest.skipped)
        reason = f"no record at this offset in commit {manifest.sequence}: {reasons}"
        yield Found(str(offset), reason, root=root, by_route=by_route)


def current_key(plans: list[Plan], file: ManifestFile) -> str:
    """Return the key under which a file is now; a plan may have moved it."""
    return next((plan.moves[file.key] for plan in plans if file.key in plan.moves), file.key)


def _kind(file: ManifestFile, at: str) -> str:
    kind = "dead letter" if file.is_letters else "file"
    return kind if at == file.key else f"{kind}, replaced"


def _holds(audited: AuditedSink, manifest: Manifest, file: ManifestFile, at: str, offset: int) -> bool | None:
    """Return whether the offset is in the file; None if the format keeps no offsets."""
    offsets = offsets_in(audited.root, file, at, audited.format_of(manifest.stream))
    return None if offsets is None else bool((offsets == offset).any())


def locate_files(
    audited_sinks: Sequence[AuditedSink], backup: AuditedSink, store: Store, files: Sequence[str]
) -> list[Found]:
    """Return the backup files with the records of each file: by offsets if both formats keep them, otherwise by ranges.

    Raises `UsageError` for a file that no manifest of the pipeline names.
    """
    if not backup.offsets or not all(audited.offsets for audited in audited_sinks):
        raise UsageError("records are found by their offsets: both pipelines must read Kafka")
    return [found for file in files for found in _of_file(audited_sinks, backup, store, file)]


def _of_file(audited_sinks: Sequence[AuditedSink], backup: AuditedSink, store: Store, name: str) -> Iterator[Found]:
    audited, manifest, file = _named(audited_sinks, store, name)
    moved = current_key(list(plans_of(audited.root)), file)
    wanted = offsets_in(audited.root, file, moved, audited.format_of(manifest.stream))
    manifests = Manifests(backup, store, manifest.stream, manifest.label)
    for commit in manifests.overlapping(file.first, file.last):
        for kept in commit.files:
            first, last = max(kept.first, file.first), min(kept.last, file.last)
            at = current_key(manifests.plans, kept)
            if first <= last and (shared := _shared(backup, commit, kept, at, wanted)) is not False:
                evidence = BY_OFFSET if shared else BY_RANGE
                kind = "dead letter" if kept.is_letters else "file"
                yield Found(f"{first}-{last}", kind, at, evidence, backup.root.location)
    yield from _not_kept(manifests, file)


def _shared(backup: AuditedSink, commit: Manifest, kept: ManifestFile, at: str, wanted: Any) -> bool | None:
    """Return whether a backup file has any of the wanted offsets; None if that is unknown."""
    import numpy as np

    present = None if wanted is None else offsets_in(backup.root, kept, at, backup.format_of(commit.stream))
    return None if present is None else bool(np.isin(wanted, present).any())


def _not_kept(manifests: Manifests, file: ManifestFile) -> Iterator[Found]:
    """Yield the parts of the file's range that the backup does not have."""
    first, end = manifests.first_offset(), offset_of(manifests.row.progress.position)
    if first is None or end is None:
        yield Found(f"{file.first}-{file.last}", "not in the backup: nothing is committed there")
        return
    if file.first < first:
        yield Found(f"{file.first}-{min(file.last, first - 1)}", "not in the backup: before its first offset")
    if file.last >= end:
        yield Found(f"{max(file.first, end)}-{file.last}", "not in the backup: not yet committed there")


# --- the manifest of a file ------------------------------------------------------------------------------------------


def _named(audited_sinks: Sequence[AuditedSink], store: Store, name: str) -> tuple[AuditedSink, Manifest, ManifestFile]:
    for search in (_by_name, _by_search):
        for audited in audited_sinks:
            found = search(audited, store, audited.root.key_of(name))
            if found is not None:
                return (audited, *found)
    raise UsageError(f"no manifest of this pipeline names {name}")


def _by_name(audited: AuditedSink, store: Store, key: str) -> tuple[Manifest, ManifestFile] | None:
    parts = _NAME.fullmatch(key)
    if parts is None:
        return None
    try:
        manifest = Manifests(audited, store, parts["stream"], parts["label"]).holding(int(parts["first"]))
    except UsageError:
        return None  # the name is misleading; all manifests are searched
    return None if manifest is None else _in_manifest(manifest, key)


def _by_search(audited: AuditedSink, _store: Store, key: str) -> tuple[Manifest, ManifestFile] | None:
    root = audited.root
    for folder in commit_folders(root):
        sequence = 1
        while (manifest := manifest_in(root, f"{folder}/{sequence:020d}.json")) is not None:
            if (found := _in_manifest(manifest, key)) is not None:
                return found
            sequence += 1
    return None


def _in_manifest(manifest: Manifest, key: str) -> tuple[Manifest, ManifestFile] | None:
    return next(((manifest, file) for file in manifest.files if file.key == key), None)

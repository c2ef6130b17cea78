"""Which files of a backup hold the raw records that output files were made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.audit.contents import offsets_in
from holdfast.audit.locate import BY_OFFSET, BY_RANGE, Found, whereabouts
from holdfast.audit.manifests import Manifests, commit_folders, manifest, plans_of
from holdfast.audit.subject import Subject
from holdfast.audit.witness import Told, ToldFile, offset_of
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.leases.store import Store

_NAME = re.compile(r"(?P<stream>[^/]+)/(?:.*/)?\d+_(?P<label>\d+)_(?P<first>\d+)\.[^/]+")
"""The usual names; what is called otherwise is looked for in all manifests."""


def locate_files(subjects: Sequence[Subject], backup: Subject, store: Store, files: Sequence[str]) -> list[Found]:
    """For each file the backup's files, by the offsets in both where they are kept, else by ranges.

    Raises `UsageError` for a file that no manifest of the pipeline names.
    """
    if not backup.offsets or not all(subject.offsets for subject in subjects):
        raise UsageError("records are found by their offsets: both pipelines must read Kafka")
    return [one for file in files for one in _of_file(subjects, backup, store, file)]


def _of_file(subjects: Sequence[Subject], backup: Subject, store: Store, name: str) -> Iterator[Found]:
    subject, told, file = _named(subjects, store, name)
    moved = whereabouts(list(plans_of(subject.place)), file)
    wanted = offsets_in(subject.place, file, moved, subject.format_of(told.stream))
    manifests = Manifests(backup, store, told.stream, told.label)
    for commit in manifests.overlapping(file.first, file.last):
        for kept in commit.files:
            first, last = max(kept.first, file.first), min(kept.last, file.last)
            at = whereabouts(manifests.plans, kept)
            if first <= last and (shared := _shared(backup, commit, kept, at, wanted)) is not False:
                told_by = BY_OFFSET if shared else BY_RANGE
                place = "dead letter" if kept.is_letters else "file"
                yield Found(f"{first}-{last}", place, at, told_by, backup.place.root)
    yield from _not_kept(manifests, file)


def _shared(backup: Subject, commit: Told, kept: ToldFile, at: str, wanted: Any) -> bool | None:
    """Whether a backup file has any of the wanted offsets; None if that cannot be told."""
    import numpy as np

    there = None if wanted is None else offsets_in(backup.place, kept, at, backup.format_of(commit.stream))
    return None if there is None else bool(np.isin(wanted, there).any())


def _not_kept(manifests: Manifests, file: ToldFile) -> Iterator[Found]:
    """What of the file's range the backup has not."""
    first, end = manifests.first_offset(), offset_of(manifests.row.progress.position)
    if first is None or end is None:
        yield Found(f"{file.first}-{file.last}", "not in the backup: nothing is committed there")
        return
    if file.first < first:
        yield Found(f"{file.first}-{min(file.last, first - 1)}", "not in the backup: before its first offset")
    if file.last >= end:
        yield Found(f"{max(file.first, end)}-{file.last}", "not in the backup: not yet committed there")


# --- the manifest of a file ------------------------------------------------------------------------------------------


def _named(subjects: Sequence[Subject], store: Store, name: str) -> tuple[Subject, Told, ToldFile]:
    for look in (_by_name, _by_search):
        for subject in subjects:
            found = look(subject, store, subject.place.key_of(name))
            if found is not None:
                return (subject, *found)
    raise UsageError(f"no manifest of this pipeline names {name}")


def _by_name(subject: Subject, store: Store, key: str) -> tuple[Told, ToldFile] | None:
    parts = _NAME.fullmatch(key)
    if parts is None:
        return None
    try:
        told = Manifests(subject, store, parts["stream"], parts["label"]).holding(int(parts["first"]))
    except UsageError:
        return None  # the name misleads; all manifests are searched then
    return None if told is None else _in_manifest(told, key)


def _by_search(subject: Subject, _store: Store, key: str) -> tuple[Told, ToldFile] | None:
    place = subject.place
    for folder in commit_folders(place):
        sequence = 1
        while (told := manifest(place, f"{folder}/{sequence:020d}.json")) is not None:
            if (found := _in_manifest(told, key)) is not None:
                return found
            sequence += 1
    return None


def _in_manifest(told: Told, key: str) -> tuple[Told, ToldFile] | None:
    return next(((told, file) for file in told.files if file.key == key), None)

"""Files of one folder as partitions. Nothing is ever written to the folder."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import Refused, Unavailable
from holdfast.events import Event, Unreachable
from holdfast.flow.batch import Batch, Limits, Name, Plan, Wait
from holdfast.flow.source import WeighsPartitions
from holdfast.leases.lease import Lease, Partition
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.listing import Candidate
from holdfast.sources.objects.object_ref import FileRef
from holdfast.sources.objects.scan_config import Selection
from holdfast.sources.objects.source import ObjectsSource, found_by_other_settings, is_light, name_by_key
from holdfast.sources.objects.splits import Split

PAUSE = 5.0
"""Seconds until the next attempt to read a file after an error of the host."""
SPEC_KEY = "path"
"""Specs of files have this key; those of objects in buckets do not."""


class FolderSource(ObjectsSource, WeighsPartitions):
    """Each file is a partition. A file that changes after it was found is an error: files must appear complete."""

    def __init__(self, config: ObjectsConfig, folder: Path) -> None:
        super().__init__(config)
        self._folder = folder.absolute()
        self._selection = Selection(config.include, config.exclude)
        self._noticed: list[Event] = []

    def open(self) -> None:
        # Later the same errors may pass: a disk that was mounted at the start comes back.
        try:
            os.scandir(self._folder).close()
        except FileNotFoundError:
            raise Refused(f"the folder {self._folder} does not exist") from None
        except NotADirectoryError:
            raise Refused(f"{self._folder} is not a folder") from None
        except PermissionError:
            raise Refused(f"there is no permission to list the folder {self._folder}") from None
        except OSError as error:
            raise Unavailable(f"cannot read {self._folder}: {error.strerror}") from error

    def discover(self, state: dict[str, Any]) -> Iterator[Partition | None]:
        folder = str(self._folder)
        if state.setdefault("folder", folder) != folder:
            raise Refused(
                f"this pipeline has read {state['folder']}; in {folder} objects of the same name would count as done. "
                "Give the pipeline another name, or another partition_prefix"
            )
        yield from self._scan(state, self._candidates(time.time()))

    def name(self, lease: Lease) -> Name:
        if SPEC_KEY not in lease.spec:
            return name_by_key(lease)
        digest = hashlib.sha256(os.fsencode(_path(lease.spec))).hexdigest()
        return Name(Path(lease.spec["folder"]).name or "objects", digest[:32])

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        self._check_folder()
        return [
            self._plan(lease, limits) if SPEC_KEY in lease.spec else found_by_other_settings(lease) for lease in leases
        ]

    def _splits(self, batch: Batch) -> list[Split]:
        return self._planner.splits(batch.id, _ref(batch.lease), batch.cut)

    def is_light(self, leases: Sequence[Lease]) -> bool:
        return is_light(leases)

    def noticed(self) -> list[Event]:
        noticed, self._noticed = self._noticed, []
        return noticed

    def _check_folder(self) -> None:
        try:
            exists = self._folder.exists()
        except OSError as error:
            raise Unavailable(f"cannot read {self._folder}: {error.strerror}") from error
        if not exists:
            raise Unavailable(f"the folder {self._folder} does not exist")

    def _candidates(self, now: float) -> Iterator[Candidate]:
        start, end = self._config.window(now)
        for file in files_below(self._folder, self._selection):
            modified = file.mtime_ns / 1e9
            if start <= modified < end:
                yield Candidate(f"{self._folder.name}|{_key(file.path)}", self._spec(file), modified)

    def _spec(self, file: ListedFile) -> dict[str, Any]:
        spec = {"folder": str(self._folder), "path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}
        if not _is_text(file.path):
            spec["path"] = {"hex": os.fsencode(file.path).hex()}
        return spec

    def _plan(self, lease: Lease, limits: Limits) -> Plan:
        try:
            return self._planner.next_batch(_ref(lease), lease.progress.position, limits)
        except Unavailable as unavailable:
            # A bad block of the disk concerns one file; the others are read meanwhile.
            self._noticed.append(Unreachable("source", str(unavailable), PAUSE))
            return Wait(PAUSE)


# --- listing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as it was listed. `path` is relative to the folder."""

    path: str
    size: int
    mtime_ns: int


def files_below(folder: Path, selection: Selection) -> Iterator[ListedFile]:
    """Regular files of the selection, sorted by path. Symbolic links are not followed.

    Raises `Unavailable` if a folder cannot be listed: an error is not an empty folder.
    """
    for path in _walk(folder, ""):
        if path not in selection:
            continue
        try:
            status = (folder / path).stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # deleted since the folder was listed
        except OSError as error:
            raise Unavailable(f"cannot read {folder / path}: {error.strerror}") from error
        yield ListedFile(path, status.st_size, status.st_mtime_ns)


def _walk(folder: Path, below: str) -> Iterator[str]:
    try:
        with os.scandir(folder / below) as entries:
            names = sorted(filter(None, map(_listed_name, entries)))
    except FileNotFoundError:
        if below:
            return  # deleted since its parent was listed
        raise Unavailable(f"the folder {folder} does not exist") from None
    except OSError as error:
        raise Unavailable(f"cannot list {folder / below}: {error.strerror}") from error
    for name in names:
        if name.endswith("/"):
            yield from _walk(folder, below + name)
        else:
            yield below + name


def _listed_name(entry: os.DirEntry[str]) -> str:
    """The entry's name, with a slash if it is a folder; empty if it is not read."""
    # Such files are unfinished or internal to some tool; holdfast's own files that are not data begin like this, too.
    if entry.name.startswith((".", "_")):
        return ""
    if entry.is_dir(follow_symlinks=False):
        # The slash also sorts the paths within a folder like whole paths.
        return f"{entry.name}/"
    return entry.name if entry.is_file(follow_symlinks=False) else ""


# --- keys and specs ------------------------------------------------------------------------------------------------


def _ref(lease: Lease) -> FileRef:
    spec = lease.spec
    return FileRef(str(Path(spec["folder"], _path(spec))), spec["size"], spec["mtime_ns"])


def _key(path: str) -> str:
    """The path as a part of a key. A path that is not text gets a form that no other path can have."""
    return path if _is_text(path) else f"/{os.fsencode(path).hex()}"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path(spec: Any) -> str:
    path = spec["path"]
    return path if isinstance(path, str) else os.fsdecode(bytes.fromhex(path["hex"]))

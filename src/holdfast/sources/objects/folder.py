"""Objects that are files of one folder. Nothing is ever written to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import Refused, Unavailable
from holdfast.events import Event, Unreachable
from holdfast.flow.batch import Batch, Limits, Name, Plan, Wait
from holdfast.leases.lease import Lease
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.cutting import Cutting
from holdfast.sources.objects.finding import Found, Selection, find
from holdfast.sources.objects.finding_order import Candidate
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.places import FilePlace
from holdfast.sources.objects.site import Site

PAUSE = 5.0
"""Seconds until a file is looked at again of which the host could not tell."""


class FolderSite(Site):
    """A file that changes after it was found is an error: files must be complete when they appear."""

    mark = "path"

    def __init__(self, config: ObjectsConfig, folder: Path) -> None:
        self._config = config
        self._cutting = Cutting(config)
        self._folder = folder.absolute()
        self._selection = Selection(config.include, config.exclude)
        self._noticed: list[Event] = []

    def open(self) -> None:
        self.check()
        if not self._folder.is_dir():
            raise Refused(f"{self._folder} is no folder")

    def check(self) -> None:
        try:
            there = self._folder.exists()
        except OSError as error:
            raise Unavailable(f"cannot look at {self._folder}: {error.strerror}") from error
        if not there:
            raise Unavailable(f"the folder {self._folder} is not there")

    def admit(self, state: dict[str, Any]) -> None:
        folder = str(self._folder)
        if state.setdefault("folder", folder) != folder:
            raise Refused(
                f"this pipeline has read {state['folder']}; in {folder} objects of the same name would count as done. "
                "Give it another name, or another partition_prefix"
            )

    def find(self, now: float) -> Iterator[Candidate | None]:
        start, end = self._config.window(now)
        for found in find(self._folder, self._selection):
            modified = found.mtime_ns / 1e9
            if start <= modified < end:
                yield Candidate(f"{self._folder.name}|{_key(found.path)}", self._spec(found), modified)

    def _spec(self, found: Found) -> dict[str, Any]:
        spec = {"folder": str(self._folder), "path": found.path, "size": found.size, "mtime_ns": found.mtime_ns}
        if not _is_text(found.path):
            spec["path"] = {"hex": os.fsencode(found.path).hex()}
        return spec

    def name(self, lease: Lease) -> Name:
        digest = hashlib.sha256(os.fsencode(_path(lease.spec))).hexdigest()
        return Name(Path(lease.spec["folder"]).name or "objects", digest[:32])

    def plan(self, lease: Lease, limits: Limits) -> Plan:
        try:
            return self._cutting.next(_place(lease), lease.progress.position, limits)
        except Unavailable as away:
            # A bad block of the disk is met at one file; the others are read meanwhile.
            self._noticed.append(Unreachable("source", str(away), PAUSE))
            return Wait(PAUSE)

    def noticed(self) -> list[Event]:
        noticed, self._noticed = self._noticed, []
        return noticed

    def pieces(self, batch: Batch) -> list[Piece]:
        return self._cutting.pieces(batch.id, _place(batch.lease), batch.cut)


def _place(lease: Lease) -> FilePlace:
    spec = lease.spec
    return FilePlace(str(Path(spec["folder"], _path(spec))), spec["size"], spec["mtime_ns"])


def _key(path: str) -> str:
    """The path as a part of a key. One that is no text has a form that no other path can have."""
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

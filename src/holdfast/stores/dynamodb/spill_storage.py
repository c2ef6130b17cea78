"""Storage for receipts that are too large for a row: a folder, or a prefix of a bucket.

Names are used once, and every object is checked against the hash in its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from holdfast.buckets.local import LocalBucket
from holdfast.buckets.root import S3Reach, access_of
from holdfast.errors import Refused, StoreUnavailable, Unavailable
from holdfast.s3.access import SCHEME
from holdfast.s3.client import Denied, Unable, client_of
from holdfast.s3.objects import S3Objects
from holdfast.stores.dynamodb import SpillConfig

HIDDEN = "_holdfast/receipts/"
"""Folder below the root, hidden from readers of a root that also holds files."""
PATIENCE = 10.0


class SpillStorage(Protocol):
    """Objects by name. All calls block, may be repeated, and raise `Unavailable` when there is no response."""

    def create(self, key: str, data: bytes) -> bool:
        """Create the object durably; False if it exists already."""
        ...

    def read(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str) -> Iterator[str]: ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects; missing ones are ignored."""
        ...


class SpillFolder:
    """Files below a folder that all nodes share, which must exist."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()
        self._bucket = LocalBucket(root)

    def create(self, key: str, data: bytes) -> bool:
        self._require_folder()
        return self._bucket.create(HIDDEN + key, data)

    def read(self, key: str) -> bytes | None:
        self._require_folder()
        found = self._bucket.read(HIDDEN + key)
        # Asked for an object that was made: without its folder this is a mount point, and nothing is mounted.
        if found is None and not (self._root / HIDDEN).is_dir():
            raise Unavailable(f"there is no folder {self._root / HIDDEN}; is {self._root} still mounted?")
        return found

    def keys(self, prefix: str) -> Iterator[str]:
        self._require_folder()
        return (key.removeprefix(HIDDEN) for key in self._bucket.keys(HIDDEN + prefix))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            path = self._root / HIDDEN / key
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable(f"cannot delete {path}: {error}") from error
            with suppress(OSError):
                path.parent.rmdir()

    def _require_folder(self) -> None:
        # Made here, it would be a folder of this host alone if a mount is missing; and nothing would seem to be in it.
        if not self._root.is_dir():
            raise Unavailable(f"there is no folder {self._root}; make it, or mount it")


def storage_of(config: SpillConfig) -> SpillStorage:
    """The storage that the settings name. Sends no request."""
    if not config.root.startswith(SCHEME):
        return SpillFolder(config.root)
    access, prefix = access_of(config.root, config.s3 or S3Reach(), PATIENCE)
    return S3Objects(client_of(access), prefix + HIDDEN)


def check_storage(storage: SpillStorage, root: str) -> None:
    """Check access to the storage. Raises `Refused`, or `StoreUnavailable` if it does not respond."""
    try:
        next(iter(storage.keys("")), None)
    except (Denied, Unable) as refused:
        raise Refused(f"spill {root}: {refused}; the store needs to list, get, put and delete objects there") from None
    except Unavailable as away:
        raise StoreUnavailable(f"spill {root}: {away}") from away


@contextmanager
def store_errors(root: str) -> Iterator[None]:
    """Turn errors of the storage into errors of the store: nothing was sent to the table."""
    try:
        yield
    except Unavailable as away:
        raise StoreUnavailable(f"spill {root}: {away}") from away

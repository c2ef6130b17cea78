"""What an archive holds: the commits of each topic partition, from their manifests.

Only manifests are read. A commit is the unit: its files may share a range of offsets if they lie in several folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.buckets.bucket import Bucket
from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.manifest import Manifest, decode_manifest, first_offset, standing
from holdfast.flow.names import OURS, folder

COMMITS = f"{OURS}/commits/"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A visible file of the archive."""

    key: str
    size: int
    rows: int
    first: int
    last: int
    sha256: str = ""

    @property
    def is_dense(self) -> bool:
        """Whether the file holds every offset from first to last, so that offsets follow from row numbers."""
        return self.rows == self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: offsets [start, end) in its files, without dead letters."""

    start: int
    end: int
    files: tuple[ArchivedFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def partitions(bucket: Bucket) -> list[Name]:
    """Return the topic partitions that have commits, in order. Lists the names of all manifests."""
    found: dict[str, str] = {}
    for key in bucket.keys(COMMITS):
        found.setdefault(key.removeprefix(COMMITS).rpartition("/")[0], key)
    manifests = (_manifest(bucket, key) for key in found.values())
    return [Name(manifest.stream, manifest.label) for manifest in manifests]


def commits(bucket: Bucket, name: Name) -> list[Commit]:
    """Return the commits of a topic partition in order, without those that were replaced.

    Raises `BatchError` where a manifest is missing.
    """
    newest_first = reversed(list(_in_order(bucket, name)))
    return [Commit(first_offset(commit), commit.end["offset"], _files(commit)) for commit in standing(newest_first)]


def _in_order(bucket: Bucket, name: Name) -> Iterator[Manifest]:
    before: Manifest | None = None
    for key in bucket.keys(f"{COMMITS}{folder(name)}/"):
        manifest = _manifest(bucket, key)
        if before is not None and manifest.sequence != before.sequence + 1:
            raise BatchError(f"the archive has no manifest between {before.sequence} and {manifest.sequence} of {name}")
        before = manifest
        yield manifest


def _files(manifest: Manifest) -> tuple[ArchivedFile, ...]:
    return tuple(
        ArchivedFile(file["key"], file["size"], file["rows"], file["first"], file["last"], file.get("sha256", ""))
        for file in sorted(manifest.files, key=lambda file: int(file["first"]))
        if not file["key"].startswith(f"{OURS}/")
    )


def _manifest(bucket: Bucket, key: str) -> Manifest:
    data = bucket.read(key)
    if data is None:
        raise BatchError(f"manifest {key} of the archive no longer exists")
    return decode_manifest(data)

"""Finding objects of a bucket: listed page by page, never held."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.errors import Refused
from holdfast.s3.access import S3Access
from holdfast.s3.client import Denied, client_of
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.finding import Selection
from holdfast.sources.objects.scan_config import BucketSettings

SIGN_OF_LIFE = 1000
"""Objects in a row that were not chosen, after which the listing tells that it goes on."""
_OURS = re.compile(r"(?:^|/)_holdfast/")
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object as it was listed."""

    key: str
    size: int
    etag: str
    modified: float


class BucketListing:
    """Which objects of one bucket are read."""

    def __init__(self, access: S3Access, bucket: BucketSettings, config: ObjectsConfig) -> None:
        include = config.include if bucket.include is None else bucket.include
        self.access = access
        self.prefixes = outermost(bucket.include_prefix or [_WILD.split(pattern, maxsplit=1)[0] for pattern in include])
        self._selection = Selection(include, config.exclude if bucket.exclude is None else bucket.exclude)
        self._suffixes = bucket.exclude_suffix
        self._times = bucket if bucket.given else config

    def check(self) -> None:
        """Raise `Refused` if we may not list it, `Unavailable` if that cannot be told now."""
        try:
            client_of(self.access).call("list_objects_v2", Prefix=self.prefixes[0], MaxKeys=1)
        except Denied as denied:
            raise Refused(str(denied)) from denied

    def objects(self, now: float) -> Iterator[S3Object | None]:
        """The objects in order of keys; None now and then, where none is chosen for long.

        `now` is when the scan began. Raises `Unavailable`: an error is not the end of the listing.
        """
        start, end = self._times.window(now)
        passed = 0
        for prefix in self.prefixes:
            for found in listed(self.access, prefix):
                if self.chosen(found) and start <= found.modified < end:
                    passed = 0
                    yield found
                else:
                    passed += 1
                    if passed % SIGN_OF_LIFE == 0:
                        yield None

    def below(self, prefix: str, *, deep: bool) -> Iterator[S3Object]:
        """The chosen objects below a prefix, as of now; without `deep` not those in folders below it."""
        start, end = self._times.window(time.time())
        for found in listed(self.access, prefix, deep=deep):
            if self.chosen(found) and start <= found.modified < end:
                yield found

    def chosen(self, found: S3Object) -> bool:
        """Whether its key is one of those that are read."""
        key = found.key
        if key.endswith(self._suffixes) or _OURS.search(key) or key not in self._selection:
            return False
        # What tools leave to show an empty folder.
        return bool(found.size) or not key.endswith("/")


def listed(access: S3Access, prefix: str, *, deep: bool = True) -> Iterator[S3Object]:
    """What is below the prefix, sorted, page by page; without `deep` not what is in folders below it."""
    only = {} if deep else {"Delimiter": "/"}
    for entry in client_of(access).pages("list_objects_v2", "Contents", Prefix=prefix, **only):
        yield S3Object(entry["Key"], entry["Size"], entry["ETag"], entry["LastModified"].timestamp())


def prefixes_below(access: S3Access, prefix: str, depth: int) -> Iterator[tuple[str, bool]]:
    """Folders that many levels below the prefix (with True: all that is below counts), and those above that are needed.

    One above is there for the objects that lie in it directly.
    """
    if not depth:
        yield prefix, True
        return
    yield prefix, False
    for folder in client_of(access).pages("list_objects_v2", "CommonPrefixes", Prefix=prefix, Delimiter="/"):
        if not _OURS.search(folder["Prefix"]):
            yield from prefixes_below(access, folder["Prefix"], depth - 1)


def outermost(prefixes: Sequence[str]) -> list[str]:
    """The prefixes, sorted, without those that begin with another one."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept

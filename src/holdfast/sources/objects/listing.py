"""Listings of buckets, page by page, and the order in which listed objects become partitions.

To be read in the order of time, objects are sorted on disk: memory holds one run of them at most.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import re
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

from holdfast.buckets.root import S3Reach, access_of
from holdfast.errors import Refused
from holdfast.leases.lease import Json, Partition
from holdfast.s3.access import S3Access
from holdfast.s3.client import Denied, client_of
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.scan_config import BucketSettings, Selection

RESPONSE_TIMEOUT = 15.0
"""Seconds. Requests are sent while the node plans, and must not hold up its heartbeat."""
SIGN_OF_LIFE = 1000
"""Objects in a row that were not selected, after which the listing yields a sign of life."""
SORT_RUN = 20_000
MAX_SORT_RUNS = 64
"""Files that are open at a time while sorting; beyond it they are merged into one."""
_INTERNAL = re.compile(r"(?:^|/)_holdfast/")
_WILDCARD = re.compile(r"[*?\[]")
RUN = 500
"""Objects of a run, on average."""
LONGEST_RUN = 4 * RUN
SCAN_ID = "scan"
"""In the state of discovery: the id of the last scan whose rows were all created."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as it was listed."""

    key: str
    size: int
    etag: str
    modified: float


class BucketListing:
    """The selected objects of one bucket."""

    def __init__(self, access: S3Access, bucket: BucketSettings, config: ObjectsConfig) -> None:
        include = config.include if bucket.include is None else bucket.include
        prefixes = bucket.include_prefix or [_WILDCARD.split(pattern, maxsplit=1)[0] for pattern in include]
        self.access = access
        self.prefixes = outermost(prefixes)
        self._selection = Selection(include, config.exclude if bucket.exclude is None else bucket.exclude)
        self._suffixes = bucket.exclude_suffix
        self._times = bucket if bucket.given else config

    def check(self) -> None:
        """Raise `Refused` if listing is not permitted, `Unavailable` if the server does not respond."""
        try:
            client_of(self.access).call("list_objects_v2", Prefix=self.prefixes[0], MaxKeys=1)
        except Denied as denied:
            raise Refused(str(denied)) from denied

    def objects(self, now: float) -> Iterator[ListedObject | None]:
        """The selected objects in order of keys, and None as a sign of life while none is selected.

        `now` is when the scan began. Raises `Unavailable`: an error is not the end of the listing.
        """
        start, end = self._times.window(now)
        passed = 0
        for prefix in self.prefixes:
            for listed in objects_below(self.access, prefix):
                if self._selects(listed) and start <= listed.modified < end:
                    passed = 0
                    yield listed
                else:
                    passed += 1
                    if passed % SIGN_OF_LIFE == 0:
                        yield None

    def below(self, prefix: str, *, deep: bool) -> Iterator[ListedObject]:
        """The selected objects below a prefix, as of now; those in folders below it only with `deep`."""
        start, end = self._times.window(time.time())
        for listed in objects_below(self.access, prefix, deep=deep):
            if self._selects(listed) and start <= listed.modified < end:
                yield listed

    def _selects(self, listed: ListedObject) -> bool:
        key = listed.key
        if key.endswith(self._suffixes) or _INTERNAL.search(key) or key not in self._selection:
            return False
        # Tools leave empty objects like this to show an empty folder.
        return bool(listed.size) or not key.endswith("/")


class BucketListings:
    """The listings of a pipeline's buckets, and access to buckets that only its rows still name."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._reach = config.s3 or S3Reach()
        self._access: dict[str, S3Access] = {}
        self._listings = {
            bucket.bucket: BucketListing(self.access(bucket.bucket), bucket, config) for bucket in config.buckets
        }

    def __iter__(self) -> Iterator[BucketListing]:
        return iter(self._listings.values())

    def of(self, bucket: str) -> BucketListing | None:
        return self._listings.get(bucket)

    def access(self, bucket: str) -> S3Access:
        if bucket not in self._access:
            self._access[bucket] = access_of(f"s3://{bucket}", self._reach, RESPONSE_TIMEOUT)[0]
        return self._access[bucket]

    def check(self) -> None:
        """Like `BucketListing.check`, for all buckets."""
        for listing in self:
            listing.check()


def objects_below(access: S3Access, prefix: str, *, deep: bool = True) -> Iterator[ListedObject]:
    """The objects below a prefix, sorted, page by page; those in folders below it only with `deep`."""
    delimiter = {} if deep else {"Delimiter": "/"}
    for entry in client_of(access).pages("list_objects_v2", "Contents", Prefix=prefix, **delimiter):
        yield ListedObject(entry["Key"], entry["Size"], entry["ETag"], entry["LastModified"].timestamp())


def prefixes_below(access: S3Access, prefix: str, depth: int) -> Iterator[tuple[str, bool]]:
    """Folders `depth` levels below the prefix, each with True: all objects below them count.

    The folders above them are yielded with False: only the objects directly in them count.
    """
    if not depth:
        yield prefix, True
        return
    yield prefix, False
    for folder in client_of(access).pages("list_objects_v2", "CommonPrefixes", Prefix=prefix, Delimiter="/"):
        if not _INTERNAL.search(folder["Prefix"]):
            yield from prefixes_below(access, folder["Prefix"], depth - 1)


def outermost(prefixes: Sequence[str]) -> list[str]:
    """The prefixes, sorted, without those that begin with another prefix among them."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


# --- order ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """An object or prefix that may become a partition."""

    key: str
    spec: dict[str, Json]
    modified: float
    incarnation: str = ""

    def partition(self) -> Partition:
        return Partition(self.key, spec=self.spec, incarnation=self.incarnation)


def by_time(found: Iterable[Candidate | None], *, newest: bool) -> Iterator[Candidate | None]:
    """The candidates, oldest or newest first; those of the same time by key. Yields None as a sign of life."""
    sign = -1.0 if newest else 1.0
    with ExitStack() as files:
        runs: list[IO[str]] = []
        rows: list[list[Any]] = []
        for count, candidate in enumerate(found):
            if candidate is not None:
                rows.append([sign * candidate.modified, candidate.key, candidate.spec, candidate.incarnation])
            if count % SORT_RUN == SORT_RUN - 1:
                yield None
            if len(rows) == SORT_RUN:
                runs.append(_written(sorted(rows, key=_order), files))
                rows = []
            if len(runs) == MAX_SORT_RUNS:
                merged = _written(_merged(runs), files)
                for run in runs:
                    run.close()
                runs = [merged]
        ordered = heapq.merge(sorted(rows, key=_order), _merged(runs), key=_order)
        for modified, key, spec, incarnation in ordered:
            yield Candidate(key, spec, sign * modified, incarnation)


def _order(row: list[Any]) -> tuple[float, str]:
    return row[0], row[1]


def _merged(runs: Iterable[IO[str]]) -> Iterator[list[Any]]:
    return heapq.merge(*map(_read, runs), key=_order)


def _written(rows: Iterable[list[Any]], files: ExitStack) -> IO[str]:
    run = files.enter_context(tempfile.TemporaryFile("w+", encoding="ascii", prefix="holdfast-"))  # noqa: SIM115
    rows = iter(rows)
    while portion := list(itertools.islice(rows, 1000)):
        run.writelines(f"{json.dumps(row)}\n" for row in portion)
    return run


def _read(run: IO[str]) -> Iterator[list[Any]]:
    run.seek(0)
    for line in run:
        yield json.loads(line)


class ListingCache:
    """Digests of the last scan of this process, so that the next one does not offer every object to the store.

    A listing is cut into runs of some hundred objects, at borders that depend on the keys alone: when an object is
    added or deleted, one run changes and the others stay the same. A run is remembered by its digest, so a million
    objects take a few thousand digests. Runs that are not in the cache, because another node did the last scan or this
    one has restarted, are offered to the store, which has rows for their objects already. Used by one scan at a time.
    """

    def __init__(self) -> None:
        self._confirmed: set[bytes] = set()
        self._listed: set[bytes] = set()
        self._scan_id = ""

    def begin(self, state: dict[str, Any]) -> None:
        """Begin a scan. The digests of the last scan are used if all its rows were created, according to the state."""
        is_confirmed = self._scan_id and state.get(SCAN_ID) == self._scan_id
        self._confirmed = self._listed if is_confirmed else set()
        self._listed = set()
        state[SCAN_ID] = self._scan_id = uuid.uuid4().hex

    def without(self, found: Iterable[Candidate | None]) -> Iterator[Candidate | None]:
        """The candidates without the runs of the last scan; each such run is replaced by None, a sign of life."""
        run: list[Candidate] = []
        for candidate in found:
            if candidate is None:
                yield None
                continue
            run.append(candidate)
            if len(run) == LONGEST_RUN or zlib.crc32(candidate.key.encode()) % RUN == 0:
                yield from self._unless_listed(run)
                run = []
        yield from self._unless_listed(run)

    def _unless_listed(self, run: list[Candidate]) -> Iterator[Candidate | None]:
        # No key contains a NUL, so no two runs have the same bytes.
        digest = hashlib.sha256(b"\0".join(candidate.key.encode() for candidate in run)).digest()
        self._listed.add(digest)
        if digest in self._confirmed:
            yield None
        else:
            yield from run

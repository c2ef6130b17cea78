"""Objects of buckets on S3 as partitions: `bucket|key`, in the version that the ETag names."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from holdfast.errors import BatchError, Refused, Unavailable
from holdfast.events import Event, Notice
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.source import AfterPublish, WeighsPartitions
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.s3.client import Missing, client_of
from holdfast.sources.objects.after_publish import ObjectCleanup
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.listing import BucketListings, Candidate, ListedObject
from holdfast.sources.objects.object_ref import S3Ref
from holdfast.sources.objects.source import ObjectsSource, found_by_other_settings, is_light, name_by_key
from holdfast.sources.objects.splits import Split

SPEC_KEY = "key"
"""Specs of objects have this key; those of files and prefixes do not."""
VERSION = "version"
"""In a position: the version that is read, if it differs from the version that was found."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of an object."""

    etag: str
    size: int


class BucketSource(ObjectsSource, WeighsPartitions):
    """Each object of one or more buckets is a partition. Nothing is written to the buckets."""

    def __init__(self, config: ObjectsConfig) -> None:
        super().__init__(config)
        self._listings = BucketListings(config)
        self._notices: list[Event] = []

    def open(self) -> None:
        self._listings.check()

    def discover(self, state: dict[str, Any]) -> Iterator[Partition | None]:
        refuse_folder(state)
        yield from self._scan(state, self._candidates(time.time()))

    def name(self, lease: Lease) -> Name:
        spec = lease.spec
        if SPEC_KEY not in spec:
            return name_by_key(lease)
        named = spec["key"].encode("utf-8", "surrogatepass")
        if spec.get("reread"):
            # No key contains this byte, so no other object has the same bytes here.
            named = b"\xff" + spec["etag"].encode() + b"\xff" + named
        return Name(spec["bucket"], hashlib.sha256(named).hexdigest()[:32])

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        """Sends no request, except for objects that failed before or are larger than a batch."""
        return [
            self._plan(lease, limits) if SPEC_KEY in lease.spec else found_by_other_settings(lease) for lease in leases
        ]

    def _splits(self, batch: Batch) -> list[Split]:
        lease, start = batch.lease, batch.cut.start
        ref = self._ref(lease, _version_in(start) or _found_version(lease))
        cut = replace(batch.cut, start=_without_version(start), end=_without_version(batch.cut.end))
        return self._planner.splits(batch.id, ref, cut)

    def is_light(self, leases: Sequence[Lease]) -> bool:
        return is_light(leases)

    def noticed(self) -> list[Event]:
        noticed, self._notices = self._notices, []
        return noticed

    def _candidates(self, now: float) -> Iterator[Candidate | None]:
        for listing in self._listings:
            for listed in listing.objects(now):
                yield None if listed is None else self._candidate(listing.access.bucket, listed)

    def _candidate(self, bucket: str, listed: ListedObject) -> Candidate:
        spec: dict[str, Json] = {"bucket": bucket, "key": listed.key, "size": listed.size, "etag": listed.etag}
        if self._config.reread:
            spec["reread"] = True
        etag = listed.etag if self._config.reread else None
        return Candidate(partition_key(bucket, listed.key, etag), spec, listed.modified, listed.etag)

    # --- planning ----------------------------------------------------------------------------------------------

    def _plan(self, lease: Lease, limits: Limits) -> Plan:
        try:
            version = self._version(lease)
        except BatchError as error:
            return error
        if version is None:
            self._notices.append(
                Notice(f"{lease.key} was overwritten before it was read; its newer version is a partition of its own")
            )
            return Done()
        position = _without_version(lease.progress.position)
        planned = self._planner.next_batch(self._ref(lease, version), position, limits)
        if isinstance(planned, Cut) and version != _found_version(lease):
            return _with_version(planned, version)
        return planned

    def _version(self, lease: Lease) -> Version | None:
        """The version to read; None if it is gone and the newer version has its own partition."""
        position, found = lease.progress.position, _found_version(lease)
        if isinstance(position, Mapping):
            return _version_in(position) or found
        if position is not None or not lease.history.attempts:
            return found
        # Nothing of it was committed, and it failed: it may have been overwritten, and the newer version is as good.
        present = self._present_version(lease)
        return None if present != found and lease.spec.get("reread") else present

    def _present_version(self, lease: Lease) -> Version:
        ref = self._ref(lease, _found_version(lease))
        try:
            head = client_of(ref.access).call("head_object", Key=ref.key)
        except Missing:
            raise BatchError(f"{ref.path} has vanished since it was found") from None
        return Version(head["ETag"], head["ContentLength"])

    def _ref(self, lease: Lease, version: Version) -> S3Ref:
        access = self._listings.access(lease.spec["bucket"])
        return S3Ref(access, lease.spec["key"], version.size, version.etag)


class CleanedBucketSource(BucketSource, AfterPublish):
    """Objects are tagged or deleted when all their records are visible in all sinks."""

    def __init__(self, config: ObjectsConfig) -> None:
        super().__init__(config)
        self._cleanup = ObjectCleanup(config)

    def after_publish(self, leases: Sequence[Lease]) -> list[Unavailable | None]:
        refs = [self._ref(lease, _version_in(lease.progress.position) or _found_version(lease)) for lease in leases]
        dead = [lease.progress.counts.dead for lease in leases]
        return self._cleanup.after_publish(list(zip(refs, dead, strict=True)))

    def noticed(self) -> list[Event]:
        return super().noticed() + self._cleanup.noticed()


def partition_key(bucket: str, key: str, etag: str | None = None) -> str:
    """`bucket|key`, or with an ETag `bucket@etag|key`. All differ: bucket names contain neither `|`, `@` nor `%`."""
    head = bucket if etag is None else f"{bucket}@{quote(etag.strip(chr(34)), safe='')}"
    if "\0" in key:
        # No store can keep this character.
        return f"{head}%|{quote(key, safe='/')}"
    return f"{head}|{key}"


def refuse_folder(state: Mapping[str, Any]) -> None:
    """Raise `Refused` if this is the state of a pipeline that has read a folder."""
    if "folder" in state:
        raise Refused(
            f"this pipeline has read the folder {state['folder']}; give the pipeline that reads buckets another name"
        )


def _found_version(lease: Lease) -> Version:
    return Version(lease.spec["etag"], lease.spec["size"])


def _version_in(position: Json) -> Version | None:
    """The version that the position names, if any."""
    if not isinstance(position, Mapping) or VERSION not in position:
        return None
    return Version(*position[VERSION])


def _without_version(position: Json) -> Json:
    """The position within the object."""
    if not isinstance(position, Mapping):
        return position
    return {name: value for name, value in position.items() if name != VERSION}


def _with_version(planned: Cut, version: Version) -> Cut:
    entry = {VERSION: [version.etag, version.size]}
    return replace(planned, start={**planned.start, **entry}, end={**planned.end, **entry})

"""Objects of buckets on S3. Each is a partition: `bucket|key`, in the version that its ETag names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from holdfast.buckets.root import S3Reach, access_of
from holdfast.errors import BatchError, Refused, Unavailable
from holdfast.events import Event, Notice
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.leases.lease import Json, Lease
from holdfast.s3.access import S3Access
from holdfast.s3.client import Missing, client_of
from holdfast.sources.objects.aftermath import Aftermath
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.cutting import Cutting
from holdfast.sources.objects.finding_order import Candidate
from holdfast.sources.objects.finding_s3 import BucketListing, S3Object
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.places import S3Place
from holdfast.sources.objects.site import Site

ANSWER_WITHIN = 15.0
"""Seconds. Objects are looked at and deleted while the node plans, which must not hold up its heartbeat."""
VERSION = "version"
"""In a position: the version that is read, if it is not the one that was found."""


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one version of an object from another."""

    etag: str
    size: int


class Buckets:
    """How to reach the buckets of a pipeline, also those that only its rows still name."""

    def __init__(self, config: ObjectsConfig) -> None:
        self._reach = config.s3 or S3Reach()
        self._known: dict[str, S3Access] = {}
        self.listings = [BucketListing(self.access(one.bucket), one, config) for one in config.buckets]

    def access(self, bucket: str) -> S3Access:
        if bucket not in self._known:
            self._known[bucket] = access_of(f"s3://{bucket}", self._reach, ANSWER_WITHIN)[0]
        return self._known[bucket]

    def open(self) -> None:
        for listing in self.listings:
            listing.check()


class S3Site(Site):
    """Objects of one or more buckets. The buckets are only written to if the settings ask for it."""

    mark = "key"

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config
        self._cutting = Cutting(config)
        self._buckets = Buckets(config)
        self._aftermath = Aftermath(config)
        self.tidies = self._aftermath.needed
        self._notices: list[Event] = []

    def open(self) -> None:
        self._buckets.open()

    def admit(self, state: dict[str, Any]) -> None:
        refuse_folder(state)

    def find(self, now: float) -> Iterator[Candidate | None]:
        for listing in self._buckets.listings:
            for found in listing.objects(now):
                yield None if found is None else self._candidate(listing.access.bucket, found)

    def _candidate(self, bucket: str, found: S3Object) -> Candidate:
        spec: dict[str, Json] = {"bucket": bucket, "key": found.key, "size": found.size, "etag": found.etag}
        if self._config.reread:
            spec["reread"] = True
        etag = found.etag if self._config.reread else None
        return Candidate(partition_key(bucket, found.key, etag), spec, found.modified, found.etag)

    def name(self, lease: Lease) -> Name:
        spec = lease.spec
        told = spec["key"].encode("utf-8", "surrogatepass")
        if spec.get("reread"):
            # No key has this byte, so that no other object has these bytes.
            told = b"\xff" + spec["etag"].encode() + b"\xff" + told
        return Name(spec["bucket"], hashlib.sha256(told).hexdigest()[:32])

    # --- planning ----------------------------------------------------------------------------------------------

    def plan(self, lease: Lease, limits: Limits) -> Plan:
        """Asks the server nothing, unless the object has been tried in vain before or is larger than a batch."""
        try:
            version = self._version(lease)
        except BatchError as wrong:
            return wrong
        if version is None:
            self._notices.append(
                Notice(f"{lease.key} was overwritten before it was read; its newer version is read by itself")
            )
            return Done()
        planned = self._cutting.next(self._place(lease, version), _bare(lease.progress.position), limits)
        return _naming(planned, version) if isinstance(planned, Cut) and version != _found(lease) else planned

    def _version(self, lease: Lease) -> Version | None:
        """The version to read; None if it is gone for good and nothing is lost by that."""
        position, found = lease.progress.position, _found(lease)
        if isinstance(position, Mapping):
            return _named(position) or found
        if position is not None or not lease.history.attempts:
            return found
        # Nothing of it was read, and it failed: perhaps it was overwritten, and the newer version is as good.
        present = self._present(lease)
        return None if present != found and lease.spec.get("reread") else present

    def _present(self, lease: Lease) -> Version:
        place = self._place(lease, _found(lease))
        try:
            told = client_of(place.access).call("head_object", Key=place.key)
        except Missing:
            raise BatchError(f"{place.path} has vanished since it was found") from None
        return Version(told["ETag"], told["ContentLength"])

    def pieces(self, batch: Batch) -> list[Piece]:
        lease, start = batch.lease, batch.cut.start
        place = self._place(lease, _named(start) or _found(lease))
        planned = replace(batch.cut, start=_bare(start), end=_bare(batch.cut.end))
        return self._cutting.pieces(batch.id, place, planned)

    def _place(self, lease: Lease, version: Version) -> S3Place:
        access = self._buckets.access(lease.spec["bucket"])
        return S3Place(access, lease.spec["key"], version.size, version.etag)

    # --- afterwards --------------------------------------------------------------------------------------------

    def after_publish(self, leases: Sequence[Lease]) -> list[Unavailable | None]:
        read = [self._place(lease, _named(lease.progress.position) or _found(lease)) for lease in leases]
        dead = [lease.progress.counts.dead for lease in leases]
        return self._aftermath.after_publish(list(zip(read, dead, strict=True)))

    def noticed(self) -> list[Event]:
        told, self._notices = self._notices, []
        return told + self._aftermath.noticed()


def partition_key(bucket: str, key: str, etag: str | None = None) -> str:
    """`bucket|key`; with an ETag `bucket@etag|key`. Names of buckets have neither `|`, `@` nor `%`, so all differ."""
    head = bucket if etag is None else f"{bucket}@{quote(etag.strip(chr(34)), safe='')}"
    if "\0" in key:
        # No store can keep this character.
        return f"{head}%|{quote(key, safe='/')}"
    return f"{head}|{key}"


def refuse_folder(state: Mapping[str, Any]) -> None:
    """Raise `Refused` if this is the state of a pipeline that has read a folder."""
    if "folder" in state:
        raise Refused(
            f"this pipeline has read the folder {state['folder']}; give the one that reads buckets another name"
        )


def _found(lease: Lease) -> Version:
    return Version(lease.spec["etag"], lease.spec["size"])


def _named(position: Json) -> Version | None:
    """The version that the position names, if it names any."""
    if not isinstance(position, Mapping) or VERSION not in position:
        return None
    return Version(*position[VERSION])


def _bare(position: Json) -> Json:
    """The position within the object."""
    if not isinstance(position, Mapping):
        return position
    return {name: value for name, value in position.items() if name != VERSION}


def _naming(planned: Cut, version: Version) -> Cut:
    told = {VERSION: [version.etag, version.size]}
    return replace(planned, start={**planned.start, **told}, end={**planned.end, **told})

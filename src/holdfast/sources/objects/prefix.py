"""Prefixes of buckets as partitions: one node at a time reads a prefix, then closes it until the next scan.

An object is deleted when all sinks have it, so whatever is still there has not been read. The position lists the
objects of the last batch: the owner of the lease deletes them, once that batch is published, before it lists the prefix
again.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import BatchError, Halt
from holdfast.events import Event
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits, Name, Plan
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.objects.after_publish import ObjectCleanup
from holdfast.sources.objects.bucket import partition_key, refuse_folder
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.listing import BucketListing, BucketListings, Candidate, ListedObject, prefixes_below
from holdfast.sources.objects.object_ref import S3Ref
from holdfast.sources.objects.planner import damage_of, is_counted
from holdfast.sources.objects.source import ObjectsSource, found_by_other_settings, name_by_key
from holdfast.sources.objects.splits import Split

SPEC_KEY = "prefix"
"""Specs of prefixes have this key; those of files and objects do not."""
ITEM_BITS = 40
"""An item is the number of its object within the partition, followed by this many bits for the item in the object."""
MAX_OBJECTS = 100
MAX_KEY_BYTES = 64 << 10
MAX_KEPT = 4_000
_UNLIMITED = Limits(max_bytes=sys.maxsize)


class PrefixSource(ObjectsSource):
    """Deletes objects while it plans, but only those of a published batch. A batch is cut short between objects."""

    def __init__(self, config: ObjectsConfig) -> None:
        super().__init__(config)
        self._listings = BucketListings(config)
        self._cleanup = ObjectCleanup(config)

    def open(self) -> None:
        self._listings.check()

    def discover(self, state: dict[str, Any]) -> Iterator[Partition | None]:
        refuse_folder(state)
        yield from self._scan(state, self._candidates(time.time()))

    def name(self, lease: Lease) -> Name:
        if SPEC_KEY not in lease.spec:
            return name_by_key(lease)
        # No key begins with this byte, so a prefix never has the name of an object.
        named = b"\xfe" + lease.spec["prefix"].encode()
        return Name(lease.spec["bucket"], hashlib.sha256(named).hexdigest()[:32])

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        return [
            self._plan(lease, limits) if SPEC_KEY in lease.spec else found_by_other_settings(lease) for lease in leases
        ]

    def _splits(self, batch: Batch) -> list[Split]:
        refs = self._refs(batch.lease, batch.cut.end)
        first = (batch.cut.end["offset"] >> ITEM_BITS) - len(refs)
        return [
            replace(split, base=first + index << ITEM_BITS)
            for index, ref in enumerate(refs)
            for split in self._splits_of(batch.id, ref, batch.cut)
        ]

    def cut_short(self, batch: Batch, item: int) -> Json:
        end, number = batch.cut.end, item >> ITEM_BITS
        left = (end["offset"] >> ITEM_BITS) - number
        return {**end, "offset": item, "read": end["read"][: len(end["read"]) - left]}

    def noticed(self) -> list[Event]:
        return self._cleanup.noticed()

    def _candidates(self, now: float) -> Iterator[Candidate]:
        for listing in self._listings:
            bucket = listing.access.bucket
            for start in listing.prefixes:
                for prefix, deep in prefixes_below(listing.access, start, self._config.prefix_depth):
                    spec = {"bucket": bucket, "prefix": prefix, "deep": deep}
                    yield Candidate(partition_key(bucket, prefix), spec, now)

    # --- planning ----------------------------------------------------------------------------------------------

    def _plan(self, lease: Lease, limits: Limits) -> Plan:
        listing = self._listings.of(lease.spec["bucket"])
        if listing is None:
            return BatchError(f"bucket {lease.spec['bucket']} is no longer among the pipeline's buckets")
        kept = self._delete_last_batch(lease)
        if len(kept) > MAX_KEPT:
            return Halt(
                f"more than {MAX_KEPT} objects with dead letters or damage are kept below this prefix; remove them"
            )
        objects = list(_batch(_unread(listing, lease, kept), limits.max_bytes))
        if not objects:
            return self._close()
        start = lease.progress.position
        end = {
            "offset": _objects_before(start) + len(objects) << ITEM_BITS,
            "read": [[listed.key, listed.etag, listed.size] for listed in objects],
            "kept": kept,
            "dead": lease.progress.counts.dead,
        }
        if limits.max_records is not None:
            end["counted"] = True
        begin = {"offset": 0} if start is None else start
        return Cut(begin, end, size=sum(listed.size for listed in objects), max_records=limits.max_records)

    def _delete_last_batch(self, lease: Lease) -> list[str]:
        """Delete the objects of the last batch; returns digests of all objects kept for dead letters or damage."""
        position = lease.progress.position
        if position is None:
            return []
        kept: list[str] = list(position["kept"])
        if lease.progress.counts.dead > position["dead"] or damage_of(position) is not None:
            return kept + [_digest(key, etag) for key, etag, _ in position["read"]]
        for unavailable in self._cleanup.after_publish([(ref, 0) for ref in self._refs(lease, position)]):
            if unavailable is not None:
                raise unavailable
        return kept

    def _close(self) -> Close | Done:
        interval = self._config.rescans_after
        return Done() if interval is None else Close(interval, self._config.scans)

    def _refs(self, lease: Lease, position: Json) -> list[S3Ref]:
        access = self._listings.access(lease.spec["bucket"])
        return [S3Ref(access, key, size, etag) for key, etag, size in position["read"]]

    def _splits_of(self, batch_id: str, ref: S3Ref, cut: Cut) -> list[Split]:
        whole = self._planner.next_batch(ref, None, _UNLIMITED)
        if not isinstance(whole, Cut):
            return []
        if not is_counted(cut.end):
            return self._planner.splits(batch_id, ref, whole)
        split = Split(batch_id, ref, 0, ref.size, undivided=True, max_records=cut.max_records)
        return [replace(split, whole_objects=True, in_order=True)]


def _unread(listing: BucketListing, lease: Lease, kept: Sequence[str]) -> Iterator[ListedObject]:
    digests = set(kept)
    for listed in listing.below(lease.spec["prefix"], deep=lease.spec["deep"]):
        if _digest(listed.key, listed.etag) not in digests:
            yield listed


def _batch(objects: Iterator[ListedObject], max_bytes: int) -> Iterator[ListedObject]:
    """As many objects as fit into one batch and into one row; at least one."""
    size = key_bytes = 0
    for count, listed in enumerate(objects):
        size, key_bytes = size + listed.size, key_bytes + len(listed.key.encode())
        if count and (size > max_bytes or key_bytes > MAX_KEY_BYTES or count == MAX_OBJECTS):
            return
        yield listed


def _objects_before(position: Json) -> int:
    """How many objects of the prefix were read before."""
    return 0 if position is None else int(position["offset"]) >> ITEM_BITS


def _digest(key: str, etag: str) -> str:
    return hashlib.sha256(b"\xff".join([key.encode("utf-8", "surrogatepass"), etag.encode()])).hexdigest()[:24]

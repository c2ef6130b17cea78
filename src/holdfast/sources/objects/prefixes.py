"""Prefixes of buckets as partitions: one node at a time reads what is below, then closes it until the next scan.

An object is deleted when all sinks have it, so whatever is still there has not been read. The position names the
objects of the last batch: they are deleted when that batch is published, before the prefix is listed again, by whoever
holds the lease then.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from holdfast.errors import BatchError, Halt
from holdfast.events import Event
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits, Name, Plan
from holdfast.leases.lease import Json, Lease
from holdfast.sources.objects.aftermath import Aftermath
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.cutting import Cutting, damage_of, is_counted
from holdfast.sources.objects.finding_order import Candidate
from holdfast.sources.objects.finding_s3 import BucketListing, S3Object, prefixes_below
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.places import S3Place
from holdfast.sources.objects.s3_site import Buckets, partition_key, refuse_folder
from holdfast.sources.objects.site import Site

ITEM_BITS = 40
"""Items of a record: the number of its object within the partition, and below it so many bits for the item there."""
MOST_OBJECTS = 100
MOST_KEY_BYTES = 64 << 10
MOST_KEPT = 4_000
_WHOLE = sys.maxsize


class PrefixSite(Site):
    """Deletes objects while it plans: only those of a batch that is published."""

    mark = "prefix"

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config
        self._cutting = Cutting(config)
        self._buckets = Buckets(config)
        self._listings = {one.access.bucket: one for one in self._buckets.listings}
        self._aftermath = Aftermath(config)

    def open(self) -> None:
        self._buckets.open()

    def admit(self, state: dict[str, Any]) -> None:
        refuse_folder(state)

    def find(self, now: float) -> Iterator[Candidate | None]:
        for listing in self._buckets.listings:
            bucket = listing.access.bucket
            for start in listing.prefixes:
                for prefix, deep in prefixes_below(listing.access, start, self._config.prefix_depth):
                    spec = {"bucket": bucket, "prefix": prefix, "deep": deep}
                    yield Candidate(partition_key(bucket, prefix), spec, now)

    def name(self, lease: Lease) -> Name:
        # No key begins with this byte: a prefix is not called like an object.
        told = b"\xfe" + lease.spec["prefix"].encode()
        return Name(lease.spec["bucket"], hashlib.sha256(told).hexdigest()[:32])

    def noticed(self) -> list[Event]:
        return self._aftermath.noticed()

    # --- planning ----------------------------------------------------------------------------------------------

    def plan(self, lease: Lease, limits: Limits) -> Plan:
        listing = self._listings.get(lease.spec["bucket"])
        if listing is None:
            return BatchError(f"bucket {lease.spec['bucket']} is not among the pipeline's buckets any more")
        kept = self._end_of_last_batch(lease)
        if len(kept) > MOST_KEPT:
            return Halt(
                f"more than {MOST_KEPT} objects with dead letters or damage are kept below this prefix; take them away"
            )
        objects = list(_batch(_new(listing, lease, kept), limits.max_bytes))
        if not objects:
            return self._rest()
        start = lease.progress.position
        end = {
            "offset": _number(start) + len(objects) << ITEM_BITS,
            "read": [[found.key, found.etag, found.size] for found in objects],
            "kept": kept,
            "dead": lease.progress.counts.dead,
        }
        if limits.max_records is not None:
            end["counted"] = True
        begin = {"offset": 0} if start is None else start
        return Cut(begin, end, size=sum(found.size for found in objects), max_records=limits.max_records)

    def cut_short(self, batch: Batch, item: int) -> Json:
        end, number = batch.cut.end, item >> ITEM_BITS
        left = (end["offset"] >> ITEM_BITS) - number
        return {**end, "offset": item, "read": end["read"][: len(end["read"]) - left]}

    def _end_of_last_batch(self, lease: Lease) -> list[str]:
        """Delete what the last batch has read; answers what is kept because of dead letters or damage, all in all."""
        position = lease.progress.position
        if position is None:
            return []
        kept: list[str] = list(position["kept"])
        if lease.progress.counts.dead > position["dead"] or damage_of(position) is not None:
            return kept + [_digest(key, etag) for key, etag, _ in position["read"]]
        for away in self._aftermath.after_publish([(place, 0) for place in self._places(lease, position)]):
            if away is not None:
                raise away
        return kept

    def _rest(self) -> Close | Done:
        again = self._config.rescans_after
        return Done() if again is None else Close(again, self._config.scans)

    def _places(self, lease: Lease, position: Json) -> list[S3Place]:
        access = self._buckets.access(lease.spec["bucket"])
        return [S3Place(access, key, size, etag) for key, etag, size in position["read"]]

    def pieces(self, batch: Batch) -> list[Piece]:
        places = self._places(batch.lease, batch.cut.end)
        first = (batch.cut.end["offset"] >> ITEM_BITS) - len(places)
        return [
            replace(piece, base=first + number << ITEM_BITS)
            for number, place in enumerate(places)
            for piece in self._pieces(batch.id, place, batch.cut)
        ]

    def _pieces(self, batch_id: str, place: S3Place, cut: Cut) -> list[Piece]:
        whole = self._cutting.next(place, None, Limits(max_bytes=_WHOLE))
        if not isinstance(whole, Cut):
            return []
        if not is_counted(cut.end):
            return self._cutting.pieces(batch_id, place, whole)
        piece = Piece(batch_id, place, 0, place.size, undivided=True, most=cut.max_records)
        return [replace(piece, whole_objects=True, in_order=True)]


def _new(listing: BucketListing, lease: Lease, kept: list[str]) -> Iterator[S3Object]:
    known = set(kept)
    for found in listing.below(lease.spec["prefix"], deep=lease.spec["deep"]):
        if _digest(found.key, found.etag) not in known:
            yield found


def _batch(found: Iterator[S3Object], most_bytes: int) -> Iterator[S3Object]:
    """As many as fit into one batch and into one row; at least one."""
    size = keys = 0
    for count, one in enumerate(found):
        size, keys = size + one.size, keys + len(one.key.encode())
        if count and (size > most_bytes or keys > MOST_KEY_BYTES or count == MOST_OBJECTS):
            return
        yield one


def _number(position: Json) -> int:
    """How many objects of the prefix were read before."""
    return 0 if position is None else int(position["offset"]) >> ITEM_BITS


def _digest(key: str, etag: str) -> str:
    return hashlib.sha256(b"\xff".join([key.encode("utf-8", "surrogatepass"), etag.encode()])).hexdigest()[:24]

"""Opens a store: creates or reads its marker, and tests whether conditional writes work.

A probe can show that the storage is wrong; it cannot prove that it is right.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from holdfast.errors import NotCreatedYet, Refused, SchemaMismatch, StoreUnavailable
from holdfast.s3.client import Denied, Unable
from holdfast.stores.object.objects import Changed, TaggedObjects

MARK = "store.json"
VERSION = 1
RACES, RACERS = 4, 4


def open_store(objects: TaggedObjects, *, may_create: bool) -> None:
    """Check that the storage has a holdfast store, or create one. Only a process that may create it runs the probe.

    Raises `Refused`, `SchemaMismatch`, `StoreError`, `StoreUnavailable`.
    """
    objects.check()
    try:
        if may_create:
            probe(objects)
        _check_mark(objects, may_create=may_create)
        objects.require(MARK)
    except StoreUnavailable as away:
        if isinstance(away.__cause__, Denied | Unable):
            raise Refused(f"{away}; the store needs to list, get and put objects there, and to delete them") from away
        raise


def probe(objects: TaggedObjects) -> None:
    """Raise `Refused` unless conditions of writes are honoured, both in sequence and concurrently."""
    folder = f"probes/{uuid.uuid4().hex}"
    names = [f"{folder}-{number}" for number in range(RACES + 1)]
    try:
        holds = _holds_in_order(objects, names[0]) and all(_holds_in_races(objects, name) for name in names[1:])
    finally:
        objects.each(objects.discard, names)
    if not holds:
        raise Refused(
            f"{objects.location} does not honour conditional writes (`If-Match` and `If-None-Match` on PUT, or file "
            "locks): two nodes could take the same lease. Use storage that does, or a database, as the store"
        )


def _holds_in_order(objects: TaggedObjects, name: str) -> bool:
    if _wins(objects, name, b"too early", '"0123456789abcdef0123456789abcdef"'):
        return False
    first = _written(objects, name, b"first", None)
    if first is None or _wins(objects, name, b"again", None):
        return False
    second = _written(objects, name, b"second", first)
    if second is None or _wins(objects, name, b"stale", first):
        return False
    listed = objects.tags(name.rpartition("/")[0] + "/").get(name)
    return objects.read(name) == (b"second", second) and listed == second


def _holds_in_races(objects: TaggedObjects, name: str) -> bool:
    """Whether exactly one of several concurrent creates succeeds, and then exactly one of several changes."""
    tag: str | None = None
    for lap in range(2):
        # No bytes twice: on S3 the tag is made from them.
        racers = [f"{lap} {racer}".encode() for racer in range(RACERS)]
        wins = objects.each(_racer(objects, name, tag), racers)
        found = objects.read(name)
        if wins.count(True) != 1 or found is None or found.data != racers[wins.index(True)]:
            return False
        tag = found.tag
    return True


def _racer(objects: TaggedObjects, name: str, tag: str | None) -> Callable[[bytes], bool]:
    return lambda data: _wins(objects, name, data, tag)


def _wins(objects: TaggedObjects, name: str, data: bytes, tag: str | None) -> bool:
    return _written(objects, name, data, tag) is not None


def _written(objects: TaggedObjects, name: str, data: bytes, tag: str | None) -> str | None:
    """The tag of the written object; None if the condition did not hold. Raises `StoreUnavailable`."""
    try:
        return objects.write(name, data, tag)
    except Changed:
        # The network may have repeated the request, and this may be the second response: the bytes decide.
        found = objects.read(name)
        return found.tag if found is not None and found.data == data else None


def _check_mark(objects: TaggedObjects, *, may_create: bool) -> None:
    found = objects.read(MARK)
    if found is None:
        if not may_create:
            raise NotCreatedYet(f"there is no store in {objects.location}, and it may not be created here")
        mark = {"holdfast": "leases", "version": VERSION, "oldest": VERSION}
        _written(objects, MARK, json.dumps(mark).encode(), None)
        found = objects.read(MARK)
    oldest = _oldest(b"" if found is None else found.data)
    if oldest is None:
        raise SchemaMismatch(f"{MARK} in {objects.location} does not belong to a holdfast store")
    if oldest > VERSION:
        raise SchemaMismatch(f"the store in {objects.location} was made by a newer holdfast; update this one")


def _oldest(data: bytes) -> int | None:
    try:
        mark = json.loads(data)
        return int(mark["oldest"]) if mark["holdfast"] == "leases" else None
    except (ValueError, TypeError, KeyError):
        return None

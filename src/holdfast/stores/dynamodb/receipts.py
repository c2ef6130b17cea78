"""Receipts that are too large for a row: spilled to an object before the row is written, deleted when they are cleared.

The row has the object's name and hash instead of the receipts. Readers of the row get the receipts themselves; if the
object is gone or does not match the hash, the row is unreadable and its partition halts.

Names begin with the row and the token of the writer, and are used once. So an object that no row names, and whose token
is below the row's, can never be referenced again: its writer is fenced.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from holdfast.errors import RowTooLarge, RowUnreadable, StoreUnavailable, Unavailable
from holdfast.leases.codec import encode_within
from holdfast.leases.lease import Commit, Key, Lease
from holdfast.stores.dynamodb import SpillConfig
from holdfast.stores.dynamodb.items import BODY_BYTES, Item, lease_of
from holdfast.stores.dynamodb.spill_storage import SpillStorage, check_storage, storage_of, store_errors

SPILL_FROM = 100_000
LARGEST = 64 << 20
MARK = "$spilled"
"""A key that no sink's name can be."""
CACHED_ROWS, CACHED_BYTES = 10_000, 32 << 20
_NAME = re.compile(r"[0-9a-f]{32}/[0-9]{20}-[0-9a-f]{32}")


class Reference(NamedTuple):
    """The reference of a row to its spilled receipts."""

    root: str
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A lease as its row will store it, and the object that must be stored before it."""

    lease: Lease
    version: int | None = None
    """Version of the row that is replaced."""
    made: Reference | None = None
    data: bytes = b""


class Receipts:
    """Receipts of the rows of one table. May be used by several threads."""

    def __init__(self, config: SpillConfig | None, storage: SpillStorage | None = None) -> None:
        """Without settings nothing is spilled, and rows with spilled receipts are refused."""
        self._root = "" if config is None else config.root
        self._made = storage
        self._config = config
        self._lock = threading.Lock()
        self._usable: dict[Key, tuple[int | None, Reference]] = {}
        """Objects by row version that a write may reference: the row references them, or they were created for the
        write."""
        self._texts: dict[str, bytes] = {}

    @property
    def request_options(self) -> dict[str, str]:
        """Options of a write request, so that `settle` learns which object the row named before."""
        return {} if self._config is None else {"ReturnValues": "ALL_OLD"}

    def open(self) -> None:
        """Check access to the storage. Raises `Refused`, `StoreUnavailable`."""
        if self._config is not None:
            check_storage(self._storage, self._root)

    # --- writing -----------------------------------------------------------------------------------------------

    def outgoing(self, lease: Lease, version: int | None) -> Outgoing:
        """How to write the lease over the row of that version. Sends nothing; raises `RowTooLarge`."""
        receipts = lease.commit.receipts
        if self._config is None or receipts is None or lease.unreadable is not None:
            return Outgoing(lease)
        data = json.dumps(receipts, separators=(",", ":")).encode()
        if len(data) <= SPILL_FROM and _fits(lease):
            return Outgoing(lease)
        if len(data) > LARGEST:
            raise RowTooLarge(
                f"partition {lease.key[:200]!r}: its receipts take {len(data)} bytes; the limit is {LARGEST}"
            )
        sha256 = hashlib.sha256(data).hexdigest()
        usable = self._usable.get(lease.id)
        # The row still is of that version when the write succeeds, so that no other write has let the object go.
        if usable is not None and usable[0] == version and usable[1].sha256 == sha256:
            return Outgoing(_naming(lease, usable[1]))
        name = f"{_folder(lease.id)}{lease.token:020d}-{uuid.uuid4().hex}"
        made = Reference(self._root, name, sha256)
        return Outgoing(_naming(lease, made), version, made, data)

    def send(self, outgoing: Outgoing) -> None:
        """Create the object. Raises `StoreUnavailable`; the row must not be written then."""
        if outgoing.made is None:
            return
        with store_errors(self._root):
            is_ours = self._storage.create(outgoing.made.name, outgoing.data)
        if not is_ours:
            raise StoreUnavailable(f"spill {self._root}: another process has made {outgoing.made.name}")
        # A write that is tried again and again makes one object.
        self._remember(outgoing.lease.id, outgoing.version, outgoing.made)

    def settle(self, lease: Lease, item: Item | None, old: Mapping[str, Any] | None) -> None:
        """Delete the object that `old` referenced and `item`, the new row, does not. Never raises.

        Objects that are left when this process dies, and objects of writes that did not succeed, are deleted when the
        row drops an object under a later token. No object is deleted because a write seems to have failed.
        """
        if self._config is None:
            return
        now = None if item is None else reference_in(item)
        before = None if old is None else reference_in(old)
        if now is not None:
            self._remember(lease.id, lease.version, now)
        if before is not None and before != now:
            with suppress(Unavailable):
                self._tidy(lease, before)

    def _tidy(self, lease: Lease, gone: Reference) -> None:
        # What the row names now, if anything, was made for this write, under this token.
        folder = _folder(lease.id)
        names = [name for name in self._storage.keys(folder) if _NAME.fullmatch(name)]
        fenced = [name for name in names if int(name.removeprefix(folder)[:20]) < lease.token]
        self._storage.delete(sorted({*fenced, gone.name}))

    # --- reading -----------------------------------------------------------------------------------------------

    def whole(self, item: Mapping[str, Any], reread: Callable[[Key], Mapping[str, Any] | None]) -> Lease | None:
        """The lease of an item, with its receipts. `reread` reads the row again; None if it no longer exists.

        Raises `RowUnreadable` if this node cannot read the receipts, `StoreUnavailable` if it cannot read them now.
        """
        while True:
            lease, reference = lease_of(item), reference_in(item)
            if MARK not in (lease.commit.receipts or {}):
                return lease
            text = None if reference is None else self._text(lease, reference)
            if reference is not None and text is not None:
                self._remember(lease.id, lease.version, reference)
                return replace(lease, commit=replace(lease.commit, receipts=json.loads(text)))
            newer = reread(lease.id)
            if newer is None:
                return None
            # Objects are deleted after the row has let them go; if it has not, this one is lost.
            if lease_of(newer).version == lease.version:
                return replace(lease, commit=Commit(), unreadable=str(item["body"]["S"]))
            item = newer

    def _text(self, lease: Lease, reference: Reference) -> bytes | None:
        """The bytes that match the hash; None if they do not exist."""
        if self._config is None:
            raise RowUnreadable(
                f"partition {lease.key[:200]!r}: its receipts are in {reference.root}, and this node has no `spill`; "
                "set it as on the other nodes"
            )
        text = self._texts.get(reference.sha256)
        if text is not None:
            return text
        with store_errors(self._root):
            text = self._storage.read(reference.name)
        if text is None and reference.root != self._root:
            raise RowUnreadable(
                f"partition {lease.key[:200]!r}: its receipts are in {reference.root}, and `spill` of this node is "
                f"{self._root}; set it as on the other nodes"
            )
        if text is None or hashlib.sha256(text).hexdigest() != reference.sha256:
            return None
        self._keep(reference.sha256, text)
        return text

    def _remember(self, key: Key, version: int | None, reference: Reference) -> None:
        with self._lock:
            self._usable.pop(key, None)
            self._usable[key] = (version, reference)
            if len(self._usable) > CACHED_ROWS:
                self._usable.pop(next(iter(self._usable)))

    def _keep(self, sha256: str, text: bytes) -> None:
        with self._lock:
            self._texts[sha256] = text
            while len(self._texts) > 1 and sum(map(len, self._texts.values())) > CACHED_BYTES:
                self._texts.pop(next(iter(self._texts)))

    @property
    def _storage(self) -> SpillStorage:
        with self._lock:
            if self._made is None:
                assert self._config is not None
                self._made = storage_of(self._config)
            return self._made


def reference_in(item: Mapping[str, Any]) -> Reference | None:
    """The row's reference to spilled receipts; None if it has none."""
    body = str(item.get("body", {}).get("S", ""))
    if MARK not in body:
        return None
    try:
        parts = json.loads(body)["receipts"][MARK]
        found = Reference(str(parts["root"]), str(parts["name"]), str(parts["sha256"]))
    except (ValueError, TypeError, KeyError):
        return None
    # A name comes from the table: it must never lead elsewhere.
    return found if _NAME.fullmatch(found.name) else None


def _naming(lease: Lease, reference: Reference) -> Lease:
    return replace(lease, commit=replace(lease.commit, receipts={MARK: reference._asdict()}))


def _folder(key: Key) -> str:
    return f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}/"


def _fits(lease: Lease) -> bool:
    try:
        encode_within(lease, BODY_BYTES)
    except RowTooLarge:
        return False
    return True

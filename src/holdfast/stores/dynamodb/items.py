"""A lease as an item of the table, and its keys in table and index.

Table: `sourceIdentifier` is the pipeline, `sourcePartitionKey` is run and key, and sorts like the keys. Index
`source-status`: only unfinished rows, spread over `SHARDS` keys so that none becomes hot, and in order of claim.
Attributes of a seed table keep their names; keys are opaque, and those that are too long are cut and hashed.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import RowTooLarge, RowUnreadable
from holdfast.leases.codec import decode, encode_within
from holdfast.leases.columns import Columns, columns
from holdfast.leases.lease import FINISHED, Key, Lease, Status
from holdfast.leases.query import claim_rank

Item: TypeAlias = dict[str, Any]

PIPELINE, SORT_KEY = "sourceIdentifier", "sourcePartitionKey"
INDEX, SHARD, RANK = "source-status", "sourceStatusCombinationKey", "partitionPriority"
STATUS, OWNER, VERSION, EXPIRES = "sourcePartitionStatus", "partitionOwner", "version", "expirationTime"
PROJECTED = ("run", "key", STATUS, OWNER, VERSION, "due_at", "group")
"""Attributes that index entries hold beside the keys."""
COLUMNS = ("pipeline", "run", "key", "group", STATUS, OWNER, "token", VERSION, "due_at", "priority", "ordinal")
"""Attributes that hold the columns of a row."""

SHARDS = 4
"""Keys of the index per pipeline and run. The number is part of the table's format and must be the same on every node.
"""
ITEM_BYTES = 400 * 1024
BODY_BYTES = 360_000
"""Maximum bytes of a body; the rest of an item is for keys and administrative attributes."""
HEAD = 200
"""Characters of a long key that are kept; rows are sorted by key up to this length."""
_SORT_KEY_BYTES, _PIPELINE_BYTES, _RUN_BYTES = 1024, 1000, 64
_MIDDLE = 1 << 63

DUE_ASSIGNED, CLOSED, UNASSIGNED, REST_OF_THEM = "A", "C", "U", "X"
"""First letters of ranks: rows with a deadline, closed ones, free ones, and those that never become claimable by time.
"""
LETTERS = {Status.ASSIGNED: DUE_ASSIGNED, Status.CLOSED: CLOSED, Status.UNASSIGNED: UNASSIGNED}


# --- keys ------------------------------------------------------------------------------------------------------------


def pipeline_key(pipeline: str) -> str:
    """The partition key of the table. Never empty."""
    return _short(_escaped(pipeline), _PIPELINE_BYTES) or "|"


def run_prefix(run: str) -> str:
    """The prefix of the sort key that all rows of a run have, and no other row."""
    return _short(_escaped(run), _RUN_BYTES) + "|"


def sort_key(run: str, key: str) -> str:
    """The sort key of the table."""
    whole = run_prefix(run) + key
    return whole if len(whole.encode()) <= _SORT_KEY_BYTES else f"{run_prefix(run)}{key[:HEAD]}\0{_digest(key)}"


def table_key(key: Key) -> Item:
    return {PIPELINE: {"S": pipeline_key(key.pipeline)}, SORT_KEY: {"S": sort_key(key.run, key.key)}}


def shard_keys(pipeline: str, run: str) -> list[str]:
    """All keys of the index that hold rows of this run."""
    return [_shard_key(pipeline, run, number) for number in range(SHARDS)]


def is_indexed(pipeline: str) -> bool:
    """Whether rows of this pipeline are in the index. Internal ones, such as `$nodes`, have few rows and need none."""
    return not pipeline.replace("|", "/").rpartition("/")[2].startswith("$")


def _shard_key(pipeline: str, run: str, number: int) -> str:
    return f"{pipeline_key(pipeline)}|{run_prefix(run)}#{number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _short(text: str, limit: int) -> str:
    return text if len(text.encode()) <= limit else f"\0{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- rank ------------------------------------------------------------------------------------------------------------


def rank(lease: Lease) -> str:
    """The sort key of the row in the index: the order of claim within one status."""
    owned, tail = lease.ownership, lease.key[:HEAD]
    if owned.due_at is None:
        return f"{REST_OF_THEM}{owned.status.value}{tail}"
    *numbers, _ = claim_rank(owned.status, float(owned.due_at), lease.order.priority, lease.order.ordinal, lease.key)
    return LETTERS[owned.status] + "".join(map(sortable, numbers)) + tail


def sortable(number: float | str) -> str:
    """Text that sorts like the number, among numbers of its type."""
    return f"{_MIDDLE + number:017x}" if isinstance(number, int) else f"{_ordered_bits(float(number)):016x}"


def just_above(number: float) -> str:
    """Text that sorts after the text of the number, and after all texts that begin with that text."""
    return f"{_ordered_bits(number) + 1:016x}"


def _ordered_bits(number: float) -> int:
    bits: int = struct.unpack(">Q", struct.pack(">d", number))[0]
    return bits ^ (0xFFFF_FFFF_FFFF_FFFF if bits >> 63 else 1 << 63)


# --- items -----------------------------------------------------------------------------------------------------------


def item_of(lease: Lease, expires_at: float | None) -> Item:
    """The lease as an item; raises `RowTooLarge`."""
    row = columns(lease)
    item = {
        **table_key(lease.id),
        "pipeline": {"S": row.pipeline},
        "run": {"S": row.run},
        "key": {"S": row.key},
        "group": {"S": row.group},
        STATUS: {"S": row.status},
        "token": {"N": str(row.token)},
        VERSION: {"N": str(row.version)},
        "priority": {"N": str(row.priority)},
        "ordinal": {"N": str(row.ordinal)},
        "body": {"S": encode_within(lease, BODY_BYTES)},
    }
    if row.owner is not None:
        item[OWNER] = {"S": row.owner}
    if row.due_at is not None:
        item["due_at"] = {"N": repr(row.due_at)}
    if lease.status not in FINISHED and is_indexed(lease.pipeline):
        number = zlib.crc32(lease.key.encode()) % SHARDS
        item |= {SHARD: {"S": _shard_key(lease.pipeline, lease.run, number)}, RANK: {"S": rank(lease)}}
    if expires_at is not None:
        item[EXPIRES] = {"N": str(int(expires_at))}
    _require_room(lease, item)
    return item


def _require_room(lease: Lease, item: Item) -> None:
    size = sum(len(name) + len(next(iter(value.values())).encode()) for name, value in item.items())
    if size > ITEM_BYTES:
        raise RowTooLarge(
            f"partition {lease.key[:200]!r}: its row takes {size} bytes; the limit of an item is {ITEM_BYTES}"
        )


def lease_of(item: Mapping[str, Any]) -> Lease:
    """The lease of an item, marked `unreadable` if its body is. Raises `RowUnreadable` if holdfast did not write it."""
    try:
        return decode(_columns_of(item), _text(item, "body") if "body" in item else "")
    except (KeyError, ValueError) as error:
        raise _foreign(item, error) from error


def columns_of(item: Mapping[str, Any]) -> Columns:
    """The columns of an item. Raises `RowUnreadable` if holdfast did not write it."""
    try:
        return _columns_of(item)
    except (KeyError, ValueError) as error:
        raise _foreign(item, error) from error


def _foreign(item: Mapping[str, Any], error: Exception) -> RowUnreadable:
    named = {name: item.get(name) for name in (PIPELINE, SORT_KEY)}
    return RowUnreadable(f"the item {named} was not written by holdfast: {error!r}")


def _columns_of(item: Mapping[str, Any]) -> Columns:
    return Columns(
        _text(item, "pipeline"),
        _text(item, "run"),
        _text(item, "key"),
        _text(item, "group"),
        _text(item, STATUS),
        _text(item, OWNER) if OWNER in item else None,
        _number(item, "token"),
        _number(item, VERSION),
        float(item["due_at"]["N"]) if "due_at" in item else None,
        _number(item, "priority"),
        _number(item, "ordinal"),
    )


class Hint(NamedTuple):
    """A row as described by its index entry, which may be outdated."""

    rank: str
    key: Key
    status: str
    owner: str | None
    due_at: float | None


def hint_of(item: Mapping[str, Any], pipeline: str) -> Hint:
    owner = _text(item, OWNER) if OWNER in item else None
    due_at = float(item["due_at"]["N"]) if "due_at" in item else None
    key = Key(pipeline, _text(item, "run"), _text(item, "key"))
    return Hint(_text(item, RANK), key, _text(item, STATUS), owner, due_at)


def _text(item: Mapping[str, Any], name: str) -> str:
    return str(item[name]["S"])


def _number(item: Mapping[str, Any], name: str) -> int:
    return int(item[name]["N"])

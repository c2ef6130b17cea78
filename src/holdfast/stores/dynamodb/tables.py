"""Creates and checks the table and its index, and enables the TTL. Needs only the permissions of the seed policy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from holdfast.errors import NotCreatedYet, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.stores.dynamodb import DynamodbConfig
from holdfast.stores.dynamodb.client import DynamodbClient
from holdfast.stores.dynamodb.items import EXPIRES, INDEX, PIPELINE, PROJECTED, RANK, SHARD, SORT_KEY

READY_WITHIN = 120.0
POLL_EVERY = 0.5

_TABLE_KEYS = {"HASH": PIPELINE, "RANGE": SORT_KEY}
_INDEX_KEYS = {"HASH": SHARD, "RANGE": RANK}


def prepare_table(client: DynamodbClient, config: DynamodbConfig) -> None:
    """Create the table and enable its TTL, unless that is forbidden. Blocks until both can be used.

    Raises `SchemaMismatch` if they are not as needed and may not be created.
    """
    found = _described(client)
    if found is None:
        if config.skip_table_creation:
            raise NotCreatedYet(f"{client.location}: there is no such table, and it may not be created here")
        _create(client, config)
    _until_active(client)
    if config.ttl is not None:
        _require_ttl(client, config)


def _described(client: DynamodbClient) -> Mapping[str, Any] | None:
    try:
        table: Mapping[str, Any] = client.call("describe_table")["Table"]
    except SchemaMismatch:
        return None
    return table


def _create(client: DynamodbClient, config: DynamodbConfig) -> None:
    units = {
        "ReadCapacityUnits": config.provisioned_read_capacity_units,
        "WriteCapacityUnits": config.provisioned_write_capacity_units,
    }
    capacity = {"ProvisionedThroughput": units} if config.billing == "provisioned" else {}
    index = {
        "IndexName": INDEX,
        "KeySchema": _schema(_INDEX_KEYS),
        "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(PROJECTED)},
        **capacity,
    }
    names = (*_TABLE_KEYS.values(), *_INDEX_KEYS.values())
    try:
        client.call(
            "create_table",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
            KeySchema=_schema(_TABLE_KEYS),
            GlobalSecondaryIndexes=[index],
            BillingMode="PROVISIONED" if capacity else "PAY_PER_REQUEST",
            **capacity,
        )
    except StoreError as error:
        # All that start at once come here, and one of them is the first.
        if "ResourceInUseException" not in str(error):
            raise


def _schema(keys: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for kind, name in keys.items()]


def _until_active(client: DynamodbClient) -> None:
    give_up_at = time.monotonic() + READY_WITHIN
    while not _is_active(client):
        if time.monotonic() > give_up_at:
            raise StoreUnavailable(f"{client.location}: the table is still being created")
        time.sleep(POLL_EVERY)


def _is_active(client: DynamodbClient) -> bool:
    table = _described(client)
    if table is None:
        return False
    if table["TableStatus"] not in {"ACTIVE", "UPDATING"}:
        return False
    indexes = {index["IndexName"]: index for index in table.get("GlobalSecondaryIndexes", ())}
    _require_keys(client, "the table", table, _TABLE_KEYS)
    if INDEX not in indexes:
        raise SchemaMismatch(f"{client.location}: the table has no index {INDEX}")
    _require_keys(client, f"index {INDEX}", indexes[INDEX], _INDEX_KEYS)
    _require_projection(client, indexes[INDEX]["Projection"])
    return indexes[INDEX]["IndexStatus"] in {"ACTIVE", "UPDATING"}


def _require_keys(client: DynamodbClient, what: str, found: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    keys = {key["KeyType"]: key["AttributeName"] for key in found["KeySchema"]}
    if keys != wanted:
        raise SchemaMismatch(f"{client.location}: the keys of {what} are {keys}, and must be {dict(wanted)}")


def _require_projection(client: DynamodbClient, found: Mapping[str, Any]) -> None:
    missing = set(PROJECTED) - set(found.get("NonKeyAttributes", ()))
    if found["ProjectionType"] != "ALL" and missing:
        raise SchemaMismatch(f"{client.location}: index {INDEX} must project ALL, or also {', '.join(sorted(missing))}")


# --- TTL -------------------------------------------------------------------------------------------------------------


def _require_ttl(client: DynamodbClient, config: DynamodbConfig) -> None:
    if _has_ttl(client):
        return
    if config.skip_table_creation:
        raise SchemaMismatch(f"{client.location}: TTL on {EXPIRES} is not enabled, and may not be enabled here")
    wanted = {"Enabled": True, "AttributeName": EXPIRES}
    try:
        client.call("update_time_to_live", TimeToLiveSpecification=wanted)
    except StoreError:
        # Another node may have done it between our two calls.
        if not _has_ttl(client):
            raise


def _has_ttl(client: DynamodbClient) -> bool:
    found = client.call("describe_time_to_live")["TimeToLiveDescription"]
    if found["TimeToLiveStatus"] not in {"ENABLED", "ENABLING"}:
        return False
    if found.get("AttributeName") != EXPIRES:
        raise SchemaMismatch(f"{client.location}: TTL uses {found.get('AttributeName')}, and must use {EXPIRES}")
    return True

"""Data Prepper's way as a small loop: take an object in the store, read it, use it, complete it, and then the next.

Its store for several nodes is DynamoDB, of which its policy asks nothing but conditional puts; so both round trips are
such puts, by boto3, to DynamoDB Local. The same loop on PostgreSQL shows how much of its time is that store's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import boto3
import psycopg

from benchmarks._archive_site import timed
from benchmarks._scan_site import BUCKET, Site
from tests.servers.dynamodb import KEYS, DynamodbServer
from tests.servers.dynamodb import REGION as DYNAMODB_REGION
from tests.servers.processes import PASSWORD, PostgresqlServer, running

TABLE = "coordination"


class Ledger(Protocol):
    """Where it is noted what became of each object."""

    def move(self, key: str, status: str, version: int) -> None:
        """One round trip: the row has that version, and gets this status and the next version."""


def objects_per_second(where: Site, keys: Sequence[str], ledger: Ledger, use: Callable[[bytes], Any]) -> float:
    """Of a loop over these objects, all of which are in the ledger with version 0."""
    s3 = where.s3.client()

    def work() -> None:
        for key in keys:
            ledger.move(key, "ASSIGNED", 0)
            use(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            ledger.move(key, "COMPLETED", 1)

    return len(keys) / timed(work)


class _InDynamodb:
    def __init__(self, client: Any) -> None:
        self._client = client

    def move(self, key: str, status: str, version: int) -> None:
        item = {"partitionKey": {"S": key}, "status": {"S": status}, "version": {"N": str(version + 1)}}
        self._client.put_item(
            TableName=TABLE,
            Item=item,
            ConditionExpression="version = :was",
            ExpressionAttributeValues={":was": {"N": str(version)}},
        )

    def begin(self, keys: Sequence[str]) -> None:
        self._client.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "partitionKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "partitionKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for key in keys:
            self._client.put_item(TableName=TABLE, Item={"partitionKey": {"S": key}, "version": {"N": "0"}})


@contextmanager
def dynamodb(keys: Sequence[str]) -> Iterator[Ledger]:
    """A ledger of these objects on a server of its own."""
    with running(DynamodbServer) as server:
        client = boto3.client(
            "dynamodb",
            endpoint_url=server.endpoint,
            region_name=DYNAMODB_REGION,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
        ledger = _InDynamodb(client)
        ledger.begin(keys)
        yield ledger


class _InPostgresql:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def move(self, key: str, status: str, version: int) -> None:
        done = self._connection.execute(
            f"UPDATE {TABLE} SET status = %s, version = version + 1 WHERE key = %s AND version = %s",
            (status, key, version),
        )
        if done.rowcount != 1:
            raise RuntimeError(f"{key} is not at version {version}")

    def begin(self, keys: Sequence[str]) -> None:
        self._connection.execute(f"CREATE TABLE {TABLE} (key text PRIMARY KEY, status text, version int)")
        self._connection.cursor().executemany(f"INSERT INTO {TABLE} VALUES (%s, '', 0)", [(key,) for key in keys])


@contextmanager
def postgresql(keys: Sequence[str]) -> Iterator[Ledger]:
    """The same on PostgreSQL, which waits for its disk."""
    with running(PostgresqlServer, fsync="on") as server:
        reach: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": PASSWORD}
        with psycopg.connect(dbname="postgres", autocommit=True, **reach) as connection:
            ledger = _InPostgresql(connection)
            ledger.begin(keys)
            yield ledger

"""The stores without a database of ours, for a test of crashes: settings for nodes, and rows past the product."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3

from tests.servers.dynamodb import KEYS, REGION, DynamodbServer
from tests.servers.processes import running
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.servers.s3 import REGION as S3_REGION

TABLE, BUCKET = "crashes", "crashes"
LEASES = "_holdfast/store/leases"


class RowSeen(NamedTuple):
    pipeline: str
    key: str
    status: str
    owner: str


class CrashGround(ABC):
    """One store."""

    plugin: str
    settings: dict[str, Any]

    @abstractmethod
    def rows(self) -> list[RowSeen]:
        """Every row as it is now."""


class DynamodbCrashGround(CrashGround):
    plugin = "dynamodb"

    def __init__(self, server: DynamodbServer, folder: Path) -> None:
        os.environ.update(KEYS)
        (folder / "spilled").mkdir()
        table = {"table_name": TABLE, "region": REGION, "endpoint_url": server.endpoint}
        self.settings = {**table, "spill": {"root": str(folder / "spilled")}}
        self._client = boto3.client("dynamodb", region_name=REGION, endpoint_url=server.endpoint)

    def rows(self) -> list[RowSeen]:
        pages = self._client.get_paginator("scan").paginate(TableName=TABLE, ConsistentRead=True)
        return [_row_of(item) for page in pages for item in page["Items"]]


def _row_of(item: dict[str, Any]) -> RowSeen:
    names = ("pipeline", "key", "sourcePartitionStatus", "partitionOwner")
    return RowSeen(*(item.get(name, {"S": ""})["S"] for name in names))


class ObjectCrashGround(CrashGround):
    plugin = "object"

    def __init__(self, settings: dict[str, Any], root: Path) -> None:
        """`root`: where the objects are files."""
        self.settings = settings
        self._root = root

    def rows(self) -> list[RowSeen]:
        return [row for path in (self._root / LEASES).rglob("*") if (row := _row_in(path)) is not None]


def _row_in(path: Path) -> RowSeen | None:
    try:
        row = json.loads(path.read_bytes().partition(b"\n")[0])["row"]
    except (FileNotFoundError, IsADirectoryError):
        return None  # a folder, or replaced just now
    return RowSeen(row[0], row[2], row[4], row[5] or "")


@contextmanager
def crash_ground(name: str, folder: Path) -> Iterator[CrashGround]:
    """The store of that name, running; ended when it is left."""
    if name == "folder":
        (folder / "leases").mkdir()
        yield ObjectCrashGround({"root": str(folder / "leases")}, folder / "leases")
    elif name == "s3":
        with running(S3Server) as s3:
            s3.create_bucket(BUCKET)
            keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": S3_REGION}
            reach = {**keys, "path_style": True, "endpoint_url": s3.endpoint}
            yield ObjectCrashGround({"root": f"s3://{BUCKET}", "s3": reach}, s3.folder / "objects" / BUCKET)
    else:
        with running(DynamodbServer) as dynamodb:
            yield DynamodbCrashGround(dynamodb, folder)

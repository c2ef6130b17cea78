"""Kinesis for tests: kinesalite on loopback, its streams in memory. It ends closed shards, as Kinesis does.

    with running(KinesisServer) as kinesis:
        kinesis.create("clicks", shards=2)
        kinesis.put("clicks", "shardId-000000000000", [b"one", b"two"])

It keeps nothing over a restart, and throttles nobody: tests that need that put it in between themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3

from tests.servers.dynamodb import KEYS, REGION
from tests.servers.processes import HOW_TO_INSTALL, Server, cache_folder

VERSION = "3.3.3"
_MAIN = Path(__file__).parent / "kinesalite_on_loopback.js"


class KinesisServer(Server):
    """Settings are options of kinesalite."""

    refuses_root = False

    @property
    def endpoint(self) -> str:
        """The value of `endpoint_url`."""
        return f"http://127.0.0.1:{self.port}"

    def initialise(self) -> None:
        pass

    def command(self) -> Sequence[str]:
        node = shutil.which("node") or shutil.which("nodejs")
        if node is None or not _modules().is_dir():
            raise RuntimeError(f"there is no kinesalite in {_modules()}; {HOW_TO_INSTALL}")
        # What takes Kinesis seconds is done at once.
        times = {"createStreamMs": 0, "deleteStreamMs": 0, "updateStreamMs": 0}
        return (node, str(_MAIN), json.dumps({"port": self.port, "shardLimit": 1000, **times, **self.settings}))

    def environment(self) -> Mapping[str, str]:
        return {"NODE_PATH": str(_modules())}

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False

    def client(self) -> Any:
        """A client. Sets the credentials that any client here needs."""
        os.environ.update(KEYS)
        return boto3.client("kinesis", region_name=REGION, endpoint_url=self.endpoint)

    def create(self, stream: str, shards: int) -> None:
        """Create a stream, and wait until it can be used."""
        client = self.client()
        client.create_stream(StreamName=stream, ShardCount=shards)
        client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200})

    def delete(self, stream: str) -> None:
        client = self.client()
        client.delete_stream(StreamName=stream)
        client.get_waiter("stream_not_exists").wait(StreamName=stream, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200})

    def put(self, stream: str, shard: str, bodies: Sequence[bytes]) -> None:
        """Put records into a shard, in this order."""
        client = self.client()
        (found,) = [item for item in self.shards(stream) if item["ShardId"] == shard]
        for body in bodies:
            client.put_record(
                StreamName=stream,
                Data=body,
                PartitionKey="key",
                ExplicitHashKey=found["HashKeyRange"]["StartingHashKey"],
            )

    def split(self, stream: str, shard: str) -> None:
        """Split a shard in the middle, and wait until it has children."""
        (found,) = [item for item in self.shards(stream) if item["ShardId"] == shard]
        low, high = (int(found["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
        self.client().split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str((low + high) // 2))
        self._settle(stream)

    def merge(self, stream: str, shard: str, other: str) -> None:
        """Merge two neighbouring shards, and wait until they have a child."""
        self.client().merge_shards(StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=other)
        self._settle(stream)

    def _settle(self, stream: str) -> None:
        self.client().get_waiter("stream_exists").wait(
            StreamName=stream, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200}
        )

    def shards(self, stream: str) -> list[dict[str, Any]]:
        return list(self.client().list_shards(StreamName=stream)["Shards"])


def _modules() -> Path:
    return cache_folder() / f"kinesalite-{VERSION}" / "node_modules"

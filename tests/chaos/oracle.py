"""Who judges the archive: boto3, gzip and what the log of Kafka has. No code of the product.

A `Lister` lists the bucket every second, as a reader would who knows nothing of commits. `judge` reads every file that
a plain listing shows and compares its messages with the log.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from botocore.exceptions import BotoCoreError, ClientError

from tests import listing
from tests.chaos.producer import TopicPartition

Log: TypeAlias = Mapping[TopicPartition, Mapping[int, int]]
"""Number of each message by its partition and offset."""
FILE = re.compile(r"(?P<topic>[^/]+)/(?P<names>.+)/(?P<generation>\d+)_(?P<partition>\d+)_(?P<first>\d{20})\.txt\.gz")


class Seen(NamedTuple):
    """One message as a reader finds it."""

    topic_partition: TopicPartition
    number: int
    time: int


@dataclass(frozen=True)
class File:
    """What a name tells of a file, and what is in it."""

    key: str
    topic_partition: TopicPartition
    names: str
    generation: int
    first: int
    messages: tuple[Seen, ...]


class Bucket:
    """The objects below a root, as a listing shows them."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._files: dict[str, File] = {}

    def listing(self) -> dict[str, str]:
        """ETag, size and time of every visible object, by key without the prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        listed = (entry for page in pages for entry in page.get("Contents", []))
        stamps = {entry["Key"][len(self._prefix) :]: _stamp(entry) for entry in listed}
        return {key: stamp for key, stamp in stamps.items() if not _is_hidden(key)}

    def files(self) -> list[File]:
        """Every visible file, read. A file that was read before is not read again."""
        for key in self.listing():
            if key not in self._files:
                self._files[key] = self._read(key)
        return list(self._files.values())

    def read_anew(self) -> list[File]:
        self._files.clear()
        return self.files()

    def _read(self, key: str) -> File:
        name = FILE.fullmatch(key)
        assert name is not None, f"what is {key}?"
        data = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()
        rows = [json.loads(line) for line in gzip.decompress(data).splitlines()]
        messages = tuple(Seen(TopicPartition(row["t"], row["p"]), row["n"], row["ts"]) for row in rows)
        topic_partition = TopicPartition(name["topic"], int(name["partition"]))
        return File(key, topic_partition, name["names"], int(name["generation"]), int(name["first"]), messages)


def _stamp(listed: Mapping[str, Any]) -> str:
    return f"{listed['ETag']} {listed['Size']} bytes, {listed['LastModified']:%H:%M:%S}"


def _is_hidden(key: str) -> bool:
    return any(part.startswith(("_", ".")) for part in key.split("/"))


class Lister(listing.Lister):
    """Lists the bucket."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.listing, away=(BotoCoreError, ClientError))


def judge(log: Log, acknowledged: Log, files: Iterable[File]) -> list[str]:
    """Everything that is wrong; nothing if every message is in exactly one file, in its folder."""
    files = list(files)
    return [
        *_forgotten(log, acknowledged),
        *_miscounted(log, files),
        *_misplaced(log, files),
        *_turned_back(log, files),
    ]


def _forgotten(log: Log, acknowledged: Log) -> Iterator[str]:
    """That would be the broker's fault, and the rest could not be judged."""
    for topic_partition, messages in acknowledged.items():
        wrong = [offset for offset, number in messages.items() if log[topic_partition].get(offset) != number]
        if wrong:
            lost = f"{len(wrong)} acknowledged messages, from offset {min(wrong)} on"
            yield f"{topic_partition}: the broker has lost {lost}"


def _miscounted(log: Log, files: Iterable[File]) -> Iterator[str]:
    wanted = Counter(
        (topic_partition, number) for topic_partition, messages in log.items() for number in messages.values()
    )
    found = Counter((seen.topic_partition, seen.number) for file in files for seen in file.messages)
    for name, wrong in (("lost", wanted - found), ("there twice, or never written", found - wanted)):
        for topic_partition in sorted({topic_partition for topic_partition, _ in wrong}):
            numbers = sorted(number for at, number in wrong if at == topic_partition)
            topic, partition = topic_partition
            yield f"{topic}|{partition}: {len(numbers)} messages {name}, such as number {numbers[0]}"


def _misplaced(log: Log, files: Iterable[File]) -> Iterator[str]:
    for file in files:
        if not file.messages:
            yield f"{file.key} is empty"
            continue
        if any(
            seen.topic_partition != file.topic_partition or _names(seen.time) not in file.names
            for seen in file.messages
        ):
            yield f"{file.key} has messages of other places"
        first = log[file.topic_partition].get(file.first)
        if first != file.messages[0].number:
            yield f"{file.key} begins with number {file.messages[0].number}, and the log has {first} there"
        numbers = [seen.number for seen in file.messages]
        if numbers != sorted(set(numbers)):
            yield f"{file.key} is not in the order of the log"


def _names(time: int) -> str:
    return f"{datetime.fromtimestamp(time, UTC):dt=%Y-%m-%d/hr=%H}"


def _turned_back(log: Log, files: Iterable[File]) -> Iterator[str]:
    """Within a partition a later message never has an earlier generation: each partition changes once, between two."""
    generations: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for file in files:
        generations[file.topic_partition] |= {seen.number: file.generation for seen in file.messages}
    for topic_partition, by_number in generations.items():
        in_order = [by_number[number] for _, number in sorted(log[topic_partition].items()) if number in by_number]
        if in_order != sorted(in_order):
            yield f"{topic_partition}: generations go back and forth"

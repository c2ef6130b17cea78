"""Objects for a scan, and what an index must hold of them. Shares no code with the product.

A record names its object, and has a mark that is its own. So the number of documents of an object and the sum of their
marks tell whether each of its records is there once: one that is lost and another one twice would not add up.
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias
from zlib import crc32

from tests.servers.s3 import S3Server

SMALL_LINES = 10
LARGE_LINES = 200_000
GOOD_LINES_OF_BAD = 7
LARGE = "large/"
PUT_TOGETHER = 8
ERROR_EVERY = 4
"""The first of so many records has a status of 500."""

Sums: TypeAlias = dict[str, tuple[int, int]]
"""Number of documents and sum of their marks, by object."""


@dataclass(frozen=True)
class Given:
    """An object, and what is expected of it."""

    key: str
    body: bytes
    lines: int
    """Records that the index must have."""
    refused: int = 0
    """Records that the index does not take."""
    complaint: str = ""
    """What the reason of its failure must name; empty if it is sound."""

    @property
    def dead(self) -> int:
        """Dead letters: a damaged object leaves one that tells of the damage."""
        return self.refused + bool(self.complaint)


def large(number: int) -> Given:
    """Many lines in one object, to be read in several batches."""
    key = f"{LARGE}{number}.jsonl"
    return Given(key, _lines(key, LARGE_LINES), LARGE_LINES)


def small(number: int, *, refused: int = 0) -> Given:
    """A few lines; every tenth object is compressed. `refused` lines more are not as the index wants them."""
    packed = number % 10 == 9
    key = f"small/{number:05}.jsonl{'.gz' if packed else ''}"
    text = _lines(key, SMALL_LINES) + b'{"n":"many","mark":0}\n' * refused
    return Given(key, gzip.compress(text, 1) if packed else text, SMALL_LINES, refused)


def damaged(number: int) -> Given:
    """One of four kinds of damage; in two of them the good lines can be recognised."""
    kind = number % 4
    name = f"bad/{number:02}.jsonl"
    if kind == 0:
        text = gzip.compress(_lines(f"{name}.gz", GOOD_LINES_OF_BAD))
        return Given(f"{name}.gz", text[:-4], GOOD_LINES_OF_BAD, complaint="gzip")
    if kind == 1:
        text = gzip.compress(_lines(f"{name}.gz", GOOD_LINES_OF_BAD))
        return Given(f"{name}.gz", text + text[:5], GOOD_LINES_OF_BAD, complaint="gzip")
    if kind == 2:
        return Given(f"{name}.gz", _lines(f"{name}.gz", 3), 0, complaint="gzip")
    text = bz2.compress(_lines(f"{name}.bz2", SMALL_LINES))
    return Given(f"{name}.bz2", text[: len(text) // 2], 0, complaint="bzip2")


def _lines(key: str, count: int) -> bytes:
    given = ((n, 200 if n % ERROR_EVERY else 500, _mark(key, n)) for n in range(count))
    lines = (f'{{"object":"{key}","n":{n},"status":{status},"mark":{mark}}}\n' for n, status, mark in given)
    return "".join(lines).encode()


def _mark(key: str, n: int) -> int:
    return crc32(b"%s#%d" % (key.encode(), n))


def wanted(given: Sequence[Given], every: int = 1) -> Sums:
    """What the index must hold of these objects, or of every so many-th record of each."""
    numbers = {obj.key: range(0, obj.lines, every) for obj in given if obj.lines}
    return {key: (len(some), sum(_mark(key, n) for n in some)) for key, some in numbers.items()}


def indexed(client: Any, index: str) -> Sums:
    """What the index holds, as the server adds it up."""
    client.indices.refresh(index=index)
    marks = {"sum": {"field": "mark"}}
    by_object = {"terms": {"field": "object", "size": 20_000}, "aggs": {"marks": marks}}
    answer = client.search(index=index, body={"size": 0, "aggs": {"objects": by_object}}, request_timeout=60)
    found = answer["aggregations"]["objects"]
    assert found["sum_other_doc_count"] == 0
    # A sum is a floating-point number there, exact up to 2**53.
    return {bucket["key"]: (bucket["doc_count"], int(bucket["marks"]["value"])) for bucket in found["buckets"]}


def count_of(client: Any, index: str, key: str) -> int:
    """How many documents of an object the index holds now."""
    client.indices.refresh(index=index)
    return int(client.count(index=index, body={"query": {"term": {"object": key}}})["count"])


def put(server: S3Server, bucket: str, *portions: Sequence[Given]) -> None:
    """All these objects are in the bucket."""
    client = server.client(max_pool_connections=PUT_TOGETHER)

    def upload(obj: Given) -> None:
        client.put_object(Bucket=bucket, Key=obj.key, Body=obj.body)

    with ThreadPoolExecutor(PUT_TOGETHER) as pool:
        for _ in pool.map(upload, chain.from_iterable(portions)):
            pass
    client.close()


def difference(found: Sums, expected: Sums) -> Iterator[str]:
    """What is not as it should be, object by object; the first few are enough for a person."""
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            yield f"{key}: {found.get(key)} in the index, {expected.get(key)} given"

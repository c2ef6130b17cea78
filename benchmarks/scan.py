"""Objects of a bucket to OpenSearch and to files: a whole node against what people write by themselves.

Ours is `Node` with its loop, leases in SQLite, discovery, staging, commit and publish. To OpenSearch the peers are
opensearch-py's `parallel_bulk`, fed by boto3 with the same lines, and bodies made beforehand that are only posted: what
the server can take. To Parquet the peer is plain Spark over the files behind the bucket, without S3 in between. For
tiny objects it is Data Prepper's way as a loop: one object at a time, and two round trips to its store for each.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import discovery
from benchmarks._archive_site import timed
from benchmarks._node import SCHEMA
from benchmarks._one_at_a_time import Ledger, dynamodb, objects_per_second, postgresql
from benchmarks._scan_site import BUCKET, Site, lines, put, site, through_a_node
from benchmarks.harness import Comparison, compare, interleaved
from holdfast.flow.sink import Sink
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.sinks.opensearch import PLUGIN as OPENSEARCH
from tests.servers.opensearch import OpenSearchServer, RoomyServer
from tests.servers.processes import running

SMALL, LINES = 1_000, 1_000
LARGE, LARGE_BYTES = 8, 200_000_000
TINY = 20_000
PREPARED = 5_000
"""Documents in a body that was made beforehand."""
REPETITIONS = 2
INDEX = "logs"


def run() -> list[Comparison]:
    with site() as where:
        put(where, "small", (lines(number * LINES, LINES) for number in range(SMALL)))
        return [*_tiny(where), *_to_opensearch(where), *_to_parquet(where), *discovery.run()]


# --- OpenSearch ------------------------------------------------------------------------------------------------


def _to_opensearch(where: Site) -> list[Comparison]:
    with running(RoomyServer) as search:
        bodies = list(_bodies(where))
        ways: list[Callable[[], float]] = [
            lambda: _indexed(search, lambda: through_a_node(where, "small", SMALL, _opensearch(search))),
            lambda: _indexed(search, lambda: timed(lambda: _parallel_bulk(where, search))),
            lambda: _indexed(search, lambda: timed(lambda: post_bodies(search, INDEX, bodies))),
        ]
        for way in ways:  # once off the record
            way()
        ours, bulk, limit = interleaved(ways, REPETITIONS)
    return [
        compare("scan", "to OpenSearch, boto3 and parallel_bulk", ours, bulk, "documents/s", 1.3),
        compare("scan", "to OpenSearch, bodies made beforehand", ours, limit, "documents/s", 0.75),
    ]


def _indexed(search: OpenSearchServer, work: Callable[[], float]) -> float:
    """Documents per second into an index that is made anew. All must be there afterwards."""
    client = search.client()
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    client.indices.create(index=INDEX, body={"settings": settings})
    seconds = work()
    if (found := search.count(INDEX)) != SMALL * LINES:
        raise RuntimeError(f"{found} of {SMALL * LINES} documents are there")
    client.close()
    return SMALL * LINES / seconds


def _opensearch(search: OpenSearchServer, index: str = INDEX) -> Sink:
    config = OPENSEARCH.config.model_validate({"hosts": [search.endpoint], "index": index})
    sink: Sink = OPENSEARCH.build("opensearch", config, Registry.installed())
    return sink


def _parallel_bulk(where: Site, search: OpenSearchServer) -> None:
    from opensearchpy.helpers import parallel_bulk

    client = search.client()
    for ok, result in parallel_bulk(client, _actions(where), thread_count=4, chunk_size=2_000):
        if not ok:
            raise RuntimeError(f"a document was refused: {result}")
    client.close()


def _actions(where: Site) -> Iterator[dict[str, Any]]:
    s3 = where.s3.client()
    for key in where.keys("small"):
        for number, line in enumerate(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().splitlines()):
            yield {"_index": INDEX, "_id": f"{key}-{number}", "_source": json.loads(line)}


def _bodies(where: Site) -> Iterator[bytes]:
    """All documents with ids, ready to be posted."""
    s3, body = where.s3.client(), list[bytes]()
    for key in where.keys("small"):
        for number, line in enumerate(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().splitlines()):
            body.append(b'{"index":{"_id":"%s-%d"}}\n%s\n' % (key.encode(), number, line))
            if len(body) == PREPARED:
                yield b"".join(body)
                body.clear()
    if body:
        yield b"".join(body)


def post_bodies(search: OpenSearchServer, index: str, bodies: list[bytes]) -> None:
    """Post these bodies of bulk requests, four at a time."""

    def post(portion: list[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", search.port)
        for body in portion:
            while (answer := _posted(connection, index, body))[0] == 429:  # the server has too much to do
                time.sleep(0.1)
            if answer[0] != 200 or b'"errors":false' not in answer[1]:
                raise RuntimeError(f"a prepared body was refused: {answer[0]} {answer[1][:500]!r}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(post, [bodies[start::4] for start in range(4)]))


def _posted(connection: http.client.HTTPConnection, index: str, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", f"/{index}/_bulk", body, {"Content-Type": "application/x-ndjson"})
    answer = connection.getresponse()
    return answer.status, answer.read()


# --- tiny objects ----------------------------------------------------------------------------------------------


def _tiny(where: Site) -> list[Comparison]:
    put(where, "tiny", (lines(number, 1) for number in range(TINY)))
    with running(RoomyServer) as search:
        _ours_tiny(where, search, "warm")  # once off the record
        ways: list[Callable[[], float]] = [
            lambda: _ours_tiny(where, search, "tiny"),
            lambda: _peer_tiny(where, dynamodb, json.loads),
            lambda: _peer_tiny(where, postgresql, partial(_index_one, search.client())),
            lambda: _peer_tiny(where, postgresql, json.loads),
        ]
        ours, read, indexed, elsewhere = interleaved(ways, REPETITIONS)
    return [
        compare("scan", "tiny objects, one and two round trips at a time", ours, read, "objects/s", 5),
        compare("scan", "tiny objects, on PostgreSQL and indexed as by ours", ours, indexed, "objects/s", 5),
        compare("scan", "tiny objects, on PostgreSQL and not indexed", ours, elsewhere, "objects/s", 0),
    ]


def _ours_tiny(where: Site, search: OpenSearchServer, index: str) -> float:
    """Objects per second into an index that is made anew. All must be there afterwards."""
    search.client().indices.delete(index=index, ignore_unavailable=True)
    seconds = through_a_node(where, "tiny", TINY, _opensearch(search, index))
    if (found := search.count(index)) != TINY:
        raise RuntimeError(f"{found} of {TINY} documents are there")
    return TINY / seconds


def _peer_tiny(
    where: Site, store: Callable[[list[str]], AbstractContextManager[Ledger]], use: Callable[[bytes], Any]
) -> float:
    """Objects per second of a tenth of them."""
    keys = where.keys("tiny")[: TINY // 10]
    with store(keys) as ledger:
        return objects_per_second(where, keys, ledger, use)


def _index_one(client: Any, body: bytes) -> None:
    """An object is complete when its documents are in the index, as with ours."""
    client.bulk(index="peer", body=b'{"index":{}}\n' + body)


# --- Parquet ---------------------------------------------------------------------------------------------------


def _to_parquet(where: Site) -> list[Comparison]:
    sample = lines(0, 10_000)
    each = LARGE_BYTES * 10_000 // len(sample)
    put(where, "large", (lines(number * each, each) for number in range(LARGE)))
    output = where.folder / "out"
    ways: list[Callable[[], float]] = []
    for prefix, objects, rows in (("large", LARGE, LARGE * each), ("small", SMALL, SMALL * LINES)):
        ways += [partial(_ours, where, prefix, objects, rows, output), partial(_spark, where, prefix, rows, output)]
    for way in ways:  # once off the record
        way()
    large, peer_large, small, peer_small = interleaved(ways, REPETITIONS)
    return [
        compare("scan", "8 objects of 200 MB to Parquet, plain Spark", large, peer_large, "rows/s", 0.9),
        compare("scan", "1,000 small objects to a file each, plain Spark", small, peer_small, "rows/s", 0),
    ]


def _ours(where: Site, prefix: str, objects: int, rows: int, output: Path) -> float:
    config = FILES.config.model_validate({"root": str(output), "format": {"parquet": {"compression": "snappy"}}})
    sink = FILES.build("files", config, Registry.installed())
    return _written(rows, output, through_a_node(where, prefix, objects, sink, SCHEMA))


def _spark(where: Site, prefix: str, rows: int, output: Path) -> float:
    return _written(rows, output, timed(lambda: where.spark.read.json(where.files(prefix)).write.parquet(str(output))))


def _written(rows: int, output: Path, seconds: float) -> float:
    """Rows per second. Checks that every row is there, and removes them, off the clock."""
    found = sum(pq.ParquetFile(path).metadata.num_rows for path in output.rglob("*.parquet"))
    if found != rows:
        raise RuntimeError(f"{found} of {rows} rows are there")
    shutil.rmtree(output)
    return rows / seconds

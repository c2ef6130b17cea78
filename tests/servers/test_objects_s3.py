"""The source `objects` against a real S3 server: what it finds, reads and leaves behind, alone and in a node."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from holdfast.config.secrets import Secret
from holdfast.errors import BatchError, Refused, Unavailable
from holdfast.flow.batch import Batch, Close, Cut, Done, Limits
from holdfast.flow.source import AfterPublish
from holdfast.leases.lease import History, Lease, Progress
from holdfast.sources.objects import PLUGIN
from holdfast.sources.objects.bucket import CleanedBucketSource
from holdfast.sources.objects.source import ObjectsSource
from tests.servers.processes import running
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

ODD = [
    "a|b",
    "a|b|c",
    "ü/ö",
    "x y",
    "%41",
    "a+b&c=d",
    "back\\slash",
    "quote'\"",
    "@|%",
    "deep/er/one",
    "new\nline",
    "~!*()",
]


class Landing:
    """A bucket of its own, and the source that reads it."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.bucket = f"b{uuid.uuid4().hex}"
        self.client = server.client()
        server.create_bucket(self.bucket)

    def put(self, key: str, data: bytes = b"x\n") -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def keys(self) -> list[str]:
        return [entry["Key"] for entry in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])]

    def reach(self, secret: str = SECRET_KEY) -> dict[str, Any]:
        keys = {"access_key_id": Secret(ACCESS_KEY), "secret_access_key": Secret(secret)}
        return {"endpoint_url": self.server.endpoint, "region": REGION, "path_style": True, **keys}

    def source(self, *, bucket: dict[str, Any] | None = None, **settings: Any) -> ObjectsSource:
        buckets = [{"bucket": self.bucket, **(bucket or {})}]
        built = PLUGIN.build(PLUGIN.config(**{"buckets": buckets, "s3": self.reach(), **settings}))
        assert isinstance(built, ObjectsSource)
        return built


def tidied(source: ObjectsSource, leases: Sequence[Lease]) -> Sequence[Unavailable | None]:
    assert isinstance(source, AfterPublish)
    return source.after_publish(leases)


@pytest.fixture
def landing(s3_server: S3Server) -> Landing:
    return Landing(s3_server)


def leases(source: ObjectsSource) -> list[Lease]:
    return [Lease("orders", found.key, spec=found.spec) for found in source.discover({}) if found is not None]


def content(source: ObjectsSource, lease: Lease) -> bytes:
    """The bytes of the next batch's splits, one after the other."""
    (plan,) = source.plan([lease], Limits())
    assert isinstance(plan, Cut)
    data = []
    for split in source.splits(Batch("b", lease, source.name(lease), plan)):
        with split.ref.opened() as stream:
            stream.seek(split.start)
            data.append(stream.read(split.end - split.start))
    return b"".join(data)


def test_objects_with_odd_keys_are_found_once_and_read_as_they_are(landing: Landing) -> None:
    for number, key in enumerate(ODD):
        landing.put(key, f"{number}\n".encode())
    source = landing.source()
    found = leases(source)
    assert sorted(lease.key for lease in found) == sorted(f"{landing.bucket}|{key}" for key in ODD)
    assert {lease.spec["key"]: content(source, lease) for lease in found} == {
        key: f"{number}\n".encode() for number, key in enumerate(ODD)
    }


def test_more_objects_than_a_page_holds_are_all_found(landing: Landing) -> None:
    wanted = [f"logs/{number:05}" for number in range(1_050)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(landing.put, wanted))
    assert [lease.spec["key"] for lease in leases(landing.source(bucket={"include_prefix": ["logs/"]}))] == wanted


def test_the_oldest_comes_first_where_that_is_set(landing: Landing) -> None:
    for key in ("c", "a", "b"):
        landing.put(key)
    assert [lease.spec["key"] for lease in leases(landing.source(order="name"))] == ["a", "b", "c"]
    modified = {
        entry["Key"]: entry["LastModified"]
        for entry in landing.client.list_objects_v2(Bucket=landing.bucket)["Contents"]
    }
    expected = sorted(modified, key=lambda key: (modified[key], key))
    assert [lease.spec["key"] for lease in leases(landing.source(order="oldest"))] == expected


def test_an_object_that_is_overwritten_is_not_read_in_two_versions(landing: Landing) -> None:
    landing.put("a", b"old\n")
    source = landing.source()
    (lease,) = leases(source)
    landing.put("a", b"newer\n")
    with pytest.raises(BatchError, match="changed since it was found"):
        content(source, lease)
    assert content(source, replace(lease, history=History(attempts=1))) == b"newer\n"
    landing.client.delete_object(Bucket=landing.bucket, Key="a")
    with pytest.raises(BatchError, match="vanished"):
        content(source, lease)


def test_with_reread_the_new_version_is_found_as_another_partition(landing: Landing) -> None:
    source = landing.source(reread=True)
    landing.put("a", b"1")
    before = leases(source)
    assert [lease.key for lease in leases(source)] == [lease.key for lease in before]
    landing.put("a", b"2")
    assert leases(source)[0].key != before[0].key


def finished(source: ObjectsSource) -> list[Lease]:
    return [replace(lease, progress=Progress(position={"offset": lease.spec["size"]})) for lease in leases(source)]


def test_what_is_done_is_deleted_unless_it_was_overwritten_since(landing: Landing) -> None:
    landing.put("done|1")
    landing.put("changed")
    source = landing.source(after_success="delete")
    done = finished(source)
    landing.put("changed", b"newer")
    assert source.plan(done, Limits()) == [Done(), Done()]
    for _ in range(2):
        assert tidied(source, done) == [None, None]
        assert landing.keys() == ["changed"]


def test_a_late_delete_does_not_hit_a_newer_object(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.put("a", b"old")
    source = landing.source(after_success="delete")
    done = finished(source)
    assert isinstance(source, CleanedBucketSource)
    client = source._cleanup
    delete = client._delete

    def overwritten_just_before(ref: Any) -> None:
        landing.put("a", b"newer")
        delete(ref)

    monkeypatch.setattr(client, "_delete", overwritten_just_before)
    assert tidied(source, done) == [None]
    assert landing.keys() == ["a"]


def test_what_is_done_is_tagged_beside_the_tags_it_has(landing: Landing) -> None:
    landing.client.put_object(Bucket=landing.bucket, Key="a", Body=b"1", Tagging="team=x")
    source = landing.source(after_success={"tag": {"read": "yes"}})
    assert tidied(source, finished(source)) == [None]
    tags = landing.client.get_object_tagging(Bucket=landing.bucket, Key="a")["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "x", "read": "yes"}


def test_a_prefix_is_read_emptied_and_closed(landing: Landing) -> None:
    for key in ("a/1", "a/x/2", "b/3", "4"):
        landing.put(key, key.encode())
    source = landing.source(partition_by="prefix", after_success="delete", scan={"interval": "1h"})
    found = {lease.spec["prefix"]: lease for lease in leases(source)}
    assert sorted(found) == ["", "a/", "b/"]
    lease = found["a/"]
    assert content(source, lease) == b"a/1a/x/2"
    (plan,) = source.plan([lease], Limits())
    assert isinstance(plan, Cut)
    lease = replace(lease, progress=Progress(position=plan.end))
    assert source.plan([lease], Limits()) == [Close(3600.0)]
    assert landing.keys() == ["4", "b/3"]
    assert content(source, found[""]) == b"4"


def test_a_bucket_that_is_not_there_or_not_ours_is_refused(landing: Landing) -> None:
    landing.source().open()
    with pytest.raises(Refused):
        landing.source(buckets=[{"bucket": "nobodys-bucket"}]).open()
    with pytest.raises(Refused):
        landing.source(s3=landing.reach("wrong")).open()


def test_a_server_that_is_down_is_unavailable_and_not_empty() -> None:
    with running(S3Server) as server:
        landing = Landing(server)
        landing.put("a", b"x" * 1_000_000)
        source = landing.source()
        (lease,) = leases(source)
        (split,) = source.splits(Batch("b", lease, source.name(lease), Cut({"offset": 0}, {"offset": 1_000_000})))
        with split.ref.opened() as stream:
            stream.read(10)
            server.stop()
            with pytest.raises(Unavailable):
                stream.read()
        with pytest.raises(Unavailable):
            list(source.discover({}))


# --- in a node -----------------------------------------------------------------------------------------------------

CONFIG = """
allow_plaintext_secrets: true
source_coordination: {{store: {{sqlite: {{path: "{root}/leases.db"}}}}}}
node: {{session_timeout: 5s, heartbeat_interval: 1s}}
spark: {{master: "local[2]", conf: {{spark.ui.enabled: false}}}}
pipelines:
  orders:
    source:
      objects:
        buckets:
          - bucket: {bucket}
            include_prefix: [logs/]
            exclude_suffix: [.tmp]
        s3: {s3}
        schema: "id BIGINT"
        {more}
    sinks:
      - files: {{root: "s3://{bucket}/out", format: parquet, s3: {s3}}}
      - files: {{root: "{root}/out", format: parquet}}
        name: copy
    round: {{max_batches: 400}}
"""


class Run:
    """One pipeline in a process of its own, to its end."""

    def __init__(self, landing: Landing, root: Path, more: str) -> None:
        s3 = json.dumps({**landing.reach(), "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY})
        (root / "pipeline.yaml").write_text(CONFIG.format(root=root, bucket=landing.bucket, s3=s3, more=more))
        self.root = root
        command = [sys.executable, "-m", "holdfast", "run", str(root / "pipeline.yaml"), "--verbose"]
        self.done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def said(self, event: str) -> list[str]:
        return [line for line in self.done.stderr.splitlines() if event in line]

    def rows(self) -> Iterator[tuple[str, str]]:
        with sqlite3.connect(self.root / "leases.db") as db:
            yield from db.execute("SELECT key, status FROM lease WHERE pipeline = 'orders' ORDER BY key")

    def ids(self) -> list[int]:
        return sorted(ds.dataset(str(self.root / "out"), format="parquet").to_table()["id"].to_pylist())


def test_a_bucket_is_scanned_once_into_files_and_deleted_when_both_sinks_have_it(
    landing: Landing, tmp_path: Path
) -> None:
    wanted: list[int] = []
    for number in range(200):
        ids = range(number * 10, number * 10 + 10)
        text = "".join(json.dumps({"id": number}) + "\n" for number in ids).encode()
        packed = number % 10 == 9
        landing.put(f"logs/{number:03}|x.jsonl{'.gz' if packed else ''}", gzip.compress(text) if packed else text)
        wanted += ids
    landing.put("logs/unfinished.tmp", b"no JSON")
    run = Run(landing, tmp_path, "after_success: delete")
    assert run.done.returncode == 0, run.done.stderr[-3000:]
    assert run.ids() == wanted
    assert {status for _, status in run.rows()} == {"COMPLETED"}
    assert len(list(run.rows())) == 200
    left = landing.client.list_objects_v2(Bucket=landing.bucket, Prefix="logs/").get("Contents", [])
    assert [entry["Key"] for entry in left] == ["logs/unfinished.tmp"]
    published = landing.client.list_objects_v2(Bucket=landing.bucket, Prefix="out/").get("Contents", [])
    assert len([entry for entry in published if entry["Key"].endswith(".parquet")]) == 200
    assert len(run.said("round submitted")) <= 3, "small objects are read by the hundreds in one job"


def test_a_schedule_with_a_count_ends_the_pipeline_and_prefixes_are_closed_between_scans(
    landing: Landing, tmp_path: Path
) -> None:
    for key in ("logs/a/1", "logs/a/2", "logs/b/3"):
        landing.put(key, json.dumps({"id": int(key[-1])}).encode())
    run = Run(
        landing,
        tmp_path,
        "after_success: delete\n        partition_by: prefix\n        scan: {interval: 1s, count: 2}",
    )
    assert run.done.returncode == 0, run.done.stderr[-3000:]
    assert run.ids() == [1, 2, 3]
    assert dict(run.rows()) == {f"{landing.bucket}|logs/{name}": "COMPLETED" for name in ("", "a/", "b/")}
    assert len(run.said("partition closed")) == 3

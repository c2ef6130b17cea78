"""The source `archive`: files that holdfast wrote, read back as records, commit by commit."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BatchError, Refused
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name
from holdfast.flow.fault import BATCH, decode_fault, record_fault
from holdfast.flow.format import Format
from holdfast.flow.staging import staged_batch
from holdfast.flow.upload_policy import UploadPolicy
from holdfast.formats.raw import Raw
from holdfast.formats.text import PLUGIN as TEXT
from holdfast.leases.lease import Lease, Progress, new_lease
from holdfast.registry import Registry
from holdfast.sources.archive.reading import KAFKA_SCHEMA, ArchiveRead
from holdfast.sources.archive.source import ArchiveSource
from holdfast.testing.flows import MemoryBucket

NAME = Name("orders", "0")


class One:
    """The same format for every topic."""

    def __init__(self, chosen: Format) -> None:
        self._chosen = chosen

    def of(self, stream: str) -> Format:
        assert stream == "orders"
        return self._chosen


class Archive:
    """A root with commits that the test writes by hand."""

    def __init__(self, chosen: Format | None = None) -> None:
        self.bucket = MemoryBucket()
        self.format = chosen or Raw()
        self.sequence = 0

    def commit(self, start: int, end: int, *files: Sequence[int]) -> None:
        described = [self._file(offsets) for offsets in files]
        self.sequence += 1
        manifest = {
            "commit_id": f"c{self.sequence}",
            "pipeline": "backup",
            "key": "orders|0",
            "stream": "orders",
            "label": "0",
            "sequence": self.sequence,
            "generation": 1,
            "incarnation": "",
            "token": 1,
            "start": {"offset": start},
            "end": {"offset": end},
            "files": [
                *described,
                {"key": "_holdfast/deadletters/x", "rows": 1, "size": 1, "first": start, "last": start},
            ],
        }
        self.bucket.visible[f"_holdfast/commits/orders/0/{self.sequence:020d}.json"] = json.dumps(manifest).encode()

    def _file(self, offsets: Sequence[int]) -> dict[str, Any]:
        given = {"offset": list(offsets), "value": [b"value %d" % offset for offset in offsets]}
        columns = [pa.array(given.get(field.name, [None] * len(offsets)), field.type) for field in KAFKA_SCHEMA]
        rows = pa.RecordBatch.from_arrays(columns, schema=KAFKA_SCHEMA)
        wanted = rows.select(["value"] if self.format.keeps == {"value"} else sorted(self.format.keeps))
        buffer = io.BytesIO()
        writer = self.format.open(buffer, wanted.schema)
        writer.write(wanted)
        writer.close()
        key, data = f"orders/1_0_{offsets[0]:020d}.x", buffer.getvalue()
        self.bucket.visible[key] = data
        digest, rows = hashlib.sha256(data).hexdigest(), len(offsets)
        return {
            "key": key,
            "rows": rows,
            "size": len(data),
            "first": offsets[0],
            "last": offsets[-1],
            "sha256": digest,
        }

    def source(self, **bounds: Any) -> ArchiveSource:
        return ArchiveSource(self.bucket, One(self.format), **bounds)


def lease(source: ArchiveSource) -> Lease:
    (partition,) = source.discover({})
    return new_lease("events", partition, "w", run="r1", now=0.0)


def at(row: Lease, offset: int) -> Lease:
    return replace(row, progress=Progress(position={"offset": offset}))


def read(source: ArchiveSource, row: Lease, start: int, end: int) -> list[tuple[int, bytes]]:
    batch = Batch("b", row, NAME, Cut({"offset": start}, {"offset": end}))
    reading = ArchiveRead(source._bucket, [source._batch(batch)], None)
    found = pa.Table.from_batches(reading.rows(0))
    assert found.column("_item").to_pylist() == found.column("offset").to_pylist()
    assert found.column("_size").to_pylist() == [len(value) for value in found.column("value").to_pylist()]
    return list(zip(found.column("offset").to_pylist(), found.column("value").to_pylist(), strict=True))


def test_a_batch_is_as_many_commits_as_fit() -> None:
    archive = Archive()
    for start in (0, 10, 20):
        archive.commit(start, start + 10, range(start, start + 10))
    source = archive.source()
    row = lease(source)
    assert row.spec == {"topic": "orders", "partition": 0, "start": 0, "end": 30}
    assert source.plan([row], Limits(max_bytes=1))[0] == Cut({"offset": 0}, {"offset": 10}, size=_size(archive, 0))
    (everything,) = source.plan([at(row, 10)], Limits())
    assert isinstance(everything, Cut)
    assert (everything.end, everything.last) == ({"offset": 30}, True)
    assert source.plan([at(row, 30)], Limits()) == [Done()]


def _size(archive: Archive, first: int) -> int:
    return len(archive.bucket.visible[f"orders/1_0_{first:020d}.x"])


def test_records_come_back_in_order_even_from_files_that_share_a_range() -> None:
    archive = Archive()
    archive.commit(0, 6, [0, 2, 4], [1, 3, 5])
    archive.commit(6, 8, [6, 7])
    source = archive.source(start=1, end=7)
    row = lease(source)
    assert (row.spec["start"], row.spec["end"]) == (1, 7)
    assert read(source, row, 1, 7) == [(offset, b"value %d" % offset) for offset in range(1, 7)]


def test_a_file_that_is_gone_or_short_fails_the_batch_and_is_no_empty_one() -> None:
    archive = Archive()
    archive.commit(0, 3, [0, 1, 2])
    source = archive.source()
    row = lease(source)
    del archive.bucket.visible["orders/1_0_00000000000000000000.x"]
    reading = ArchiveRead(
        archive.bucket, [source._batch(Batch("b", row, NAME, Cut({"offset": 0}, {"offset": 3})))], None
    )
    (row,) = reading.rows(0)
    fault = decode_fault(row.column("_fault")[0].as_py())
    assert fault.kind == BATCH
    assert "does not exist" in fault.reason


def test_a_file_that_was_changed_fails_the_batch_and_is_not_decoded() -> None:
    archive = Archive()
    archive.commit(0, 3, [0, 1, 2])
    source = archive.source()
    row = lease(source)
    key = "orders/1_0_00000000000000000000.x"
    data = archive.bucket.visible[key]
    archive.bucket.visible[key] = data[:40] + bytes([data[40] ^ 1]) + data[41:]
    batch = source._batch(Batch("b", row, NAME, Cut({"offset": 0}, {"offset": 3})))
    (rows,) = ArchiveRead(archive.bucket, [batch], None).rows(0)
    fault = decode_fault(rows.column("_fault")[0].as_py())
    assert fault.kind == BATCH
    assert f"{key} of the archive is not the file that was committed" in fault.reason


def test_a_missing_manifest_is_an_error_and_no_hole() -> None:
    archive = Archive()
    for start in (0, 10, 20):
        archive.commit(start, start + 10, range(start, start + 10))
    row = lease(archive.source())
    del archive.bucket.visible[f"_holdfast/commits/orders/0/{2:020d}.json"]
    (wrong,) = archive.source().plan([row], Limits())
    assert isinstance(wrong, BatchError)


def test_what_a_poorer_format_cannot_give_back_is_refused_up_front() -> None:
    text = TEXT.build(TEXT.config())
    dense, sparse = Archive(text), Archive(text)
    dense.commit(0, 3, [0, 1, 2])
    sparse.commit(0, 5, [0, 2, 4])
    dense.source().check(frozenset({"offset", "value"}))
    source = dense.source()
    assert read(source, lease(source), 0, 3) == [(0, b"value 0"), (1, b"value 1"), (2, b"value 2")]
    with pytest.raises(Refused, match="does not keep offset"):
        sparse.source().check(frozenset({"offset", "value"}))
    with pytest.raises(Refused, match="does not keep timestamp"):
        dense.source().check(frozenset({"timestamp", "value"}))


def test_commits_that_were_replaced_are_not_read_again() -> None:
    archive = Archive()
    for start in (0, 10, 20):
        archive.commit(start, start + 10, range(start, start + 10))
    archive.commit(10, 40, range(10, 40))
    source = archive.source()
    row = lease(source)
    assert row.spec["end"] == 40
    assert read(source, row, 0, 40) == [(offset, b"value %d" % offset) for offset in range(40)]


def test_batches_are_no_larger_than_the_upload_policy_says() -> None:
    archive = Archive()
    archive.commit(0, 30, range(30))
    row = lease(archive.source())
    by_records = archive.source(policy=lambda topic: UploadPolicy(max_records=len(topic)))
    assert by_records.plan([row], Limits()) == [
        Cut({"offset": 0}, {"offset": 6}, size=_size(archive, 0), max_bytes=256 << 20)
    ]
    (last,) = by_records.plan([at(row, 24)], Limits())
    assert isinstance(last, Cut)
    assert (last.end, last.last) == ({"offset": 30}, True)
    (unbounded,) = archive.source().plan([row], Limits())
    assert isinstance(unbounded, Cut)
    assert unbounded.max_bytes is None


def test_the_plugin_takes_the_settings_of_the_sink_that_wrote_the_files(tmp_path: Path) -> None:
    archive = Archive()
    archive.commit(0, 3, [0, 1, 2])
    for key, data in archive.bucket.visible.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    registry = Registry.installed()
    settings = {"root": tmp_path, "format": "raw", "topics": [{"match": "x.*", "format": "text"}], "only": ["orders"]}
    plugin = registry.get("sources", "archive")
    source = plugin.build(plugin.config.model_validate(settings))
    assert [partition.key for partition in source.discover({})] == ["orders|0"]
    assert read(source, lease(source), 0, 3) == [(offset, b"value %d" % offset) for offset in range(3)]


def test_messages_are_read_a_second_time_for_dead_letters() -> None:
    for chosen, missing in ((None, None), (TEXT.build(TEXT.config()), "the archive does not keep headers, key, ")):
        archive = Archive(chosen)
        archive.commit(0, 6, range(6))
        source = archive.source()
        batch = Batch("b", lease(source), NAME, Cut({"offset": 0}, {"offset": 6}))
        reader = ArchiveRead(source._bucket, [source._batch(batch)], None)
        faults = [(offset, record_fault("bad", b"")) for offset in (1, 4, 4, 9)]
        *found, gone = source.record_reader(reader).records(staged_batch(batch), faults)
        assert [(record.source["offset"], record.value) for record in found] == [
            (offset, b"value %d" % offset) for offset in (1, 4, 4)
        ]
        assert all(str(record.missing).startswith(str(missing)) for record in found)
        assert gone.missing == "the archive does not have the message any more"

"""Tiny objects that are decoded in one call give what each of them gives when it is read alone."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BatchError
from holdfast.sources.objects import read_ahead
from holdfast.sources.objects.codecs import codec_of
from holdfast.sources.objects.config import CodecName
from holdfast.sources.objects.object_ref import RandomBytes
from holdfast.sources.objects.read_ahead import read_small_objects
from holdfast.sources.objects.splits import Split
from holdfast.sources.objects.task_rows import ObjectRows

SCHEMA = pa.schema([("id", pa.int64())])
GOOD = (b'{"id":1}', b'{"id":22}', b"", b" ", b'{"id":3} ', '{"ä":1}'.encode())
BAD = (b'{"id":', b"\xef\xbb\xbf", b"\xff", b"null", b"\r")
BREAKS = (b"\n", b"\n", b"\r\n")


def bodies(lines: Sequence[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Objects made of such lines; the last line of some has no end, or half of one."""
    whole = st.lists(st.tuples(st.sampled_from(lines), st.sampled_from(BREAKS)).map(b"".join), max_size=4).map(b"".join)
    ends = st.sampled_from([b"\n", b"\r\n", b""])
    return st.lists(st.tuples(whole, ends).map(lambda pair: pair[0].removesuffix(pair[1])), min_size=2, max_size=6)


@dataclass(frozen=True)
class Held:
    """An object whose bytes are here, or cannot be had."""

    path: str
    data: bytes
    vanished: bool = False
    is_remote = True

    @property
    def size(self) -> int:
        return len(self.data)

    def description(self) -> dict[str, Any]:
        return {"path": self.path}

    def check(self) -> None:
        """Never looks."""

    def fetched(self) -> bytes:
        if self.vanished:
            raise BatchError(f"{self.path} has vanished since it was found")
        return self.data

    @contextmanager
    def opened(self) -> Iterator[RandomBytes]:
        yield io.BytesIO(self.fetched())


def split(number: int, data: bytes, ending: str = "", *, vanished: bool = False) -> Split:
    return Split(f"b{number}", Held(f"s3://b/{number}{ending}", data, vanished), 0, len(data), base=10 * number)


def rows_of(read: ObjectRows) -> list[Any]:
    """All rows of all tasks, each with its batch."""
    found = [row for task in range(read.tasks) for portion in read.rows(task) for row in portion.to_pylist()]
    return sorted(found, key=lambda row: (row["_batch"], row["_item"]))


def one_by_one(splits: Sequence[Split], codec: Any) -> list[Any]:
    return rows_of(ObjectRows([[small] for small in splits], codec, "auto", None))


@pytest.mark.parametrize(("name", "schema"), [("jsonl", None), ("jsonl", SCHEMA), ("newline", None)])
@given(bodies(GOOD))
def test_what_is_decoded_in_one_call_is_what_each_gives_alone(
    name: CodecName, schema: pa.Schema | None, data: list[bytes]
) -> None:
    codec, splits = codec_of(name, schema, 1000), [split(number, body) for number, body in enumerate(data)]
    found = read_small_objects(splits, codec, "auto")
    assert found is not None or not any(data)
    if found is None:
        return
    system = {
        "_batch": [f"b{index}" for index in found.indices],
        "_item": found.items,
        "_fault": [None] * len(found.items),
    }
    columns = dict(zip(codec.schema.names, found.columns, strict=True))
    assert pa.RecordBatch.from_pydict({**system, **columns}).to_pylist() == one_by_one(splits, codec)


@given(bodies(GOOD + BAD))
def test_whatever_is_among_them_the_rows_are_those_that_each_gives_alone(data: list[bytes]) -> None:
    codec = codec_of("jsonl", None, 1000)
    splits = [split(number, body) for number, body in enumerate(data * read_ahead.THREADS * 2)]
    assert rows_of(ObjectRows([splits], codec, "auto", None)) == one_by_one(splits, codec)


def test_plain_ones_are_decoded_with_the_empty_among_them() -> None:
    splits = [split(0, b""), split(1, b'{"id":1}\n{"id":2}'), split(2, b""), split(3, b'{"id":3}\n'), split(4, b"")]
    found = read_small_objects(splits, codec_of("jsonl", None, 1000), "auto")
    assert found is not None
    assert found.indices.tolist() == [1, 1, 3]
    assert found.items.tolist() == [10, 19, 30]


@pytest.mark.parametrize(
    "odd",
    [
        split(1, b'\xef\xbb\xbf{"id":1}'),
        split(1, gzip.compress(b'{"id":1}')),
        split(1, b'{"id":1}', ".gz"),
        split(1, b'{"id":'),
        split(1, b'{"id":1}', vanished=True),
        split(1, b'{"note":"' + b"x" * 1000 + b'"}'),
    ],
    ids=["mark", "packed", "said to be packed", "broken", "vanished", "too long"],
)
def test_one_that_is_not_plain_is_reported_as_if_it_were_alone_and_its_company_is_read(odd: Split) -> None:
    codec = codec_of("jsonl", None, 1000)
    company = [split(number, b'{"id":%d}' % number) for number in range(4 * read_ahead.THREADS) if number != 1]
    splits = [odd, *company]
    assert read_small_objects(splits, codec, "auto") is None
    found = rows_of(ObjectRows([splits], codec, "auto", None))
    assert found == one_by_one(splits, codec)
    assert len([row for row in found if row["_fault"] is None]) >= len(company)

"""Ranges of any size, read in any portions, give every line exactly once."""

from __future__ import annotations

import gzip
import io
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import BatchError
from holdfast.sources.objects.codecs.lines import BYTE_ORDER_MARK, END_OF_STREAM, LongLine, split_lines
from holdfast.sources.objects.compression import decompressed

LONGEST = 40


def lines_by_hand(data: bytes) -> list[tuple[int, bytes]]:
    """Offset and text of every line; the slow and obvious way."""
    found, at = [], 0
    for line in data.splitlines(keepends=True) if b"\r" not in data else _split_at_lf(data):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        found.append((at, text.removeprefix(BYTE_ORDER_MARK) if at == 0 else text))
        at += len(line)
    return found


def _split_at_lf(data: bytes) -> list[bytes]:
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return [part for part in parts if part]


def read(data: bytes, start: int, end: int, chunk: int) -> list[tuple[int, bytes]]:
    stream = io.BytesIO(data)
    stream.seek(max(start - 1, 0))
    found: list[tuple[int, bytes]] = []
    for portion in split_lines(stream, start, end, longest=LONGEST, chunk=chunk):
        if isinstance(portion, LongLine):
            found.append((portion.item, b"too long: " + portion.beginning[:LONGEST]))
        else:
            found += [(int(portion.items[index]), portion.line(index)) for index in range(len(portion))]
    return found


def expected(data: bytes) -> list[tuple[int, bytes]]:
    long = b"too long: "
    return [(at, long + text[:LONGEST] if len(text) > LONGEST else text) for at, text in lines_by_hand(data)]


line = st.one_of(st.binary(max_size=12), st.binary(min_size=35, max_size=90)).map(lambda line: line.replace(b"\n", b""))
ending = st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n"])
bodies = st.builds(
    lambda mark, pairs, tail: mark + b"".join(itertools.chain.from_iterable(pairs)) + tail,
    st.sampled_from([b"", b"", BYTE_ORDER_MARK]),
    st.lists(st.tuples(line, ending), max_size=12),
    line,
)


@settings(deadline=None)
@given(data=bodies, cuts=st.lists(st.integers(0, 400), max_size=6), chunk=st.integers(1, 64))
@example(data=BYTE_ORDER_MARK + b"a\nb", cuts=[1, 2], chunk=8)
@example(data=b"x" * 100 + b"\ny\n", cuts=[50, 101], chunk=7)
@example(data=b"a\r\n\r\nb\r", cuts=[2, 3, 4], chunk=1)
def test_ranges_give_every_line_once_with_its_offset(data: bytes, cuts: list[int], chunk: int) -> None:
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = [line for start, end in itertools.pairwise(borders) for line in read(data, start, end, chunk)]
    assert found == expected(data)


@settings(deadline=None)
@given(data=bodies, chunk=st.integers(1, 64))
def test_without_an_end_everything_is_read(data: bytes, chunk: int) -> None:
    assert read(data, 0, END_OF_STREAM, chunk) == expected(data)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 3, [b"one"]),
        (0, 4, [b"one"]),
        (0, 5, [b"one", b"two"]),
        (1, 4, []),
        (3, 5, [b"two"]),
        (4, 5, [b"two"]),
        (5, 8, []),
        (8, 13, [b"three"]),
    ],
)
def test_a_range_owns_the_lines_that_begin_in_it(start: int, end: int, found: list[bytes]) -> None:
    assert [text for _, text in read(b"one\ntwo\nthree", start, end, 4)] == found


def test_little_is_read_beyond_the_end() -> None:
    data = b"a line\n" * 1_000_000
    stream = io.BytesIO(data)
    list(split_lines(stream, 0, 1000))
    assert stream.tell() < 100_000


# --- gzip ----------------------------------------------------------------------------------------------------------


def unpacked(packed: bytes, size: int = 1000) -> bytes:
    stream = decompressed(io.BytesIO(packed), "gzip")
    return b"".join(iter(lambda: stream.read(size), b""))


@settings(deadline=None)
@given(parts=st.lists(st.binary(max_size=300), max_size=4), size=st.integers(1, 200), padding=st.integers(0, 3))
def test_gzip_members_are_one_stream(parts: list[bytes], size: int, padding: int) -> None:
    packed = b"".join(gzip.compress(part) + b"\0" * padding for part in parts)
    assert unpacked(packed, size) == b"".join(parts)


@pytest.mark.parametrize("lost", [1, 8, 20])
def test_a_gzip_file_that_ends_too_early_is_an_error_and_not_its_end(lost: int) -> None:
    packed = gzip.compress(bytes(range(256)) * 100)[:-lost]
    with pytest.raises(BatchError, match="gzip"):
        unpacked(packed)


@pytest.mark.parametrize(
    "packed", [b"no gzip at all", gzip.compress(b"first", mtime=0) + b"garbage", b"\x1f\x8b\x08\x00 no"]
)
def test_what_is_no_gzip_is_an_error(packed: bytes) -> None:
    with pytest.raises(BatchError, match="gzip"):
        unpacked(packed)


def test_a_checksum_that_does_not_match_is_an_error() -> None:
    packed = bytearray(gzip.compress(b"some text"))
    packed[-8] ^= 1
    with pytest.raises(BatchError, match="gzip"):
        unpacked(bytes(packed))

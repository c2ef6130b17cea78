"""Embedded streams: nothing that was acknowledged is lost, and nothing that was not finished is read."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BatchError, Refused, SourceUnavailable, UsageError
from holdfast.flow.shards import Headers, RecordsMissing, ShardFailed, ShardReport, StreamRecord
from holdfast.sources.stream import cursor, ends, segments, writer
from holdfast.sources.stream.frames import MAX_RECORD_BYTES, NewRecord, decode, encode, frame_at
from holdfast.sources.stream.reader import EmbeddedReader, EmbeddedReaderFactory
from holdfast.sources.stream.segments import segments as segments_of
from holdfast.sources.stream.stream import Stream, StreamSettings, default_folder

NAME = "s"


def created(folder: Path, **given: object) -> Stream:
    return Stream.create(folder, NAME, StreamSettings(**{"shards": 2, **given}))  # type: ignore[arg-type]


def put(stream: Stream, *texts: str, shard: int = 0) -> tuple[int, int]:
    return stream.append(shard, [NewRecord(text.encode()) for text in texts])


def read(folder: Path, start: int = 0, shard: int = 0) -> tuple[list[StreamRecord], list[ShardReport]]:
    """All records of a shard that a new reader finds, and its reports."""
    reader = EmbeddedReaderFactory(folder, NAME, Stream.open(folder, NAME).id).open()
    reader.add(f"{NAME}|{shard}", {"offset": start})
    records: list[StreamRecord] = []
    while found := reader.fetch(1000, 0):
        records += found
    reports = reader.reports()
    reader.close()
    return records, reports


def texts(folder: Path, start: int = 0, shard: int = 0) -> list[str]:
    records, reports = read(folder, start, shard)
    assert reports == []
    offsets = [record.offset for record in records]
    assert offsets == list(range(start, start + len(records)))
    return [(record.body or b"").decode() for record in records]


def segment_file(folder: Path, number: int = -1) -> Path:
    return segments_of(folder / NAME / "00000")[number].path


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the host restart: what memory says of the ends is not trusted any more."""

    def restart() -> None:
        monkeypatch.setattr(ends, "boot", lambda: 4711)

    return restart


# --- frames -----------------------------------------------------------------------------------------------------------

HEADERS: st.SearchStrategy[Headers] = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
).map(tuple)
RECORDS = st.builds(NewRecord, st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=5), HEADERS)


@given(st.lists(RECORDS, min_size=1, max_size=5), st.integers(0, 2**40), st.integers(0, 2**45))
@settings(max_examples=100)
def test_a_frame_gives_back_its_records_and_no_damaged_frame_is_whole(
    records: list[NewRecord], base: int, timestamp: int
) -> None:
    data = encode(base, timestamp, records)
    frame = frame_at(data, 0)
    assert frame is not None
    assert frame.stop == len(data)
    assert decode(data, frame, "x") == [
        StreamRecord("x", base + number, timestamp, record.key, record.headers, record.body)
        for number, record in enumerate(records)
    ]
    assert frame_at(data[:-1], 0) is None
    damaged = bytearray(data)
    damaged[(base + timestamp) % len(data)] ^= 1
    assert frame_at(bytes(damaged), 0) is None


@pytest.mark.parametrize(
    "columns", [b"", b"\x01", msgspec.msgpack.encode(([b"a"], None, None)), b"\x93\x92\x01\x02\xc0\xc0"]
)
def test_a_frame_that_another_program_has_written_wrongly_is_an_error(columns: bytes) -> None:
    rest = struct.pack("<QqI", 0, 1, 2) + columns
    data = struct.pack("<II", len(rest), zlib.crc32(rest)) + rest
    frame = frame_at(data, 0)
    assert frame is None or frame.end == 2
    if frame is not None:
        with pytest.raises(BatchError):
            decode(data, frame, "x")


# --- torn tails -------------------------------------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_is_never_read_and_is_cut_by_the_next_append(tmp_path: Path) -> None:
    put(created(tmp_path), "a", "b", "c")
    file = segment_file(tmp_path)
    whole = file.read_bytes()
    tail = encode(3, 1, [NewRecord(b"torn, or whole and not acknowledged"), NewRecord(b"x", b"k")])
    end = 3
    for cut in range(len(tail) + 1):
        file.write_bytes(whole + tail[:cut])
        assert texts(tmp_path)[:3] == ["a", "b", "c"]
        assert len(texts(tmp_path)) == end
    put(Stream.open(tmp_path, NAME), "d")
    assert texts(tmp_path) == ["a", "b", "c", "d"]
    assert len(file.read_bytes()) == len(whole) + len(encode(3, 1, [NewRecord(b"d")]))


@pytest.mark.parametrize("reads_first", [False, True])
def test_after_a_restart_of_the_host_the_checksums_decide(
    tmp_path: Path, another_boot: Callable[[], None], reads_first: bool
) -> None:
    put(created(tmp_path), "a", "b", "c")
    whole = segment_file(tmp_path).read_bytes()
    tail = encode(3, 1, [NewRecord(b"d")])
    file = segment_file(tmp_path)
    another_boot()
    for cut in range(len(tail) + 1):
        (tmp_path / NAME / "ends").unlink()
        ends.create(tmp_path / NAME, 2)
        _forget_boot(tmp_path)
        file.write_bytes(whole + tail[:cut])
        known = ["a", "b", "c", "d"] if cut == len(tail) else ["a", "b", "c"]
        if reads_first:
            assert texts(tmp_path) == known
            assert Stream.open(tmp_path, NAME).bounds(0) == (0, len(known))
        stream = Stream.open(tmp_path, NAME)
        put(stream, "new")
        stream.close()
        assert texts(tmp_path) == [*known, "new"]


def _forget_boot(folder: Path) -> None:
    """Write the ends as another boot has left them, with an end that is too small."""
    file = folder / NAME / "ends"
    data = bytearray(file.read_bytes())
    data[16:] = bytes(len(data) - 16)
    file.write_bytes(data)


def test_after_a_restart_no_offset_is_used_twice(tmp_path: Path, another_boot: Callable[[], None]) -> None:
    stream = created(tmp_path, segment_bytes=1)
    for text in "abc":
        put(stream, text)
    last = segment_file(tmp_path)
    another_boot()
    last.write_bytes(b"")  # its bytes never reached the disk
    _forget_boot(tmp_path)
    assert put(Stream.open(tmp_path, NAME), "d") == (2, 3)
    assert texts(tmp_path) == ["a", "b", "d"]


def test_after_a_restart_lost_records_are_a_gap(tmp_path: Path, another_boot: Callable[[], None]) -> None:
    stream = created(tmp_path, segment_bytes=70)
    for text in "abc":
        put(stream, text)
    first, last = (segment.path for segment in segments_of(tmp_path / NAME / "00000"))
    another_boot()
    first.write_bytes(first.read_bytes()[:-1])
    last.write_bytes(b"")
    _forget_boot(tmp_path)
    assert put(Stream.open(tmp_path, NAME), "d") == (2, 3)
    records, reports = read(tmp_path)
    assert [record.body for record in records] == [b"a"]
    assert reports == [RecordsMissing(f"{NAME}|0", 1, 2, halted=True)]


def test_times_never_go_back(tmp_path: Path) -> None:
    stream = created(tmp_path)
    for time in (5.0, 3.0, 4.0, 6.0):
        other = Stream.open(tmp_path, NAME)
        other.now = lambda: time  # noqa: B023 - read at once
        put(other, "x")
    assert [record.timestamp for record in read(tmp_path)[0]] == [5000, 5000, 5000, 6000]
    assert stream.seek(0, 5500) == 3


# --- writers that are killed ------------------------------------------------------------------------------------------


def _killed_in(work: Callable[[], object], patched: tuple[object, str], crash: Callable[..., object]) -> None:
    """Do the work in a child process that kills itself where `crash` says."""
    child = os.fork()
    if child == 0:
        try:
            setattr(*patched, crash)
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _half(descriptor: int, data: bytes, position: int) -> None:
    os.pwrite(descriptor, data[: len(data) // 2], position)
    _die()


CRASHES: dict[str, tuple[tuple[object, str], Callable[..., object]]] = {
    "in the middle of the frame": ((writer, "_write_all"), _half),
    "before the end is moved": ((ends.Ends, "set"), _die),
    "before expired segments are removed": ((writer.ShardWriter, "_remove_expired"), _die),
    "in the index": ((writer.ShardWriter, "_add_to_index"), _die),
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_killed_writer_loses_nothing_that_was_acknowledged(
    tmp_path: Path, crash: str, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INDEX_EVERY", 0)
    stream = created(tmp_path, segment_bytes=segment_bytes)
    put(stream, "a", "b")
    patched, action = CRASHES[crash]
    for number in range(3):
        _killed_in(lambda: put(Stream.open(tmp_path, NAME), "lost", "lost too"), patched, action)
        assert texts(tmp_path)[:2] == ["a", "b"]
        put(stream, f"after {number}")
    found = texts(tmp_path)
    assert [text for text in found if not text.startswith("lost")] == ["a", "b", "after 0", "after 1", "after 2"]
    # The other process has not got an answer: its records may be there, then as a whole.
    assert found.count("lost") == found.count("lost too")


APPENDS = """
import sys
from pathlib import Path
from holdfast.sources.stream.stream import Stream
from holdfast.sources.stream.frames import NewRecord

stream = Stream.open(Path(sys.argv[1]), "s")
for number in range(100_000):
    first, end = stream.append(0, [NewRecord(f"{sys.argv[2]}-{number}-{part}".encode()) for part in range(5)])
    print(first, number, flush=True)
"""


def _appending(folder: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPENDS, str(folder), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_an_append_waits_for_the_lock_of_the_shard(tmp_path: Path) -> None:
    stream = created(tmp_path)
    other = os.open(tmp_path / NAME / "00000", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    thread = threading.Thread(target=put, args=(stream, "a"))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert texts(tmp_path) == []
    os.close(other)
    thread.join()
    assert texts(tmp_path) == ["a"]


@pytest.mark.parametrize("anew", [False, True])
def test_a_segment_that_a_killed_writer_began_in_vain_is_never_read(tmp_path: Path, anew: bool) -> None:
    stream = created(tmp_path, retention=80.0)
    stream.now = lambda: 1000.0
    put(stream, "a")
    late = Stream.open(tmp_path, NAME)
    late.now = lambda: 2000.0  # the clock is set back afterwards
    _killed_in(lambda: put(late, "never acknowledged"), (ends.Ends, "set"), _die)
    assert len(segments_of(tmp_path / NAME / "00000")) == 2
    writer_after = Stream.open(tmp_path, NAME) if anew else stream
    writer_after.now = lambda: 1001.0
    put(writer_after, "b")
    assert texts(tmp_path, 1) == ["b"]
    assert texts(tmp_path) == ["a", "b"]


def test_two_writers_that_are_killed_at_any_time_lose_nothing(tmp_path: Path) -> None:
    created(tmp_path, segment_bytes=20_000)
    acknowledged: dict[int, str] = {}
    for turn in range(2):
        writers = {f"{name}{turn}": _appending(tmp_path, f"{name}{turn}") for name in "xy"}
        for name, process in writers.items():
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(20)]
            process.kill()
            for line in [*lines, *process.stdout.readlines()]:
                if line.endswith("\n"):
                    offset, _, number = line.strip().partition(" ")
                    acknowledged[int(offset)] = f"{name}-{number}"
            process.stdout.close()
            process.wait()
    found = texts(tmp_path)
    assert acknowledged
    for first, text in acknowledged.items():
        assert found[first : first + 5] == [f"{text}-{part}" for part in range(5)]
    assert len(set(found)) == len(found)


def test_writers_in_one_process_and_in_a_child_take_turns(tmp_path: Path) -> None:
    first = created(tmp_path, segment_bytes=100)
    second = Stream.open(tmp_path, NAME)
    for number in range(10):
        put(first, f"first {number}")
        put(second, f"second {number}")
        put(second, f"second {number} again")
    child = os.fork()
    if child == 0:
        inherited = first._writers[0]
        put(first, "child")
        # A lock that is shared with the parent would keep neither out.
        os._exit(int(first._writers[0] is inherited))
    assert os.waitpid(child, 0)[1] == 0
    put(first, "parent")
    found = texts(tmp_path)
    assert len(found) == 32
    assert found[-2:] == ["child", "parent"]


# --- retention --------------------------------------------------------------------------------------------------------


def test_retention_removes_whole_segments_and_readers_report_what_is_gone(tmp_path: Path) -> None:
    stream = created(tmp_path, retention=80.0)
    clock = 1000.0
    for number in range(40):
        stream.now = lambda: clock  # noqa: B023 - read at once
        stream.close()
        put(stream, f"{number}")
        clock += 5
    first, end = stream.bounds(0)
    assert end == 40
    # 80 s are 16 records, and a segment covers at most 10 s more.
    assert 40 - 16 - 4 <= first <= 40 - 16
    records, reports = read(tmp_path)
    assert records == []
    assert reports == [RecordsMissing(f"{NAME}|0", 0, first, halted=True)]
    assert texts(tmp_path, first) == [f"{number}" for number in range(first, 40)]
    assert len(list((tmp_path / NAME / "00000").glob("*.segment"))) == len(segments_of(tmp_path / NAME / "00000"))


def test_a_long_pause_does_not_keep_expired_records(tmp_path: Path) -> None:
    stream = created(tmp_path, retention=60.0)
    stream.now = lambda: 1000.0
    put(stream, "old")
    stream.close()
    stream.now = lambda: 5000.0
    put(stream, "new")
    assert stream.bounds(0) == (1, 2)


def test_a_reader_inside_a_segment_that_is_removed_reports_the_rest(tmp_path: Path) -> None:
    stream = created(tmp_path, segment_bytes=100)
    for number in range(6):
        put(stream, f"{number}" * 30)
    reader = EmbeddedReaderFactory(tmp_path, NAME, stream.id, "record").open()
    reader.add(f"{NAME}|0", {"offset": 0})
    assert [record.offset for record in reader.fetch(1, 1.0)] == [0]
    for segment in segments_of(tmp_path / NAME / "00000")[:-1]:
        segment.remove()
    first = stream.bounds(0)[0]
    found = [record.offset for _ in range(10) for record in reader.fetch(10, 0)]
    missing = [report for report in reader.reports() if isinstance(report, RecordsMissing)]
    assert len(missing) == 1
    assert missing[0].end == first
    assert found[-(6 - first) :] == list(range(first, 6))
    assert found[: -(6 - first)] == list(range(1, missing[0].start or 0))


# --- damage, deletion, wrong use --------------------------------------------------------------------------------------


def test_a_damaged_record_is_reported_and_never_skipped(tmp_path: Path) -> None:
    stream = created(tmp_path)
    for text in "abc":
        put(stream, text)
    file = segment_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[data.index(b"b", segments.FIRST_FRAME + 40)] ^= 1
    file.write_bytes(data)
    records, reports = read(tmp_path)
    assert [record.body for record in records] == [b"a"]
    assert [type(report) for report in reports] == [ShardFailed]
    with pytest.raises(SourceUnavailable, match="damaged"):
        put(Stream.open(tmp_path, NAME), "d")


def test_a_stream_that_was_created_again_halts_its_readers(tmp_path: Path) -> None:
    stream = created(tmp_path)
    put(stream, "a")
    factory = EmbeddedReaderFactory(tmp_path, NAME, stream.id)
    stream.delete()
    with pytest.raises(SourceUnavailable):
        put(stream, "b")
    created(tmp_path)
    reader = factory.open()
    reader.add(f"{NAME}|0", {"offset": 0})
    assert reader.fetch(10, 0) == []
    (report,) = reader.reports()
    assert isinstance(report, ShardFailed)
    assert report.halt


def test_a_stream_that_was_deleted_is_away_for_its_readers(tmp_path: Path) -> None:
    stream = created(tmp_path)
    clock = [0.0]
    reader = EmbeddedReader(EmbeddedReaderFactory(tmp_path, NAME, stream.id), lambda: clock[0])
    reader.add(f"{NAME}|0", {"offset": 0})
    assert reader.fetch(10, 0) == []
    stream.delete()
    clock[0] += 2
    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            reader.fetch(10, 0)


def test_a_shard_that_ends_before_the_position_halts(tmp_path: Path) -> None:
    put(created(tmp_path), "a")
    _, reports = read(tmp_path, start=5)
    assert [(type(report), getattr(report, "halt", None)) for report in reports] == [(ShardFailed, True)]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "é", "x" * 129])
def test_unsuitable_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="name of a stream"):
        Stream.create(tmp_path, name, StreamSettings(1))
    with pytest.raises(UsageError):
        Stream.open(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_wrong_use_says_what_is_wrong(tmp_path: Path) -> None:
    stream = created(tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        created(tmp_path)
    with pytest.raises(UsageError, match="shards 0 to 1, not 2"):
        put(stream, "x", shard=2)
    with pytest.raises(UsageError, match="too large"):
        stream.append(0, [NewRecord(b"fine"), NewRecord(bytes(MAX_RECORD_BYTES + 1))])
    assert stream.bounds(0) == (0, 0)
    for wrong in (0, -1, 10_001):
        with pytest.raises(UsageError, match="shards"):
            Stream.create(tmp_path, "other", StreamSettings(wrong))
    (tmp_path / NAME / "stream.json").write_text("{}")
    with pytest.raises(Refused):
        Stream.open(tmp_path, NAME)


def test_the_folder_of_streams_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STREAMS", "/data/streams")
    assert default_folder() == Path("/data/streams")
    monkeypatch.delenv("HOLDFAST_STREAMS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/holdfast/streams")


def test_times_are_found_with_and_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "INDEX_EVERY", 200)
    stream = created(tmp_path, segment_bytes=2000)
    for number in range(100):
        stream.now = lambda: number  # noqa: B023 - read at once
        stream._writers.clear()
        put(stream, f"{number}" * 20)
    indexes = list((tmp_path / NAME / "00000").glob("*.index"))
    assert indexes
    elsewhere = struct.pack("<QqQ", 0, 0, segments.FIRST_FRAME + 1)
    for damage in (None, b"", b"\xff" * 240, elsewhere):
        for index in indexes if damage is not None else ():
            index.write_bytes(damage or b"")
        for number in (0, 1, 17, 50, 99):
            assert stream.seek(0, number * 1000) == number
            assert stream.seek(0, number * 1000 - 1) == number
            assert texts(tmp_path, number)[0] == f"{number}" * 20
        assert stream.seek(0, 99_001) == 100


def test_an_idle_reader_looks_at_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = created(tmp_path, shards=50)
    put(stream, "a")
    reader = EmbeddedReaderFactory(tmp_path, NAME, stream.id).open()
    for number in range(50):
        reader.add(f"{NAME}|{number}", {"offset": 0})
    assert len(reader.fetch(10, 0)) == 1
    assert reader.fetch(10, 0) == []
    looks: list[object] = []
    monkeypatch.setattr(cursor.Cursor, "is_behind", lambda found: looks.append(found))  # noqa: PLW0108 - bound
    for _ in range(20):
        reader.resume(f"{NAME}|0")
        assert reader.fetch(10, 0) == []
    assert looks == []
    reader.close()

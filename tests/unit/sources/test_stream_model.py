"""An embedded stream beside a model: lists of bodies, a first offset, and what each reader must still get."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.flow.shards import RecordsMissing
from holdfast.sources.stream.frames import NewRecord, encode
from holdfast.sources.stream.reader import EmbeddedReader, EmbeddedReaderFactory
from holdfast.sources.stream.segments import segments
from holdfast.sources.stream.stream import Stream, StreamSettings

NAME, SHARDS = "model", 2
SHARD = st.integers(0, SHARDS - 1)
READERS = st.integers(0, 1)


class StreamMachine(RuleBasedStateMachine):
    """Two writers, two readers, torn tails, retention, and readers that begin anew at any offset."""

    @initialize(segment_bytes=st.sampled_from([1, 100, 1 << 20]))
    def create(self, segment_bytes: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.stream = Stream.create(root, NAME, StreamSettings(SHARDS, 1000.0, segment_bytes=segment_bytes))
        self.time = 1000.0
        self.writers = [self.stream, Stream.open(root, NAME)]
        for writer in self.writers:
            writer.now = lambda: self.time
        self.bodies: list[list[bytes]] = [[] for _ in range(SHARDS)]
        self.times: list[list[int]] = [[] for _ in range(SHARDS)]
        factory = EmbeddedReaderFactory(root, NAME, self.stream.id, "record")
        self.readers: list[EmbeddedReader] = [factory.open(), factory.open()]
        self.next = [[0] * SHARDS for _ in self.readers]
        for reader in self.readers:
            for shard in range(SHARDS):
                reader.add(f"{NAME}|{shard}", {"offset": 0})

    @rule(writer=st.integers(0, 1), shard=SHARD, bodies=st.lists(st.binary(max_size=40), max_size=4))
    def append(self, writer: int, shard: int, bodies: list[bytes]) -> None:
        end = len(self.bodies[shard])
        assert self.writers[writer].append(shard, [NewRecord(body) for body in bodies]) == (end, end + len(bodies))
        self.bodies[shard] += bodies
        self.times[shard] += [int(self.time * 1000)] * len(bodies)

    @rule(seconds=st.sampled_from([0.001, 1.0, 130.0, 1500.0]))
    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    @rule(shard=SHARD, cut=st.integers(1, 60))
    def tear(self, shard: int, cut: int) -> None:
        """A writer was killed in the middle of an append."""
        found = segments(self.stream.path / f"{shard:05d}")
        if found:
            with found[-1].path.open("ab") as file:
                file.write(encode(len(self.bodies[shard]), 1, [NewRecord(b"torn" * 5)])[:cut])

    @rule(reader=READERS, limit=st.integers(1, 5))
    def fetch(self, reader: int, limit: int) -> None:
        records = self.readers[reader].fetch(limit, 0)
        assert len(records) <= limit
        expected, gaps = self.next[reader], {}
        for report in self.readers[reader].reports():
            assert isinstance(report, RecordsMissing)
            assert report.end == self.stream.bounds(int(report.shard[-1]))[0]
            gaps[int(report.shard[-1]), report.start] = int(report.end or 0)
        for record in records:
            shard = int(record.shard[-1])
            expected[shard] = gaps.pop((shard, expected[shard]), expected[shard])
            assert record.offset == expected[shard], "a gap that was not reported, or a record twice"
            assert record.body == self.bodies[shard][record.offset]
            assert record.timestamp == self.times[shard][record.offset]
            expected[shard] += 1
        for shard in range(SHARDS):
            expected[shard] = gaps.pop((shard, expected[shard]), expected[shard])
        assert gaps == {}, "a gap was reported where there is none"

    @rule(reader=READERS, shard=SHARD, data=st.data())
    def begin_anew(self, reader: int, shard: int, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.bodies[shard])))
        self.readers[reader].add(f"{NAME}|{shard}", {"offset": offset})
        self.next[reader][shard] = offset

    @rule(shard=SHARD, data=st.data())
    def seek(self, shard: int, data: st.DataObject) -> None:
        first, end = self.stream.bounds(shard)
        assert end == len(self.bodies[shard])
        time = data.draw(st.sampled_from([0, *self.times[shard], int(self.time * 1000) + 1]))
        expected = next((at for at in range(first, end) if self.times[shard][at] >= time), end)
        assert self.stream.seek(shard, time) == expected

    @invariant()
    def nothing_young_is_deleted(self) -> None:
        for shard, times in enumerate(getattr(self, "times", [])):
            first = self.stream.bounds(shard)[0]
            assert all(time < int(self.time * 1000) - 1_000_000 for time in times[:first])

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for reader in self.readers:
                reader.close()
            for writer in self.writers:
                writer.close()
            self.folder.cleanup()


TestStreamModel = StreamMachine.TestCase
TestStreamModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

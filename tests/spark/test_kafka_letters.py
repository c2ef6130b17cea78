"""Messages that fail are kept whole, and sent again they give what the first pass would have given."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.buckets.bucket import StagedFile
from holdfast.buckets.local import LocalBucket
from holdfast.deadletters.letter_files import FileLetters
from holdfast.deadletters.source import LettersSource, PartitionLetters, spilled_size
from holdfast.flow.batch import Batch, Cut
from holdfast.flow.engine import Staged
from holdfast.flow.fault import record_fault
from holdfast.flow.letter import Letter
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor
from holdfast.flow.sink import Sink
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Lease, Ownership, Status, new_lease
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.source import KafkaSource
from holdfast.spark.columns import with_faults
from holdfast.spark.job import run_job
from tests.servers.kafka import KafkaServer
from tests.spark.rig import read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LARGE = bytes(range(1, 255)) * 12_000
HEADERS = [("trace", b"1"), ("trace", b"\xff"), ("empty", b""), ("none", None)]
MESSAGES: list[dict[str, Any]] = [
    {"value": b"good", "key": b"a"},
    {"value": b"two\nlines", "key": b"\xff\x00", "headers": HEADERS, "timestamp": 1_700_000_000_123},
    {"value": None, "key": b"deleted", "headers": [("why", b"gone")]},
    {"value": LARGE, "key": None},
    {"value": b"", "key": b""},
    {"value": b"also\ngood", "key": b"b"},
]
KEPT = (1, 2, 3, 4)
"""The offsets of messages that fail."""


class Wrapped(Processor):
    """Changes the value and the key of every message."""

    keeps_rows = True
    touches_faults = False

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        wrapped = sql.concat(sql.lit(b"<"), sql.col("value"), sql.lit(b">"))
        return frame.withColumn("value", wrapped).withColumn("key", sql.sha2("key", 256).cast("binary"))


class Strict(Processor):
    """Refuses some messages by their offsets."""

    may_fault = True
    keeps_rows = True

    def __init__(self, offsets: Sequence[int]) -> None:
        self._offsets = list(offsets)

    def apply(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        refused = sql.col("offset").isin(self._offsets) if self._offsets else sql.lit(False)
        return with_faults(frame, sql.when(refused, sql.lit("refused")))


class Rounds:
    """Pipelines over one partition, each carried in one job."""

    def __init__(self, spark: SparkSession, root: Path, source: KafkaSource) -> None:
        self.spark, self.root, self.source = spark, root, source
        (found,) = source.discover({})
        self.lease = new_lease("p", found, "w", now=0.0)

    def sink(self, name: str, form: str) -> Sink:
        sink: Sink = FILES.build(name, FILES.config(root=self.root / name, format=form), Registry.installed())
        return sink

    def box(self, name: str) -> FileLetters:
        return FileLetters(LocalBucket(self.root / name))

    def first_pass(self, sinks: Mapping[str, str], refused: Sequence[int] = ()) -> None:
        made = {name: self.sink(name, form) for name, form in sinks.items()}
        cut = Cut({"offset": 0}, {"offset": len(MESSAGES)})
        self._carry(Pipeline(self.source, (Wrapped(), Strict(refused)), made), self.lease, cut)

    def redrive(self, name: str, form: str, refused: Sequence[int] = (), run: str = "redrive-1") -> None:
        letters = [letter for letter in self.box(name).letters() if letter.redriven is None]
        assert not any(letter.refusal for letter in letters)
        ids, sizes = [letter.id for letter in letters], [spilled_size(letter) for letter in letters]
        chosen = PartitionLetters(self.lease, self.source.name(self.lease), ids, sizes)
        source = LettersSource(self.box(name), self.source.rebuilder())
        pipeline = Pipeline(source, (Wrapped(), Strict(refused)), {name: self.sink(name, form)})
        lease = new_lease("p", chosen.partition(), "w", now=0.0, run=run)
        self._carry(pipeline, lease, Cut({"offset": 0}, {"offset": len(ids)}))
        self.box(name).mark(ids, run)

    def _carry(self, pipeline: Pipeline, lease: Lease, cut: Cut) -> None:
        owned = Lease("p", lease.key, run=lease.run, spec=lease.spec, ownership=Ownership(Status.ASSIGNED, "n", 7))
        (report,) = run_job(self.spark, pipeline, [Batch("b", owned, pipeline.source.name(owned), cut)])
        assert isinstance(report, Staged), report
        for name, receipt in report.receipts.items():
            files = [StagedFile(file["staged"], file["key"], file["sha256"], file["size"]) for file in receipt["files"]]
            LocalBucket(self.root / name).publish(files)

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows = [row for path in (self.root / name / self.lease.group).rglob("*.parquet") for row in read_file(path)]
        return sorted(rows, key=lambda row: int(row["offset"]))


@pytest.fixture
def rounds(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Iterator[Rounds]:
    topic = f"whole-{uuid.uuid4().hex[:8]}"
    kafka_server.create_topic(topic, max_message_bytes="8000000")
    kafka_server.produce(topic, MESSAGES, message_max_bytes=8_000_000)
    config = {"bootstrap_servers": kafka_server.bootstrap, "topics": [topic], "commit_offsets": False}
    source = KafkaSource(KafkaConfig.model_validate(config))
    yield Rounds(spark, tmp_path, source)
    source.close()


def whole(rounds: Rounds, name: str) -> dict[int, Letter]:
    box = rounds.box(name)
    return {letter.item: box.whole(letter) for letter in box.letters()}


def test_a_redrive_gives_what_the_first_pass_would_have_given(rounds: Rounds) -> None:
    rounds.first_pass({"right": "raw"})
    rounds.first_pass({"out": "raw", "lines": "text"}, refused=KEPT)
    letters = whole(rounds, "out")
    assert sorted(letters) == list(KEPT)
    for offset, letter in letters.items():
        sent = MESSAGES[offset]
        assert (None if letter.is_null else letter.record()) == sent["value"], "as it came, not as a processor had it"
    assert letters[1].source is not None
    assert (letters[1].source["timestamp"], letters[1].source["timestamp_type"]) == (1_700_000_000_123, 0)
    assert [header["name"] for header in letters[1].source["headers"]] == [name for name, _ in HEADERS]

    lines = whole(rounds, "lines")
    assert sorted(lines) == [*KEPT, 5], "a format cannot hold one more"
    assert (lines[5].record(), lines[5].refusal, lines[5].row is None) == (b"also\ngood", None, False)

    rounds.redrive("out", "raw", refused=[3])
    (failed,) = [letter for letter in rounds.box("out").letters() if letter.redriven is None]
    assert (failed.item, failed.size) == (3, len(LARGE)), "a letter of a letter is whole, too"
    rounds.redrive("out", "raw", run="redrive-2")
    assert rounds.rows("out") == rounds.rows("right")
    assert [row["value"] is None for row in rounds.rows("out")] == [message["value"] is None for message in MESSAGES]


def test_a_message_that_kafka_has_no_more_is_kept_as_the_pipeline_had_it(
    rounds: Rounds, kafka_server: KafkaServer
) -> None:
    reader = rounds.source.record_reader(None)
    batch = StagedBatch("b", "p", rounds.lease.key, rounds.source.name(rounds.lease), 1, 1)
    kafka_server.delete_records(rounds.lease.group, 0, 2)
    faults = [(offset, record_fault("bad", b"")) for offset in (0, 1, 2, 2, 5, 6, 7)]
    found = list(reader.records(batch, faults))
    gone = "the topic does not have the message any more"
    assert [record.missing for record in found] == [gone, gone, None, None, None, gone, gone]
    assert [found[number].value for number in (2, 3, 4)] == [None, None, b"also\ngood"]

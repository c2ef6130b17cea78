"""Every built-in source shows the behaviour that the loop relies on, and sources that are wrong on purpose do not."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from examples.own_source.holdfast_own_source.ranges import Ranges, RangesConfig
from holdfast.deadletters.source import LettersSource, PartitionLetters
from holdfast.errors import SourceUnavailable
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.letter import Letter, LetterBox, LetterId
from holdfast.flow.source import Source
from holdfast.leases.lease import Commit, Lease, Partition
from holdfast.sources.kafka import cluster
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.source import KafkaSource
from holdfast.sources.objects import PLUGIN as OBJECTS
from holdfast.testing.flows import MemoryBucket
from holdfast.testing.sources import SourceBehaviour
from tests.servers.kafka import KafkaServer
from tests.servers.processes import free_port
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.unit.deadletters.test_source import Doubled
from tests.unit.sources.test_archive import Archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINES = b"".join(b'{"id": %d}\n' % number for number in range(6))


# --- objects ---------------------------------------------------------------------------------------------------------


class TestFolder(SourceBehaviour):
    records = 11

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.root = tmp_path
        (tmp_path / "in" / "deep").mkdir(parents=True)
        (tmp_path / "in" / "a.jsonl").write_bytes(LINES)
        (tmp_path / "in" / "deep" / "b.jsonl").write_bytes(LINES[:50])

    def make_source(self) -> Source:
        return self._source("in")

    def make_unreachable_source(self) -> Source:
        return self._source("away")

    def _source(self, folder: str) -> Source:
        source: Source = OBJECTS.build(OBJECTS.config(folder=self.root / folder, codec="text"))
        return source


class Landing(SourceBehaviour):
    """Objects of a bucket of the test's own."""

    records = 12
    objects: ClassVar[dict[str, bytes]] = {"day=1/a": LINES, "day=2/b": LINES}
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def landing(self, s3_server: S3Server) -> None:
        self.endpoint = s3_server.endpoint
        self.bucket = f"b{uuid.uuid4().hex}"
        self.client = s3_server.client()
        s3_server.create_bucket(self.bucket)

    def make_source(self) -> Source:
        for key, data in self.objects.items():
            self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        return self._source(self.endpoint)

    def make_source_beside(self) -> Source:
        return self._source(self.endpoint)

    def _source(self, endpoint: str) -> Source:
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        reach = {"endpoint_url": endpoint, "region": REGION, "path_style": True, **keys}
        given = {"buckets": [{"bucket": self.bucket}], "s3": reach, "codec": "text", **self.settings}
        source: Source = OBJECTS.build(OBJECTS.config(**given))
        return source


class TestBucket(Landing):
    settings: ClassVar[dict[str, Any]] = {"after_success": "delete"}


class TestPrefix(Landing):
    settings: ClassVar[dict[str, Any]] = {"partition_by": "prefix", "prefix_depth": 1, "after_success": "delete"}
    objects: ClassVar[dict[str, bytes]] = {f"day={day}/{number}": LINES[:20] for day in (1, 2) for number in range(3)}
    small = Limits(max_bytes=25, max_records=2)


# --- kafka -----------------------------------------------------------------------------------------------------------


class TestKafka(SourceBehaviour):
    records = 10
    small = Limits(max_bytes=1 << 20, max_records=3)

    @pytest.fixture(autouse=True)
    def topic(self, kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.bootstrap, self.name, self.ahead = kafka_server.bootstrap, f"suite-{uuid.uuid4().hex[:8]}", 0.0
        kafka_server.create_topic(self.name, partitions=2)
        for partition in range(2):
            kafka_server.produce(self.name, [b"%d" % number for number in range(5)], partition)

    def make_source(self) -> Source:
        return self._source(self.bootstrap)

    def make_unreachable_source(self) -> Source:
        self.monkeypatch.setattr(cluster, "PATIENCE", 1.0)
        return self._source(f"127.0.0.1:{free_port()}")

    def pass_time(self, seconds: float) -> None:
        self.ahead += seconds

    def _source(self, bootstrap: str) -> Source:
        given = {"bootstrap_servers": bootstrap, "topics": [self.name], "commit_offsets": False}
        config = KafkaConfig.model_validate({**given, "upload": {"max_age": "1s"}})
        return KafkaSource(config, now=lambda: time.time() + self.ahead)


# --- archive, letters and the example -----------------------------------------------------------------------------


class TestArchive(SourceBehaviour):
    records = 12
    run = "backfill-1"
    small = Limits(max_bytes=64, max_records=3)

    @pytest.fixture(autouse=True)
    def archive(self) -> None:
        self.archived = Archive()
        for start in (0, 6):
            self.archived.commit(start, start + 6, range(start, start + 6))

    def make_source(self) -> Source:
        return self.archived.source()

    def make_unreachable_source(self) -> Source:
        self.archived.bucket = MemoryBucket()
        self.archived.bucket.away = True
        return self.archived.source()


class Letters(LetterBox):
    """Letters that a box holds, in the order of their items."""

    def letters(self) -> Iterator[Letter]:
        return iter(())

    def fetch(self, ids: Sequence[LetterId]) -> list[Letter]:
        return [
            Letter(letter, "in|a", letter.number * 10, "bad", str(letter.number), source={"item": letter.number})
            for letter in ids
        ]

    def mark(self, ids: Iterable[LetterId], run: str) -> None:
        """Nobody looks."""


class TestLetters(SourceBehaviour):
    records = 5
    run = "redrive-1"
    positions_are_items = False

    def make_source(self) -> Source:
        return LettersSource(Letters(), Doubled())

    def partitions(self, source: Source, state: dict[str, Any] | None = None) -> list[Partition]:
        row = Lease("p", "in|a", group="in", commit=Commit(incarnation="etag"))
        return [
            PartitionLetters(row, Name("in", "0abc"), [LetterId("file", number) for number in range(5)]).partition()
        ]


class TestRanges(SourceBehaviour):
    """The example of a source of one's own."""

    records = 25

    def make_source(self) -> Source:
        return Ranges(RangesConfig(up_to=25, partition_size=10))


# --- sources that are wrong on purpose ------------------------------------------------------------------------------


def _shifted(cut: Plan, by: int) -> Plan:
    return Cut(cut.start, cut.end + by, cut.last) if isinstance(cut, Cut) and not cut.last else cut


class OtherKeysEachTime(Ranges):
    numbers = itertools.count()

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        return (Partition(f"{found.key}-{next(self.numbers)}", spec=found.spec) for found in super().discover(state))


class SpecThatIsNotJson(Ranges):
    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        return (Partition(found.key, spec={**found.spec, "pair": (1, 2)}) for found in super().discover(state))


class OneNameForAll(Ranges):
    def name(self, lease: Lease) -> Name:
        return Name("numbers", "all")


class IgnoresMaxRecords(Ranges):
    def plan(self, leases: Sequence[Lease], limits: Limits) -> Any:
        return super().plan(leases, Limits())


class SkipsRecords(Ranges):
    """Says that a batch ends later than it reads."""

    def plan(self, leases: Sequence[Lease], limits: Limits) -> Any:
        return [_shifted(plan, 1) for plan in super().plan(leases, limits)]

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        frame = super().read(spark, batches, columns)
        lost = [batch.cut.end - 1 for batch in batches if not batch.cut.last]
        return frame.where(~frame["_item"].isin(lost)) if lost else frame


class ReadsSomeTwice(Ranges):
    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        frame = super().read(spark, batches, columns)
        return frame.union(frame.where("_item % 7 = 0"))


class NeverEnds(Ranges):
    def plan(self, leases: Sequence[Lease], limits: Limits) -> Any:
        return [Cut(0, 0) if isinstance(plan, Done) else plan for plan in super().plan(leases, limits)]


class FreshStart(Ranges):
    """Takes a position that it cannot read for none."""

    def plan(self, leases: Sequence[Lease], limits: Limits) -> Any:
        return super().plan([_fresh(lease) for lease in leases], limits)


def _fresh(lease: Lease) -> Lease:
    is_readable = lease.progress.position is None or isinstance(lease.progress.position, int)
    return lease if is_readable else replace(lease, progress=replace(lease.progress, position=None))


class DependsOnTheCall(Ranges):
    calls = itertools.count()

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        from pyspark.sql import functions as sql

        return super().read(spark, batches, columns).withColumn("number", sql.lit(next(self.calls)))


class DataFirst(Ranges):
    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        return super().read(spark, batches, columns).select("number", "_batch", "_item", "_fault")


class EmptyWhenAway(Ranges):
    def open(self) -> None:
        raise SourceUnavailable("away")

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        return iter(())


def _suite(broken: type[Ranges]) -> SourceBehaviour:
    class Suite(TestRanges):
        def make_source(self) -> Source:
            return (Ranges if broken is EmptyWhenAway else broken)(RangesConfig(up_to=25, partition_size=10))

        def make_unreachable_source(self) -> Source | None:
            return broken(RangesConfig(up_to=25)) if broken is EmptyWhenAway else None

    return Suite()


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (OtherKeysEachTime, "test_discovery_finds_the_same_partitions_in_the_same_order_with_every_instance"),
        (SpecThatIsNotJson, "test_specs_and_state_survive_json"),
        (OneNameForAll, "test_names_are_pure_and_distinct"),
        (IgnoresMaxRecords, "test_small_batches_cover_every_record_once_in_order_and_keep_the_limits"),
        (SkipsRecords, "test_small_batches_cover_every_record_once_in_order_and_keep_the_limits"),
        (ReadsSomeTwice, "test_small_batches_cover_every_record_once_in_order_and_keep_the_limits"),
        (FreshStart, "test_a_position_that_cannot_be_read_is_not_a_fresh_start"),
        (DependsOnTheCall, "test_a_batch_is_read_alike_each_time_alone_and_beside_others"),
        (DataFirst, "test_system_columns_come_first"),
        (EmptyWhenAway, "test_a_source_that_does_not_respond_is_never_empty"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_source_that_is_wrong_fails_the_suite(spark: SparkSession, broken: type[Ranges], caught_by: str) -> None:
    suite = _suite(broken)
    test = getattr(suite, caught_by)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(spark) if "spark" in test.__code__.co_varnames[: test.__code__.co_argcount] else test()

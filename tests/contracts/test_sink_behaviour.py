"""Sinks show the behaviour that the loop relies on, and sinks that are wrong on purpose do not.

Those that need a server are in `tests/servers`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.own_sink.holdfast_own_sink.sqlite import SqliteConfig, SqliteSink, SqliteStager, SqliteStaging
from holdfast.flow.batch import Name
from holdfast.flow.sink import Publication, PublishResult, Sink
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Json, Lease
from holdfast.registry import Registry
from holdfast.sinks.files import PLUGIN as FILES
from holdfast.testing.sinks import SinkBehaviour


class TestFilesInAFolder(SinkBehaviour):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.root = tmp_path / "out"

    def make_sink(self) -> Sink:
        sink: Sink = FILES.build("files", FILES.config(root=self.root, format="text"), Registry.installed())
        return sink

    def visible(self) -> list[str]:
        files = [path for path in sorted(self.root.rglob("*.txt")) if "_holdfast" not in path.parts]
        return [line for file in files for line in file.read_text().splitlines()]


class TestOwnSink(SinkBehaviour):
    """The example of a sink of one's own."""

    sink_class: type[SqliteSink] = SqliteSink

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "records.db"

    def make_sink(self) -> Sink:
        return self.sink_class("table", SqliteConfig(path=self.path), Registry())

    def make_unreachable_sink(self) -> Sink:
        return self.sink_class("table", SqliteConfig(path=self.path.parent / "away" / "records.db"), Registry())

    def visible(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute("SELECT record FROM records WHERE fault IS NULL").fetchall()
        return [json.loads(record)["value"] for (record,) in found]


# --- sinks that are wrong on purpose ---------------------------------------------------------------------------------


def _execute(path: str, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


class ShowsWhatIsStaged(SqliteSink):
    def receipt(self, parts: Sequence[Json]) -> Json:
        _execute(self._path, "INSERT INTO records SELECT stream, label, item, record, fault FROM staged")
        return super().receipt(parts)


class AppendsAgain(SqliteSink):
    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        _execute(self._path, "DELETE FROM commits")
        return super().publish(publications)


class PublishesAllOfAPartition(SqliteSink):
    """Takes whatever is staged, also that of a former owner."""

    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        for publication in publications:
            with closing(sqlite3.connect(self._path)) as database:
                found = database.execute("SELECT part, count(*) FROM staged GROUP BY part").fetchall()
            publication.receipt["parts"] = [part for part, _ in found]
            publication.receipt["rows"] = sum(rows for _, rows in found)
        return super().publish(publications)


class NothingIsEverGone(SqliteSink):
    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        super().publish(publications)
        return [None] * len(publications)


class RaisesWhenPublishing(SqliteSink):
    def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
        for result in (results := super().publish(publications)):
            if result is not None:
                raise result
        return results


class ReceiptThatIsNotJson(SqliteSink):
    def receipt(self, parts: Sequence[Json]) -> Json:
        made = super().receipt(parts)
        return {**made, "parts": tuple(made["parts"])}


class ReceiptWithTheRecords(SqliteSink):
    def receipt(self, parts: Sequence[Json]) -> Json:
        with closing(sqlite3.connect(self._path)) as database:
            found = database.execute("SELECT record FROM staged").fetchall()
        return {**super().receipt(parts), "records": [record for (record,) in found]}


class SweepsEverything(SqliteSink):
    def sweep(self, taken: Sequence[tuple[Lease, Name]]) -> None:
        _execute(self._path, "DELETE FROM staged")


class DiscardsWhatIsVisible(SqliteSink):
    def discard_staged(self, publications: Sequence[Publication]) -> None:
        super().discard_staged(publications)
        _execute(self._path, "DELETE FROM records")


class BlindWitness(SqliteSink):
    def witness(self, taken: Sequence[tuple[Lease, Name]]) -> Any:
        return [None for _ in taken]


class _LockedStager(SqliteStager):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        object.__setattr__(self, "connection", sqlite3.connect(":memory:"))


class StagerThatDoesNotPickle(SqliteSink):
    def stager(self) -> SqliteStager:
        return _LockedStager(self._path)


class _SharedParts(SqliteStaging):
    def _part(self, batch: StagedBatch) -> str:
        return f"{batch.key}"


class _SharingStager(SqliteStager):
    def begin(self) -> SqliteStaging:
        return _SharedParts(self.path)


class PartsThatAttemptsShare(SqliteSink):
    """Names what is staged by the partition, so that two attempts are mixed up."""

    def stager(self) -> SqliteStager:
        return _SharingStager(self._path)


class _ForgetfulStaging(SqliteStaging):
    def bury(self, batch: StagedBatch, faults: Any) -> None:
        pass

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        super().write(batch, items[:2], rows[:2], output_folder)
        return 0


class _ForgetfulStager(SqliteStager):
    def begin(self) -> SqliteStaging:
        return _ForgetfulStaging(self.path)


class DropsRows(SqliteSink):
    def stager(self) -> SqliteStager:
        return _ForgetfulStager(self._path)


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (ShowsWhatIsStaged, SinkBehaviour.test_what_is_staged_is_not_visible_before_it_is_published),
        (AppendsAgain, SinkBehaviour.test_publishing_may_be_repeated_also_by_another_instance),
        (PublishesAllOfAPartition, SinkBehaviour.test_what_a_former_owner_stages_never_appears),
        (NothingIsEverGone, SinkBehaviour.test_staged_data_that_is_gone_is_reported_and_not_published_as_nothing),
        (RaisesWhenPublishing, SinkBehaviour.test_an_output_that_does_not_respond_is_unavailable_and_nothing_is_raised),
        (ReceiptThatIsNotJson, SinkBehaviour.test_the_tasks_of_a_batch_make_one_receipt),
        (ReceiptWithTheRecords, SinkBehaviour.test_a_receipt_survives_json_and_does_not_hold_the_records),
        (SweepsEverything, SinkBehaviour.test_a_sweep_deletes_nothing_that_a_row_names_or_that_its_owner_stages),
        (DiscardsWhatIsVisible, SinkBehaviour.test_discarding_deletes_nothing_that_is_visible_and_may_be_repeated),
        (BlindWitness, SinkBehaviour.test_a_store_that_lost_writes_is_noticed),
        (StagerThatDoesNotPickle, SinkBehaviour.test_the_tasks_of_a_batch_make_one_receipt),
        (PartsThatAttemptsShare, SinkBehaviour.test_what_a_former_owner_stages_never_appears),
        (DropsRows, SinkBehaviour.test_rows_are_records_or_dead_letters),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_sink_that_is_wrong_fails_the_suite(
    tmp_path: Path, broken: type[SqliteSink], caught_by: Callable[[Any, Sink], None]
) -> None:
    suite = TestOwnSink()
    suite.sink_class, suite.path = broken, tmp_path / "records.db"
    with suite.opened_beside() as sink, pytest.raises(Exception) as failure:  # noqa: PT011 - any failure will do
        caught_by(suite, sink)
    assert not isinstance(failure.value, pytest.skip.Exception)

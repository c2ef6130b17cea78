"""What becomes of the batches of a job that Spark has failed: who is to blame, and what is tried again. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import SourceUnavailable
from holdfast.flow.batch import Batch, Cut, Name
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.source import MayChange, ReadsByConnector
from holdfast.leases.lease import Lease
from holdfast.spark import engine as engines
from holdfast.spark.engine import SparkEngine
from holdfast.testing.flows import NumbersSource

TIMED_OUT = "Lost task 0.0 in stage 3.0 (TID 5): java.util.concurrent.TimeoutException: Cannot fetch record"


class Doubtful(NumbersSource, MayChange, ReadsByConnector):
    """A source of which some partitions may be gone, and which says so when it is asked."""

    def __init__(self) -> None:
        super().__init__({})
        self.gone: set[str] = set()
        self.away = False

    def doubts(self, batches: Sequence[Batch]) -> Mapping[str, str]:
        if self.away:
            raise SourceUnavailable("the brokers do not answer")
        return {batch.id: "its topic is gone" for batch in batches if batch.lease.key in self.gone}

    def is_away(self, error: str) -> bool:
        return "TimeoutException" in error


class Stand:
    """An engine whose jobs are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = Doubtful()
        self.jobs: list[str] = []
        self.fails: Callable[[str], None] = lambda keys: None
        self.cancelled = threading.Event()
        context = SimpleNamespace(
            setJobGroup=lambda *_, **__: None,
            cancelJobGroup=lambda _: self.cancelled.set(),
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)),
        )
        spark: Any = SimpleNamespace(sparkContext=context)
        monkeypatch.setattr(engines, "run_job", self._run)
        self.engine = SparkEngine(spark, {"p": Pipeline(self.source, [], {})}, rounds=1)

    def _run(self, _spark: Any, _recipe: Pipeline, batches: Sequence[Batch]) -> list[Report]:
        keys = "".join(batch.lease.key for batch in batches)
        self.jobs.append(keys)
        self.fails(keys)
        return [Staged(batch.id, None, last=False, receipts={}) for batch in batches]

    def outcome(self, keys: str) -> dict[str, str]:
        """By batch what became of it."""
        batches = [Batch(key, Lease("p", key), Name("t", key), Cut(0, 1)) for key in keys]
        self.engine.submit("p", batches)
        reports: list[Report] = []
        while len(reports) < len(keys):
            reports += self.engine.poll(10.0)
        return {report.batch_id: _kind(report) for report in sorted(reports, key=lambda report: report.batch_id)}


def _kind(report: Report) -> str:
    if isinstance(report, Failed):
        return (f"{report.what} unavailable: " if report.unavailable else "failed: ") + report.error
    return "staged"


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    made = Stand(monkeypatch)
    yield made
    made.engine.close()


def _raise_for(culprits: str, text: str) -> Callable[[str], None]:
    def fails(keys: str) -> None:
        if set(culprits) & set(keys):
            raise RuntimeError(text)

    return fails


def test_a_time_out_of_the_source_inside_a_task_counts_no_attempt(stand: Stand) -> None:
    stand.fails = _raise_for("b", TIMED_OUT)
    outcome = stand.outcome("abcd")
    assert outcome.pop("b").startswith("source unavailable: ")
    assert set(outcome.values()) == {"staged"}


def test_what_is_gone_is_left_out_at_once_and_the_others_are_read_together(stand: Stand) -> None:
    stand.source.gone = {"b", "c"}
    stand.fails = _raise_for("bc", TIMED_OUT)
    outcome = stand.outcome("abcdefgh")
    assert stand.jobs == ["abcdefgh", "adefgh"]
    assert (outcome.pop("b"), outcome.pop("c")) == ("failed: its topic is gone",) * 2
    assert set(outcome.values()) == {"staged"}


def test_halves_are_not_tried_while_the_source_is_away(stand: Stand) -> None:
    stand.source.away = True
    stand.fails = _raise_for("b", TIMED_OUT)
    assert set(stand.outcome("abcd").values()) == {"source unavailable: the brokers do not answer"}
    assert stand.jobs == ["abcd"]


def test_a_job_that_waits_for_what_is_gone_meanwhile_is_cancelled(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "WATCH_EVERY", 0.01)
    stand.source.gone = {"b"}

    def waits(keys: str) -> None:
        if "b" in keys:
            assert stand.cancelled.wait(10.0)
            raise RuntimeError("the job group was cancelled")

    stand.fails = waits
    assert stand.outcome("ab") == {"a": "staged", "b": "failed: its topic is gone"}
    assert stand.jobs == ["ab", "a"]

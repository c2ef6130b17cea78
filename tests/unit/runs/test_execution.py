"""A run as one process works on it: begun, joined, stopped, and taken over from a node that is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import assemble
from holdfast.assemble import StoredPipeline
from holdfast.config.models import Settings
from holdfast.errors import Refused, SinkUnavailable
from holdfast.events import Event, Notice, PipelineFinished
from holdfast.flow.engine import Engines, Report, ReportsBatches
from holdfast.flow.generations import Generation
from holdfast.flow.node import BRIEF_WAIT, Companion, Node
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.run import ENDED, Run, RunStatus, runs_of
from holdfast.flow.run_driver import End, Extend, Keep, RunDriver, Wait
from holdfast.flow.runs import Runs
from holdfast.leases.lease import Partition, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.query import Query
from holdfast.leases.store import Store
from holdfast.leases.world import host_world
from holdfast.runs import driving, kinds, pickup
from holdfast.runs import execution as running
from holdfast.runs.driving import Driving
from holdfast.runs.execution import NewRun, RunPipeline, begin, join
from holdfast.runs.lock import RunLock
from holdfast.runs.next_generation import parsing_as
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.flows import HandEngine, MemoryBucket, NumbersSource

CONFIG = """
source_coordination: {{store: {{sqlite: {{path: "{folder}/leases.db"}}}}}}
node: {{session_timeout: 1s, heartbeat_interval: 50ms}}
pipelines:
  numbers:
    source: {{objects: {{folder: in}}}}
    sinks: [{{files: {{root: out}}}}]
    batch: {{max_records: 10}}
"""
SIZES = {"a": 200, "b": 100}
PARTITIONS = [Partition(key, "numbers", {"size": size}) for key, size in SIZES.items()]
CONFIGURATION = {"kind": "backfill"}
REINDEX = {**CONFIGURATION, "kind": "reindex"}


class Driver(RunDriver):
    def partitions(self, run: Run) -> list[Partition]:
        return PARTITIONS


class BusyEngine(HandEngine):
    """Stages whatever is out; once some of it is visible the test may interfere, one time."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site

    def poll(self, timeout: float) -> list[Report]:
        if len(self._site.written()) >= 20:
            interfere, self._site.interfere = self._site.interfere, _not_at_all
            interfere()
        for batch in list(self.out.values()) if not self._site.held_up else ():
            letters = batch.cut.end - batch.cut.start if batch.lease.key == self._site.unreadable else 0
            self.stage(batch.lease.key, {"files": self._site.bucket}, letters)
        return super().poll(timeout)


def _not_at_all() -> None:
    """Leave the node alone."""


class Site:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        (folder / "p.yaml").write_text(CONFIG.format(folder=folder))
        self.settings: Settings = assemble.load_settings(folder / "p.yaml")
        self.store: Store = assemble.open_store(self.settings)
        self.bucket = MemoryBucket()
        self.interfere: Callable[[], object] = _not_at_all
        self.held_up = False
        self.any_letters = False
        self.unreadable = ""
        """The partition of which every record is a dead letter."""
        patch.setattr(running, "engine_of", lambda *_: BusyEngine(self))

    @property
    def stored(self) -> StoredPipeline:
        return StoredPipeline(self.settings, self.store, "numbers")

    @property
    def pipeline(self) -> RunPipeline:
        sink: Any = FilesSink("files", self.bucket)
        built = Pipeline(NumbersSource(SIZES), (), {"files": sink})
        return RunPipeline(self.stored, built, 2, Driver(), self.any_letters)

    @property
    def runs(self) -> Runs:
        return self.stored.runs()

    def begin(self) -> Run:
        return begin(self.pipeline, NewRun(CONFIGURATION, "ann"), lambda _: None)

    def join(self, run_id: str) -> Run:
        return join(self.pipeline, run_id, lambda _: None)

    def the_run(self) -> Run:
        (run,) = self.runs.list()
        return run

    def written(self) -> list[int]:
        return sorted(int(line) for data in self.bucket.data().values() for line in data.split())


ALL = sorted(number for size in SIZES.values() for number in range(size))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for pause in ("AGGREGATE_EVERY", "RETRY_AFTER"):
        monkeypatch.setattr(driving, pause, 0.05)
    made = Site(tmp_path, monkeypatch)
    yield made
    made.store.close()


def test_a_run_ends_when_all_of_it_is_written(site: Site) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    run = site.begin()
    assert (run.status.value, run.counts.processed, run.configuration) == ("COMPLETED", 300, CONFIGURATION)
    assert site.written() == ALL
    assert all("/2_" in key for key in site.bucket.data())
    assert signal.getsignal(signal.SIGTERM) is handler
    site.bucket = MemoryBucket()
    assert site.begin().status.value == "COMPLETED"  # the lock is free again


def test_partitions_are_claimed_as_soon_as_the_run_begins(site: Site) -> None:
    node = site.settings.node.model_copy(update={"session_timeout": 200.0, "heartbeat_interval": 100.0})
    site.settings = site.settings.model_copy(update={"node": node})
    began = time.monotonic()
    assert site.begin().status is RunStatus.COMPLETED
    assert time.monotonic() - began < 80, "it has waited for a heartbeat"


def test_a_node_looks_for_partitions_while_its_run_is_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    brief, poll = threading.Event(), BusyEngine.poll

    def noted(engine: BusyEngine, timeout: float) -> list[Report]:
        if timeout == BRIEF_WAIT:
            brief.set()
        return poll(engine, timeout)

    def partitions(_driver: Driver, _run: Run) -> list[Partition]:
        assert brief.wait(30), "the node waits as long as ever"
        return PARTITIONS

    monkeypatch.setattr(BusyEngine, "poll", noted)
    monkeypatch.setattr(Driver, "partitions", partitions)
    assert site.begin().status is RunStatus.COMPLETED


def test_a_run_whose_process_is_asked_to_stop_goes_on_when_it_is_joined(site: Site) -> None:
    site.interfere = lambda: os.kill(os.getpid(), signal.SIGTERM)
    half = site.begin()
    assert half.status.value == "RUNNING"
    assert 20 <= len(site.written()) < 300
    assert site.join(half.id).status.value == "COMPLETED"
    assert site.written() == ALL


def test_a_node_joins_beside_the_one_that_drives_and_takes_its_place_when_it_is_gone(site: Site) -> None:
    driver = site.stored.runs()
    coordinator = driver.coordinator("r1")
    coordinator.session.join()
    world = host_world(lambda _: None)
    live = assemble.coordinator_of(site.stored, world, coordinator.session)
    lock = RunLock(live, driver)
    driver.add("r1", configuration=CONFIGURATION, created_by="ann")
    token = lock.acquire("r1")
    driver.create("r1", token, PARTITIONS)
    driver.start("r1", token)
    held = coordinator.claim(1)  # and then that node is never heard of again
    assert site.join("r1").status.value == "COMPLETED"
    assert site.written() == ALL
    assert len(held) == 1


class PhasedDriver(Driver):
    """Adds a second phase when the node has found the first one finished."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def partitions(self, run: Run) -> list[Partition]:
        return PARTITIONS[:1]

    def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:
        if run.phase:
            return End(RunStatus.COMPLETED)
        if not any(isinstance(event, PipelineFinished) for event in self._events):
            return Wait(0.05)
        return Extend("second", PARTITIONS[1:], None)


def test_partitions_of_a_later_phase_are_claimed_although_all_of_the_run_was_finished(site: Site) -> None:
    events: list[Event] = []
    gives_up = threading.Timer(60, os.kill, (os.getpid(), signal.SIGTERM))
    gives_up.start()
    try:
        run = begin(replace(site.pipeline, driver=PhasedDriver(events)), NewRun(CONFIGURATION, "ann"), events.append)
    finally:
        gives_up.cancel()
    assert (run.status.value, run.phase) == ("COMPLETED", "second")
    assert site.written() == ALL


def test_a_run_for_one_node_is_worked_on_by_the_node_that_drives_it_alone(site: Site) -> None:
    session = assemble.new_session(site.settings, site.store, host_world(lambda _: None), pipelines=())
    live = assemble.coordinator_of(site.stored, host_world(lambda _: None), session)
    session.join()
    site.runs.add("r1", configuration=CONFIGURATION, created_by="ann")
    site.runs.create("r1", 1, PARTITIONS)
    site.runs.start("r1", 1)
    work = running.RunWork(live, "r1", replace(site.pipeline, one_node=True), BusyEngine(site))
    assert not work._may_claim()
    work.driving.step()
    assert work.driving.drives
    assert work._may_claim()
    work.leave()
    site.store.remove(site.store.find(Query(runs_of(live.pipeline))))
    assert not work._may_claim()  # a run that was removed does not end the node
    assert work.driving.step() is None


class OustedDriver(Driver):
    """Another node takes the run over while this one lists its partitions, and then the database refuses to."""

    def __init__(self, oust: Callable[[], object]) -> None:
        self._oust = oust

    def partitions(self, run: Run) -> list[Partition]:
        self._oust()
        raise Refused("there is no such table")


def test_a_driver_that_was_replaced_does_not_fail_the_run(site: Site) -> None:
    world = host_world(lambda _: None)
    session = assemble.new_session(site.settings, site.store, world, pipelines=())
    live = assemble.coordinator_of(site.stored, world, session)
    session.join()
    site.runs.add("r1", configuration=CONFIGURATION, created_by="ann")
    first = Driving(live, "r1", OustedDriver(_not_at_all))
    assert (first.step(), first.step()) == (0.0, None)
    assert (site.the_run().status, site.the_run().error) == (RunStatus.FAILED, "there is no such table")
    site.runs.add("r2", configuration=CONFIGURATION, created_by="ann")
    ousted = Driving(live, "r2", OustedDriver(lambda: site.runs.drive("r2", 99)))
    ousted.step()
    assert not ousted.drives
    run = site.runs.show("r2")
    assert (run.status, run.driver_token) == (RunStatus.INITIALIZING, 99)


def test_a_run_that_was_made_and_not_started_is_started_by_who_joins(site: Site) -> None:
    site.runs.add("r1", configuration=CONFIGURATION, created_by="ann")
    assert site.runs.create("r1", 1, PARTITIONS).status.value == "READY"
    assert site.join("r1").status.value == "COMPLETED"


def test_a_run_that_is_stopped_ends_on_every_node(site: Site) -> None:
    def stop() -> None:
        site.runs.stop(site.the_run().id)
        site.held_up = True  # or the rest would be written before the next pass

    site.interfere = stop
    assert site.begin().status.value == "STOPPED"
    assert 20 <= len(site.written()) < 300


def test_one_run_goes_on_at_a_time(site: Site) -> None:
    refused: list[str] = []

    def another() -> None:
        with pytest.raises(Refused, match="is going on") as error:
            site.begin()
        refused.append(str(error.value))

    site.interfere = another
    assert site.begin().status.value == "COMPLETED"
    assert len(refused) == 1
    assert site.the_run().status.value == "COMPLETED"


def test_a_node_of_the_pipeline_picks_up_runs_by_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickup, "run_pipeline_of", lambda *_: site.pipeline)
    monkeypatch.setattr(pickup, "engine_beside", lambda *_: BusyEngine(site))
    detached = begin(site.pipeline, NewRun(CONFIGURATION, "ann", detached=True), lambda _: None)
    assert site.the_run().status.value == "INITIALIZING"
    world = host_world(lambda _: None)
    session = assemble.new_session(site.settings, site.store, world, pipelines=["numbers"])
    live = assemble.coordinator_of(site.stored, world, session)
    engines = Engines([HandEngine()])
    beside = pickup.RunPickup(site.stored, live, site.pipeline.built, engines)
    node = Node(session, (), engines, world, companions=[beside, Until(lambda: all_ended(site))])
    assert node.run()
    assert site.runs.show(detached.id).status.value == "COMPLETED"
    assert site.written() == ALL


def pickup_of(site: Site, engines: Engines, emit: Callable[[Event], None] = lambda _: None) -> pickup.RunPickup:
    """A companion whose node does not run."""
    world = host_world(emit)
    session = assemble.new_session(site.settings, site.store, world, pipelines=["numbers"])
    session.join()
    return pickup.RunPickup(
        site.stored, assemble.coordinator_of(site.stored, world, session), site.pipeline.built, engines
    )


def test_a_command_that_joins_a_run_over_tables_fixes_its_parsing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "import_module", lambda _: SimpleNamespace(run_pipeline=lambda *_: site.pipeline))
    generations, edited = site.stored.generations(), Generation(1, "edited")
    generations.register(edited, switch=True)
    with pytest.raises(Refused, match="the parsing of another file"):
        kinds.run_pipeline_of(site.stored, REINDEX)
    generations.register(parsing_as(site.stored, 1, "ann"), switch=True)
    kinds.run_pipeline_of(site.stored, REINDEX).built.close()
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(edited, switch=True)


def test_a_node_that_copies_tables_fixes_its_parsing_before_it_works_on_a_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "import_module", lambda _: SimpleNamespace(run_pipeline=lambda *_: site.pipeline))
    monkeypatch.setattr(pickup, "engine_beside", lambda *_: HandEngine())
    generations, edited = site.stored.generations(), Generation(1, "edited")
    generations.register(edited, switch=True)
    site.runs.add("r1", configuration=REINDEX, created_by="ann")
    notices: list[Event] = []
    beside = pickup_of(site, Engines([]), notices.append)
    beside._look_at = float("inf")
    beside._look()
    assert "left to other nodes: generation 1 has the parsing of another file" in str(notices)
    generations.register(parsing_as(site.stored, 1, "ann"), switch=True)
    beside._left_alone.clear()
    beside._look()
    with pytest.raises(Refused, match="Raise `generation`"):
        generations.register(edited, switch=True)
    beside.leave()


class Interrupting(Engines):
    """Calls something while an engine is added."""

    interfere: Callable[[], object] = staticmethod(_not_at_all)

    def add(self, engine: ReportsBatches) -> None:
        super().add(engine)
        self.interfere()


def test_a_run_is_picked_up_once_whenever_runs_are_looked_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickup, "run_pipeline_of", lambda *_: site.pipeline)
    monkeypatch.setattr(pickup, "engine_beside", lambda *_: HandEngine())
    site.runs.add("r1", configuration=CONFIGURATION, created_by="ann")
    engines = Interrupting([])
    beside = pickup_of(site, engines)
    beside._look_at = float("inf")
    beside._look()
    engines.interfere = beside._look  # two drivers of one node would hold the lock under the same token
    beside.turn()
    beside.turn()
    assert len(beside.loops) == 1
    beside.leave()


class ClosingSource(NumbersSource):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_pipeline_of_a_run_that_cannot_be_opened_now_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise SinkUnavailable("the cluster does not respond")

    source = ClosingSource(SIZES)
    built = replace(site.pipeline.built, source=source)
    monkeypatch.setattr(pickup, "run_pipeline_of", lambda *_: replace(site.pipeline, built=built))
    monkeypatch.setattr(pickup, "open_pipelines", away)
    site.runs.add("r1", configuration=CONFIGURATION, created_by="ann")
    pickup_of(site, Engines([]))._look()
    assert source.closed == 1


class Until(Companion):
    """Keeps a node working until something is true."""

    def __init__(self, done: Callable[[], bool]) -> None:
        self._done = done

    def turn(self) -> None:
        """Nothing."""

    @property
    def finished(self) -> bool:
        return self._done()


def all_ended(site: Site) -> bool:
    return all(run.status in ENDED for run in site.runs.list())


def test_a_partition_of_a_run_with_too_many_dead_letters_halts_and_the_rest_of_the_run_goes_on(site: Site) -> None:
    site.unreadable = "a"
    run = site.begin()
    (row,) = [row for row in site.stored.operator(run.id).rows() if row.key == "a"]
    assert run.status.value == "COMPLETED_WITH_ERRORS"
    assert (row.status, row.progress.position) == (Status.FAILED, 100)  # the 101st letter would be one too many
    assert "110 of 110 records are dead letters, and 100 are allowed" in str(row.history.halt_reason)
    assert not list(site.stored.operator().rows())  # no partition of the live pipeline is concerned


def test_a_redrive_may_make_dead_letters_of_all_its_records_again(site: Site) -> None:
    site.unreadable, site.any_letters = "a", True
    run = site.begin()
    assert (run.status.value, run.counts.failed) == ("COMPLETED", 200)


def test_runs_of_a_later_version_are_left_alone_and_that_is_said_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {**CONFIGURATION, "kind": "teleport"}
    site.runs.add("a", configuration=later, created_by="ann")
    site.runs.add("b", configuration=CONFIGURATION, created_by="ann")
    rows = Operator(site.store, lambda: "of a later version", runs_of(site.stored.identifier))
    rows.change("b", lambda row, _: replace(row, progress=Progress(state={**row.progress.state, "status": "HOVERING"})))
    site.runs.add("c", configuration=CONFIGURATION, created_by="ann")
    made = kinds.run_pipeline_of
    monkeypatch.setattr(
        pickup, "run_pipeline_of", lambda of, found: made(of, found) if found == later else site.pipeline
    )
    monkeypatch.setattr(pickup, "engine_beside", lambda *_: HandEngine())
    events: list[Event] = []
    beside = pickup_of(site, Engines([]), events.append)
    beside._look()
    beside._look()
    texts = [event.message for event in events if isinstance(event, Notice)]
    assert (
        len([text for text in texts if text.startswith("run a is left to other nodes: a run of the kind 'tele")]) == 1
    )
    assert texts.count("run b is left to other nodes: this version of holdfast cannot read it") == 1
    assert [opened.work.run_id for opened in beside._arrived] == ["c"]
    assert rows.show("b").progress.state["status"] == "HOVERING"

"""What a file says reaches the parts that it is about."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from holdfast.assemble import (
    build_pipeline,
    hand_coordinators,
    load_settings,
    loop_settings_of,
    new_session,
)
from holdfast.errors import SessionExpired, UsageError
from holdfast.events import Event
from holdfast.finalize.output import Finalizes
from holdfast.flow.batch import Batch, Cut, Limits, Name, Tolerance
from holdfast.flow.loop import LoopSettings
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.sink import StagesByBatch
from holdfast.flow.source import Source, UsesSourceCoordination
from holdfast.flow.staging import StagedBatch
from holdfast.leases.lease import Lease, Partition
from holdfast.leases.source_coordinator import SourceCoordinator
from holdfast.leases.store import Store
from holdfast.registry import Registry
from holdfast.service import _warn_of_expiry
from holdfast.stores.memory import MemoryStore
from holdfast.testing.worlds import make_world

PIPELINE = """
pipelines:
  orders:
    source:
      objects: {folder: in}
    sinks:
      - files: {root: out}
"""

CHANGED = """
    batch: {max_bytes: 1000, max_records: 7, timeout: 20s}
    round: {max_batches: 5}
    generation: 2
    replicas: 3
    dead_letters: {tolerance: {share: 0.5, records: 20}}
node: {step_limit: 90s}
"""


def loop_settings(folder: Path, text: str) -> LoopSettings:
    file = folder / "pipeline.yaml"
    file.write_text(text)
    return loop_settings_of(load_settings(file), "orders")


def test_the_loop_gets_every_limit_of_the_file(tmp_path: Path) -> None:
    assert loop_settings(tmp_path, PIPELINE + CHANGED) == LoopSettings(
        limits=Limits(max_bytes=1000, max_records=7, timeout=20.0),
        max_batches=5,
        generation=2,
        replicas=3,
        step_limit=90.0,
        tolerance=Tolerance(0.5, 20),
    )


def test_one_in_ten_records_may_be_a_dead_letter_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert loop_settings(tmp_path, PIPELINE).tolerance == Tolerance(0.1, 1000)


def test_without_replicas_the_share_is_that_of_the_nodes_that_are_there(tmp_path: Path) -> None:
    assert loop_settings(tmp_path, PIPELINE).replicas == 0


BY_TIME = """
pipelines:
  orders:
    source:
      kafka: {{bootstrap_servers: "127.0.0.1:1", topics: [orders]}}
    processors:
      - parse: {{time: kafka, {parse}}}
    sinks:
      - files: {{root: out, finalize: {{{finalize}}}}}
"""


@pytest.mark.parametrize(
    ("parse", "finalize", "wrong"),
    [
        ("granularity: hour", "lateness: 1h", None),
        ("zone: Asia/Tokyo", "zone: Asia/Tokyo", None),
        ("template: y=%Y/m=%m", "template: y=%Y/m=%m", None),
        ("zone: Asia/Tokyo", "lateness: 1h", "writes times in Asia/Tokyo"),
        ("topics: [{match: a, zone: Asia/Tokyo}]", "lateness: 1h", "writes times in Asia/Tokyo"),
        ("template: y=%Y/m=%m", "lateness: 1h", "cannot read times of the form y=%Y/m=%m"),
    ],
)
def test_final_folders_are_understood_as_they_were_named(
    tmp_path: Path, parse: str, finalize: str, wrong: str | None
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(BY_TIME.format(parse=parse, finalize=finalize))
    pipeline = load_settings(file).pipelines["orders"]
    if wrong is None:
        sink = build_pipeline(pipeline, Registry.installed()).sinks["files"]
        assert isinstance(sink, Finalizes)
        assert sink.finalizing() is not None
    else:
        with pytest.raises(UsageError, match=wrong):
            build_pipeline(pipeline, Registry.installed())


@pytest.mark.parametrize(
    ("parse", "folder"),
    [
        ("granularity: hour", "dt=2071-01-01/hr=00"),
        ("template: year=%Y/week=%V", "year=2071/week=03"),
        ("topics: [{match: a, granularity: month, style: plain}]", "2071-01"),
    ],
)
def test_a_time_too_far_ahead_is_a_letter_also_where_nothing_is_declared_final(
    tmp_path: Path, parse: str, folder: str
) -> None:
    file = tmp_path / "pipeline.yaml"
    text = BY_TIME.format(parse=parse, finalize="").replace("root: out, finalize: {}", f"root: {tmp_path}/out")
    file.write_text(text)
    pipeline = build_pipeline(load_settings(file).pipelines["orders"], Registry.installed())
    sink = pipeline.sinks["files"]
    assert isinstance(sink, StagesByBatch)
    batch = Batch("b", Lease("orders", "orders|0"), Name("orders", "0"), Cut(0, 1), planned_at=1_767_225_600.0)
    staging, staged = sink.stager_for([batch]).begin(), StagedBatch("b", "orders", "orders|0", batch.name, 1, 1)
    rows = pa.RecordBatch.from_pydict({"value": [b"a"]})
    assert staging.write(staged, pa.array([0], pa.int64()), rows, folder) == 1
    assert "its time is too far ahead" in (staging.letter_reason(staged) or "")
    assert staging.write(staged, pa.array([0], pa.int64()), rows, folder.replace("2071", "2026")) == 0
    staging.abandon(staged)


class Forgetting:
    """As much of a store as the warning looks at."""

    def __init__(self, ttl: float | None) -> None:
        self.forgets_after = ttl


@pytest.mark.parametrize(
    ("ttl", "range_", "warned"), [(86_400.0, "7d", True), (8 * 86_400.0, "7d", False), (None, "7d", False)]
)
def test_a_store_that_forgets_what_a_scan_will_find_again_is_warned_of(
    tmp_path: Path, ttl: float | None, range_: str, warned: bool
) -> None:
    text = PIPELINE.replace("{folder: in}", f"{{folder: in, scan: follow, range: {range_}}}")
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    parts = {"orders": build_pipeline(load_settings(file).pipelines["orders"], Registry.installed())}
    warnings: list[Event] = []
    _warn_of_expiry(cast("Store", Forgetting(ttl)), parts, warnings.append)
    assert len(warnings) == warned
    assert not warned or "orders" in str(warnings[0])


def test_the_time_to_live_of_dynamodb_is_what_it_forgets_after() -> None:
    plugin = Registry.installed().get("stores", "dynamodb")
    assert plugin.build(plugin.config(table_name="leases", region="x", ttl="P2D")).forgets_after == 2 * 86_400.0


class _Listing(UsesSourceCoordination):
    """The part of a source that is about coordination."""

    coordinator: SourceCoordinator

    def use_coordinator(self, coordinator: SourceCoordinator) -> None:
        self.coordinator = coordinator


def test_a_source_that_asks_for_it_is_handed_a_coordinator_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "pipelines.yaml"
    file.write_text("source_coordination: {ownership_timeout: 7m, partition_prefix: blue}\n")
    settings, store, world = load_settings(file), MemoryStore(), make_world()
    session = new_session(settings, store, world, pipelines=())
    listing = _Listing()
    parts = {
        "pages": Pipeline(cast("Source", listing), (), {}),
        "other": Pipeline(cast("Source", object()), (), {}),
    }
    assert hand_coordinators(settings, store, parts, session=session, world=world) == [listing.coordinator]

    listing.coordinator.create_partitions([Partition("page 1")])
    with pytest.raises(SessionExpired):
        listing.coordinator.acquire_next()
    session.join()
    lease = listing.coordinator.acquire_next()
    assert lease is not None
    assert lease.pipeline == "blue|pages/$source", "the loop of the pipeline takes all that is the pipeline's"
    assert lease.ownership.due_at == pytest.approx(store.now() + 7 * 60, abs=60)

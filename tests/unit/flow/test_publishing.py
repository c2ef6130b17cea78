"""Publishing is measured by files: however many a commit has, the heartbeat goes on and nothing else waits for long."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.buckets.bucket import Published, StagedFile
from holdfast.errors import SinkUnavailable
from holdfast.events import HeartbeatWithheld
from holdfast.flow.engine import Staged
from holdfast.flow.names import file_key, staging_key
from holdfast.flow.sink import Publication, PublishResult
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Counts, Json, Status
from holdfast.sinks.files.sink import FilesSink
from holdfast.testing.flows import MemoryBucket
from tests.unit.flow.rig import Fleet, TestClock, TestNode


class SlowBucket(MemoryBucket):
    """Every file takes its time, and whoever keeps the node's session gets to run meanwhile."""

    def __init__(self, clock: TestClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self.keepers: list[Heart] = []

    def publish(self, files: Sequence[StagedFile]) -> list[Published]:
        return [self._slowly(file) for file in files]

    def _slowly(self, file: StagedFile) -> Published:
        self._clock.time += self._seconds
        for heart in self.keepers:
            heart.beat_if_due()
        return super()._publish(file)


class Heart:
    """The keeper's thread, moved by hand: a heartbeat whenever one is due and the keeper does not withhold it."""

    def __init__(self, node: TestNode) -> None:
        self._node = node
        self._keeper = Keeper(node.session, node.world)
        self._next = 0.0
        self.step = self._keeper.step

    def beat_if_due(self) -> None:
        clock = self._node.fleet.clock
        if clock.time >= self._next:
            self._next = clock.time + self._node.session.timing.heartbeat
            if not self._keeper._withheld():
                self._node.session.heartbeat()


def stage_many(node: TestNode, key: str, files: int) -> None:
    """The partition's batch, one item a file."""
    batch, bucket = node.engine.batch_of(key), node.fleet.buckets["files"]
    staged: list[dict[str, Json]] = []
    for item in range(files):
        name = file_key(batch.name, 1, item, "txt")
        writer = bucket.stage(staging_key(batch.name, batch.lease.token, batch.id, str(item)), name)
        writer.write(f"{item}\n".encode())
        handle, size, sha256 = writer.close()
        staged.append({"staged": handle, "key": name, "rows": 1, "size": size, "sha256": sha256})
    node.engine.report(Staged(batch.id, files, True, {"files": {"files": staged}}, Counts(files, files)))


def slow_site(partitions: int, files: int, seconds: float) -> tuple[Fleet, SlowBucket]:
    fleet = Fleet({f"p{number:03d}": files for number in range(partitions)})
    bucket = SlowBucket(fleet.clock, seconds)
    fleet.buckets["files"] = bucket
    return fleet, bucket


def turn(node: TestNode, heart: Heart) -> None:
    heart.beat_if_due()
    node.loop.turn(node.engine.poll(0), heart.step)


def test_many_commits_of_a_thousand_files_keep_the_heartbeat_and_come_to_an_end() -> None:
    fleet, bucket = slow_site(partitions=30, files=1000, seconds=0.3)
    node = TestNode(fleet, max_batches=200).start()
    heart = Heart(node)
    bucket.keepers.append(heart)
    session = node.session.id
    for key in fleet.source.sizes:
        stage_many(node, key, 1000)
    turns = 0
    while any(fleet.row(key).status is not Status.COMPLETED for key in fleet.source.sizes):
        turn(node, heart)
        turns += 1
        assert turns < 200
    assert fleet.emitted(HeartbeatWithheld) == []
    assert (node.session.id, node.session.usable) == (session, True)
    assert len(bucket.data()) == 30_000
    assert turns >= 30, "other work has its turn in between"


def test_a_commit_of_many_files_that_takes_longer_than_a_step_keeps_the_heartbeat() -> None:
    fleet, bucket = slow_site(partitions=1, files=2000, seconds=0.1)
    node = TestNode(fleet).start()
    heart = Heart(node)
    bucket.keepers.append(heart)
    stage_many(node, "p000", 2000)
    turn(node, heart)
    assert fleet.emitted(HeartbeatWithheld) == []
    assert fleet.row("p000").status is Status.COMPLETED


def test_small_commits_are_published_together_and_large_ones_apart() -> None:
    sizes: list[int] = []

    class Counting(FilesSink):
        def publish(self, publications: Sequence[Publication]) -> list[PublishResult]:
            sizes.append(len(publications))
            return super().publish(publications)

    fleet, _ = slow_site(partitions=5, files=900, seconds=0.0)
    node = TestNode(fleet, sinks=Counting).start()
    for key, files in zip(fleet.source.sizes, (900, 10, 80, 20, 900), strict=True):
        stage_many(node, key, files)
    node.turn()
    assert sizes == [3, 2]


def test_a_bucket_that_hangs_does_not_pass_for_one_that_works() -> None:
    fleet, bucket = slow_site(partitions=1, files=3, seconds=0.0)

    def hang(files: Sequence[StagedFile]) -> list[Published]:
        fleet.clock.time += 61
        heart.beat_if_due()
        raise SinkUnavailable("no answer")

    bucket.publish = hang  # type: ignore[method-assign]
    node = TestNode(fleet).start()
    heart = Heart(node)
    stage_many(node, "p000", 3)
    turn(node, heart)
    assert [event.step for event in fleet.emitted(HeartbeatWithheld)] == ["publish"]

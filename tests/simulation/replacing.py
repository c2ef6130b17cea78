"""A world in which somebody replaces what was written: files are moved away, and the range is written anew.

What must hold: no record is visible twice, whoever still publishes what was there before; files leave only while their
partition is set aside; a partition begins again only when nothing of the range is left; what is written again has a
later generation. What must come about: whatever was begun is finished, and every record is visible in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import Halt, PartitionError, Refused, Unavailable, UsageError
from holdfast.flow.batch import Cut, Done, Name, Wait
from holdfast.flow.generations import Generation, Generations
from holdfast.leases.lease import FINISHED, Lease
from holdfast.leases.operator import Operator
from holdfast.leases.transitions import set_aside_for
from holdfast.runs.next_generation import register_next
from holdfast.runs.replace import ReplacedPipeline, Replacement
from holdfast.runs.rewind import Rewind
from tests.simulation.bucket import BucketClient, DataFile
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.generations import VERSIONS, GenerationsOracle, RollOut
from tests.simulation.host import Host
from tests.simulation.oracle import PIPELINE
from tests.simulation.site import NoBatches, Running
from tests.simulation.source import Data, SimulatedSource, offset_of
from tests.simulation.store import StoreClient

MINE = VERSIONS[0]


class ReplacingOracle(GenerationsOracle):
    """Judges what is moved away and what begins again, beside all that holds for files and generations."""

    begun_again: dict[str, tuple[int, int]]
    """By partition where it last began again, and under which generation."""

    def _lease_written(self, before: Lease, row: Lease, sender: Host) -> None:
        if set_aside_for(row) is not None and set_aside_for(before) is None:
            self._require_set_aside(before, row)
        elif set_aside_for(before) is not None and set_aside_for(row) is None:
            self._require_begun_again(before, row)
        else:
            super()._lease_written(before, row, sender)

    def _require_set_aside(self, before: Lease, row: Lease) -> None:
        if before.commit.receipts is not None:
            self.fail(f"{row.key}: was set aside while a commit waits to be published")
        if row.token != before.token + 1 or row.progress.position != before.progress.position:
            self.fail(f"{row.key}: was set aside under token {row.token} at {row.progress.position}")

    def _require_begun_again(self, before: Lease, row: Lease) -> None:
        start, generation = offset_of(row.progress.position), row.commit.generation
        if start >= offset_of(before.progress.position) or generation <= before.commit.generation:
            self.fail(f"{row.key}: begins again at {start} under generation {generation}")
        if row.commit.sequence != before.commit.sequence or row.token != before.token:
            self.fail(f"{row.key}: begins again under another token or sequence")
        for sink in self.buckets:
            left = [item for key, item in self.visible_items(sink) if key == row.key and item >= start]
            if left:
                self.fail(f"{row.key}: begins again at {start} while {left} are still in {sink}")
        self.begun_again[row.key] = (start, generation)

    def _require_switched_at_rest(self, before: Lease, row: Lease) -> None:
        if set_aside_for(before) is None:
            super()._require_switched_at_rest(before, row)

    def created(self, sink: str, key: str, data: bytes) -> None:
        if "/replaced/" not in key:
            super().created(sink, key, data)

    def moved(self, sink: str, key: str, file: DataFile) -> None:
        row = self.live(file.partition)
        if file.partition and (row is None or set_aside_for(row) is None):
            self.fail(f"{sink}: {key} was moved away while its partition works")
        for item in file.items:
            self._seen[sink].pop((file.partition, item))

    def _require_complete(self, row: Lease, number: int) -> None:
        start, generation = self.begun_again.get(row.key, (number, 0))
        for sink in self.buckets:
            seen = self.visible_items(sink)
            missing = [item for item in range(number) if (row.key, item) not in seen]
            old = [item for item in range(start, number) if _generation(seen.get((row.key, item), "9_")) < generation]
            if missing or old:
                self.fail(f"{sink}: items {missing} of {row.key} are missing, and {old} are the old ones")


def _generation(key: str) -> int:
    return int(key.rpartition("/")[2].partition("_")[0])


class OpenSource(SimulatedSource):
    """Has no last item while somebody may still replace something."""

    site: ReplacingSite

    def _cut(self, lease: Lease) -> Cut | Wait | Done | object:  # type: ignore[override]
        planned = super()._cut(lease)
        if isinstance(planned, Done) and not self.site.is_quiet:
            return Wait(0.3 * self._ttl)
        return Cut(planned.start, planned.end) if isinstance(planned, Cut) else planned


class ReplacingSite(RollOut):
    """Nodes of one version, and a person who replaces."""

    oracle: ReplacingOracle

    def draw_data(self) -> Data:
        drawn = super().draw_data()
        return Data(drawn.items, drawn.appears_at, drawn.poison, lives_long=True, discovered=True)

    def files_oracle(self) -> FilesOracle:
        super().files_oracle()
        oracle = ReplacingOracle(self.kernel, self.data, self.knobs.max_retries)
        oracle.begun_again = {}
        return oracle

    def _version(self, name: str) -> Generation:
        self.versions[name] = MINE
        return MINE

    def make_source(self, host: Host) -> SimulatedSource:
        source = OpenSource(self.data, host, self.knobs.ttl, self.knobs.largest_cut)
        source.site = self
        return source

    def assemble(self, name: str, host: Host) -> Running:
        if name == "person":
            return Running(host, Replacer(self, host, self.connect(host)), NoBatches())
        return super().assemble(name, host)

    @property
    def set_aside(self) -> list[Lease]:
        return [row for row in self._rows() if set_aside_for(row) is not None]

    @property
    def is_quiet(self) -> bool:
        """Whether nobody replaces anything any more."""
        person = self.nodes.get("person")
        at_work = person is not None and person.host.running
        return not self.faults.active and not at_work and not self.set_aside

    @property
    def work_is_done(self) -> bool:
        rows = self._rows()
        return self.is_quiet and all(row.status in FINISHED for row in rows)

    def look_after(self) -> None:
        """What was begun is finished by calling it again."""
        if self.set_aside:
            self.start("person")


@dataclass(frozen=True)
class SimulatedRewind(Rewind):
    """Of a simulated partition."""

    @property
    def key(self) -> str:
        return f"p{self.partition}"

    @property
    def name(self) -> Name:
        return Name("stream", self.key)


class SimulatedPipeline(ReplacedPipeline):
    """One version of the parsing, over a source that has lost nothing."""

    digest = MINE.digest

    def __init__(self, operator: Operator, generations: Generations, key: str) -> None:
        self._operator = operator
        self._generations = generations
        self._key = key

    def row(self) -> Lease:
        row = self._operator.show(self._key)
        if row.progress.position is None:
            raise UsageError("nothing was read yet")
        return row

    def first_offset(self, to: str) -> int:
        return int(to)

    def next_generation(self) -> int:
        return register_next(self._generations, MINE)

    def check_digest(self, generation: int) -> None:
        if self._generations.show(generation).digest != self.digest:
            raise Refused("another parsing")

    def fence_redrives(self) -> None:
        """There are none."""


class Replacer:
    """Replaces something now and then, and finishes what was begun, also when the faults are over."""

    def __init__(self, site: ReplacingSite, host: Host, store: StoreClient) -> None:
        self._site = site
        self._host = host
        self._operator = Operator(store, host.world.new_id, PIPELINE)
        self._generations = Generations(store, host.world.new_id, PIPELINE)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        site, host = self._site, self._host
        while not self._stopping and (site.faults.active or site.set_aside):
            host.wait(site.knobs.ttl * 2 * host.kernel.random())
            try:
                self._act()
            except (Unavailable, PartitionError, UsageError, Refused, Halt) as trouble:
                host.kernel.note(host.name, "tries again later", trouble)

    def _act(self) -> None:
        site, kernel = self._site, self._host.kernel
        begun = site.set_aside
        key = begun[0].key if begun else f"p{kernel.below(len(site.data.items))}"
        if not begun and not site.faults.active:
            return
        request = SimulatedRewind("stream", int(key[1:]), str(kernel.below(site.data.items[key])))
        knobs = site.knobs
        roots = {
            name: BucketClient(bucket, self._host, knobs.latency, knobs.ttl) for name, bucket in site._buckets.items()
        }
        pipeline = SimulatedPipeline(self._operator, self._generations, key)
        emit, clock = self._host.world.emit, self._host
        Replacement(
            request,
            pipeline,
            operator=self._operator,
            generations=self._generations,
            roots=roots,
            emit=emit,
            clock=clock,
        ).carry_out()
        self._host.faults.strike("Replaced")

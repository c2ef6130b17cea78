"""Rewind in place: the old files of a range are moved away, and the live pipeline writes the range anew.

Steps, each of which may be repeated, and all of which a second call finishes: set the partition aside (its owner lets
go), end redrives of its dead letters, delete what was staged for it, record the plan, move the files (also those that
redrives have written), make the new generation current, let the partition begin again at the earlier offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from holdfast import assemble
from holdfast.buckets.bucket import Bucket
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of
from holdfast.config.models import Settings
from holdfast.errors import Halt, Refused, TransitionRefused, UsageError
from holdfast.events import Notice
from holdfast.flow.generations import Generations
from holdfast.flow.manifest import Manifest, decode_manifest, standing
from holdfast.flow.names import OURS, folder, staged_token, staging_folder
from holdfast.flow.sink import Sink
from holdfast.leases import transitions
from holdfast.leases.lease import FINISHED, Json, Lease
from holdfast.leases.operator import Operator
from holdfast.leases.store import Store
from holdfast.leases.world import Clock, HostClock
from holdfast.runs.creation import FILES, check_digest, coming_generation
from holdfast.runs.redriven import Redriven, fence_redrives, lowest_straddling, redriven_from
from holdfast.runs.replace_plan import ReplacingPlan, commit_start, decode_plan, files_from, plan_key
from holdfast.runs.rewind import Rewind, first_offset, partition_row
from holdfast.sinks.files.sink import FilesSink

PATIENCE = 60.0
"""Seconds that the last commit of a partition is given to be published."""
PAUSE = 0.1


@dataclass(frozen=True)
class Replaced:
    """What was done, or would be."""

    start: int
    end: int
    asked: int
    generation: int | None
    moves: tuple[tuple[str, str], ...]
    """By sink's root and old key; a dry run has them too."""
    missing: tuple[str, ...] = ()
    """Files that were nowhere."""


class ParsingFile:
    """What the settings say of the pipeline whose records are replaced, and what its source still has."""

    def __init__(self, settings: Settings, store: Store, asked: Rewind, by: str, sinks: Mapping[str, Sink]) -> None:
        self._settings = settings
        self._store = store
        self._asked = asked
        self._by = by
        self._sinks = sinks

    @property
    def digest(self) -> str:
        return digest_of(self._settings.pipelines[self._asked.pipeline])

    def row(self) -> Lease:
        """The live row of the partition. Raises `UsageError` if it was never read."""
        return partition_row(self._settings, self._store, self._asked)

    def first_offset(self, to: str) -> int:
        """The offset that an offset or a time means. Raises `UsageError` if the source does not have it any more."""
        return first_offset(self._settings, replace(self._asked, to=to))

    def coming_generation(self) -> int:
        """A generation of this file's parsing that is not current yet."""
        return coming_generation(self._settings, self._store, self._asked.pipeline, self._by)

    def check_digest(self, generation: int) -> None:
        """Raise `Refused` unless this file's parsing is that of the generation."""
        check_digest(self._settings, self._store, self._asked.pipeline, generation)

    def fence_redrives(self) -> None:
        """End redrives of the partition's dead letters, and publish what they have committed."""
        settings, store, pipeline = self._settings, self._store, self._asked.pipeline
        rows_of = partial(assemble.operator, settings, store, pipeline)
        fence_redrives(assemble.runs(settings, store, pipeline), rows_of, self._asked.key, self._sinks)


def replacing_of(settings: Settings, store: Store, asked: Rewind, emit: assemble.Emit, by: str) -> Replacing:
    """Of a pipeline, as its settings have it. Raises `UsageError` if it has sinks besides files."""
    roots, sinks = _roots(settings, asked.pipeline)
    operator = assemble.operator(settings, store, asked.pipeline)
    generations = assemble.generations(settings, store, asked.pipeline)
    return Replacing(asked, ParsingFile(settings, store, asked, by, sinks), operator, generations, roots, emit)


class Replacing:
    """Replaces what a pipeline has written of one Kafka partition from an offset on."""

    def __init__(
        self,
        asked: Rewind,
        file: ParsingFile,
        operator: Operator,
        generations: Generations,
        roots: Mapping[str, Bucket],
        emit: assemble.Emit,
        clock: Clock | None = None,
    ) -> None:
        self._asked = asked
        self._file = file
        self._operator = operator
        self._generations = generations
        self._roots = roots
        self._emit = emit
        self._clock = clock or HostClock()

    def preview(self) -> Replaced:
        """What `carry_out` would do. Changes nothing. Raises `UsageError`, and `Refused` before the roll-out."""
        row = self._file.row()
        wanted, committed = self._file.first_offset(self._asked.to), row.progress.position["offset"]
        if wanted >= committed:
            raise UsageError(f"{self._asked.key} is committed up to {committed}: there is nothing to replace")
        self._check_parsing()
        start = self._start(row, wanted)
        moves = [(root, key) for root, bucket in self._roots.items() for key in self._files(bucket, start)]
        return Replaced(start, committed, wanted, None, tuple(moves))

    def carry_out(self) -> Replaced:
        """Do it, or finish what was begun. Blocks until all files are moved. Raises as `preview`."""
        row = self._file.row()
        if transitions.set_aside_for(row) is None:
            seen = self.preview()
            row = self._set_aside({"plan": self._operator.new_id()[:12], "from": seen.start, "asked": seen.asked})
        why = transitions.set_aside_for(row)
        self._file.fence_redrives()
        self._sweep(row)
        plans = self._plans(row)
        missing = [key for root, plan in plans.items() for key in self._moved(self._roots[root], plan)]
        any_plan = next(iter(plans.values()))
        start, number = any_plan.start, any_plan.generation
        if self._generations.current()[0] < number:
            self._generations.switch(number)
        self._finish(plans)
        self._begin_again(why, {"offset": start}, number)
        moves = tuple((root, key) for root, plan in plans.items() for key in plan.files)
        return Replaced(start, row.progress.position["offset"], why["asked"], number, moves, tuple(missing))

    # --- before ------------------------------------------------------------------------------------------------

    def _check_parsing(self) -> None:
        number, digest = self._generations.current()
        if digest != self._file.digest:
            raise Refused(
                f"generation {number} is current and has another parsing than this file; nodes that run it would write "
                "the old files once more. Roll this file's parsing out first, see `holdfast generation`"
            )

    def _start(self, row: Lease, wanted: int) -> int:
        """Where a commit begins, at or before the offset, with no redriven file across it. Raises `UsageError`."""
        redriven = [file for bucket in self._roots.values() for file in self._redriven(bucket).files()]
        start = self._rounded(row, wanted)
        while (lower := lowest_straddling(redriven, start)) is not None:
            start = self._rounded(row, lower)
        self._file.first_offset(str(start))
        return start

    def _files(self, bucket: Bucket, start: int) -> tuple[str, ...]:
        """Keys of everything that holds records of the range: of the commits, and of redrives of their letters."""
        live = files_from(self._chain(bucket, start), start)
        return tuple(sorted({*live, *redriven_from(self._redriven(bucket).files(), start)}))

    def _redriven(self, bucket: Bucket) -> Redriven:
        return Redriven(bucket, self._asked.key, self._asked.name)

    def _rounded(self, row: Lease, wanted: int) -> int:
        chain = self._chain(next(iter(self._roots.values())), wanted)
        pending = next(iter((row.commit.receipts or {}).values()), None)
        if pending is not None and wanted >= pending["from"]["offset"]:
            return int(pending["from"]["offset"])
        return commit_start(chain, wanted)

    def _chain(self, bucket: Bucket, offset: int) -> list[Manifest]:
        keys = reversed(list(bucket.keys(f"{OURS}/commits/{folder(self._asked.name)}/")))
        chain = standing((decode_manifest(bucket.read(key) or b"") for key in keys), offset)
        if any(before.end != after.start for before, after in pairwise(chain)):
            raise Refused(f"the manifests of {self._asked.key} do not follow one another; see what `verify` says")
        return chain

    # --- steps -------------------------------------------------------------------------------------------------

    def _set_aside(self, why: dict[str, object]) -> Lease:
        """Its owner learns of it with its next write. Waits until what was committed is published."""
        give_up_at = self._clock.monotonic() + PATIENCE
        reason = f"plan {why['plan']} replaces what was written from offset {why['from']} on"
        while True:
            try:
                return self._operator.change(
                    self._asked.key, lambda row, now: transitions.set_aside(row, why, reason, now)
                )
            except TransitionRefused as refused:
                row = self._operator.show(self._asked.key)
                if self._clock.monotonic() > give_up_at or row.status in FINISHED:
                    raise Refused(f"{refused}; nothing was changed") from refused
            self._clock.wait(PAUSE)

    def _sweep(self, row: Lease) -> None:
        """Nothing that was staged before may appear after the files are moved, whoever still tries to publish it."""
        name = self._asked.name
        for bucket in self._roots.values():
            staged = list(bucket.staged_under(staging_folder(name)))
            bucket.discard([handle for place, handle in staged if staged_token(name, place) < row.token])
            self._redriven(bucket).discard_staged()

    def _plans(self, row: Lease) -> dict[str, ReplacingPlan]:
        """The plan of every root, recorded."""
        why = transitions.set_aside_for(row)
        known = {root: bucket.read(plan_key(why["plan"])) for root, bucket in self._roots.items()}
        plans = {root: decode_plan(why["plan"], data) for root, data in known.items() if data is not None}
        if plans:
            first = next(iter(plans.values()))
            start, number = first.start, first.generation
            self._file.check_digest(number)
        else:
            self._check_parsing()
            # A redrive may have ended after the preview: only now nothing is added any more.
            start = self._start(row, why["from"])
            number = self._file.coming_generation()
        return {
            root: plans.get(root) or self._recorded(row, bucket, start, number) for root, bucket in self._roots.items()
        }

    def _recorded(self, row: Lease, bucket: Bucket, start: int, generation: int) -> ReplacingPlan:
        why, end = transitions.set_aside_for(row), row.progress.position["offset"]
        partition = (self._operator.pipeline, self._asked.topic, self._asked.partition)
        plan = ReplacingPlan(why["plan"], *partition, start, end, generation, self._files(bucket, start))
        if not bucket.create(plan.key, plan.encode()):
            present = bucket.read(plan.key)
            if present is None or decode_plan(plan.id, present) != plan:
                raise Halt(f"another plan is at {plan.key}")
        return plan

    def _moved(self, bucket: Bucket, plan: ReplacingPlan) -> Iterator[str]:
        """Moves every file; answers those that were nowhere."""
        moves = list(plan.moves)
        there = bucket.together([partial(bucket.move, *move) for move in moves])
        for (old, _), found in zip(moves, there, strict=True):
            if not found:
                self._emit(Notice(f"{old} is named by a manifest and was not there to be moved"))
                yield old

    def _finish(self, plans: Mapping[str, ReplacingPlan]) -> None:
        for root, plan in plans.items():
            self._roots[root].create(plan.done_key, b"{}")

    def _begin_again(self, why: Json, position: dict[str, int], generation: int) -> None:
        try:
            self._operator.change(
                self._asked.key, lambda row, now: transitions.begin_again(row, position, generation, now)
            )
        except TransitionRefused:
            # An answer that was lost, or another call: it has begun again, and a node may have written the row since.
            if transitions.set_aside_for(self._operator.show(self._asked.key)) == why:
                raise


def _roots(settings: Settings, pipeline: str) -> tuple[dict[str, Bucket], dict[str, Sink]]:
    """By root its bucket, and by name each sink as one that publishes."""
    named_sinks = settings.pipelines[pipeline].sinks
    if any(named.use.name != FILES for named in named_sinks):
        raise UsageError(f"pipeline {pipeline!r} has sinks besides `files`; what those have written stays as it is")
    roots = {named.name: named.use.config.root for named in named_sinks}
    buckets = {named.name: bucket_of(named.use.config.root, named.use.config.s3) for named in named_sinks}
    return {roots[name]: buckets[name] for name in roots}, {name: FilesSink(name, buckets[name]) for name in roots}

"""Rewind in place: moves the old files of a range away, and lets the live pipeline write the range again.

The steps, each of which may be repeated; a second call finishes an interrupted one: set the partition aside (its owner
gives it up), end redrives of its dead letters, delete its staged files, record the plan, move the files (also those of
redrives), make the new generation current, let the partition begin again at the earlier offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from holdfast.assemble import Emit, StoredPipeline
from holdfast.buckets.bucket import Bucket
from holdfast.buckets.root import bucket_of
from holdfast.config.digest import digest_of
from holdfast.errors import Halt, Refused, TransitionRefused, UsageError
from holdfast.events import Notice
from holdfast.flow.generations import Generations
from holdfast.flow.manifest import Manifest, decode_manifest, standing
from holdfast.flow.names import OURS, folder, staged_token, staging_folder
from holdfast.flow.sink import Sink
from holdfast.leases import transitions
from holdfast.leases.lease import FINISHED, Json, Lease
from holdfast.leases.operator import Operator
from holdfast.leases.world import Clock, HostClock
from holdfast.runs.next_generation import FILES, check_digest, next_generation
from holdfast.runs.replace_plan import (
    Redriven,
    ReplacementPlan,
    commit_start,
    decode_plan,
    fence_redrives,
    files_from,
    lowest_straddling,
    plan_key,
    redriven_from,
)
from holdfast.runs.rewind import Rewind, first_offset, partition_row
from holdfast.sinks.files import topic_of
from holdfast.sinks.files.sink import FilesSink

PATIENCE = 60.0
"""Seconds to wait until the last commit of a partition is published."""
PAUSE = 0.1


@dataclass(frozen=True)
class Replaced:
    """What was done; after a dry run, what would be done."""

    start: int
    end: int
    requested: int
    generation: int | None
    moves: tuple[tuple[str, str], ...]
    """Root of the sink and old key of each file; a dry run has them too."""
    missing: tuple[str, ...] = ()
    """Files that a manifest names and that did not exist."""


class ReplacedPipeline:
    """The pipeline whose records are replaced: its settings, its rows, and what its source still has."""

    def __init__(self, pipeline: StoredPipeline, request: Rewind, by: str, sinks: Mapping[str, Sink]) -> None:
        self._pipeline = pipeline
        self._request = request
        self._by = by
        self._sinks = sinks

    @property
    def digest(self) -> str:
        return digest_of(self._pipeline.configured)

    def row(self) -> Lease:
        """Return the live row of the partition. Raises `UsageError` if it was never read."""
        return partition_row(self._pipeline, self._request)

    def first_offset(self, to: str) -> int:
        """Return the offset that `to`, an offset or a time, names. Raises `UsageError` if Kafka no longer has it."""
        return first_offset(self._pipeline, replace(self._request, to=to))

    def next_generation(self) -> int:
        """Return a generation of this file's parsing that is not current yet."""
        return next_generation(self._pipeline, self._by)

    def check_digest(self, generation: int) -> None:
        """Raise `Refused` unless this file's parsing is that of the generation."""
        check_digest(self._pipeline, generation)

    def fence_redrives(self) -> None:
        """End redrives of the partition's dead letters, and publish what they have committed."""
        fence_redrives(self._pipeline.runs(), self._pipeline.operator, self._request.key, self._sinks)


def replacement_of(pipeline: StoredPipeline, request: Rewind, emit: Emit, by: str) -> Replacement:
    """Return the replacement in a pipeline. Raises `UsageError` if it has sinks besides `files`."""
    roots, sinks = _roots(pipeline)
    return Replacement(
        request,
        ReplacedPipeline(pipeline, request, by, sinks),
        operator=pipeline.operator(),
        generations=pipeline.generations(),
        roots=roots,
        emit=emit,
    )


class Replacement:
    """Replaces the files that a pipeline has written from one Kafka partition, beginning at an offset."""

    def __init__(
        self,
        request: Rewind,
        pipeline: ReplacedPipeline,
        *,
        operator: Operator,
        generations: Generations,
        roots: Mapping[str, Bucket],
        emit: Emit,
        clock: Clock | None = None,
    ) -> None:
        self._request = request
        self._pipeline = pipeline
        self._operator = operator
        self._generations = generations
        self._roots = roots
        self._emit = emit
        self._clock = clock or HostClock()

    def preview(self) -> Replaced:
        """Return what `carry_out` would do. Changes nothing. Raises `UsageError`, and `Refused` before the roll-out."""
        row = self._pipeline.row()
        wanted, committed = self._pipeline.first_offset(self._request.to), row.progress.position["offset"]
        if wanted >= committed:
            raise UsageError(f"{self._request.key} is committed up to {committed}: there is nothing to replace")
        self._check_parsing()
        start = self._start(row, wanted)
        moves = [(root, key) for root, bucket in self._roots.items() for key in self._files(bucket, start)]
        return Replaced(start, committed, wanted, None, tuple(moves))

    def carry_out(self) -> Replaced:
        """Replace the range, or finish an interrupted call. Blocks until all files are moved. Raises like `preview`."""
        row = self._pipeline.row()
        if transitions.set_aside_for(row) is None:
            seen = self.preview()
            row = self._set_aside({"plan": self._operator.new_id()[:12], "from": seen.start, "asked": seen.requested})
        why = transitions.set_aside_for(row)
        self._pipeline.fence_redrives()
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
        if digest != self._pipeline.digest:
            raise Refused(
                f"generation {number} is current, and its parsing differs from this file's; nodes that run it would "
                "write the old files again. Roll out this file's parsing first, see `holdfast generation`"
            )

    def _start(self, row: Lease, wanted: int) -> int:
        """Return the start of a commit, at or before the offset, that no redriven file spans. Raises `UsageError`."""
        redriven = [file for bucket in self._roots.values() for file in self._redriven(bucket).files()]
        start = self._rounded(row, wanted)
        while (lower := lowest_straddling(redriven, start)) is not None:
            start = self._rounded(row, lower)
        self._pipeline.first_offset(str(start))
        return start

    def _files(self, bucket: Bucket, start: int) -> tuple[str, ...]:
        """Return the keys of all files with records of the range: of commits, and of redrives of their dead letters."""
        live = files_from(self._chain(bucket, start), start)
        return tuple(sorted({*live, *redriven_from(self._redriven(bucket).files(), start)}))

    def _redriven(self, bucket: Bucket) -> Redriven:
        return Redriven(bucket, self._request.key, self._request.name)

    def _rounded(self, row: Lease, wanted: int) -> int:
        chain = self._chain(next(iter(self._roots.values())), wanted)
        pending = next(iter((row.commit.receipts or {}).values()), None)
        if pending is not None and wanted >= pending["from"]["offset"]:
            return int(pending["from"]["offset"])
        return commit_start(chain, wanted)

    def _chain(self, bucket: Bucket, offset: int) -> list[Manifest]:
        keys = reversed(list(bucket.keys(f"{OURS}/commits/{folder(self._request.name)}/")))
        chain = standing((decode_manifest(bucket.read(key) or b"") for key in keys), offset)
        if any(before.end != after.start for before, after in pairwise(chain)):
            raise Refused(f"the manifests of {self._request.key} are not contiguous; run `holdfast verify`")
        return chain

    # --- steps -------------------------------------------------------------------------------------------------

    def _set_aside(self, why: dict[str, object]) -> Lease:
        """Set the partition aside; its owner notices with its next write. Waits until its commit is published."""
        give_up_at = self._clock.monotonic() + PATIENCE
        reason = f"plan {why['plan']} replaces what was written from offset {why['from']} on"
        while True:
            try:
                return self._operator.change(
                    self._request.key, lambda row, now: transitions.set_aside(row, why, reason, now)
                )
            except TransitionRefused as refused:
                row = self._operator.show(self._request.key)
                if self._clock.monotonic() > give_up_at or row.status in FINISHED:
                    raise Refused(f"{refused}; nothing was changed") from refused
            self._clock.wait(PAUSE)

    def _sweep(self, row: Lease) -> None:
        """Delete staged files: none may be published after the old files are moved."""
        name = self._request.name
        for bucket in self._roots.values():
            staged = list(bucket.staged_under(staging_folder(name)))
            bucket.discard([handle for key, handle in staged if staged_token(name, key) < row.token])
            self._redriven(bucket).discard_staged()

    def _plans(self, row: Lease) -> dict[str, ReplacementPlan]:
        """Return the plan of every root, recorded in the root."""
        why = transitions.set_aside_for(row)
        stored = {root: bucket.read(plan_key(why["plan"])) for root, bucket in self._roots.items()}
        plans = {root: decode_plan(why["plan"], data) for root, data in stored.items() if data is not None}
        if plans:
            first = next(iter(plans.values()))
            start, number = first.start, first.generation
            self._pipeline.check_digest(number)
        else:
            self._check_parsing()
            # A redrive may have ended after the preview; from now on none adds files.
            start = self._start(row, why["from"])
            number = self._pipeline.next_generation()
        return {
            root: plans.get(root) or self._recorded(row, bucket, start, number) for root, bucket in self._roots.items()
        }

    def _recorded(self, row: Lease, bucket: Bucket, start: int, generation: int) -> ReplacementPlan:
        why, end = transitions.set_aside_for(row), row.progress.position["offset"]
        partition = (self._operator.pipeline, self._request.topic, self._request.partition)
        plan = ReplacementPlan(why["plan"], *partition, start, end, generation, self._files(bucket, start))
        if not bucket.create(plan.key, plan.encode()):
            present = bucket.read(plan.key)
            if present is None or decode_plan(plan.id, present) != plan:
                raise Halt(f"another plan is at {plan.key}")
        return plan

    def _moved(self, bucket: Bucket, plan: ReplacementPlan) -> Iterator[str]:
        """Move every file, and yield those that did not exist."""
        moves = list(plan.moves)
        results = bucket.run_all([partial(bucket.move, *move) for move in moves])
        for (old, _), found in zip(moves, results, strict=True):
            if not found:
                self._emit(Notice(f"{old} is named by a manifest, but does not exist and was not moved"))
                yield old

    def _finish(self, plans: Mapping[str, ReplacementPlan]) -> None:
        for root, plan in plans.items():
            self._roots[root].create(plan.done_key, b"{}")

    def _begin_again(self, why: Json, position: dict[str, int], generation: int) -> None:
        try:
            self._operator.change(
                self._request.key, lambda row, now: transitions.restart(row, position, generation, now)
            )
        except TransitionRefused:
            # The response was lost, or another call was faster: the partition has begun again.
            if transitions.set_aside_for(self._operator.show(self._request.key)) == why:
                raise


def _roots(pipeline: StoredPipeline) -> tuple[dict[str, Bucket], dict[str, Sink]]:
    """Return the bucket of each root, and each sink by its name."""
    named_sinks = pipeline.configured.sinks
    if any(named.use.name != FILES for named in named_sinks):
        raise UsageError(f"pipeline {pipeline.name!r} has sinks besides `files`, and only files can be replaced")
    roots = {named.name: named.use.config.root for named in named_sinks}
    buckets = {named.name: bucket_of(named.use.config.root, named.use.config.s3) for named in named_sinks}
    sinks: dict[str, Sink] = {
        named.name: FilesSink(named.name, buckets[named.name], letter_topic=topic_of(named.name, named.use.config))
        for named in named_sinks
    }
    return {roots[name]: buckets[name] for name in roots}, sinks

"""Reindex: copies live tables into staged search indexes, and promotes these without losing a change.

copy → catch up until a pass is short → restore settings → compare counts → swap the aliases → catch up once more when
all transactions older than the swap have ended → delete documents whose rows are gone → COMPLETED. In place there is no
swap: the live index is written, and the rest is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.errors import Refused
from holdfast.flow.partition_list import LIMITS, PartitionLimits
from holdfast.flow.run import Run, RunStatus
from holdfast.flow.run_driver import End, Extend, Keep, RunDriver, Wait, ended_status, is_finished
from holdfast.flow.tables import Sizing
from holdfast.leases.lease import Json, Partition
from holdfast.runs.promotion import Promotion
from holdfast.runs.reindex_configuration import ReindexConfiguration, decode_configuration
from holdfast.runs.reindex_state import (
    COPYING,
    LAST_PASS,
    SWAPPED,
    SWAPPING,
    EntityIndex,
    IndexHistory,
    ReindexState,
    decode_state,
    is_copied,
)

CATCH_UP, LAST_CATCH_UP = "catch-up", "last catch-up"
SHORT_PASS = 1000
"""A pass of at most this many rows is short, so that the next step may begin."""
MAX_PASSES = 10
"""Passes before the swap, however long they are: the one after the swap misses nothing."""
GATE_TRIES = 3
SETTLING = 1.0
"""Seconds between two looks at transactions that are open."""


class ReindexDriver(RunDriver):
    """Drives reindex runs of one pipeline."""

    def __init__(
        self,
        promotion: Promotion,
        runs: Callable[[], Iterable[Run]],
        nodes: Callable[[], int] = lambda: 1,
        limits: PartitionLimits = LIMITS,
    ) -> None:
        """`runs` returns all runs of the pipeline, `nodes` the number of nodes that work on the pipeline now."""
        self._promotion = promotion
        self._tables = promotion.tables
        self._runs = runs
        self._nodes = nodes
        self._limits = limits

    def locks(self, configuration: Json) -> Sequence[str]:
        return decode_configuration(configuration).entities

    # --- the beginning -----------------------------------------------------------------------------------------

    def prepare(self, run: Run) -> Json:
        configuration, history = decode_configuration(run.configuration), IndexHistory(self._runs())
        promotion, entities = self._promotion, configuration.entities
        # Looked up before the mark: deletes since the mark are noted then.
        noted = [entity for entity in entities if promotion.has_tombstones(entity)]
        # Before anything is read: whatever is not visible now is found by a catch-up since this mark.
        mark = self._tables.watermark()
        for entity in entities:
            promotion.suspend_left_open(entity, history)
        if configuration.continues is not None:
            return self._writable(run, self._continued(configuration.continues)).encode()
        for entity in entities:
            promotion.remove_abandoned(entity, history)
        if not configuration.recreate_index:
            live = {entity: promotion.in_place(entity) for entity in entities}
            since = configuration.changed_since
            known = history.noted_at(since, entities)
            state = ReindexState(mark, live, deletes_mark=since, deletes_noted=known, noted=noted)
            return self._writable(run, state).encode()
        prefix = configuration.staged_index_prefix
        indexes = {entity: promotion.staged(run.id, entity, prefix) for entity in entities}
        for entity, target in indexes.items():
            promotion.create(entity, target)
        state = ReindexState(mark, indexes, deletes_mark=mark, deletes_noted=noted, noted=noted)
        return self._writable(run, state).encode()

    def _writable(self, run: Run, state: ReindexState) -> ReindexState:
        opened = {entity: self._promotion.open_writes(run, target) for entity, target in state.indexes.items()}
        return replace(state, indexes=opened)

    def resume(self, run: Run) -> None:
        state, is_staged = decode_state(run.state), decode_configuration(run.configuration).recreate_index
        if not is_staged or state.step in {SWAPPED, LAST_PASS}:
            self._promotion.check_live(state.indexes)
        elif is_staged:
            self._promotion.check(state.indexes)
        if not (state.step == LAST_PASS and is_finished(run)):
            self._promotion.reopen_writes(state.indexes)

    def _continued(self, run_id: str) -> ReindexState:
        """The indexes of a run that was not promoted. Raises `Refused` if they are gone."""
        former = next((run for run in self._runs() if run.id == run_id and run.state is not None), None)
        if former is None:
            raise Refused(f"the run {run_id} that was to be promoted is gone; start a new run")
        state = decode_state(former.state)
        self._promotion.check(state.indexes)
        indexes = {
            entity: replace(target, incomplete=target.incomplete or not is_copied(former, entity))
            for entity, target in state.indexes.items()
        }
        # The mark and what was noted at that time belong together.
        return ReindexState(
            state.oldest_mark,
            indexes,
            deletes_mark=state.deletes_mark,
            deletes_noted=state.deletes_noted,
            noted=state.noted,
        )

    def partitions(self, run: Run) -> Iterable[Partition]:
        configuration, state = decode_configuration(run.configuration), decode_state(run.state)
        since = state.mark if configuration.continues is not None else configuration.changed_since
        if since is not None:
            found = self._tables.catch_up_partitions(configuration.entities, since, 0)
        else:
            found = self._tables.copy_partitions(configuration.entities, self.sizing(configuration))
        return _addressed(found, state)

    def sizing(self, configuration: ReindexConfiguration) -> Sizing:
        """How large the partitions of a run that begins now should be."""
        nodes = max(1, self._nodes()) if configuration.use_distributed_indexing else 1
        rates = IndexHistory(self._runs()).rates()
        return Sizing(nodes * configuration.consumer_threads, configuration.partition_size, rates, self._limits)

    # --- what follows ------------------------------------------------------------------------------------------

    def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:
        configuration, state = decode_configuration(run.configuration), decode_state(run.state)
        if state.step == COPYING and not state.passes and not state.rates:
            state = replace(state, rates=self._copy_rates(run, configuration))
        if state.step == LAST_PASS:
            return self._finished(run, state)
        if state.step == SWAPPED:
            return self._last_pass(run, state, keep)
        if not configuration.promote_with_errors and ended_status(run) is not RunStatus.COMPLETED:
            return End(ended_status(run), "partitions have FAILED, so that nothing was promoted")
        if not configuration.recreate_index:
            return self._last_pass(run, self._swapped(state, keep), keep)
        if state.step == COPYING and (found := self._next_pass(state)) is not None:
            return found
        return self._promoted(run, configuration, state, keep)

    def _copy_rates(self, run: Run, configuration: ReindexConfiguration) -> dict[str, float]:
        """By entity, the rows per second of one slot in the copy that has ended now; empty if that is not known."""
        is_copy = configuration.changed_since is None and configuration.continues is None
        nodes = sum(node.completed > 0 for node in run.nodes.values())
        if not is_copy or run.throttle is not None or not nodes or run.started_at is None or run.updated_at is None:
            return {}
        # Both are too low, one after a pause and the other in a short run.
        whole = run.counts.processed / max(1.0, run.updated_at - run.started_at)
        complexity = {name: entity.complexity for name, entity in self._tables.entities().items()}
        rows = sum(group.processed for group in run.groups.values())
        units = sum(group.processed * complexity.get(name, 1.0) for name, group in run.groups.items())
        units_per_second = max(whole, run.rate or 0.0) * units / max(1, rows)
        slots = nodes * configuration.consumer_threads
        return {name: units_per_second / slots / complexity[name] for name in run.groups if name in complexity}

    def _next_pass(self, state: ReindexState) -> Extend | None:
        """Another pass before the swap; None if there is nothing, or only little, to catch up with."""
        if state.passes >= MAX_PASSES or (state.passes and state.rows <= SHORT_PASS):
            return None
        entities = list(state.indexes)
        if state.passes:
            # Entities without versions are read as a whole: one pass before the swap and one after it.
            entities = [name for name in entities if self._is_versioned(name)]
        return self._pass(CATCH_UP, entities, state)

    def _pass(self, phase: str, entities: Sequence[str], state: ReindexState) -> Extend | None:
        mark, number = self._tables.watermark(), state.passes + 1
        versioned = [name for name in entities if self._is_versioned(name)]
        others = [name for name in entities if name not in versioned]
        found = [
            partition
            for names, since in ((versioned, state.mark), (others, state.oldest_mark))
            for partition in (self._tables.catch_up_partitions(names, since, number) if names else ())
        ]
        if not found:
            return None
        rows = sum(partition.estimated_count or 0 for partition in found if partition.group in versioned)
        # What this pass does not read is read since the former mark by the last one.
        kept = mark if others else state.oldest_mark
        later = replace(state, mark=mark, unversioned_mark=kept, passes=number, rows=rows)
        return Extend(phase, _addressed(found, state), later.encode())

    def _is_versioned(self, entity: str) -> bool:
        found = self._tables.entities()[entity]
        return found.has_versions or found.append_only

    def _promoted(
        self, run: Run, configuration: ReindexConfiguration, state: ReindexState, keep: Keep
    ) -> Extend | Wait | End:
        promotion = self._promotion
        if state.step == COPYING:
            promotion.restore(state.indexes)
            for entity, target in state.indexes.items():
                promotion.remove_noted(entity, target, state.deletes_since(entity))
            if shortfall := self._shortfall(state, configuration.min_ratio):
                return self._gate_failed(state, shortfall)
            seen = {entity: promotion.seen(target) for entity, target in state.indexes.items()}
            state = replace(state, step=SWAPPING, indexes=seen)
            keep(state.encode())
        if (reason := promotion.swap(state.indexes)) is not None:
            return End(RunStatus.FAILED, reason)
        return self._last_pass(run, self._swapped(state, keep), keep)

    def _shortfall(self, state: ReindexState, min_ratio: float) -> str | None:
        """Why an index has too few documents; rows are counted as of the latest mark of each entity."""
        found: dict[bool, dict[str, EntityIndex]] = {True: {}, False: {}}
        for entity, target in state.indexes.items():
            found[self._is_versioned(entity)][entity] = target
        marks = {True: state.mark, False: state.oldest_mark}
        reasons = (self._promotion.shortfall(found[each], min_ratio, marks[each]) for each in found if found[each])
        return next(filter(None, reasons), None)

    def _gate_failed(self, state: ReindexState, shortfall: str) -> Extend | End:
        """Catch up once more, in case rows were added in between; the run fails if that does not help."""
        failed = replace(state, gate_failures=state.gate_failures + 1)
        found = None if failed.gate_failures >= GATE_TRIES else self._pass(CATCH_UP, list(state.indexes), failed)
        return found or End(RunStatus.FAILED, f"too few documents, so that nothing was promoted: {shortfall}")

    def _swapped(self, state: ReindexState, keep: Keep) -> ReindexState:
        state = replace(state, step=SWAPPED, swap_mark=self._tables.watermark())
        keep(state.encode())
        return state

    def _last_pass(self, run: Run, state: ReindexState, keep: Keep) -> Extend | Wait | End:
        if not self._tables.settled(state.swap_mark):
            return Wait(SETTLING)
        last = replace(state, step=LAST_PASS)
        found = self._pass(LAST_CATCH_UP, list(state.indexes), last)
        if found is not None:
            return found
        keep(last.encode())
        return self._finished(run, last)

    def _finished(self, run: Run, state: ReindexState) -> End:
        promotion, history = self._promotion, IndexHistory(self._runs())
        # A request that arrives later would bring back a document whose row is gone.
        promotion.close_writes(state.indexes)
        for entity, target in state.indexes.items():
            promotion.reconcile(entity, target, state.deletes_since(entity))
        promotion.finish(state.indexes)
        for entity, target in state.indexes.items():
            if not target.in_place:
                promotion.remove_former(entity, history, target)
        return End(ended_status(run))


def _addressed(partitions: Iterable[Partition], state: ReindexState) -> Iterator[Partition]:
    """The partitions with the index of their rows."""
    for partition in partitions:
        target = state.indexes[partition.group]
        yield replace(partition, spec={**partition.spec, "index": target.writes or target.index})

"""The finalizer: declares places final, run by one node at a time under the `$finalizer` lease of a sink.

Nothing waits for it: it runs beside the loop, and what it cannot do now it does at a later look.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import Interrupted, Refused
from holdfast.events import FinalizingFailed
from holdfast.flow.finalizing import Finalizing
from holdfast.flow.finallook import FinalLook, make_known
from holdfast.flow.sink import Finalizes, Sink
from holdfast.flow.source import Source
from holdfast.leases.coordinator import ClaimPolicy, Coordinator
from holdfast.leases.lease import Key, Lease, Partition, new_lease
from holdfast.leases.transitions import RetryLimits
from holdfast.leases.writes import add_surely, until_answered

FINALIZER = "$finalizer"
NEVER_GIVE_UP = RetryLimits(max_retries=1 << 31, max_takeovers=1 << 31)


class Finalizer:
    """Places of one sink of one pipeline. Every node has one; `turn` is called by the loop, `run` by its own thread."""

    def __init__(self, partitions: Coordinator, source: Source, sink: str, output: Finalizing) -> None:
        self._partitions = partitions
        self._world = partitions.world
        self._source = source
        self._output = output
        self._key = finalizer_of(partitions.pipeline, sink)
        policy = ClaimPolicy(ownership_timeout=output.patience, limits=NEVER_GIVE_UP)
        self._lock = Coordinator(
            partitions.store, partitions.world, partitions.session, self._key.pipeline, policy=policy
        )
        self._running = False
        self._next_turn = 0.0

    def turn(self) -> None:
        """Start a look if one is due. Does not block."""
        now = self._world.clock.monotonic()
        if self._running or now < self._next_turn:
            return
        self._running = True
        self._next_turn = now + self._world.jittered(self._output.interval)
        self._world.spawn(self._run_beside)

    def _run_beside(self) -> None:
        try:
            self.run()
        except Interrupted:
            return
        except Exception as error:  # noqa: BLE001 - hooks are foreign code, and the next look tries again
            self._world.emit(FinalizingFailed(self._partitions.pipeline, "", "", 1, str(error) or repr(error)))
        finally:
            self._running = False

    def run(self) -> bool:
        """Look once if it is due and no other node does; learn in any case what is final. True if this node looked.

        Blocks while the store does not answer and while hooks run.
        """
        row = self._row()
        if row is None:
            self._add_row()
        self._lock.sweep()
        # A claim whose answer was lost has left the lease with this node, and only this node can tell.
        for lease in self._lock.claim(1) or self._lock.owned():
            if FinalLook(self._lock, self._partitions.pipeline, self._source, self._output, lease).go():
                self._next_turn = 0.0
            return True
        if row is not None:
            make_known(self._output, row.progress.state)
        return False

    def _row(self) -> Lease | None:
        (row,) = until_answered(self._world, "store", lambda: self._lock.store.get([self._key]))
        return row

    def _add_row(self) -> None:
        lock = self._lock
        row = new_lease(lock.pipeline, Partition(FINALIZER), lock.world.new_id(), now=lock.now())
        add_surely(lock.store, lock.world, lambda: [row])


def finalizer_of(pipeline: str, sink: str) -> Key:
    """Where the lease of a sink's finalizer is kept: beside the pipeline's partitions, never among them."""
    return Key(f"{pipeline}/{FINALIZER}/{sink}", "", FINALIZER)


def finalizers(coordinator: Coordinator, source: Source, sinks: Mapping[str, Sink]) -> list[Finalizer]:
    """One for each sink that has places to finalize; none for a run, whose output is another. Raises `Refused`."""
    if coordinator.run:
        return []
    able = {name: sink.finalizing() for name, sink in sinks.items() if isinstance(sink, Finalizes)}
    wanted = {name: output for name, output in able.items() if output is not None}
    if wanted and not source.lives_long:
        raise Refused("finalize needs a source whose partitions go on for ever, such as kafka")
    return [Finalizer(coordinator, source, name, output) for name, output in wanted.items()]

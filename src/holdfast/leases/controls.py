"""Controls: what people ask of pipelines and nodes, kept in the store until they take it back.

A pipeline that is paused is not worked on by any node; a node that is drained works on nothing. Nodes read the controls
once per heartbeat, and hand back what they hold. Both outlive restarts, as the rows name pipelines and nodes, not
sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.errors import AnswerLost
from holdfast.leases.lease import Json, Key, Lease, Ownership, Progress, Status
from holdfast.leases.operator import Operator
from holdfast.leases.query import Query
from holdfast.leases.store import Outcome, Store

PAUSED = "pipeline"
DRAINED = "node"


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls of one fleet. Raises `StoreUnavailable` at once; every call may be repeated."""

    store: Store
    new_id: Callable[[], str]
    fleet: str
    """The pipeline name under which the store keeps the fleet's node rows."""

    def pause(self, pipeline: str, by: str) -> None:
        """Let no node work on the pipeline and its runs. Nodes notice it within a heartbeat."""
        self._write(f"{PAUSED}/{pipeline}", {"by": by})

    def resume(self, pipeline: str) -> None:
        """Let nodes work on the pipeline again."""
        self._write(f"{PAUSED}/{pipeline}", None)

    def drain(self, node: str, by: str) -> None:
        """Let the node of that name work on nothing, now and after a restart."""
        self._write(f"{DRAINED}/{node}", {"by": by})

    def undrain(self, node: str) -> None:
        """Let the node work again."""
        self._write(f"{DRAINED}/{node}", None)

    def permit(self, pipeline: str, node: str) -> bool:
        """Whether that node may work on that pipeline."""
        keys = [self._key(f"{PAUSED}/{pipeline}"), self._key(f"{DRAINED}/{node}")]
        return all(row is None or row.progress.state is None for row in self.store.get(keys))

    def paused(self) -> set[str]:
        """The pipelines that are paused."""
        return self._named(PAUSED)

    def drained(self) -> set[str]:
        """The names of the nodes that are drained."""
        return self._named(DRAINED)

    def _named(self, kind: str) -> set[str]:
        rows = self.store.find(Query(self._pipeline))
        return {
            row.key.removeprefix(f"{kind}/")
            for row in rows
            if row.key.startswith(f"{kind}/") and row.progress.state is not None
        }

    def _write(self, name: str, state: Json) -> None:
        never_due = Ownership(Status.UNASSIGNED, due_at=None, write_id=self.new_id())
        if Outcome.UNKNOWN in self.store.add([Lease(self._pipeline, name, ownership=never_due)]):
            raise AnswerLost("the store did not respond, so the control may or may not be set; repeat the command")
        rows = Operator(self.store, self.new_id, self._pipeline)
        rows.change(name, lambda row, _now: replace(row, progress=Progress(state=state)))

    def _key(self, name: str) -> Key:
        return Key(self._pipeline, "", name)

    @property
    def _pipeline(self) -> str:
        return f"{self.fleet}/$controls"

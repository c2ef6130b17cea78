"""What must be true of runs, seen in their rows, their partitions' rows and the lock's as they are written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.leases.lease import FINISHED, Key, Lease, Status
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE, Oracle
from tests.simulation.session_rules import NODES

RUNS = f"{PIPELINE}/$runs"
LOCKS = f"{PIPELINE}/$run"
CONTROLS = f"{NODES}/$controls"
LATE = "late-"
"""Begins the keys of the second phase."""
REFUSED_TO = "refused to "
"""Begins the error of a run that has failed because its driver was refused something; the driver's host follows."""
AFTER = {
    "INITIALIZING": {"READY", "STOPPING", "FAILED"},
    "READY": {"RUNNING", "STOPPING", "FAILED"},
    "RUNNING": {"STOPPING", "COMPLETED", "COMPLETED_WITH_ERRORS", "FAILED"},
    "STOPPING": {"STOPPED", "FAILED"},
}
"""What may become of a run. What is not here has ended."""


class RunsOracle(Oracle):
    """Judges runs. It keeps its own book of who looked when, and shares no code with what it judges."""

    def __init__(self, kernel: Kernel, items: Mapping[str, int], bad: Collection[str]) -> None:
        super().__init__(kernel)
        self.runs: dict[str, Mapping[str, Any]] = {}
        self._drivers: dict[str, str] = {}
        """By run, the host that has begun to drive it last."""
        self._items = items
        self._bad = bad
        self._ran_until: dict[str, float] = {}
        """When a run ceased to be RUNNING; nobody who looks later may take a partition of it."""
        self._looked: dict[tuple[str, str], float] = {}
        self._permit: dict[tuple[str, str], float] = {}
        """When a node looked at a run before it last tried to take a partition of it."""
        self._summed: dict[tuple[str, str], float] = {}
        self._taken: dict[Key, float] = {}
        self._forbidden: dict[str, float] = {}
        """Since when a pipeline is paused or a node drained, by the key of the control."""
        self._reads: dict[str, float] = {}
        self._permitted: dict[str, float] = {}
        """When a node last read the controls before it was permitted to take partitions."""

    @property
    def may_be_undone(self) -> bool:
        return True  # A node may be about to begin another run.

    # --- what nodes tell of themselves ----------------------------------------------------------------------------

    def looks(self, host: Host, run: str) -> None:
        """The node is about to ask whether the run is RUNNING."""
        self._looked[host.name, run] = self.kernel.now

    def takes(self, host: Host, run: str) -> None:
        """The node is about to take partitions, because of what it saw when it last looked. That may land late."""
        self._permit[host.name, run] = self._looked[host.name, run]

    def reads_controls(self, host: Host) -> None:
        """The node is about to read whether it may work."""
        self._reads[host.name] = self.kernel.now

    def is_permitted(self, host: Host, *, permitted: bool) -> None:
        """What the node has read."""
        if permitted:
            self._permitted[host.name] = self._reads[host.name]

    def sums_up(self, host: Host, run: str) -> None:
        """The node is about to sum up the run."""
        self._summed[host.name, run] = self.kernel.now

    def works(self, lease: Lease) -> None:
        """A node begins work under this lease."""

    # --- rows -----------------------------------------------------------------------------------------------------

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        super().row_written(row, sender)
        if row.pipeline == CONTROLS:
            self._control_written(row)
        elif row.pipeline == RUNS:
            self._run_written(row.key, row.progress.state, sender)
        elif row.pipeline == PIPELINE and row.owner is not None and (before is None or before.token != row.token):
            self._partition_taken(row, sender)

    def committed(self, before: Lease, row: Lease) -> None:
        run = row.commit.commit_id.partition("/")[0]
        if run != row.run:
            self.fail(f"{row.key}: work of run {run!r} is committed on a partition of {row.run!r}")

    def _control_written(self, row: Lease) -> None:
        if row.progress.state is None:
            self._forbidden.pop(row.key, None)
        else:
            self._forbidden.setdefault(row.key, self.kernel.now)

    def _partition_taken(self, row: Lease, sender: Host) -> None:
        self._taken[row.id] = self.kernel.now
        node = sender.name.partition(".")[0]
        for control in (f"pipeline/{PIPELINE}", f"node/{node}"):
            if self._permitted.get(sender.name, 0.0) > self._forbidden.get(control, self.kernel.now):
                self.fail(f"{row.key}: {sender.name} took it although {control} was set when it looked")
        if not row.run or self._status(row.run) == "RUNNING":
            return
        ran_until = self._ran_until.get(row.run)
        if ran_until is None:
            self.fail(f"{row.key}: {sender.name} took it before {row.run} was started")
        elif self._permit.get((sender.name, row.run), 0.0) > ran_until:
            self.fail(f"{row.key}: {sender.name} took it although {row.run} had ceased to run when it looked")

    def _run_written(self, run: str, state: Mapping[str, Any], sender: Host) -> None:
        before, now = self._status(run), str(state["status"])
        resumed = (before, now) == ("STOPPED", "READY")
        if before is not None and now != before and now not in AFTER.get(before, ()) and not resumed:
            self.fail(f"{run}: was {before} and became {now}")
        if before is not None:
            self._require_fenced(run, self.runs[run], state)
            self._require_failed_by_its_driver(run, self.runs[run], state, sender)
        self.runs[run] = state
        if before == now:
            return
        if now == "RUNNING":
            self._require_alone(run)
        elif before == "RUNNING":
            self._ran_until[run] = self.kernel.now
        if now == "STOPPED":
            self._require_let_go(run, sender)
        elif now.startswith("COMPLETED"):
            self._require_complete(run, now)

    def _require_fenced(self, run: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        token, former = now.get("driver_token", 0), before.get("driver_token", 0)
        if token < former:
            self.fail(f"{run}: a driver with token {token} wrote after one with {former}")
        if now.get("phase", "") != before.get("phase", "") and now["status"] not in ("RUNNING", "STOPPING"):
            self.fail(f"{run}: a phase began while it was {now['status']}")

    def _require_failed_by_its_driver(
        self, run: str, before: Mapping[str, Any], now: Mapping[str, Any], sender: Host
    ) -> None:
        if any(now.get(key) != before.get(key) for key in ("driver_token", "locked")):
            self._drivers[run] = sender.name
        error = str(now.get("error"))
        if now["status"] != before["status"] and error.startswith(REFUSED_TO):
            former = error.removeprefix(REFUSED_TO)
            if former != self._drivers[run]:
                self.fail(f"{run}: {former} has failed it, and {self._drivers[run]} drives it")

    def _require_alone(self, run: str) -> None:
        """No two runs with a lock in common have begun and not ended, and a run that begins has all of its locks."""
        mine = self._locks(run)
        for other in self.going_on():
            begun = self._status(other) == "RUNNING"
            if begun and other != run and mine & self._locks(other):
                self.fail(f"{run} was started while {other} goes on")
        for name in mine:
            lock = self.rows[Key(LOCKS, "", name)]
            if lock.progress.state != {"run": run}:
                self.fail(f"{run} was started while the lock {name} is {lock.progress.state}")

    def _locks(self, run: str) -> set[str]:
        return set(self.runs[run]["configuration"]["locks"]) or {"$run"}

    def _require_let_go(self, run: str, sender: Host) -> None:
        since = self._summed.get((sender.name, run), 0.0)
        held = [row.key for row in self._partitions(run) if row.status is Status.ASSIGNED]
        if any(self._taken[Key(PIPELINE, run, key)] < since for key in held):
            self.fail(f"{run} is STOPPED while {held} are held")

    def _require_complete(self, run: str, status: str) -> None:
        rows = self._partitions(run)
        left = [row.key for row in rows if row.status not in FINISHED]
        expected = {f"{prefix}{key}" for prefix in ("", LATE) for key in self._items}
        if left or {row.key for row in rows} != expected:
            self.fail(f"{run} is {status} while {left} of {[row.key for row in rows]} are left")
        for late in (True, False):
            if len({row.spec["variant"] for row in rows if row.key.startswith(LATE) == late}) != 1:
                self.fail(f"{run} mixes the lists of two drivers: {[(row.key, row.spec) for row in rows]}")
        failed = sum(row.status is Status.FAILED for row in rows)
        if (status == "COMPLETED") != (failed == 0):
            self.fail(f"{run} is {status} with {failed} failed partitions")
        processed = sum(group["processed"] for group in self.runs[run]["groups"].values())
        # A bad key is bad in the first phase only.
        good = sum(number for key, number in self._items.items() if key not in self._bad)
        if processed != good + sum(self._items.values()):
            self.fail(f"{run} has counted {processed} records")

    # --- looking --------------------------------------------------------------------------------------------------

    def live(self, key: str) -> Lease | None:
        return self.rows.get(Key(PIPELINE, "", key))

    def going_on(self) -> list[str]:
        """Runs that have not ended."""
        return [run for run in self.runs if self._status(run) in AFTER]

    def _status(self, run: str) -> str | None:
        return str(self.runs[run]["status"]) if run in self.runs else None

    def _partitions(self, run: str) -> list[Lease]:
        return [row for key, row in self.rows.items() if key.pipeline == PIPELINE and key.run == run]

    def judge_end(self) -> None:
        for key in self._items:
            row = self.live(key)
            if row is None or row.status is not Status.COMPLETED or row.commit.generation != 1:
                self.fail(f"{key}: the live partition rests as {row}")
        for run in self.going_on():
            self.fail(f"{run} rests as {self._status(run)}")

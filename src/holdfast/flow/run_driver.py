"""The driver of a run: decides how the run begins, continues and ends.

A driver is called by the node that holds the run's locks, in a thread of its own, beside the loop that works on the
run's partitions. A run goes through one or more phases: the partitions of a phase are added, nodes work on them, and
when all of them are finished, `advance` says what follows. Phases do not show in the status: a run with several phases
stays RUNNING from the first to the last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.flow.run import Run, RunStatus
from holdfast.leases.lease import Json, Partition

Keep: TypeAlias = Callable[[Json], Run]
"""Stores the state of the run and returns the run.

Raises `LeaseLost` if another node drives the run now, or if the run has ended."""


class Extend(NamedTuple):
    """The run continues with another phase and its partitions; `state` is stored together with the phase."""

    phase: str
    partitions: Iterable[Partition]
    state: Json


class Wait(NamedTuple):
    """Nothing can be decided now; `advance` is called again after that many seconds."""

    seconds: float


class End(NamedTuple):
    """The run ends with this status."""

    status: RunStatus
    error: str | None = None


class RunDriver(ABC):
    """Decides how a run begins, continues and ends. May block.

    Every call may be repeated, by another node too, because a node may die after any of them. After `Unavailable` the
    call is repeated; `UsageError` and `Refused` fail the run; any other error is reported and tried again.
    """

    def locks(self, configuration: Json) -> Sequence[str]:  # noqa: ARG002 - for drivers whose runs name them
        """Names of the locks that a run with this configuration needs; all of them are taken or none.

        Runs that share no lock can run at the same time. A run that names no lock takes the one that all such runs of
        its pipeline share. Connects to nothing.
        """
        return ()

    def prepare(self, run: Run) -> Json:
        """The state of the run, such as a watermark. It is stored before any partition exists."""
        return run.state

    def resume(self, run: Run) -> None:
        """Called before a run whose partitions exist becomes RUNNING, also after it was stopped, for however long."""

    @abstractmethod
    def partitions(self, run: Run) -> Iterable[Partition]:
        """The partitions of the first phase; `run.state` is what `prepare` returned.

        Two calls may return different partitions: the list of one call is stored as a whole before a row is added.
        """

    def advance(self, run: Run, keep: Keep) -> Extend | Wait | End:  # noqa: ARG002 - for drivers with state
        """What follows now that all partitions of the phase are finished. `run.groups` has their sums.

        `keep` stores the state before a step with effects outside of the store.
        """
        return End(ended_status(run))


def ended_status(run: Run) -> RunStatus:
    """The status with which a run ends: FAILED if all partitions are, COMPLETED_WITH_ERRORS if some of them are."""
    groups = run.groups.values()
    failed = sum(group.failed_partitions for group in groups)
    if failed and failed == sum(group.partitions for group in groups):
        return RunStatus.FAILED
    return RunStatus.COMPLETED_WITH_ERRORS if failed else RunStatus.COMPLETED


def is_finished(run: Run) -> bool:
    """Whether all partitions of the run are finished, by their sums."""
    groups = run.groups.values()
    return all(group.completed + group.failed_partitions == group.partitions for group in groups)

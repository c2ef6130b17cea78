"""A world over months: nodes die and are replaced, and the store is away, again and again, while positions stand still.

Some partitions are quiet, one may kill whoever reads it, one may be beyond what its source can plan. What must hold: a
death counts only where a batch was out, never for a node that joined anew or was asked to stop, nor for a partition
whose batch had come back before its node sent another round; a partition is halted only after more such deaths than are
allowed; the one that kills its nodes is, and nobody with it. Its row names the node that died last and the batch that
was out, and no row of a partition without a batch suspects one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Done, Limits, Wait
from holdfast.flow.engine import Report
from holdfast.leases.lease import Key, Lease, Status
from holdfast.leases.transitions import RetryLimits
from tests.simulation.engine import SimulatedEngine, Work
from tests.simulation.files_oracle import FilesOracle
from tests.simulation.fleet import Fleet
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import PIPELINE
from tests.simulation.session_rules import NODES
from tests.simulation.source import Data, SimulatedSource

MAX_TAKEOVERS = 2
STRIKES = 12
FOREIGN = ("crash", "pause", "freeze", "preempt", "clock", "stop", "store_down")
"""Kinds by which sessions end for no fault of a batch's."""


class MonthsOracle(FilesOracle):
    """Keeps its own book of who had a batch out when it was lost."""

    def __init__(self, kernel: Kernel, data: Data, max_retries: int) -> None:
        super().__init__(kernel, data, max_retries)
        self.killer: str | None = None
        self.unplannable: str | None = None
        self.only_the_killer_kills = False
        self._begun: set[tuple[str, int]] = set()
        """Key and token under which a batch was sent."""
        self._deaths: Counter[str] = Counter()
        """Owners that were lost with a batch out since the position moved."""
        self._sent: set[str] = set()
        """Partitions of which a batch was sent since the position moved."""
        self._back: dict[str, set[tuple[str, int]]] = {}
        """By node: key and token of batches that have come back since it sent a round."""
        self._over: set[tuple[str, int]] = set()
        """Key and token of batches that had come back when their node sent another round."""

    def sends(self, node: str, leases: Sequence[Lease]) -> None:
        """A round is sent under these leases."""
        sent = {(lease.key, lease.token) for lease in leases}
        self._begun |= sent
        self._sent |= {lease.key for lease in leases}
        self._over = (self._over | self._back.pop(node, set())) - sent

    def comes_back(self, node: str, lease: Lease) -> None:
        """The node has got the report of a batch under this lease."""
        self._back.setdefault(node, set()).add((lease.key, lease.token))

    def row_written(self, row: Lease, sender: Host) -> None:
        before = self.rows.get(row.id)
        super().row_written(row, sender)
        if row.pipeline != PIPELINE or before is None:
            return
        if row.token == before.token and row.history.begun and not before.history.begun:
            self._begun.add((row.key, row.token))  # its owner may die before the batch is out
            self._sent.add(row.key)
            self._over.discard((row.key, row.token))
        if row.history.last_error not in {None, before.history.last_error}:
            self._require_named(before, row, str(row.history.last_error))
        if row.progress.position != before.progress.position:
            self._deaths[row.key] = 0
            self._sent.discard(row.key)
        elif row.token != before.token and before.status is Status.ASSIGNED:
            self._taken_over(before, row, sender)

    def _require_named(self, before: Lease, row: Lease, error: str) -> None:
        """Who is suspected had a batch, and who has died is named."""
        if "ended while" in error and row.key not in self._sent:
            self.fail(f"{row.key}: never had a batch out and is suspected: {error}")
        if "was out" in error and row.owner is not None and str(before.owner) not in error:
            self.fail(f"{row.key}: {before.owner} has ended, and its row says: {error}")

    def _taken_over(self, before: Lease, row: Lease, sender: Host) -> None:
        begun = (before.key, before.token) in self._begun
        self._deaths[row.key] += begun
        if row.history.takeovers == before.history.takeovers:
            return
        if not begun:
            self.fail(f"{row.key}: {before.owner} is counted as its victim and never had a batch of it out")
        if (before.key, before.token) in self._over:
            self.fail(f"{row.key}: {before.owner} is counted as its victim, and died when its batch was back long ago")
        if str(before.owner).startswith(f"{sender.name}:"):
            self.fail(f"{row.key}: {sender.name} counts itself as dead")
        session = self.rows.get(Key(NODES, "", str(before.owner)))
        if session is not None and session.progress.state["draining"]:
            self.fail(f"{row.key}: {before.owner} was asked to stop and is counted as its victim")

    def judge_halt(self, row: Lease) -> None:
        if "its owner died" not in str(row.history.halt_reason):
            super().judge_halt(row)
        # The first death is counted without knowing, once there is a batch to begin.
        elif self._deaths[row.key] + 1 <= MAX_TAKEOVERS:
            self.fail(f"{row.key}: halted after {self._deaths[row.key]} deaths: {row.history.halt_reason}")
        elif self.only_the_killer_kills and row.key != self.killer:
            self.fail(f"{row.key}: halted for what {self.killer} did")

    def judge_end(self) -> None:
        super().judge_end()
        last = ((self.killer, "its owner died"), (self.killer, "was out"), (self.unplannable, "could not be planned"))
        for key, words in last:
            row = None if key is None else self.live(key)
            if row is not None and (row.status is not Status.FAILED or words not in str(row.history.last_error)):
                self.fail(f"{key}: rests as {row.status}: {row.history.last_error}")

    def _judge_failed(self, row: Lease) -> None:
        if row.key == self.unplannable and row.history.halt_reason is None:
            return
        super()._judge_failed(row)


class MonthsSource(SimulatedSource):
    """Quiet partitions bring nothing while there are faults; one may raise whenever it is planned."""

    quiet: frozenset[str]
    unplannable: str | None

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Cut | Wait | Done | BatchError]:
        if any(lease.key == self.unplannable for lease in leases):
            raise ZeroDivisionError("float division by zero")
        return super().plan(leases, limits)

    def _cut(self, lease: Lease) -> Cut | Wait | Done | BatchError:
        if lease.key in self.quiet and self._host.faults.active:
            return Wait(self._ttl * self._host.kernel.random())
        return super()._cut(lease)


class DeadlyEngine(SimulatedEngine):
    """A batch of the killer ends its node a while after it was sent."""

    oracle: MonthsOracle

    def submit(self, pipeline: str, batches: Sequence[Batch]) -> None:
        self.oracle.sends(self._host.name, [batch.lease for batch in batches])
        super().submit(pipeline, batches)

    def poll(self, timeout: float) -> list[Report]:
        reports = super().poll(timeout)
        for report in reports:
            self.oracle.comes_back(self._host.name, self._works[report.batch_id].batch.lease)
        return reports

    def _execute(self, work: Work) -> None:
        if work.batch.lease.key != self.oracle.killer:
            super()._execute(work)
        elif not work.cancelled and not self._host.dead:
            self._host.crash()


class Months(Fleet):
    """Nodes of one pipeline on which strikes come for longer than anywhere else."""

    oracle: MonthsOracle
    engine_type = DeadlyEngine

    def draw_data(self) -> Data:
        dice, knobs = self.kernel.dice, self.knobs
        self.knobs = replace(knobs, quiet_at=knobs.ttl * self.kernel.between(10.0, 30.0))
        data = replace(super().draw_data(), poison={})
        self.quiet = frozenset(key for key in data.items if dice.random() < 0.4)
        others = [key for key in data.items if key not in self.quiet]
        self.killer = dice.choice(others) if others and dice.random() < 0.5 else None
        rest = [key for key in others if key != self.killer]
        self.unplannable = dice.choice(rest) if rest and dice.random() < 0.3 else None
        return data

    def files_oracle(self) -> FilesOracle:
        oracle = MonthsOracle(self.kernel, self.data, self.knobs.max_retries)
        oracle.killer, oracle.unplannable = self.killer, self.unplannable
        oracle.only_the_killer_kills = not any(self.faults.enables(kind) for kind in FOREIGN)
        return oracle

    @property
    def limits(self) -> RetryLimits:
        return replace(super().limits, max_takeovers=MAX_TAKEOVERS)

    @property
    def shown(self) -> Mapping[str, object]:
        return {"data": self.data, "quiet": self.quiet, "killer": self.killer, "unplannable": self.unplannable}

    def make_source(self, host: Host) -> SimulatedSource:
        source = MonthsSource(self.data, host, self.knobs.ttl, self.knobs.largest_cut)
        source.quiet, source.unplannable = self.quiet, self.unplannable
        return source

    def files_engine(self, name: str, host: Host) -> SimulatedEngine:
        engine = super().files_engine(name, host)
        assert isinstance(engine, DeadlyEngine)
        engine.oracle = self.oracle
        return engine

    def prepare(self) -> None:
        super().prepare()
        for _ in range(STRIKES):
            self.kernel.after(self.knobs.quiet_at * self.kernel.random(), self._strike)

    def _strike(self, _: object) -> None:
        """All nodes die at once, one is asked to stop, or the store is away for longer than a session lasts."""
        ttl, kernel = self.knobs.ttl, self.kernel
        kinds = [kind for kind in ("crash", "store_down", "stop") if self.faults[kind]]
        if not kinds or not self.hosts:
            return
        kind = kinds[kernel.below(len(kinds))]
        self.faults.strike(kind)
        if kind == "store_down":
            self.store.down_until = max(self.store.down_until, kernel.now + ttl * kernel.between(1.0, 2.5))
        elif kind == "stop":
            self.stop(self.hosts[kernel.below(len(self.hosts))])
        else:
            for host in self.hosts:
                host.crash()

"""A world in which runs are promoted while rows change, drivers die, and one wakes up after another has taken over.

Runs are stopped and resumed, or fail and are promoted by another run, while requests of theirs are still under way.
What must come about: the run ends, and index and table agree exactly, whatever arrives later.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

from holdfast.errors import LeaseLost, SinkUnavailable
from holdfast.flow.run import Run, RunStatus
from holdfast.flow.search_index import AliasState
from holdfast.leases.lease import Json
from holdfast.runs.reindex_state import LAST_PASS, SWAPPED, IndexHistory
from tests.simulation.host import Host
from tests.simulation.index_server import IndexServer
from tests.simulation.kernel import Crash
from tests.simulation.oracle import Oracle
from tests.simulation.promotion import Arena, Killed, Violation
from tests.simulation.site import Running, Site

RUNS = 3
GIVEN_UP = "the lock was lost to another run"


class FaultyServer(IndexServer):
    """Requests and answers are lost, and some requests arrive late."""

    site: PromotionSite | None = None

    def swap(self, alias: str, former: AliasState, index: str) -> bool:
        swap = super().swap
        if self.site is not None and self.site.strikes("index_write_late", 0.5):
            self.site.arena.late.append(lambda: swap(alias, former, index))
            raise SinkUnavailable("no response")
        return swap(alias, former, index)


class PromotionSite(Site):
    """Some runs one after the other. Whoever drives one may die, lose answers, or pause until others have ended it."""

    arena: Arena
    adopting: Random
    """Dice of its own for what is done about tombstones, so that other seeds stay as they are."""
    adopts: bool
    """Whether the file gets tombstones at some time, and runs read what changed since the one before."""

    def make_oracle(self) -> Oracle:
        return Oracle(self.kernel)

    def assemble(self, name: str, host: Host) -> Running:
        raise NotImplementedError

    @property
    def work_is_done(self) -> bool:
        return True

    @property
    def unfinished(self) -> object:
        return self.arena.run

    def run(self) -> str | None:
        with suppress(Crash):
            try:
                self._runs_one_after_the_other()
            except Violation as violation:
                self.oracle.fail(str(violation))
        return self.oracle.violation

    def _runs_one_after_the_other(self) -> None:
        dice = self.kernel.dice
        server = FaultyServer()
        live, has_tombstones = dice.random() < 0.5, dice.random() < 0.5
        self.adopting = Random(f"tombstones {dice.getstate()[1][0]}")
        self.adopts = not has_tombstones and self.adopting.random() < 0.5
        self.arena = arena = Arena(dice, server=server, live=live, has_tombstones=has_tombstones)
        arena.written = self._written  # type: ignore[method-assign]
        server.site = self
        server.between = arena.happens
        arena.strike = self._strike
        while len(arena.runs) <= RUNS:
            self._one_run()
            self._new_run()

    def _new_run(self) -> None:
        """A person starts a run, resumes one that was stopped, or promotes one that has failed."""
        arena = self.arena
        arena.writes = arena.begins = True
        ended = [run for run in arena.runs.values() if run.state is not None]
        stopped = [run.id for run in ended if run.status is RunStatus.STOPPED]
        failed = [run.id for run in ended if run.error == GIVEN_UP]
        number = f"r{len(arena.runs) + 1}"
        if stopped and self.kernel.random() < 0.4:
            self.kernel.note(stopped[-1], "is resumed")
            arena.resume_run(stopped[-1])
            # What changes after the swap belongs to the next run, see `Arena.keep`.
            arena.begins = arena.live or arena.run.state["step"] not in {SWAPPED, LAST_PASS}
        elif failed and self.kernel.random() < 0.6:
            self.kernel.note(number, "promotes", failed[-1])
            arena.new_run(number, continues=failed[-1])
        else:
            recreate_index, since = self.kernel.random() < 0.5, self._last_mark()
            arena.new_run(number, recreate_index=recreate_index and since is None, changed_since=since)

    def _last_mark(self) -> Json:
        """The mark since which the next run reads what changed, as `reindex start --changed` finds it; None: all."""
        if not self.adopts or self.adopting.random() < 0.5:
            return None
        if self.adopting.random() < 0.5:
            self._adopt()
        history = IndexHistory(self.arena.runs.values())
        state = None if history.incomplete("users") else history.up_to_date(["users"])
        return None if state is None else state.oldest_mark

    def _adopt(self) -> None:
        """The file gets tombstones. A row that was deleted before has none."""
        arena = self.arena
        if arena.tables.has_tombstones:
            return
        key = f"row{self.adopting.randrange(30)}"
        if arena.begins and not any(key in other.changes for other in arena.tables.open):
            transaction = arena.tables.begin()
            transaction.delete(key)
            arena.commit(transaction)
        arena.tables.has_tombstones = True
        self.kernel.note("file", "has tombstones from now on", key)

    def _one_run(self) -> None:
        arena, gives_up = self.arena, self.kernel.random() < 0.3
        self.kernel.note(arena.run.id, "begins", arena.run.configuration["recreateIndex"])
        while arena.goes_on():
            with suppress(Killed, SinkUnavailable, LeaseLost):
                arena.drive()
            if gives_up and arena.goes_on() and self.kernel.random() < 0.3:
                self._give_up()
                return
        self.kernel.note(arena.run.id, "ended", arena.server.alias("people").indexes)
        self._deliver_late(0.6)
        if arena.run.status is RunStatus.COMPLETED or not self._may_fail(arena.run):
            arena.judge()

    def _may_fail(self, run: Run) -> bool:
        """Whether the run was given up, or was to go on in an index that is gone or not live any more."""
        is_late = any(reason in (run.error or "") for reason in ("start a new run", "was changed by others"))
        return run.status is RunStatus.STOPPED or run.error == GIVEN_UP or is_late

    def _deliver_late(self, share: float) -> None:
        """The server gets some of the requests that nobody waits for; the others arrive later still."""
        arena = self.arena
        now, arena.late = [each for each in arena.late if self.kernel.random() < share], arena.late
        arena.late = [each for each in arena.late if each not in now]
        for request in now:
            self.kernel.note("server", "gets a late request", request())

    def _give_up(self) -> None:
        """A person stops the run, or it fails after its copy. Whatever its drivers have under way may still arrive."""
        run = self.arena.run
        self.arena.stop_writing()
        is_copied = run.groups and run.configuration["recreateIndex"] and (run.state or {}).get("step") == "copying"
        if is_copied and self.kernel.random() < 0.5:
            self.arena.store(replace(run, status=RunStatus.FAILED, error=GIVEN_UP))
        else:
            self.arena.store(replace(run, status=RunStatus.STOPPED))
        self.kernel.note(run.id, "was given up", (run.state or {}).get("step"))

    def _strike(self) -> None:
        self.kernel.events += 1
        self.kernel.now += 0.1
        arena = self.arena
        if arena.late and self.kernel.random() < 0.1:
            self.kernel.note("server", "gets a late request", arena.late.pop(0)())
        if self.adopts and self.adopting.random() < 0.01:
            self._adopt()
        if self.strikes("crash", 0.05):
            raise Killed
        if self.strikes("index_answer_lost", 0.05):
            raise SinkUnavailable("no response")
        if arena.token < MOST_DRIVERS and self.strikes("pause", 0.02):
            if self.kernel.random() < 0.3:
                self._give_up()
                self._new_run()
            self._one_run()

    def _written(self, index: str, key: str, version: int | None, text: str) -> None:
        arena = self.arena
        if self.strikes("index_write_late", 0.1):
            arena.late.append(lambda: arena.server.write(index, key, version, text))

    def strikes(self, kind: str, likely: float) -> bool:
        """Whether a fault of that kind happens now."""
        happens = self.faults.happens(self.kernel.dice, kind, likely)
        if happens:
            self.kernel.note(self.arena.run.id, kind)
        return happens


MOST_DRIVERS = 40
"""Drivers that may pause, so that they do not nest too deeply."""

"""The nemesis: outages, damage and deaths at random times, and the end of all that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tests.simulation.bucket import BucketServer
from tests.simulation.faults import Faults
from tests.simulation.host import Host
from tests.simulation.kernel import Kernel
from tests.simulation.oracle import Oracle
from tests.simulation.scenario import Knobs
from tests.simulation.store_server import StoreServer

T = TypeVar("T")
LATEST_TTLS = 5.0
"""No request is under way for longer."""


class Ground(Protocol):
    """What the nemesis acts on."""

    kernel: Kernel
    faults: Faults
    knobs: Knobs
    store: StoreServer

    @property
    def oracle(self) -> Oracle: ...

    @property
    def buckets(self) -> list[BucketServer]: ...

    @property
    def hosts(self) -> list[Host]: ...

    def start(self, name: str) -> None:
        """Start the node's process, unless one runs."""
        ...

    def stop(self, host: Host) -> None:
        """Ask the process to stop, as a signal would."""
        ...

    @property
    def names(self) -> list[str]: ...

    @property
    def work_is_done(self) -> bool: ...

    def look_after(self) -> None:
        """Called now and then when the faults are over: what people would do so that everything gets done."""
        ...

    @property
    def endless(self) -> bool:
        """Whether nodes go on looking for work when all is done."""
        ...


class Nemesis:
    """Makes trouble until `quiet_at`, then heals everything and sees to it that somebody is there to go on."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._kernel = ground.kernel
        self._faults = ground.faults
        self._ttl = ground.knobs.ttl

    def begin(self) -> None:
        """Schedule the whole campaign."""
        self._often("store_down", 2, self._store_goes_down)
        self._often("bucket_down", 2, self._bucket_goes_down)
        self._often("crash", 2, self._crash)
        self._often("pause", 2, self._pause)
        self._often("freeze", 1, self._freeze)
        self._often("stop", 2, self._stop)
        self._kernel.after(self._ground.knobs.quiet_at, self._heal)

    def restart_later(self, name: str) -> None:
        """A node's process has ended: somebody starts it again, sooner or later."""
        if self._kernel.random() < 0.8:
            self._kernel.after(self._ttl * 3 * self._kernel.random(), self._ground.start, name)

    def _often(self, kind: str, most: int, strike: Callable[[object], None]) -> None:
        strength = self._faults[kind]
        if strength:
            for _ in range(1 + self._kernel.below(most)):
                if self._kernel.random() < 0.3 + strength:
                    self._kernel.after(self._ground.knobs.quiet_at * self._kernel.random(), strike)

    # --- outages --------------------------------------------------------------------------------------------------

    def _store_goes_down(self, _: object) -> None:
        self._faults.strike("store_down")
        self._ground.store.down_until = self._kernel.now + self._ttl * 3 * self._kernel.random()
        self._kernel.note("store", "down", f"until {self._ground.store.down_until:.3f}")

    def _bucket_goes_down(self, _: object) -> None:
        if not self._ground.buckets:
            return
        self._faults.strike("bucket_down")
        bucket = self._one_of(self._ground.buckets)
        bucket.down_until = self._kernel.now + self._ttl * 3 * self._kernel.random()
        self._kernel.note(bucket.sink, "down", f"until {bucket.down_until:.3f}")

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _crash(self, _: object) -> None:
        if hosts := self._ground.hosts:
            self._faults.strike("crash")
            self._one_of(hosts).crash()

    def _pause(self, _: object) -> None:
        if hosts := self._ground.hosts:
            self._faults.strike("pause")
            self._one_of(hosts).pause(self._ttl * 10 * self._kernel.random() ** 3)

    def _freeze(self, _: object) -> None:
        if hosts := self._ground.hosts:
            self._faults.strike("freeze")
            self._one_of(hosts).pause(self._ttl * 10 * self._kernel.random() ** 3, clock_stops=True)

    def _stop(self, _: object) -> None:
        if hosts := self._ground.hosts:
            self._faults.strike("stop")
            self._ground.stop(self._one_of(hosts))

    # --- peace ----------------------------------------------------------------------------------------------------

    def _heal(self, _: object) -> None:
        ground = self._ground
        self._kernel.note("nemesis", "faults are over")
        self._faults.end()
        ground.store.down_until = 0.0
        for bucket in ground.buckets:
            bucket.down_until = 0.0
        for host in ground.hosts:
            host.heal()
        self._watch(None)

    def _watch(self, _: object) -> None:
        """Somebody must be there while work is left; nodes of an endless pipeline are stopped when none is."""
        ground = self._ground
        done = ground.work_is_done
        ground.look_after()
        if done and not self._a_late_write_may_undo_it:
            for host in ground.hosts if ground.endless else []:
                ground.stop(host)
            return
        if not done and not ground.hosts:
            ground.start(self._one_of(ground.names))
        self._kernel.after(4 * self._ttl, self._watch)

    @property
    def _a_late_write_may_undo_it(self) -> bool:
        """A request that is still under way may find its version again, or remove what was found again."""
        ground = self._ground
        return ground.oracle.may_be_undone and self._kernel.now < ground.knobs.quiet_at + LATEST_TTLS * self._ttl

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[self._kernel.below(len(choices))]

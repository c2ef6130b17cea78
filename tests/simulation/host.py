"""One run of a node's process: its clock, its threads, and what may happen to them."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import Interrupted
from holdfast.events import Event
from holdfast.leases.world import World
from tests.simulation.faults import Faults
from tests.simulation.kernel import Crash, Kernel, Life, Process

NEVER = 1 << 60
TELLING = frozenset(
    (
        "BatchCancelled",
        "BatchRebuilt",
        "HeartbeatWithheld",
        "PartitionFailed",
        "PartitionHalted",
        "PartitionHandedOff",
        "PartitionLost",
        "PartitionOrphaned",
        "PartitionReleased",
        "PartitionSplit",
        "SessionEnded",
    )
)
"""Events of the product that are counted like faults: they show that the ways out of trouble were walked."""
HOUR = 3600.0
LOCK_WAIT = 0.001


class Host(Life):
    """A process of the node `name`. It is the node's clock, and makes the world that the product runs in."""

    def __init__(self, kernel: Kernel, faults: Faults, name: str, ttl: float, new_id: Callable[[], str]) -> None:
        super().__init__(kernel)
        self.name = name
        self.faults = faults
        self.processes: list[Process] = []
        self.on_crash: Callable[[], None] = _nothing
        self.on_event: Callable[[Event], None] = _ignored
        self._ttl = ttl
        self._rate = 1.0
        self._offset = HOUR
        self._give_up_at: float | None = None
        self._waiting: list[Process] = []
        self._draw_clock()
        self._fuse = self._new_fuse()
        self._jumpy = 0.06 * (faults["crash"] + faults["pause"] + faults["freeze"])
        self.world = World(self, new_id, kernel.dice, self.spawn, self._emit, lock=lambda: HostLock(self))

    # --- the node's clock -----------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        self._fuse -= 1
        if not self._fuse:
            self._strike()
        return self._offset + self.kernel.now * self._rate

    def wait(self, seconds: float) -> None:
        self.touch()
        if self._give_up_at is not None:
            left = self._give_up_at - self.kernel.now
            if left <= 0:
                raise Interrupted("the time allowed for stopping is over")
            seconds = min(seconds, left)
        process = self.current
        self._waiting.append(process)
        try:
            process.sleep(seconds / self._rate)
        finally:
            self._waiting.remove(process)

    def ask_to_stop(self, within: float) -> None:
        """What a signal handler does: waits end now, and raise once the time is over."""
        self._give_up_at = self.kernel.now + within
        for process in self._waiting:
            process.wake_soon()

    @property
    def asked_to_stop(self) -> bool:
        return self._give_up_at is not None

    # --- its threads ----------------------------------------------------------------------------------------------

    @property
    def current(self) -> Process:
        process = self.kernel.running
        assert process is not None
        return process

    def spawn(self, work: Callable[[], None]) -> Process:
        if self.dead:
            raise Crash
        process = Process(self.kernel, self, work)
        self.processes.append(process)
        return process

    def sleep(self, seconds: float) -> None:
        """The current process waits for something outside; that may be where it dies."""
        if self.dead:
            raise Crash
        self._fuse -= 1
        if not self._fuse:
            self._strike()
        process = self.kernel.running
        assert process is not None
        process.sleep(seconds)

    def touch(self) -> None:
        """A call begins or ends here: a point at which the node may die or be paused. Raises `Crash`."""
        if self.dead:
            raise Crash
        self._fuse -= 1
        if not self._fuse:
            self._strike()

    def risk(self) -> None:
        """As `touch`, at a moment that matters: a write, a publish, a batch that is out. Trouble likes to come here."""
        if self.dead:
            raise Crash
        if self._jumpy and self.kernel.random() < self._jumpy:
            self._strike()

    @property
    def running(self) -> bool:
        return not self.dead and not all(process.ended for process in self.processes)

    # --- what may happen ------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Power off: every thread ends where it stands, and nothing it began is undone. Called by the hub."""
        if not self.dead:
            self.dead = True
            self.kernel.note(self.name, "crash")
            self.on_crash()
            self._reap(None)

    def end(self) -> None:
        """The main thread is through, and the others go with it."""
        self.kernel.note(self.name, "end")
        self.dead = True
        self.kernel.after(0.0, self._reap)

    def pause(self, seconds: float, *, clock_stops: bool = False) -> None:
        """Stop the world for this process; it goes on afterwards as if nothing had been."""
        self.paused_until = max(self.paused_until, self.kernel.now + seconds)
        if clock_stops:
            self._offset -= seconds * self._rate
        self.kernel.note(self.name, "freeze" if clock_stops else "pause", f"{seconds:.3f} s")

    def heal(self) -> None:
        """No more trouble begins here."""
        self._fuse = NEVER
        self._jumpy = 0.0

    def _strike(self) -> None:
        self._fuse = self._new_fuse()
        kernel, faults = self.kernel, self.faults
        kinds = [kind for kind in ("crash", "pause", "freeze", "preempt") if faults[kind]]
        if not kinds or kernel.running is None:
            return
        kind = kinds[kernel.below(len(kinds))]
        faults.strike(kind)
        if kind == "crash":
            self.dead = True
            kernel.note(self.name, "crash")
            self.on_crash()
            kernel.after(0.0, self._reap)
            raise Crash
        if kind == "preempt":
            self.current.sleep(kernel.random() * 0.3 * self._ttl)
            return
        self.pause(self._pause_length(), clock_stops=kind == "freeze")
        self.current.sleep(0.0)

    def _pause_length(self) -> float:
        return self._ttl * 10.0 * self.kernel.random() ** 3

    def _reap(self, _: object) -> None:
        for process in self.processes:
            process.kill()

    def _new_fuse(self) -> int:
        faults = self.faults
        strength = faults["crash"] + faults["pause"] + faults["freeze"] + faults["preempt"]
        return 1 + int(self.kernel.random() * 300 / strength) if strength else NEVER

    def _draw_clock(self) -> None:
        if self.faults["clock"]:
            self.faults.strike("clock")
            self._rate = self.kernel.between(0.9, 1.1)
            self._offset = HOUR + self.kernel.between(-HOUR, HOUR)

    def _emit(self, event: Event) -> None:
        if self.dead:
            return
        self.on_event(event)
        name = type(event).__name__
        if name in TELLING:
            self.faults.strike(name)
        if self.kernel.trace is not None:
            self.kernel.note(self.name, f"· {name}", event)


class HostLock:
    """A lock of the host's threads. Who waits for it gives way, so that it may also be held across a wait."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._host.sleep(LOCK_WAIT)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


def _nothing() -> None:
    return


def _ignored(_event: Event) -> None:
    return

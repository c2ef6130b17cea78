"""The light nodes' processes: started, killed, stopped, woken and replaced. Called by one thread."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.soak.nodes import run_node
from tests.soak.orders import Orders

_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass
class LightNode:
    """One named node: its present process, and when it should be woken or born again."""

    name: str
    orders: Orders
    life: int = 0
    process: BaseProcess | None = None
    act_at: float | None = None
    leaving: bool = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    @property
    def frozen(self) -> bool:
        return self.running and _state(self.pid) == "T"

    @property
    def megabytes(self) -> float:
        return _resident(self.pid) if self.running else 0.0

    @property
    def pid(self) -> int:
        """Of its present process, which may have ended."""
        assert self.process is not None
        assert self.process.pid is not None
        return self.process.pid

    def start(self) -> None:
        self.life += 1
        self.act_at, self.leaving = None, False
        # They share the imported modules with the process that they are forked from, so that a start costs little.
        self.process = _CONTEXT.Process(target=run_node, args=(self.orders, self.name, self.life), daemon=True)
        self.process.start()

    def signal(self, sign: signal.Signals) -> None:
        """Does nothing to a process that has ended."""
        if self.running:
            os.kill(self.pid, sign)

    def leave(self, within: float) -> bool:
        """Stop in order. False if it took longer or ended otherwise."""
        self.leaving = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        assert self.process is not None
        self.process.join(within)
        return self.process.exitcode == 0


class Fleet:
    """All nodes of one store."""

    def __init__(self, orders: Orders, number: int, dice: random.Random) -> None:
        module = "sqlite" if orders.store == "sqlite" else f"{orders.store}.store"
        _CONTEXT.set_forkserver_preload(["tests.soak.nodes", f"holdfast.stores.{module}"])
        self.nodes = [LightNode(f"n{index:02d}", orders) for index in range(number)]
        self.errors: list[str] = []
        self.woken = self.born_again = 0
        self.megabytes = 0.0
        self._dice = dice
        self._timeout = orders.timeout

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def tend(self) -> None:
        """Wake those that have stood still for long enough, and replace the dead after a while."""
        for node in self.nodes:
            if not node.running:
                self._bury(node)
            elif node.frozen:
                self._wake_some_time(node)
            else:
                node.act_at = None

    def calm(self) -> None:
        """Wake and replace all at once: the faults are over."""
        for node in self.nodes:
            if node.act_at is not None or not node.running or node.frozen:
                node.act_at = 0.0
        self.tend()

    def measure(self) -> None:
        self.megabytes = max(self.megabytes, *(node.megabytes for node in self.nodes))

    def stop(self, within: float) -> None:
        """Let all nodes leave; one that does not is killed and reported."""
        for node in self.nodes:
            node.leaving = True
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        give_up_at = time.monotonic() + within
        for node in self.nodes:
            if node.process is not None:
                node.process.join(max(0.0, give_up_at - time.monotonic()))
                self._told_of_end(node)

    def kill(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGKILL)

    def _told_of_end(self, node: LightNode) -> None:
        assert node.process is not None
        if node.process.exitcode != 0:
            self.errors.append(f"{node.name} did not leave in order: exit code {node.process.exitcode}")

    def _bury(self, node: LightNode) -> None:
        assert node.process is not None
        if node.act_at is None:
            if node.process.exitcode != -signal.SIGKILL:
                self.errors.append(f"{node.name} ended by itself, exit code {node.process.exitcode}; see its log")
            node.act_at = time.monotonic() + self._timeout * 1.2 * self._dice.random()
        elif node.act_at <= time.monotonic():
            self.born_again += 1
            node.start()

    def _wake_some_time(self, node: LightNode) -> None:
        if node.act_at is None:
            # Mostly beyond its session's timeout: somebody else has its leases when it wakes up.
            node.act_at = time.monotonic() + self._timeout * (0.3 + 2.2 * self._dice.random())
        elif node.act_at <= time.monotonic():
            self.woken += 1
            node.act_at = None
            node.signal(signal.SIGCONT)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _resident(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

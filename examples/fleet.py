"""What the demonstrations share: nodes as processes of this host, and a screen that shows them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from rich.live import Live
from rich.table import Table

from holdfast import assemble
from holdfast.config.models import Settings
from holdfast.leases.query import Query
from holdfast.leases.session import node_info
from holdfast.leases.store import Store

NODES = ("replica1", "replica2", "replica3")
GIVE_UP_AFTER = 600.0


class Fleet:
    """The node processes. Each writes its log into `root`, and knows its name as DEMO_NODE."""

    def __init__(self, root: Path, config: Path) -> None:
        self.root = root
        self.killed: str | None = None
        self._config = config
        self._redeployed: set[str] = set()
        self._processes = {name: self._started(name) for name in NODES}

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "holdfast", "run", str(self._config), "--node", name]
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "DEMO_NODE": name})

    @property
    def working(self) -> bool:
        return any(process.poll() is None for process in self._processes.values())

    def state(self, name: str) -> str:
        """What is shown of the node."""
        code = self._processes[name].poll()
        if name == self.killed:
            return "[red]killed with kill -9[/]"
        if code is not None:
            return f"finished, exit {code}"
        return "[green]redeployed[/]" if name in self._redeployed else "running"

    def kill(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()
        self.killed = name

    def redeploy(self, name: str) -> None:
        """Stop the node as an orchestrator does, and start its next version."""
        self._processes[name].terminate()
        self._processes[name].wait()
        self._processes[name] = self._started(name)
        self._redeployed.add(name)

    def end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()


class Screen(ABC):
    """Shows the nodes until something is so."""

    def __init__(self, fleet: Fleet, live: Live) -> None:
        self.fleet = fleet
        self._live = live
        self._deadline = time.monotonic() + GIVE_UP_AFTER

    @abstractmethod
    def picture(self, title: str) -> Table: ...

    def wait(self, title: str, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"{title}: nothing happens any more; see {self.fleet.root}/*.log")
            self._live.update(self.picture(title))
            time.sleep(0.25)
        self._live.update(self.picture(title))


def node_names(settings: Settings, store: Store) -> dict[str, str]:
    """The names of the nodes, by session."""
    return {row.key: node_info(row).name for row in store.find(Query(assemble.fleet(settings)))}

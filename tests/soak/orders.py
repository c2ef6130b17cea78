"""The orders of a light node: which store, which load, which faults. The same for all nodes of one soak."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PULL, SHARE = "pull", "share"
"""Two pipelines: many partitions that are soon done and are pulled, and a few that go on and are shared fairly."""
SINK = "files"


@dataclass(frozen=True)
class Load:
    """How much there is to read. It grows with time, so that there is work for as long as there are faults."""

    began: float
    """`time.monotonic()`, which all processes of a host share."""
    seconds: float
    pulled_per_second: float = 1.5
    pulled_items: int = 12
    shared: int = 12
    shared_items_per_second: float = 2.0
    notice: str = ""
    """A file in which somebody may write that the load ends earlier."""

    def end_soon(self) -> None:
        """End the load, a little after now: what a node has seen of it already must not vanish."""
        draft = Path(f"{self.notice}.draft")
        draft.write_text(str(time.monotonic() + 1.0))
        draft.rename(self.notice)

    def is_final(self, now: float) -> bool:
        return now >= self._end()

    def pulled(self, now: float) -> int:
        """How many partitions of `PULL` there are."""
        return 1 + int(self._passed(now) * self.pulled_per_second)

    def shared_items(self, now: float) -> int:
        """How many items each partition of `SHARE` has."""
        return 1 + int(self._passed(now) * self.shared_items_per_second)

    def in_the_end(self) -> dict[str, dict[str, int]]:
        """Items by pipeline and partition, when the load has ended."""
        end = self._end()
        pulled = {pulled_key(number): self.pulled_items for number in range(self.pulled(end))}
        return {PULL: pulled, SHARE: {shared_key(number): self.shared_items(end) for number in range(self.shared)}}

    def _passed(self, now: float) -> float:
        return max(0.0, min(now, self._end()) - self.began)

    def _end(self) -> float:
        latest = self.began + self.seconds
        if not self.notice or not Path(self.notice).exists():
            return latest
        return min(latest, float(Path(self.notice).read_text()))


@dataclass(frozen=True)
class Orders:
    """Everything that a node needs to know; it is pickled into its process."""

    store: str
    """Name of the store's plugin."""
    settings: Mapping[str, Any]
    folder: str
    load: Load
    seed: int
    timeout: float = 3.0
    heartbeat: float = 1.0
    hazard: float = 0.0
    """How likely a node is to kill or stop itself at each of the moments that count."""
    aimed: str = ""
    """A folder in which somebody asks for blows at such a moment; in place of chance."""
    hiccup: float = 0.01
    """How likely a batch is to fail."""
    next_version: bool = False
    broken: str = ""
    """A guard that this node lacks; see `tests.soak.broken`."""


def pulled_key(number: int) -> str:
    return f"p{number:05d}"


def shared_key(number: int) -> str:
    return f"s{number:03d}"

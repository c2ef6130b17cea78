"""Three nodes share the shards of a stream; one is killed, one is redeployed, and the handler itself tells what it saw.

Run by `make demo JOB=function`, from the project's root. Everything it makes is below build/function.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.fleet import NODES, Fleet, Screen, node_names
from holdfast import assemble
from holdfast.config.models import Settings
from holdfast.leases.lease import Status
from holdfast.leases.query import Query
from holdfast.leases.store import Store
from holdfast.sources.stream.frames import NewRecord
from holdfast.sources.stream.stream import Stream, StreamSettings

ROOT = Path("build/function")
CONFIG = Path("examples/function/pipeline.yaml")
PIPELINE = "orders"
KILLED, REDEPLOYED = NODES[0], NODES[1]
SHARDS = 12
PER_SECOND = 20
"""Rounds of one record per shard."""

console = Console()


class Handled(NamedTuple):
    """A call of the handler, as it noted it."""

    at: float
    shard: int
    offset: int
    node: str


class Producer(threading.Thread):
    """Puts records into all shards until it is stopped."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(daemon=True)
        self.put = 0
        """Records in each shard."""
        self._stream = stream
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(1 / PER_SECOND):
            for shard in range(SHARDS):
                self._stream.append(shard, [NewRecord(f"shard-{shard}-record-{self.put}".encode())])
            self.put += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()  # what it has begun is counted


class ShardsScreen(Screen):
    """Shows who has which shard."""

    def __init__(self, fleet: Fleet, producer: Producer, settings: Settings, store: Store, live: Live) -> None:
        super().__init__(fleet, live)
        self._producer, self._settings, self._store = producer, settings, store

    def shards(self) -> dict[str, list[int]]:
        """By node, the shards whose leases it has."""
        names = node_names(self._settings, self._store)
        held: dict[str, list[int]] = defaultdict(list)
        for lease in self._store.find(Query(self._settings.identifier(PIPELINE))):
            if lease.status is Status.ASSIGNED:
                held[names.get(lease.owner or "", "?")].append(int(lease.key.rsplit("|", 1)[1]))
        return {name: sorted(found) for name, found in held.items()}

    def picture(self, title: str) -> Table:
        held, counts = self.shards(), Counter(call.node for call in handled())
        heading = f"{title}: {self._producer.put * SHARDS:,} records put, {counts.total():,} handled"
        table = Table("node", "state", "shards", "handled", title=heading, title_justify="left", min_width=78)
        for name in NODES:
            table.add_row(name, self.fleet.state(name), ranges(held.get(name, [])), f"{counts[name]:,}")
        return table


def ranges(shards: list[int]) -> str:
    """Shards as `0-3, 7`."""
    parts: list[list[int]] = []
    for shard in shards:
        if parts and parts[-1][-1] == shard - 1:
            parts[-1].append(shard)
        else:
            parts.append([shard])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def handled() -> list[Handled]:
    """What all handlers have noted, in the order of time. A line that is being written is left out."""
    found = []
    for file in (ROOT / "handled").glob("*"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                shard, offset, node, at = line.split()
                found.append(Handled(float(at), int(shard), int(offset), node))
    return sorted(found)


def play(screen: ShardsScreen, fleet: Fleet, producer: Producer) -> list[int]:
    """Kill one node and redeploy another while records are put. Returns the shards of the killed one."""
    screen.wait("all nodes start", lambda: {len(found) for found in screen.shards().values()} == {SHARDS // 3})
    producer.start()
    screen.wait("three nodes work", lambda: len(handled()) > 1500)
    lost = screen.shards()[KILLED]
    fleet.kill(KILLED)
    screen.wait(f"{KILLED} is killed", lambda: sum(map(len, _of_living(screen.shards()).values())) == SHARDS)
    fleet.redeploy(REDEPLOYED)
    screen.wait(f"{REDEPLOYED} is redeployed", lambda: len(screen.shards().get(REDEPLOYED, [])) == SHARDS // 2)
    before = len(handled())
    screen.wait("two nodes work", lambda: len(handled()) > before + 500)
    producer.stop()
    screen.wait("the rest is handled", lambda: len({call[1:3] for call in handled()}) == producer.put * SHARDS)
    return lost


def _of_living(shards: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: found for name, found in shards.items() if name != KILLED}


def verdict(put: int, lost: list[int]) -> int:
    """Say what the handler saw: order, gaps, repetitions and the longest pause by shard."""
    calls = handled()
    wrong = 0
    columns = ("shard", "handled by", "records", "gaps", "repeated", "in order", "longest pause")
    table = Table(*columns, title="as the handler saw it")
    for shard in range(SHARDS):
        seen = [call for call in calls if call.shard == shard]
        times = Counter(call.offset for call in seen)
        gaps, repeated = put - len(times), sum(times.values()) - len(times)
        firsts = list(dict.fromkeys(call.offset for call in seen))
        in_order = firsts == sorted(firsts)
        # Only what was in flight when a node was killed may come twice.
        wrong += gaps > 0 or not in_order or (repeated > 0 and shard not in lost)
        nodes = " ".join(dict.fromkeys(call.node for call in seen))
        pause = max((after.at - before.at for before, after in pairwise(seen)), default=0.0)
        figures = (str(len(times)), str(gaps), str(repeated), "yes" if in_order else "[red]no[/]", f"{pause:.1f} s")
        table.add_row(str(shard), nodes, *figures)
    console.print(table)
    console.print(f"{KILLED} was killed while it had shards {ranges(lost)}: only they may have repeated records")
    return 1 if wrong else 0


def main() -> int:
    shutil.rmtree(ROOT, ignore_errors=True)
    producer = Producer(Stream.create(ROOT / "streams", PIPELINE, StreamSettings(SHARDS)))
    speed = PER_SECOND * SHARDS
    console.print(f"{SHARDS} shards, {speed} records per second; three nodes start, each with its own Spark")
    settings = assemble.load_settings(CONFIG)
    store = assemble.open_store(settings)
    fleet = Fleet(ROOT, CONFIG)
    try:
        with Live(console=console, refresh_per_second=4) as live:
            lost = play(ShardsScreen(fleet, producer, settings, store, live), fleet, producer)
    finally:
        fleet.end()
        store.close()
    return verdict(producer.put, lost)


if __name__ == "__main__":
    raise SystemExit(main())
